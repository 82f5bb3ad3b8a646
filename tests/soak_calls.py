"""The calls that `soak` repeats: each public call that waits, ends a wait or limits a wait, with
each of its possible ends.

Each entry of `CALLS` creates its objects once and returns a cycle: a coroutine function of the
cycle's number, which makes the call once, checks its end and leaves no object behind. Keys are new
in each cycle, so that leftovers of a key show.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgi_requests import Request, lifespan
from helpers import iterations

import purgatory as library
from purgatory import (
    DelayedOperation,
    IdleTracker,
    OperationCancelled,
    OperationTimeout,
    Purgatory,
    PurgatoryFull,
    ThresholdPurgatory,
    WheelTimer,
)
from purgatory.asgi import Ending, LongPolls
from purgatory.journal import Journal

Cycle = Callable[[int], Coroutine[Any, Any, None]]
Make = Callable[[contextlib.AsyncExitStack], Cycle]

CALLS: dict[str, Make] = {}

COLLECTED = {
    "aclose, a new purgatory each time",
    "aclose, drained",
    "ThresholdPurgatory: aclose, a new one each time",
    "IdleTracker: close, a new one each time",
    "operation: a hook raises",
    "wait_for, its predicate raises",
}
"""Calls that leave reference cycles to the collector: they drop a whole purgatory, whose parts
refer to each other, or an operation with a failed hook, to which the exception's traceback
refers."""

BUFFERED = {"Journal, as observer"}
"""Calls with a thread that may run late: a varying, bounded number of rows waits in memory."""

CANCELLED, WELL = asyncio.CancelledError, type(None)


def call(name: str) -> Callable[[Make], Make]:
    """Enters the decorated function into `CALLS`."""

    def enter(make: Make) -> Make:
        CALLS[name] = make
        return make

    return enter


def cycle(
    name: str, kind: Callable[[], Any] = Purgatory
) -> Callable[[Callable[[int, Any], Coroutine[Any, Any, None]]], None]:
    """Enters a cycle into `CALLS`, which gets beside its number one object that `kind` has made for
    all cycles."""

    def enter(function: Callable[[int, Any], Coroutine[Any, Any, None]]) -> None:
        def make(stack: contextlib.AsyncExitStack) -> Cycle:
            made = kind()
            return lambda number: function(number, made)

        CALLS[name] = make

    return enter


def check(is_so: object) -> None:
    """An assertion that holds under ``-O`` as well."""
    if not is_so:
        raise AssertionError("a call of the soak had a wrong result")


def soon(function: Callable[..., object], *args: Any) -> None:
    """Calls a function whose hook raises, from the loop: called directly, its exception would refer
    to the cycle's task."""
    asyncio.get_running_loop().call_soon(function, *args)


async def end(task: "asyncio.Task[Any]", kind: type) -> None:
    """Waits until `task` has ended, and checks that it ended with an exception of this `kind`.
    Raises no exception, which would create a reference cycle: exception, traceback, frame, task."""
    await asyncio.wait((task,))
    check((CANCELLED if task.cancelled() else type(task.exception())) is kind)


async def in_task(wait: Coroutine[Any, Any, Any], kind: type = WELL) -> None:
    await end(asyncio.create_task(wait), kind)


async def cancelled(wait: Coroutine[Any, Any, Any]) -> None:
    """Cancels a task that waits."""
    task = asyncio.create_task(wait)
    await iterations(2)
    task.cancel()
    await end(task, CANCELLED)


class Flag(DelayedOperation[bool]):
    """Is complete when its flag is set."""

    def __init__(self, timeout: float | None = None) -> None:
        super().__init__(timeout)
        self.is_ready = False

    def try_complete(self) -> bool:
        return self.is_ready and self.force_complete()

    def on_complete(self) -> bool:
        return self.is_ready


class Broken(Flag):
    """Fails when it is completed."""

    def on_complete(self) -> bool:
        raise LookupError("as it should")


# -- operations


@cycle("operation: force_complete, result")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag(30.0)
    check(not purgatory.try_complete_else_watch(operation, [number, -number, "all"]))
    check(operation.force_complete() and operation.result() is False and not purgatory.watched)


@cycle("operation: force_complete, never watched")
async def _(number: int, _: Purgatory[Any]) -> None:
    operation = Flag()
    check(operation.force_complete() and not operation.cancel() and not await operation)


