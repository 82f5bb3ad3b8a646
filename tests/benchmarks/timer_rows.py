"""The rows of ``micro`` about timers: `WheelTimer`, `IdleTracker`, `timeout` and `wait_for`, against the
event loop's own timers and asyncio's functions."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

from benchmarks.harness import BATCH, Contender, Measured, Setting, Unmeasurable, compare, own_copy
from purgatory import IdleTracker, WheelTimer, timeout, wait_for

TIMEOUT = 30.0
SAME_DELAYS = [TIMEOUT] * BATCH
FAR_TIMEOUT = 300.0
"""A timeout, in seconds, longer than any row takes."""

# The pending timers are due before and after the timeout, because the cost of a new timer in a heap
# depends on its place among the others: the soonest costs most, the latest least. They are started
# in the order in which they are due, as in a server whose timeouts are all the same. None of them
# may fall due before its row is measured.
SOONEST, LATEST = 20.0, 50.0

CallLater = Callable[[float, Callable[[], None]], Any]
"""Starts a timer, which can be cancelled."""


async def start_and_cancel_among(
    pending: int, spread: float, setting: Setting, delay: float = TIMEOUT
) -> Measured:
    """`call_later` + `cancel`, the wheel's against the loop's own, with equally many timers
    pending, due at the same times. The delays are `delay` and up to `spread` more."""
    delays = [delay + spread * number / BATCH for number in range(BATCH)]
    setting.random.shuffle(delays)
    sides = WheelTimer().call_later, asyncio.get_running_loop().call_later
    with not_yet_due(pending):
        for call_later in sides:
            start_pending(call_later, pending, setting)
        ours, theirs = (starting_and_cancelling(each, delays) for each in sides)
        return await compare(ours, theirs, setting.rounds())


async def replace_at_random_among(pending: int, setting: Setting) -> Measured:
    """Each step cancels a random live timer, and starts another in its place; both sides take the
    same steps."""
    seed = setting.random.random()
    with not_yet_due(pending):
        ours, theirs = (
            replacing(call_later, start_pending(call_later, pending, setting), random.Random(seed))
            for call_later in (WheelTimer().call_later, asyncio.get_running_loop().call_later)
        )
        return await compare(ours, theirs, setting.rounds())


def starting_and_cancelling(
    call_later: CallLater, delays: Sequence[float] = SAME_DELAYS
) -> Contender:
    """The contender whose batch is `call_later` + `cancel` for each delay."""
    return repeat(partial(own_copy(_start_and_cancel), call_later, delays))


async def _start_and_cancel(call_later: CallLater, delays: Sequence[float]) -> None:
    for delay in delays:
        call_later(delay, nothing).cancel()


def replacing(call_later: CallLater, live: list[Any], rng: random.Random) -> Contender:
    """The contender whose batch replaces `BATCH` random live timers."""
    batch = own_copy(_replace)
    while True:
        yield partial(batch, call_later, live, rng.choices(range(len(live)), k=BATCH))


async def _replace(call_later: CallLater, live: list[Any], steps: Iterable[int]) -> None:
    for index in steps:
        live[index].cancel()
        live[index] = call_later(TIMEOUT, nothing)


def nothing(*_: object) -> None:
    """The callback of every timer here. None of them should fire."""


def start_pending(call_later: CallLater, pending: int, setting: Setting) -> list[Any]:
    """Starts timers that only wait."""
    pending = setting.size(pending)
    step = (LATEST - SOONEST) / max(pending, 1)
    return [call_later(SOONEST + step * number, nothing) for number in range(pending)]


@contextmanager
def not_yet_due(pending: int) -> Iterator[None]:
    """Makes sure that the pending timers of a row, if there are any, are still pending when it is
    measured; otherwise their callbacks ran while we measured."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    yield
    if pending and loop.time() >= start + SOONEST:
        raise Unmeasurable("too busy a machine: the pending timers fell due")


async def touch_among(tracked: int, setting: Setting) -> Measured:
    """Activity of a random id: `touch`, against a timer for each id, which is cancelled and created
    again. Both sides look the id up in a dictionary, and both get the same ids."""
    tracked = setting.size(tracked)
    call_later = asyncio.get_running_loop().call_later
    seed = setting.random.random()
    with IdleTracker[int](FAR_TIMEOUT, nothing) as tracker:
        for id_ in range(tracked):
            tracker.touch(id_)
        timers = {id_: call_later(FAR_TIMEOUT, nothing) for id_ in range(tracked)}
        ours, theirs = (
            at_random_ids(partial(batch, side), tracked, random.Random(seed))
            for batch, side in ((_touch, tracker), (_remake_timers, timers))
        )
        measured = await compare(ours, theirs, setting.rounds())
        if len(tracker) < tracked:
            raise Unmeasurable("too busy a machine: ids fell idle")
    return measured


def at_random_ids(batch: Callable[..., Any], ids: int, rng: random.Random) -> Contender:
    while True:
        yield partial(batch, rng.choices(range(ids), k=BATCH))


async def _touch(tracker: IdleTracker[int], ids: Iterable[int]) -> None:
    touch = tracker.touch
    for id_ in ids:
        touch(id_)


async def _remake_timers(timers: dict[int, asyncio.TimerHandle], ids: Iterable[int]) -> None:
    call_later = asyncio.get_running_loop().call_later
    for id_ in ids:
        timers[id_].cancel()
        timers[id_] = call_later(FAR_TIMEOUT, nothing)


async def enter_and_leave(setting: Setting) -> Measured:
    """`async with timeout(30): pass`, one after another in one task and one iteration of the
    loop."""
    ours, theirs = (
        repeat(partial(own_copy(_enter_and_leave), each)) for each in (timeout, asyncio.timeout)
    )
    return await compare(ours, theirs, setting.rounds())


async def _enter_and_leave(timeout: Callable[[float], Any]) -> None:
    for _ in range(BATCH):
        async with timeout(TIMEOUT):
            pass


async def wait_for_an_iteration(setting: Setting) -> Measured:
    """`await wait_for(coroutine, 30)`, one after another in one task. Each coroutine yields to the
    loop once, so each timeout is pending during one iteration, in which it is the only one."""
    ours, theirs = (
        repeat(partial(own_copy(_wait_for_an_iteration), each, own_copy(_yield_once)))
        for each in (wait_for, asyncio.wait_for)
    )
    return await compare(ours, theirs, setting.rounds())


async def _wait_for_an_iteration(
    wait_for: Callable[..., Awaitable[None]], yield_once: Callable[[], Awaitable[None]]
) -> None:
    for _ in range(BATCH):
        await wait_for(yield_once(), TIMEOUT)


async def _yield_once() -> None:
    await asyncio.sleep(0)
