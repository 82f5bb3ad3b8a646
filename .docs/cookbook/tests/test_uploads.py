"""The recipe for server-sent events: a stream sends each step, and resumes."""

import asyncio

import httpx2
import uploads


def events(response):
    return [
        line.removeprefix("data: ")
        for line in response.text.splitlines()
        if line.startswith("data: ")
    ]


def test_stream_sends_each_step_and_resumes(virtual_time_runner):
    async def main():
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(uploads.app), base_url="http://uploads"
        ) as client:
            following = asyncio.create_task(client.get("/uploads/cat.jpg/events"))
            for step in ("received", "stored"):
                await asyncio.sleep(10)
                await client.post(f"/uploads/cat.jpg?step={step}")
            seen = {"Last-Event-ID": uploads.versions.tag(1)}
            resumed = asyncio.create_task(client.get("/uploads/cat.jpg/events", headers=seen))
            await asyncio.sleep(10)
            uploads.polls.stop()
            assert events(await following) == ["received", "stored"]
            assert events(await resumed) == ["stored"]

    virtual_time_runner.run(main())