@cycle("operation: cancel, awaited by two")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag()
    purgatory.try_complete_else_watch(operation, [number])

    async def awaiting() -> bool:
        return await operation

    tasks = [asyncio.create_task(awaiting()) for _ in range(2)]
    await iterations(1)
    check(operation.cancel())
    for task in tasks:
        await end(task, OperationCancelled)


@cycle("operation: await cancelled, then completed")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag()
    purgatory.try_complete_else_watch(operation, [number])

    async def awaiting() -> bool:
        return await operation

    await cancelled(awaiting())
    check(operation.force_complete())


@cycle("operation: a hook raises")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    operation = Broken()
    task = asyncio.create_task(purgatory.wait(operation, [number]))
    await iterations(1)
    soon(operation.force_complete)
    await end(task, LookupError)


# -- the purgatory


@cycle("try_complete_else_watch, true at once")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag(30.0)
    operation.is_ready = True
    check(purgatory.try_complete_else_watch(operation, [number]))


@cycle("try_complete_else_watch, expired")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag(0.01)
    purgatory.try_complete_else_watch(operation, [number, "all"])
    check(not await operation)


@call("try_complete_else_watch, full")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    purgatory: Purgatory[Flag] = Purgatory(max_pending=1)
    first = Flag()
    stack.callback(first.cancel)

    async def cycle(number: int) -> None:
        if not purgatory.pending:
            purgatory.try_complete_else_watch(first, ["first"])
        try:
            purgatory.try_complete_else_watch(Flag(30.0), [number])
        except PurgatoryFull:
            return
        check(False)

    return cycle


@cycle("check_and_complete")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag(30.0)
    purgatory.try_complete_else_watch(operation, [number, "all"])
    check(purgatory.check_and_complete(number) == 0 == purgatory.check_and_complete(-1))
    operation.is_ready = True
    check(purgatory.check_and_complete(number) == 1)


@call("check_and_complete, in several iterations")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    purgatory: Purgatory[Flag] = Purgatory()
    others = [Flag() for _ in range(600)]
    for other in others:
        stack.callback(other.cancel)

    async def cycle(number: int) -> None:
        if not purgatory.pending:
            for other in others:
                purgatory.try_complete_else_watch(other, ["all"])
        operation = Flag()
        purgatory.try_complete_else_watch(operation, ["all"])
        operation.is_ready = True
        purgatory.check_and_complete("all")
        check(await operation)

    return cycle


@cycle("check_and_complete_threadsafe")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    operation = Flag()
    purgatory.try_complete_else_watch(operation, [number])
    operation.is_ready = True
    for _ in range(2):
        purgatory.check_and_complete_threadsafe(number)
    check(await operation)


@call("check_and_complete_threadsafe, thread")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    purgatory: Purgatory[Flag] = Purgatory()
    threads = stack.enter_context(ThreadPoolExecutor(1))

    async def cycle(number: int) -> None:
        operation = Flag()
        purgatory.try_complete_else_watch(operation, [number])
        operation.is_ready = True
        await asyncio.get_running_loop().run_in_executor(
            threads, purgatory.check_and_complete_threadsafe, number
        )
        check(await operation)

    return cycle


@cycle("wait, expired")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    check(not await purgatory.wait(Flag(0.01), [number]))


@cycle("wait, its task cancelled")
async def _(number: int, purgatory: Purgatory[Flag]) -> None:
    await cancelled(purgatory.wait(Flag(30.0), [number]))


def _sync(is_ready: list[int]) -> Callable[[], Any]:
    return lambda: [*is_ready]


def _async(is_ready: list[int]) -> Callable[[], Any]:
    async def look() -> list[int]:
        await asyncio.sleep(0)
        return [*is_ready]

    return look


