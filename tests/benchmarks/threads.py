"""``python tests/benchmarks threads``: one process with an event loop in each of several threads.

Each loop has a purgatory of its own, and repeats one piece of work; the row `asyncio` is `receive` by the
loop's own means. Without a GIL two threads on two cores that are free do twice the work of one; rates are
by the wall clock, and their medians count.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import purgatory as library
from benchmarks import harness
from benchmarks.harness import LoopName, Row, positive, run_on
from purgatory import COMPILED, DelayedOperation, Purgatory

AT_ONCE = 100
"""Rounds of work between two looks at the clock."""


class Request(DelayedOperation[None]):
    """An operation with a flag as its condition."""

    __slots__ = ("ready",)

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()


async def complete() -> Callable[[], Awaitable[None]]:
    """Watch an operation, make its condition true, complete its key."""
    purgatory = Purgatory()

    async def work() -> None:
        for key in range(AT_ONCE):
            operation = Request(30.0)
            operation.ready = False
            purgatory.try_complete_else_watch(operation, (key,))
            operation.ready = True
            purgatory.check_and_complete(key)
        await asyncio.sleep(0)

    return work


async def receive() -> Callable[[], Awaitable[None]]:
    """Tasks that wait for a reply by id, which is delivered."""
    purgatory = Purgatory()

    async def work() -> None:
        tasks = [asyncio.create_task(purgatory.receive(key, 30.0)) for key in range(AT_ONCE)]
        await asyncio.sleep(0)
        for key in range(AT_ONCE):
            purgatory.deliver(key, key)
        await asyncio.gather(*tasks)

    return work


async def by_future() -> Callable[[], Awaitable[None]]:
    """The same with futures in `asyncio.timeout`."""

    async def wait(future: "asyncio.Future[int]") -> int:
        async with asyncio.timeout(30.0):
            return await future

    async def work() -> None:
        futures = [asyncio.get_running_loop().create_future() for _ in range(AT_ONCE)]
        tasks = [asyncio.create_task(wait(future)) for future in futures]
        await asyncio.sleep(0)
        for key, future in enumerate(futures):
            future.set_result(key)
        await asyncio.gather(*tasks)

    return work


async def limit() -> Callable[[], Awaitable[None]]:
    """``async with timeout(30): pass``."""

    async def work() -> None:
        for _ in range(AT_ONCE):
            async with library.timeout(30.0):
                pass
        await asyncio.sleep(0)

    return work


WORK = {"complete": complete, "receive": receive, "asyncio": by_future, "timeout": limit}


def rounds(name: str, loop: LoopName, threads: int, seconds: float) -> float:
    """Rounds a second, of all threads together."""

    async def repeat() -> int:
        work, count, end = await WORK[name](), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            await work()
            count += AT_ONCE
        return count

    begun = time.monotonic()
    with ThreadPoolExecutor(threads) as executor:
        counts = [executor.submit(run_on, loop, repeat()) for _ in range(threads)]
    return sum(count.result() for count in counts) / (time.monotonic() - begun)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_loop(parser)
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="median of N")
    text = "compared with one (default: the number of cores)"
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help=text)


def run(options: argparse.Namespace) -> int:
    seconds = 0.05 if options.quick else 2.0
    rows: list[Row] = []
    for loop in harness.loops(options):
        for name in WORK:
            pairs = [
                [rounds(name, loop, threads, seconds) for threads in (1, options.threads)]
                for _ in range(options.rounds)
            ]
            one, many = map(median, zip(*pairs, strict=True))
            row: Row = {"work": name, "loop": loop, "1 thread, /s": one}
            row[f"{options.threads} threads, /s"] = many
            row["ratio"] = many / one
            harness.progress(row)
            rows.append(row)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    caption = f"GIL: {has_gil}; compiled: {COMPILED}. Medians of {options.rounds}."
    return harness.report(options, rows, caption)
