"""`examples/fastapi_jobs.py`: jobs whose end clients wait for."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

import httpx2
import pytest
from asgi_modules import EXAMPLES, client_of, load
from loops import on_virtual_time


@pytest.fixture
def example() -> ModuleType:
    return load(EXAMPLES / "fastapi_jobs.py")


@asynccontextmanager
async def submitted(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[httpx2.AsyncClient, "asyncio.Future[bytes]"]]:
    """A client that has submitted job 1, and a future in place of that job's thread."""
    done = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(example.asyncio, "to_thread", lambda *_: done)
    async with client_of(example) as client:
        await client.post("/jobs", json={"password": "secret"})
        yield client, done


@on_virtual_time
async def test_finished_job_returns_the_derived_key(example):
    async with client_of(example) as client:
        submitted = await client.post("/jobs", json={"password": "secret", "rounds": 10})
        assert (submitted.status_code, submitted.json()["state"]) == (202, "running")
        answer = await client.get(submitted.headers["location"], headers={"Prefer": "wait=30"})
    assert answer.status_code == 200
    assert answer.json() == {
        "state": "done",
        "result": hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 10).hex(),
    }


@on_virtual_time
async def test_job_end_answers_its_waiting_clients(example, monkeypatch):
    async with submitted(example, monkeypatch) as (client, done):
        waiting = [asyncio.create_task(client.get("/jobs/1?wait=50")) for _ in range(3)]
        while example.ends.pending < 3:
            await asyncio.sleep(0)
        done.set_result(b"\x01")
        answers = await asyncio.gather(*waiting)
    assert [answer.json() for answer in answers] == [{"state": "done", "result": "01"}] * 3
    assert asyncio.get_running_loop().time() < 46


@on_virtual_time
async def test_job_running_at_deadline_gets_202(example, monkeypatch):
    async with submitted(example, monkeypatch) as (client, done):
        answer = await client.get("/jobs/1", headers={"Prefer": "wait=600"})
        assert (answer.status_code, answer.json()) == (202, {"state": "running"})
        assert 56 <= asyncio.get_running_loop().time() <= 60
        assert answer.headers["preference-applied"].startswith("wait=")
        done.set_exception(OSError("no threads left"))
        answer = await client.get("/jobs/1")
    assert answer.json() == {"state": "failed", "reason": "OSError('no threads left')"}


@on_virtual_time
async def test_unknown_and_expired_jobs_are_404(example, monkeypatch):
    async with submitted(example, monkeypatch) as (client, done):

        async def statuses(*paths: str) -> list[int]:
            return [(await client.get(f"/jobs/{path}")).status_code for path in paths]

        assert await statuses("2", "1?wait=soon") == [404, 400]
        done.set_result(b"")
        assert await statuses("1") == [200]
        await asyncio.sleep(599)
        assert await statuses("1") == [200]
        await asyncio.sleep(3)
        assert await statuses("1", "1?wait=soon") == [404, 404]
        assert (await client.post("/jobs", json={"password": "x", "rounds": 0})).status_code == 422


@on_virtual_time
async def test_the_page_and_the_metrics_show_who_waits(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with submitted(example, monkeypatch) as (client, done):
        waiting = asyncio.create_task(client.get("/jobs/1?wait=20"))
        await asyncio.sleep(1)
        here = {"Host": "localhost"}
        state = (await client.get("/purgatory/state", headers=here)).json()
        [ends] = state["purgatories"]
        assert (ends["name"], ends["oldest"][0]["keys"]) == ("ends of jobs", ["1"])
        assert state["polls"]["open"] == 1
        assert "<!doctype html>" in (await client.get("/purgatory/", headers=here)).text
        assert (await client.get("/purgatory/")).status_code == 403  # for http://jobs
        metrics = (await client.get("/metrics/")).text
        assert 'purgatory_pending_operations{purgatory="ends of jobs"} 1.0' in metrics
        assert "purgatory_open_polls 1.0" in metrics
        done.set_result(b"key")
        await waiting