def _failing(is_ready: list[int]) -> Callable[[], Any]:
    def look() -> list[int]:
        return [*is_ready] if not is_ready else [1 // 0]

    return look


def _async_failing(is_ready: list[int]) -> Callable[[], Any]:
    async def look() -> list[int]:
        await asyncio.sleep(0)
        return [*is_ready] if not is_ready else [1 // 0]

    return look


def _completed(predicate: Callable[[list[int]], Callable[[], Any]], kind: type = WELL) -> Make:
    def make(stack: contextlib.AsyncExitStack) -> Cycle:
        purgatory: Purgatory[Any] = Purgatory()

        async def cycle(number: int) -> None:
            is_ready: list[int] = []
            task = asyncio.create_task(
                purgatory.wait_for(predicate(is_ready), [number, "all"], 30.0)
            )
            await iterations(3)
            is_ready.append(number)
            soon(purgatory.check_and_complete, number)
            await end(task, kind)

        return cycle

    return make


def _expired(predicate: Callable[[list[int]], Callable[[], Any]]) -> Make:
    def make(stack: contextlib.AsyncExitStack) -> Cycle:
        purgatory: Purgatory[Any] = Purgatory()

        async def cycle(number: int) -> None:
            await in_task(purgatory.wait_for(predicate([]), [number], 0.01), OperationTimeout)

        return cycle

    return make


def _cancelled(predicate: Callable[[list[int]], Callable[[], Any]]) -> Make:
    def make(stack: contextlib.AsyncExitStack) -> Cycle:
        purgatory: Purgatory[Any] = Purgatory()

        async def cycle(number: int) -> None:
            await cancelled(purgatory.wait_for(predicate([]), [number], 30.0))

        return cycle

    return make


CALLS |= {
    "wait_for, completed": _completed(_sync),
    "wait_for, expired": _expired(_sync),
    "wait_for, its task cancelled": _cancelled(_sync),
    "wait_for, its predicate raises": _completed(_failing, ZeroDivisionError),
    "wait_for async, completed": _completed(_async),
    "wait_for async, expired": _expired(_async),
    "wait_for async, its task cancelled": _cancelled(_async),
    "wait_for async, its predicate raises": _completed(_async_failing, ZeroDivisionError),
}


@cycle("receive and deliver")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    task = asyncio.create_task(purgatory.receive(number, 30.0))
    await iterations(1)
    check(purgatory.deliver(number, "news") == 1 and purgatory.deliver(number, "too late") == 0)
    await end(task, WELL)


@cycle("receive, expired")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    await in_task(purgatory.receive(number, 0.01), OperationTimeout)


@cycle("receive, its task cancelled")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    await cancelled(purgatory.receive(number, 30.0))


@cycle("cancel_for_key")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    task = asyncio.create_task(purgatory.wait(Flag(30.0), [number, "all"]))
    await iterations(1)
    check(len(purgatory.cancel_for_key(number)) == 1 and purgatory.cancel_for_key(number) == [])
    await end(task, OperationCancelled)


@cycle("acancel_for_key")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    task = asyncio.create_task(purgatory.wait(Flag(30.0), [number, "all"]))
    await iterations(1)
    check(len(await purgatory.acancel_for_key(number)) == 1)
    await end(task, OperationCancelled)


@cycle("statistics, pending, watched")
async def _(number: int, purgatory: Purgatory[Any]) -> None:
    check(
        purgatory.statistics().pending == purgatory.pending == purgatory.watched == 0
        and repr(purgatory)
    )


@cycle("aclose, a new purgatory each time")
async def _(number: int, _: Purgatory[Any]) -> None:
    async with Purgatory[Flag](max_pending=8) as purgatory:
        task = asyncio.create_task(purgatory.wait(Flag(30.0), [number, "all"]))
        await iterations(1)
    await end(task, OperationCancelled)


@cycle("aclose, drained")
async def _(number: int, _: Purgatory[Any]) -> None:
    purgatory = Purgatory[Flag]()
    task = asyncio.create_task(purgatory.wait(Flag(0.01), [number]))
    await iterations(1)
    check(await purgatory.aclose(drain=1.0) == [])
    await end(task, WELL)


# -- thresholds


@cycle("ThresholdPurgatory: wait, advance, forget", ThresholdPurgatory)
async def _(number: int, thresholds: ThresholdPurgatory[int, int]) -> None:
    task = asyncio.create_task(thresholds.wait(number, 2, 30.0))
    await iterations(1)
    check(thresholds.advance(number, 1) == 0 and thresholds.advance(number, 2) == 1)
    await end(task, WELL)
    check(await thresholds.wait(number, 1) == 2 and thresholds.forget(number))


@call("ThresholdPurgatory: advance_threadsafe")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    thresholds: ThresholdPurgatory[int, int] = ThresholdPurgatory()
    threads = stack.enter_context(ThreadPoolExecutor(1))

    async def cycle(number: int) -> None:
        task = asyncio.create_task(thresholds.wait(number, 1))
        await iterations(1)
        await asyncio.get_running_loop().run_in_executor(
            threads, thresholds.advance_threadsafe, number, 1
        )
        await end(task, WELL)
        check(thresholds.forget(number))

    return cycle


@cycle("ThresholdPurgatory: wait, expired", ThresholdPurgatory)
async def _(number: int, thresholds: ThresholdPurgatory[int, int]) -> None:
    await in_task(thresholds.wait(number, 1, 0.01), OperationTimeout)


@cycle("ThresholdPurgatory: wait, its task cancelled", ThresholdPurgatory)
async def _(number: int, thresholds: ThresholdPurgatory[int, int]) -> None:
    await cancelled(thresholds.wait(number, 1, 30.0))


@cycle("ThresholdPurgatory: fail", ThresholdPurgatory)
async def _(number: int, thresholds: ThresholdPurgatory[int, int]) -> None:
    task = asyncio.create_task(thresholds.wait(number, 1, 30.0))
    await iterations(1)
    check(thresholds.fail(number, LookupError("as it should")) == 1)
    await end(task, LookupError)


@cycle("ThresholdPurgatory: aclose, a new one each time")
async def _(number: int, _: Purgatory[Any]) -> None:
    async with ThresholdPurgatory[int, int]() as thresholds:
        task = asyncio.create_task(thresholds.wait(number, 1, 30.0))
        await iterations(1)
    await end(task, OperationCancelled)


# -- the timer and the timeouts


@cycle("WheelTimer: call_later, call_at, fired", WheelTimer)
async def _(number: int, timer: WheelTimer) -> None:
    loop = asyncio.get_running_loop()
    fired = loop.create_future()
    timer.call_later(0.002, str)
    timer.call_at(loop.time() + 0.005, fired.set_result, None)
    await fired


@cycle("WheelTimer: cancel", WheelTimer)
async def _(number: int, timer: WheelTimer) -> None:
    for delay in (0.01, 30.0, 1e9, float("inf")):
        task = timer.call_later(delay, str)
        task.cancel()
        check(task.cancelled() and not timer.size)


@call("WheelTimer: reschedule")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    timer = WheelTimer()
    task = None

    async def cycle(number: int) -> None:
        nonlocal task
        now = asyncio.get_running_loop().time()
        if task is None:
            task = timer.call_at(now + 30.0, str)
            stack.callback(task.cancel)
        other = timer.call_at(now + 5.0, str)
        other.reschedule(now + 0.05)
        task.reschedule(now + 30.0)
        other.cancel()

    return cycle


@cycle("timeout, timeout_at, left in time")
async def _(number: int, _: Purgatory[Any]) -> None:
    now = asyncio.get_running_loop().time()
    async with library.timeout(30.0), library.timeout_at(now + 5.0) as inner:
        inner.reschedule(now + 10.0)
    check(not inner.expired())


@call("timeout, expired")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    async def limited() -> None:
        async with library.timeout(0.01):
            await asyncio.sleep(30)

    async def cycle(number: int) -> None:
        await in_task(limited(), TimeoutError)

    return cycle


@cycle("wait_for of the library, in time")
async def _(number: int, _: Purgatory[Any]) -> None:
    await in_task(library.wait_for(asyncio.sleep(0), 30.0))


@cycle("wait_for of the library, expired")
async def _(number: int, _: Purgatory[Any]) -> None:
    await in_task(library.wait_for(asyncio.sleep(30), 0.01), TimeoutError)


@call("IdleTracker: touch, fallen idle")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    idle: list[int] = []
    tracker = stack.enter_context(IdleTracker(0.05, idle.append))

    async def cycle(number: int) -> None:
        tracker.touch(number)
        tracker.touch(number - 1)
        idle.clear()

    return cycle


@call("IdleTracker: touch, remove")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    tracker: IdleTracker[int] = stack.enter_context(IdleTracker(30.0, check))

    async def cycle(number: int) -> None:
        tracker.touch(number)
        check(tracker.remove(number) and not tracker.remove(number) and not len(tracker))

    return cycle


@cycle("IdleTracker: close, a new one each time")
async def _(number: int, _: Purgatory[Any]) -> None:
    with IdleTracker[int](30.0, check) as tracker:
        tracker.touch(number)


# -- long polls


def _poll(ending: Ending, status: int) -> Make:
    """A poll over HTTP that ends in this way."""

    def make(stack: contextlib.AsyncExitStack) -> Cycle:
        purgatory: Purgatory[Any] = Purgatory()
        polls = LongPolls(max_wait=1e9, max_open=2 if ending is Ending.REFUSED else None)
        results: dict[int, int] = {}

        async def endpoint(scope: Any, receive: Any, send: Any) -> None:
            number = int(scope["path"][1:])
            outcome = await polls.poll(scope).wait_for(
                purgatory, lambda: results.get(number), [number]
            )
            check(outcome.ending is ending or ending is Ending.REFUSED)
            headers = [(name.encode(), value.encode()) for name, value in outcome.headers.items()]
            await send(
                {"type": "http.response.start", "status": outcome.status, "headers": headers}
            )
            await send({"type": "http.response.body", "body": b""})

        app = polls.middleware(endpoint)

        async def cycle(number: int) -> None:
            number += 1
            if ending is Ending.REFUSED:
                first = Request(app, path=f"/{number}")
                second = Request(app, path=f"/{number}")
                await iterations(3)
            request = Request(
                app, b"wait=0.01" if ending is Ending.DEADLINE else b"wait=1000", path=f"/{number}"
            )
            request.body()
            await iterations(3)
            if ending in (Ending.SATISFIED, Ending.REFUSED):
                results[number] = number
                purgatory.check_and_complete(number)
            elif ending is Ending.GONE:
                request.leave()
            elif ending is Ending.STOPPING:
                polls.stop()
            await end(request.task, WELL)
            check(request.status == status)
            if ending is Ending.REFUSED:
                await end(first.task, WELL)
                await end(second.task, WELL)
            results.clear()
            if ending is Ending.STOPPING:
                polls.is_stopping = False
            check(polls.open == purgatory.pending == 0)

        return cycle

    return make


CALLS |= {
    "LongPolls: satisfied": _poll(Ending.SATISFIED, 200),
    "LongPolls: deadline": _poll(Ending.DEADLINE, 204),
    "LongPolls: gone": _poll(Ending.GONE, 499),
    "LongPolls: stopping": _poll(Ending.STOPPING, 503),
    "LongPolls: refused": _poll(Ending.REFUSED, 503),
}


def _other_poll(begin: Callable[[Any, int], Coroutine[Any, Any, Any]]) -> Make:
    """A poll of another kind, which ends at its deadline."""

    def make(stack: contextlib.AsyncExitStack) -> Cycle:
        polls = LongPolls()

        async def endpoint(scope: Any, receive: Any, send: Any) -> None:
            outcome = await begin(polls.poll(scope), int(scope["path"][1:]))
            check(outcome.ending is Ending.DEADLINE)

        app = polls.middleware(endpoint)

        async def cycle(number: int) -> None:
            request = Request(app, b"wait=0.01", path=f"/{number}")
            request.body()
            await end(request.task, WELL)

        return cycle

    return make


def _waiting(stack: contextlib.AsyncExitStack) -> Cycle:
    purgatory: Purgatory[Flag] = Purgatory()
    return _other_poll(lambda poll, number: poll.wait(purgatory, Flag(poll.timeout), [number]))(
        stack
    )


def _reaching(stack: contextlib.AsyncExitStack) -> Cycle:
    thresholds: ThresholdPurgatory[int, int] = ThresholdPurgatory()
    return _other_poll(lambda poll, number: poll.reach(thresholds, number, 1))(stack)


CALLS |= {
    "LongPolls: poll.wait": _waiting,
    "LongPolls: poll.reach": _reaching,
    "LongPolls: poll.run": _other_poll(lambda poll, number: poll.run(asyncio.sleep(30))),
}


@call("LongPolls: a lifespan")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    polls = LongPolls()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})

    app = polls.middleware(endpoint)

    async def cycle(number: int) -> None:
        answers = await lifespan(app, "lifespan.startup", "lifespan.shutdown")
        check(answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"])

    return cycle


# -- the journal


@call("Journal, as observer")
def _(stack: contextlib.AsyncExitStack) -> Cycle:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    journal = stack.enter_context(Journal(directory, file_seconds=0.25))
    purgatory: Purgatory[Flag] = Purgatory(observer=journal)

    async def cycle(number: int) -> None:
        operation = Flag(30.0)
        purgatory.try_complete_else_watch(operation, [number])
        operation.is_ready = number % 2 == 0
        purgatory.check_and_complete(number)
        operation.cancel()

    return cycle
