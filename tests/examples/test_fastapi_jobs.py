"""`examples/fastapi_jobs.py`: jobs whose end clients wait for."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import httpx2
import pytest
from asgi_modules import EXAMPLES, load
from loops import on_virtual_time


@pytest.fixture
def example() -> ModuleType:
    return load(EXAMPLES / "fastapi_jobs.py")


def client_of(example: ModuleType) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(example.app), base_url="http://jobs")


class Work:
    """In place of the thread: a job that ends when the test calls for it."""

    def __init__(self, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def to_thread(*_: Any) -> bytes:
            return await self.done

        monkeypatch.setattr(example.asyncio, "to_thread", to_thread)


@asynccontextmanager
async def submitted(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[httpx2.AsyncClient, Work]]:
    """A client that has submitted job 1, and the work of that job."""
    work = Work(example, monkeypatch)
    async with client_of(example) as client:
        await client.post("/jobs", json={"password": "secret"})
        yield client, work


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
    async with submitted(example, monkeypatch) as (client, work):
        waiting = [asyncio.create_task(client.get("/jobs/1?wait=50")) for _ in range(3)]
        while example.ends.pending < 3:
            await asyncio.sleep(0)
        work.done.set_result(b"\x01")
        answers = await asyncio.gather(*waiting)
    assert [answer.json() for answer in answers] == [{"state": "done", "result": "01"}] * 3
    assert asyncio.get_running_loop().time() < 46


@on_virtual_time
async def test_job_running_at_deadline_gets_202(example, monkeypatch):
    async with submitted(example, monkeypatch) as (client, work):
        answer = await client.get("/jobs/1", headers={"Prefer": "wait=600"})
        assert (answer.status_code, answer.json()) == (202, {"state": "running"})
        assert 56 <= asyncio.get_running_loop().time() <= 60
        assert answer.headers["preference-applied"].startswith("wait=")
        work.done.set_result(b"")


@on_virtual_time
async def test_a_job_that_fails_says_why(example, monkeypatch):
    async with submitted(example, monkeypatch) as (client, work):
        bad = await client.get("/jobs/1?wait=soon")
        reason = "wait must be a number of seconds, zero or more, not 'soon'"
        assert (bad.status_code, bad.text) == (400, reason)
        work.done.set_exception(OSError("no threads left"))
        answer = await client.get("/jobs/1")
    assert answer.json() == {"state": "failed", "reason": "OSError('no threads left')"}


@on_virtual_time
async def test_unknown_and_expired_jobs_are_404(example, monkeypatch):
    work = Work(example, monkeypatch)
    async with client_of(example) as client:
        assert (await client.get("/jobs/1")).status_code == 404
        await client.post("/jobs", json={"password": "secret"})
        work.done.set_result(b"")
        assert (await client.get("/jobs/1")).status_code == 200
        await asyncio.sleep(599)
        assert (await client.get("/jobs/1")).status_code == 200
        await asyncio.sleep(3)
        assert (await client.get("/jobs/1")).status_code == 404
        assert (await client.get("/jobs/1?wait=soon")).status_code == 404
        assert (await client.post("/jobs", json={"password": "x", "rounds": 0})).status_code == 422


def test_openapi_documents_the_wait_and_its_outcomes(example):
    operation = example.app.openapi()["paths"]["/jobs/{number}"]["get"]
    parameters = {parameter["name"]: parameter for parameter in operation["parameters"]}
    assert set(parameters) == {"number", "wait", "prefer"}
    assert (parameters["wait"]["in"], parameters["prefer"]["in"]) == ("query", "header")
    assert parameters["wait"]["schema"]["maximum"] == 60
    assert {"200", "202", "204", "400", "503"} <= set(operation["responses"])


@on_virtual_time
async def test_the_page_and_the_metrics_show_who_waits(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with submitted(example, monkeypatch) as (client, work):
        waiting = asyncio.create_task(client.get("/jobs/1?wait=20"))
        await asyncio.sleep(1)
        here = {"Host": "localhost"}
        state = (await client.get("/purgatory/state", headers=here)).json()
        assert state["purgatories"][0]["name"] == "ends of jobs" and state["purgatories"][0][
            "oldest"
        ][0]["keys"] == ["1"]
        assert state["polls"]["open"] == 1
        assert "<!doctype html>" in (await client.get("/purgatory/", headers=here)).text
        assert (await client.get("/purgatory/")).status_code == 403  # for http://jobs
        metrics = (await client.get("/metrics/")).text
        assert (
            'purgatory_pending_operations{purgatory="ends of jobs"} 1.0' in metrics
            and "purgatory_open_polls 1.0" in metrics
        )
        work.done.set_result(b"key")
        await waiting
