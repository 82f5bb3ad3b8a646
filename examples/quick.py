"""The shortest example: one coroutine waits for the result of a job, another one brings it. Needs nothing but the library."""

import asyncio

from purgatory import Purgatory

jobs = Purgatory("jobs")
results: dict[str, str] = {}


async def work(job: str) -> None:
    await asyncio.sleep(0.2)
    results[job] = "ready"
    jobs.check_and_complete(job)  # those who wait under this key look again


async def main() -> None:
    working = asyncio.create_task(work("tea"))
    print(await jobs.wait_for(lambda: results.get("tea"), ["tea"], timeout=5))  # ready
    await working


asyncio.run(main())
