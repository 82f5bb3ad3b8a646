"""The recipe for Celery: a task delivers its result or its error."""

import asyncio

import httpx2
import pytest
from celery.contrib.testing.worker import start_worker


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    monkeypatch.setenv("JOBS_STORE", f"file://{tmp_path}")
    monkeypatch.setenv("JOBS_BROKER", "memory://")
    monkeypatch.setenv("BREWING_SECONDS", "0.1")
    import jobs

    return jobs


def test_task_delivers_its_result_or_its_error(jobs):
    async def main():
        transport = httpx2.ASGITransport(jobs.app)
        async with (
            jobs.lifespan(jobs.app),
            httpx2.AsyncClient(transport=transport, base_url="http://jobs") as client,
        ):
            tea, lava = [
                (await client.post(f"/jobs?drink={drink}")).json()["job"]
                for drink in ("tea", "lava")
            ]
            polling = asyncio.create_task(client.get(f"/jobs/{tea}?wait=60"))
            while not jobs.polls.open:
                await asyncio.sleep(0.01)
            with start_worker(
                jobs.tasks, pool="solo", perform_ping_check=False, shutdown_timeout=60
            ):
                response = await polling
                assert response.json() == {"state": "SUCCESS", "result": "a cup of tea"}
                failed = await client.get(f"/jobs/{lava}?wait=60")
                assert failed.json() == {"state": "FAILURE", "result": "too hot"}
            again = await client.get(f"/jobs/{tea}?wait=60")  # at once
            assert again.json() == response.json()

    asyncio.run(main())
