"""Each public call that waits, or ends or limits a wait, leaves no memory in use, however it ends,
with and without an observer.

The loop runs on virtual time, which advances by 10 ms every eighth cycle, and Python's collector of
reference cycles is off, except for the calls that leave cycles to it (`COLLECTED`).

Each entry of `CALLS` is called once with a `World`, and returns a cycle: a coroutine function of
the cycle's number, which makes the call once, and checks its end. Keys are new in each cycle, so
that leftovers of a key show.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import product
from math import inf
from typing import Any

import pytest
from asgi_requests import WAITS as POLLS
from asgi_requests import Request, Service
from helpers import collector, iterations

import purgatory as library
from purgatory import (
    DelayedOperation,
    Ended,
    IdleTracker,
    OperationCancelled,
    OperationTimeout,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
)
from purgatory.asgi import Ending
from purgatory.testing import VirtualTimeLoop

Cycle = Callable[[int], Coroutine[Any, Any, None]]
CANCELLED, WELL = asyncio.CancelledError, type(None)


class World:
    """The objects of the calls.

    Args:
        is_observed: the purgatories have an observer.

    Attributes:
        ready: numbers of the cycles whose conditions hold.
        error: raised by the hooks of a cycle that is to fail.
    """

    def __init__(self, is_observed: bool = False) -> None:
        observer = Forgetful() if is_observed else None
        self.purgatory: Purgatory[Any] = Purgatory(observer=observer)
        self.thresholds: ThresholdPurgatory[int, int] = ThresholdPurgatory(observer=observer)
        self.timer = WheelTimer()
        self.ready: set[int] = set()
        self.error: Exception | None = None

    def look(self, number: int) -> int | None:
        """A condition."""
        if number not in self.ready:
            return None
        if self.error is not None:
            raise LookupError("as it should")
        return number + 1

    async def look_later(self, number: int) -> int | None:
        await asyncio.sleep(0)
        return self.look(number)

    def finish(self, number: int) -> None:
        """Completes each wait of a cycle."""
        self.ready.add(number)
        self.purgatory.check_and_complete(number)
        self.purgatory.deliver(number, "news")
        self.thresholds.advance(number, 1)

    def end_key(self, number: int) -> None:
        self.purgatory.cancel_for_key(number)
        self.thresholds.fail(number, OperationCancelled())

    def fail_key(self, number: int) -> None:
        self.purgatory.fail(number, ConnectionError())
        self.thresholds.fail(number, ConnectionError())


class Forgetful:
    """An observer that keeps nothing."""

    def operation_started(self, operation: object) -> None: ...

    def operation_ended(self, ended: Ended) -> None: ...

    def key_checked(self, key: object, tried: int, completed: int) -> None: ...


class Flag(DelayedOperation[int]):
    """Is complete when the condition of its cycle holds."""

    def __init__(self, world: World, number: int, timeout: float | None = 30.0) -> None:
        super().__init__(timeout)
        self.world, self.number = world, number

    def try_complete(self) -> bool:
        return self.number in self.world.ready and self.force_complete()

    def on_complete(self) -> int:
        return self.world.look(self.number) or 0


def check(is_so: object) -> None:
    assert is_so, "a call of the soak had a wrong result"


async def end(task: "asyncio.Task[Any]", kind: type) -> None:
    """Waits until `task` has ended, and checks that it ended with an exception of this `kind`.
    Raises no exception, which would create a reference cycle: exception, traceback, frame, task."""
    await asyncio.wait((task,))
    check((CANCELLED if task.cancelled() else type(task.exception())) is kind)


# -- waits, each of which ends in each way


async def limited(world: World, number: int, seconds: float) -> None:
    async with library.timeout(seconds):
        await world.purgatory.wait_for(lambda: world.look(number), [number])


async def expected(world: World, number: int, seconds: float) -> None:
    with world.purgatory.expect(number, seconds) as reply:
        await reply


WAITS: dict[str, Callable[[World, int, float], Coroutine[Any, Any, Any]]] = {
    "wait": lambda world, n, s: world.purgatory.wait(Flag(world, n, s), [n, "all"]),
    "wait_for": lambda world, n, s: world.purgatory.wait_for(lambda: world.look(n), [n, "all"], s),
    "wait_for async": lambda world, n, s: world.purgatory.wait_for(
        lambda: world.look_later(n), [n, "all"], s
    ),
    "receive": lambda world, n, s: world.purgatory.receive(n, s),
    "expect": expected,
    "ThresholdPurgatory.wait": lambda world, n, s: world.thresholds.wait(n, 1, s),
    "timeout": limited,
    "library.wait_for": lambda world, n, s: library.wait_for(
        world.purgatory.wait_for(lambda: world.look(n), [n]), s
    ),
}
ENDS: dict[str, tuple[type, Callable[[World, int, "asyncio.Task[Any]"], object]]] = {
    "completed": (WELL, lambda world, number, _: world.finish(number)),
    "expired": (TimeoutError, lambda *_: None),
    "its task cancelled": (CANCELLED, lambda _, __, task: task.cancel()),
    "its key ended": (OperationCancelled, lambda world, number, _: world.end_key(number)),
    "its key failed": (ConnectionError, lambda world, number, _: world.fail_key(number)),
    "its hook raises": (LookupError, lambda world, number, _: world.finish(number)),
}
UNCONDITIONAL = ("receive", "expect", "ThresholdPurgatory.wait")


def of_wait(wait: str, how: str) -> Callable[[World], Cycle]:
    def make(world: World) -> Cycle:
        begin, (kind, act) = WAITS[wait], ENDS[how]
        world.error = LookupError() if how == "its hook raises" else None
        if how == "expired" and wait not in ("timeout", "library.wait_for"):
            kind = WELL if wait == "wait" else OperationTimeout
        seconds = 0.01 if how == "expired" else 30.0

        async def cycle(number: int) -> None:
            task = asyncio.create_task(begin(world, number, seconds))
            await iterations(3)
            # From the loop: the exception of a hook would refer to the cycle's task.
            asyncio.get_running_loop().call_soon(act, world, number, task)
            await end(task, kind)
            world.ready.clear()
            world.thresholds.forget(number)
            check(world.purgatory.pending == world.thresholds.pending == 0)

        return cycle

    return make


CALLS: dict[str, Callable[[World], Cycle]] = {
    f"{wait}, {how}": of_wait(wait, how)
    for wait, how in product(WAITS, ENDS)
    if how != "its hook raises" or wait not in UNCONDITIONAL
}
OBSERVED = "observed "
CALLS |= {
    f"{OBSERVED}{name}": CALLS[name]
    for name in [*CALLS]
    if name.startswith(("wait,", "receive,", "ThresholdPurgatory"))
}


# -- polls, each of which ends in each way


def of_poll(way: str, ending: Ending) -> Callable[[World], Cycle]:
    def make(world: World) -> Cycle:
        max_open = 1 if ending is Ending.REFUSED else inf
        service = Service(way, max_wait=1e9, max_open=max_open)

        async def cycle(number: int) -> None:
            query = b"wait=0.01" if ending is Ending.DEADLINE else b"wait=1000"
            first = [Request(service.app, query) for _ in range(ending is Ending.REFUSED)]
            await iterations(3)
            request = Request(service.app, query)
            request.body()
            await iterations(3)
            if ending is Ending.GONE:
                request.leave()
            elif ending is Ending.STOPPING:
                service.polls.stop()
            elif ending is not Ending.DEADLINE:
                service.satisfy()
            for each in (request, *first):
                await end(each.task, WELL)
            check(ending in service.endings)
            service.outcomes.clear()
            service.unsatisfy()
            if ending is Ending.STOPPING:
                service.polls.is_stopping = False
            service.check_nothing_is_left()

        return cycle

    return make


CALLS |= {
    f"LongPolls: {way}, {ending.value}": of_poll(way, ending)
    for way, ending in product(POLLS, Ending)
}


# -- other calls


async def methods_for_other_threads(world: World, number: int) -> None:
    operation = Flag(world, number)
    world.purgatory.try_complete_else_watch(operation, [number])
    receiving = asyncio.create_task(world.purgatory.receive(-number - 1, 30.0))
    reaching = asyncio.create_task(world.thresholds.wait(number, 1))
    await iterations(1)
    world.ready = {number}
    await asyncio.to_thread(world.purgatory.check_and_complete_threadsafe, number)
    await asyncio.to_thread(world.purgatory.deliver_threadsafe, -number - 1, "news")
    await asyncio.to_thread(world.thresholds.advance_threadsafe, number, 1)
    for task in (receiving, reaching):
        await end(task, WELL)
    check(await operation and world.thresholds.forget(number))


async def aclose_of_new_purgatories(world: World, number: int) -> None:
    async with Purgatory[Flag](max_pending=8) as purgatory, ThresholdPurgatory() as thresholds:
        waits = (purgatory.wait(Flag(world, number), [number]), thresholds.wait(number, 1, 30.0))
        tasks = [asyncio.create_task(wait) for wait in waits]
        await iterations(1)
    for task in tasks:
        await end(task, OperationCancelled)
    drained = Purgatory[Flag]()
    task = asyncio.create_task(drained.wait(Flag(world, number, 0.01), [number]))
    await iterations(1)
    check(await drained.aclose(drain=1.0) == [])
    await end(task, WELL)
    with IdleTracker[object](0.01, lambda _: None, observer=Forgetful()) as tracker:
        tracker.touch(IdleTracker)
        await asyncio.sleep(0.02)
        check(not len(tracker))
        tracker.touch(object())


async def wheel_timer(world: World, number: int) -> None:
    loop, timer = asyncio.get_running_loop(), world.timer
    fired = loop.create_future()
    timer.call_later(0.002, str)
    timer.call_at(loop.time() + 0.005, fired.set_result, None).reschedule(loop.time() + 0.006)
    for delay in (0.01, 30.0, 1e9, float("inf")):
        task = timer.call_later(delay, str)
        task.reschedule(loop.time() + 2 * delay)
        check(task.cancel() and task.cancelled())
    await fired
    check(not timer.size)


CALLS |= {
    each.__name__: partial(partial, each)
    for each in (methods_for_other_threads, aclose_of_new_purgatories, wheel_timer)
}

COLLECTED = {
    "aclose_of_new_purgatories",
    "expect, its key failed",
    *(name for name in CALLS if name.endswith("its hook raises")),
}
"""Calls that leave reference cycles to the collector: they drop a whole purgatory, whose parts
refer to each other, or an operation with a failed hook, or a reply that has failed, to which the
exception's traceback refers."""

