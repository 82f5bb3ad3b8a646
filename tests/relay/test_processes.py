"""Several real processes on one store: each receives the writes of the other
processes, also when a process is killed."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loops import Runner
from servers import SERVERS, TIMEOUT, place

from purgatory.relay import Relay

pytestmark = pytest.mark.slow

WORKER = """if True:
    import asyncio, json, sys
    from purgatory.relay import Relay

    async def main():
        async with Relay(sys.argv[1], timeout=60) as relay:
            print("ready", flush=True)
            answers = await asyncio.gather(*(relay.wait(f"key{number}", 0) for number in range(100)))
            numbers = await asyncio.gather(*(relay.bump("common") for _ in range(100)))
            print(json.dumps([answers, numbers]), flush=True)

    asyncio.run(main())
"""


@pytest.fixture(params=["file", SERVERS["redis"], SERVERS["postgresql"], SERVERS["nats"]])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place(request.param, tmp_path) as url:
        yield url


def test_write_completes_waits_everywhere_with_unique_numbers(run: Runner, url: str) -> None:
    async def main() -> None:
        pipe = asyncio.subprocess.PIPE
        words = (sys.executable, "-c", WORKER, url)
        workers = [
            await asyncio.create_subprocess_exec(*words, stdout=pipe, limit=1 << 20)
            for _ in range(4)
        ]
        async with Relay(url, timeout=TIMEOUT) as relay:
            for worker in workers:
                assert worker.stdout is not None
                assert await worker.stdout.readline() == b"ready\n"
            victim = workers.pop()
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
            await asyncio.gather(*(relay.bump(f"key{number}") for number in range(100)))
            lines = [
                json.loads(await worker.stdout.readline())
                for worker in workers
                if worker.stdout is not None
            ]
            assert [answers for answers, _ in lines] == [[1] * 100] * 3
            assert sorted(number for _, numbers in lines for number in numbers) == list(
                range(1, 301)
            )
            assert await relay.version("common") == 300
            for worker in workers:
                assert await worker.wait() == 0

    run(main)
