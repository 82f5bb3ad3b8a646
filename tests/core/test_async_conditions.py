"""Asynchronous predicates that close their own purgatory, start their work when called, or return
another type the next time: the wait ends at the right time with the right result."""

import asyncio
import types

import pytest
from helpers import Probe, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import OperationCancelled, Purgatory, PurgatoryClosed, PurgatoryFull

MANY = 2000
"""Enough operations under a key that a check takes several iterations of the loop."""


async def begin(purgatory, predicate, timeout=None, key="key"):
    """Starts a task that waits for the predicate and returns its outcome."""
    task = asyncio.create_task(outcome(purgatory.wait_for(predicate, [key], timeout)))
    await iterations(2)
    return task


async def outcome_soon(task):
    """Returns the task's result or exception; cancels a task that never ends."""
    await asyncio.wait([task], timeout=1000)
    is_done, cancels = task.done(), 0
    while not task.done() and cancels < 20:
        cancels += task.cancel()
        await asyncio.wait([task], timeout=10)
    assert is_done, "it waits for ever"
    return task.result()


def make_busy(purgatory, ready=False):
    """Keeps a check of the key in progress for the next iterations of the loop."""
    watch_all(purgatory, operations := [Probe() for _ in range(MANY)])
    for operation in operations:
        operation.ready = ready
    purgatory.check_and_complete("key")


# When `aclose` returns, all runs have ended


@on_virtual_time
@pytest.mark.parametrize("takes", [0, 3])
async def test_aclose_waits_for_cancelled_asynchronous_predicates(takes):
    ended = []
    async with Purgatory() as purgatory:

        async def query():
            try:
                await asyncio.sleep(float("inf"))
            finally:
                for _ in range(takes):
                    await asyncio.sleep(0)
                ended.append(True)

        tasks = [await begin(purgatory, query, 60) for _ in range(3)]
        await purgatory.aclose()
        assert len(ended) == 3
        assert [type(await task) for task in tasks] == [OperationCancelled] * 3


@on_virtual_time
async def test_predicate_may_close_its_own_purgatory():
    async with Purgatory() as purgatory:

        async def closes():
            await purgatory.aclose()
            return False

        task = await begin(purgatory, closes, 60)
        assert type(await outcome_soon(task)) is OperationCancelled


# Return values of a predicate


class FalseAwaitable:
    """An awaitable that is false."""

    def __bool__(self):
        return False

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return "value"


class EmptyFuture(asyncio.Future):
    def __len__(self):
        return 0


@types.coroutine
def generator_based():
    yield from asyncio.sleep(0).__await__()
    return "value"


def empty_future():
    future = EmptyFuture()
    asyncio.get_running_loop().call_soon(future.set_result, "value")
    return future


@on_virtual_time
@pytest.mark.parametrize("predicate", [FalseAwaitable, empty_future, generator_based])
async def test_any_awaitable_is_awaited(purgatory, predicate):
    assert await outcome(purgatory.wait_for(predicate, ["key"], 60)) == "value"


@on_virtual_time
@pytest.mark.parametrize("last", ["plain", "asynchronous"])
@pytest.mark.parametrize("first", ["plain", "asynchronous"])
async def test_predicate_may_return_awaitable_then_plain_value(first, last):
    async def later(value):
        await asyncio.sleep(0)
        return value

    async with Purgatory() as purgatory:
        calls = []

        def predicate():
            calls.append(True)
            kind, value = [(first, False), (last, False), (first, ""), (last, "value")][
                len(calls) - 1
            ]
            return later(value) if kind == "asynchronous" else value

        task = await begin(purgatory, predicate, 60)
        for _ in range(3):
            await iterations(5)
            purgatory.check_and_complete("key")
        assert await outcome_soon(task) == "value"
        assert len(calls) == 4


# Work started by a predicate


class Begun:
    """A predicate that starts work when it is called, and notes how the work ends."""

    def __init__(self, kind):
        self.kind, self.made, self.went_on = kind, None, []

    async def work(self):
        await asyncio.sleep(10)
        self.went_on.append(True)
        return True

    def __call__(self):
        self.made = self.work()
        if self.kind != "coroutine":
            self.made = asyncio.ensure_future(self.made)
        if self.kind == "future":
            task, self.made = self.made, asyncio.get_running_loop().create_future()
            self.made.add_done_callback(lambda _: task.cancel())
        return self.made

    async def is_over(self):
        await asyncio.sleep(100)
        if self.kind == "coroutine":
            return self.made.cr_frame is None and not self.went_on
        return self.made.cancelled() and not self.went_on


BEGUN = ["coroutine", "task", "future"]


@on_virtual_time
@pytest.mark.parametrize("kind", BEGUN)
async def test_work_of_refused_wait_is_cancelled(kind):
    async with Purgatory(max_pending=1) as purgatory:
        watch_all(purgatory, [Probe()], ["another"])
        begun = Begun(kind)
        assert type(await outcome(purgatory.wait_for(begun, ["key"], 60))) is PurgatoryFull
        assert begun.made is None or await begun.is_over()
    begun = Begun(kind)
    assert type(await outcome(purgatory.wait_for(begun, ["key"], 60))) is PurgatoryClosed
    assert begun.made is None or await begun.is_over()


@on_virtual_time
@pytest.mark.parametrize("how", ["task", "aclose", "cancel_for_key"])
@pytest.mark.parametrize("kind", BEGUN)
async def test_work_started_in_check_ends_with_its_wait(kind, how):
    async with Purgatory() as purgatory:
        begun, ending = Begun(kind), []

        def end():
            if how == "task":
                task.cancel()
            elif how == "aclose":
                ending.append(asyncio.create_task(purgatory.aclose()))
            else:
                purgatory.cancel_for_key("key")

        def predicate():
            ending.append(end())
            return begun()

        make_busy(purgatory)
        task = asyncio.create_task(outcome(purgatory.wait_for(predicate, ["key"], 60)))
        result = await outcome_soon(task)
        assert type(result) is (asyncio.CancelledError if how == "task" else OperationCancelled)
        assert await begun.is_over()