STAGES = 4
CYCLES, CYCLES_COLLECTED = 128, 2048
"""In each stage; what is left to the collector leaves some kB to and fro, however many cycles."""
STEP_CYCLES, STEP_SECONDS = 8, 0.01
MIN_OBJECT_BYTES = 16
"""Bytes of the smallest object: a call that leaves one behind in each cycle leaves at least as many.
Less is the interpreter's own."""


def is_slow(name: str) -> bool:
    """Whether it takes many cycles, or is a poll that waits in another way than the first."""
    is_poll = name.startswith("LongPolls") and "LongPolls: predicate" not in name
    return name in COLLECTED or is_poll


async def soak(name: str, cycles: int) -> tuple[list[int], int]:
    """Bytes by which each stage but the first, the warm-up, grows, and the objects in cycles."""
    grown, cyclic = [], 0
    before, cycle = 0, CALLS[name](World(name.startswith(OBSERVED)))
    for stage in range(STAGES):
        for number in range(stage * cycles, (stage + 1) * cycles):
            await cycle(number)
            if number % STEP_CYCLES == 0:
                await asyncio.sleep(STEP_SECONDS)
        await asyncio.sleep(2 * STEP_SECONDS)
        cyclic = gc.collect() + (cyclic if stage > 1 else 0)
        in_use = tracemalloc.get_traced_memory()[0]
        grown.append(in_use - before)
        before = in_use
    return grown[1:], cyclic


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * is_slow(name)) for name in CALLS]
)
def test_memory_is_flat(name):
    is_collected = name in COLLECTED
    cycles = CYCLES_COLLECTED if is_collected else CYCLES
    tracemalloc.start()
    try:
        with (
            asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
            collector(is_on=is_collected),
        ):
            grown, cyclic = runner.run(soak(name, cycles))
    finally:
        tracemalloc.stop()
    # Leftovers grow in each stage. Buckets that are opened, and tables that are full, grow in one.
    assert min(grown) < cycles * MIN_OBJECT_BYTES
    assert is_collected or not cyclic
