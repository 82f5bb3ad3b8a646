"""The shortest example: one coroutine waits for the result of a job that another one does."""

import asyncio

from purgatory import Purgatory

jobs = Purgatory("jobs")
results: dict[str, str] = {}


async def work(job: str) -> None:
    await asyncio.sleep(0.2)
    results[job] = "ready"
    jobs.check_and_complete(job)  # tries the waits under this key again


async def main() -> None:
    working = asyncio.create_task(work("tea"))
    print(await jobs.wait_for(lambda: results.get("tea"), ["tea"], timeout=5))  # ready
    await working


asyncio.run(main())
