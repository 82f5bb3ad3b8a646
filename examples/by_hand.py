"""The same wait three times: by hand with `asyncio.Event`, by hand with care, and with a purgatory.
Compares their leaks and their cost.

    python examples/by_hand.py

Needs nothing but the library, and a minute. It opens 100,000 waits without an answer, each under
a key of its own, and counts the keys left after their deadline. It has 100,000 waits for one
job end at once, and measures how long no other task runs. And it times waits that are answered one
by one, alone and beside 1,000 waiting tasks.
"""

# ruff: noqa: D102 - `Jobs` documents the methods

import argparse
import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from purgatory import Purgatory

OTHERS = 1_000


class Jobs(Protocol):
    """The results of jobs, and the tasks that wait for them."""

    async def wait(self, job: int, timeout: float) -> str:
        """The result of `job`; `TimeoutError` if there is none in time."""
        ...

    def finish(self, job: int, result: str) -> None:
        """Brings the result of `job`."""

    @property
    def left(self) -> int:
        """The number of keys in memory, with waiters or without."""
        ...


class EventByHand:
    """The obvious first version. An event stays in the dictionary if its job never ends.

    Removing it at the deadline would be worse: if two tasks wait for one job, the first one at its
    deadline takes the event away from the second, which then never wakes up.
    """

    def __init__(self) -> None:
        self.results: dict[int, str] = {}
        self.events: dict[int, asyncio.Event] = {}

    async def wait(self, job: int, timeout: float) -> str:
        if job not in self.results:
            async with asyncio.timeout(timeout):
                await self.events.setdefault(job, asyncio.Event()).wait()
        return self.results[job]

    def finish(self, job: int, result: str) -> None:
        self.results[job] = result
        if job in self.events:
            self.events.pop(job).set()

    @property
    def left(self) -> int:
        return len(self.events)


class FuturesByHand:
    """The same with the leak mended: a future for each waiter, and the last waiter of a key removes
    the key."""

    def __init__(self) -> None:
        self.results: dict[int, str] = {}
        self.waiting: dict[int, set[asyncio.Future[None]]] = {}

    async def wait(self, job: int, timeout: float) -> str:
        if job not in self.results:
            future = asyncio.get_running_loop().create_future()
            waiting = self.waiting.setdefault(job, set())
            waiting.add(future)
            try:
                async with asyncio.timeout(timeout):
                    await future
            finally:
                waiting.discard(future)
                if not waiting and self.waiting.get(job) is waiting:
                    del self.waiting[job]
        return self.results[job]

    def finish(self, job: int, result: str) -> None:
        self.results[job] = result
        for future in self.waiting.pop(job, ()):
            if not future.done():
                future.set_result(None)

    @property
    def left(self) -> int:
        return len(self.waiting)


class WithPurgatory:
    """The same with a purgatory."""

    def __init__(self) -> None:
        self.results: dict[int, str] = {}
        self.jobs = Purgatory("jobs")

    async def wait(self, job: int, timeout: float) -> str:
        return await self.jobs.wait_for(lambda: self.results.get(job), [job], timeout)

    def finish(self, job: int, result: str) -> None:
        self.results[job] = result
        self.jobs.check_and_complete(job)

    @property
    def left(self) -> int:
        return self.jobs.statistics().keys


async def what_is_left(kind: type[Jobs], waits: int) -> tuple[int, float]:
    """How many keys, and how many bytes for each wait, are left after waits without an answer."""
    tracemalloc.start()
    jobs = kind()

    async def give_up(job: int) -> None:
        with suppress(TimeoutError):
            await jobs.wait(job, 0.01)

    await give_up(0)
    jobs.finish(0, "done")  # objects that are made only once do not belong to a wait
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(1, waits + 1, 1000):
        await asyncio.gather(*map(give_up, range(first, min(first + 1000, waits + 1))))
    await asyncio.sleep(0)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return jobs.left, held / waits


async def longest_pause(kind: type[Jobs], waits: int) -> float:
    """The longest time in which no other task runs when `waits` waits for one job end at once, in
    seconds."""
    jobs = kind()
    waiting = [asyncio.create_task(jobs.wait(0, 60)) for _ in range(waits)]
    await asyncio.sleep(0)
    gc.collect()
    gc.freeze()  # a collection of 100,000 tasks is a pause, too, but not the one to measure
    longest, last = 0.0, time.perf_counter()
    jobs.finish(0, "done")
    while not waiting[-1].done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    await asyncio.gather(*waiting)
    gc.unfreeze()
    return longest


async def seconds_each(kind: type[Jobs], waits: int, beside: int) -> float:
    """The cost of a wait that is answered beside `beside` waiting tasks, in seconds, including the
    switches between tasks."""
    jobs = kind()
    others = [asyncio.create_task(jobs.wait(-1 - number, 60)) for number in range(beside)]

    async def finish() -> None:
        for job in range(waits):
            jobs.finish(job, "done")
            await asyncio.sleep(0)

    async def ask() -> None:
        for job in range(waits):
            await jobs.wait(job, 30)

    began = time.perf_counter()
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    await finish()
    await asking
    passed = time.perf_counter() - began
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return passed / waits


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Leaks and cost of a wait, by hand and with a purgatory."
    )
    parser.add_argument(
        "--waits", type=int, default=100_000, help="how many without an answer (default: 100000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of the timing; the median counts (default: 3)"
    )
    options = parser.parse_args(arguments)
    kinds: list[type[Jobs]] = [EventByHand, FuturesByHand, WithPurgatory]
    left = [asyncio.run(what_is_left(kind, options.waits)) for kind in kinds]
    rounds = range(options.rounds)  # in turns
    pauses = zip(
        *([asyncio.run(longest_pause(kind, options.waits)) for kind in kinds] for _ in rounds),
        strict=True,
    )
    alone = zip(
        *([asyncio.run(seconds_each(kind, 5_000, 0)) for kind in kinds] for _ in rounds),
        strict=True,
    )
    among = zip(
        *([asyncio.run(seconds_each(kind, 5_000, OTHERS)) for kind in kinds] for _ in rounds),
        strict=True,
    )
    together = f"{options.waits:,} end at once"
    print(
        f"{'':15}{f'{options.waits:,} unanswered leave':>33}{together:>25}{'answered alone':>18}{f'among {OTHERS:,}':>15}"
    )
    for kind, (keys, held), *measured in zip(kinds, left, pauses, alone, among, strict=True):
        pause, *costs = map(statistics.median, measured)
        leave, others = (
            f"{keys:,} keys, {held * options.waits / 1e6:.1f} MB",
            f"others pause {pause * 1e3:.1f} ms",
        )
        print(
            f"{kind.__name__:15}{leave:>33}{others:>25}{costs[0] * 1e6:>15.1f} "
            f"µs{costs[1] * 1e6:>12.1f} µs"
        )


if __name__ == "__main__":
    main()
