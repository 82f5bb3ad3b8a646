"""The rows of ``micro`` about waits one at a time: a task sends a request, whose answer the next
iteration of the loop brings, and waits for it. And about the end of many waits at once."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from itertools import repeat
from typing import Any

from benchmarks.harness import (
    BATCH,
    Contender,
    Measured,
    Setting,
    compare,
    in_fresh_process,
)
from benchmarks.purgatory_rows import AnyPurgatory, Fetch, Log, Never
from benchmarks.timer_rows import TIMEOUT
from purgatory import WheelTimer
from purgatory.testing import VirtualTimeLoop

Futures = dict[int, asyncio.Future[int]]
Wait = Callable[[AnyPurgatory], Coroutine[Any, Any, None]]
"""Waits `BATCH` times, one after another."""

MOVED = 100_000
CASCADING = 1.6
"""Seconds: beyond the finest level of the wheel, which holds half a second."""


async def alone(ours: Wait, theirs: Wait, setting: Setting) -> Measured:
    """One way to wait for an answer against another one, in one task."""
    async with AnyPurgatory() as purgatory:
        sides = (repeat(partial(each, purgatory)) for each in (ours, theirs))
        return await compare(*sides, setting.rounds(100))


def answer(futures: Futures, key: int) -> None:
    """What `deliver` does for a dictionary of futures."""
    future = futures.get(key)
    if future is not None and not future.done():
        future.set_result(key)


async def by_timeout(_: AnyPurgatory) -> None:
    """A dictionary of futures, with `asyncio.timeout`."""
    loop, futures = asyncio.get_running_loop(), Futures()
    for key in range(BATCH):
        loop.call_soon(answer, futures, key)
        futures[key] = loop.create_future()
        try:
            async with asyncio.timeout(TIMEOUT):
                await futures[key]
        finally:
            del futures[key]


def expire(future: asyncio.Future[int]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


async def by_call_later(_: AnyPurgatory) -> None:
    """A dictionary of futures, with a timer of the loop."""
    loop, futures = asyncio.get_running_loop(), Futures()
    for key in range(BATCH):
        loop.call_soon(answer, futures, key)
        future = futures[key] = loop.create_future()
        timer = loop.call_later(TIMEOUT, expire, future)
        try:
            await future
        finally:
            timer.cancel()
            del futures[key]


async def by_receive(purgatory: AnyPurgatory) -> None:
    call_soon = asyncio.get_running_loop().call_soon
    for key in range(BATCH):
        call_soon(purgatory.deliver, key, key)
        await purgatory.receive(key, TIMEOUT)


async def by_expect(purgatory: AnyPurgatory) -> None:
    call_soon = asyncio.get_running_loop().call_soon
    for key in range(BATCH):
        with purgatory.expect(key, TIMEOUT) as reply:
            call_soon(purgatory.deliver, key, key)
            await reply


def grow(log: Log, purgatory: AnyPurgatory) -> None:
    log.end += 1
    purgatory.check_and_complete(log.end)


async def by_wait(purgatory: AnyPurgatory) -> None:
    """`wait`: an operation of a subclass, complete by its key."""
    call_soon, log = asyncio.get_running_loop().call_soon, Log()
    for key in range(1, BATCH + 1):
        call_soon(grow, log, purgatory)
        await purgatory.wait(Fetch(log, key, TIMEOUT), (key,))


async def by_await(purgatory: AnyPurgatory) -> None:
    """The same in two steps: watch the operation, then `await` it."""
    call_soon, log = asyncio.get_running_loop().call_soon, Log()
    for key in range(1, BATCH + 1):
        call_soon(grow, log, purgatory)
        fetch = Fetch(log, key, TIMEOUT)
        purgatory.try_complete_else_watch(fetch, (key,))
        await fetch


async def by_wait_for(purgatory: AnyPurgatory) -> None:
    """`wait_for` with a list of two keys."""
    call_soon, log = asyncio.get_running_loop().call_soon, Log()
    for key in range(1, BATCH + 1):
        call_soon(grow, log, purgatory)
        await purgatory.wait_for(lambda key=key: log.end >= key, [key, -key], TIMEOUT)


async def by_future(_: AnyPurgatory) -> None:
    """A future at hand, with `asyncio.timeout`."""
    loop = asyncio.get_running_loop()
    for _key in range(BATCH):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        async with asyncio.timeout(TIMEOUT):
            await future


async def construct(setting: Setting) -> Measured:
    """Construct an operation with an int as its timeout, and with a float."""
    ours, theirs = (repeat(partial(_construct, each)) for each in (int(TIMEOUT), float(TIMEOUT)))
    return await compare(ours, theirs, setting.rounds())


async def _construct(timeout: float) -> None:
    for _ in range(BATCH):
        Never(timeout)


async def close(setting: Setting) -> Measured:
    """`aclose` of a purgatory in which operations wait, each under a key; against
    `cancel_for_key` of as many under one key."""
    ours, theirs = (_ending(each, shared) for each, shared in ((_close, False), (_cancel, True)))
    return await compare(ours, theirs, setting.rounds(50))


def _ending(end: Callable[..., Any], is_shared: bool) -> Contender:
    while True:
        purgatory = AnyPurgatory()
        for key in range(BATCH):
            purgatory.try_complete_else_watch(Never(TIMEOUT), (0 if is_shared else key,))
        yield partial(end, purgatory)
        assert not purgatory.pending


async def _close(purgatory: AnyPurgatory) -> None:
    await purgatory.aclose()


async def _cancel(purgatory: AnyPurgatory) -> None:
    purgatory.cancel_for_key(0)


class Counting(Never):
    """Counts the checks that try it."""

    __slots__ = ()
    tried = 0

    def try_complete(self) -> bool:
        Counting.tried += 1
        return False


async def check_from_thread(setting: Setting) -> Measured:
    """A check that another thread has asked for, of a key with one operation, on the loop's
    thread; against a direct one."""
    async with AnyPurgatory() as purgatory:
        for key in range(BATCH):
            purgatory.try_complete_else_watch(Counting(None), (key,))
        ours, theirs = _asking(purgatory), repeat(partial(_check, purgatory))
        return await compare(ours, theirs, setting.rounds())


def _asking(purgatory: AnyPurgatory) -> Contender:
    def ask() -> None:
        for key in range(BATCH):
            purgatory.check_and_complete_threadsafe(key)

    while True:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        yield partial(_until_tried, Counting.tried + BATCH)


async def _until_tried(count: int) -> None:
    while Counting.tried < count:
        await asyncio.sleep(0)


async def _check(purgatory: AnyPurgatory) -> None:
    for key in range(BATCH):
        purgatory.check_and_complete(key)


async def cascade(setting: Setting) -> Measured:
    """The cost of a timer from its start to its deadline without either: that of its moves to
    finer levels of the wheel."""
    return Measured(in_fresh_process(_cascade, setting.size(MOVED), len(setting.rounds(9))))


def _cascade(timers: int, rounds: int) -> list[float]:
    async def moves() -> float:
        with closing(WheelTimer()) as timer:
            for number in range(timers):
                timer.call_later(CASCADING + number % 400 / 1000.0, int)
            start = time.process_time()
            await asyncio.sleep(CASCADING - 0.01)
            return (time.process_time() - start) / timers * 1e6

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return [runner.run(moves()) for _ in range(rounds)]
