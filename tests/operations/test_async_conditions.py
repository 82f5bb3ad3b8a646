"""Asynchronous predicates that check their own keys, swallow their cancellation, begin their work when they are called, or
return something else the next time: the wait ends when it should, and with what it should."""

import asyncio
import types
from contextlib import suppress

import pytest
from helpers import Broken, Probe, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationTimeout, Purgatory, PurgatoryFull

MANY = 2000
"""So many operations under a key are tried in several iterations of the loop."""


class Counted:
    """Counts calls, and raises when there are too many of them, so that what would go on for ever ends."""

    def __init__(self, most=1000):
        self.calls, self.most = 0, most

    def __call__(self):
        self.calls += 1
        if self.calls > self.most:
            raise Broken(f"called more than {self.most} times")


class Iterations:
    """Counts the iterations of the loop, and calls something in one of them."""

    def __init__(self, at, what):
        self.number, self.at, self.what = 0, at, what
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self):
        self.number += 1
        if self.number == self.at:
            self.what()
        elif self.number < self.at + 10:
            asyncio.get_running_loop().call_soon(self._count)


async def begin(purgatory, predicate, timeout=None, key="key"):
    """A task that waits for the predicate, and its outcome."""
    task = asyncio.create_task(outcome(purgatory.wait_for(predicate, [key], timeout)))
    await iterations(2)
    return task


async def outcome_soon(task):
    """What the task returned or raised; if it waits for ever, it is cancelled."""
    await asyncio.wait([task], timeout=1000)
    is_done, cancels = task.done(), 0
    while not task.done() and cancels < 20:
        cancels += task.cancel()
        await asyncio.wait([task], timeout=10)
    assert is_done, "it waits for ever"
    return task.result()


def make_busy(purgatory, ready=False):
    """Has a check of the key be in progress for the next iterations of the loop."""
    watch_all(purgatory, operations := [Probe() for _ in range(MANY)])
    for operation in operations:
        operation.ready = ready
    purgatory.check_and_complete("key")


# 3. A predicate that checks its own key


@on_virtual_time
async def test_an_asynchronous_predicate_that_checks_its_own_key_lets_others_run_between_two_runs(purgatory):
    counted, passed = Counted(), []
    iterations = Iterations(20, lambda: passed.append(True))

    async def checks_its_key():
        counted()
        purgatory.check_and_complete("key")
        return bool(passed)

    assert await outcome(purgatory.wait_for(checks_its_key, ["key"], 60)) is True
    assert counted.calls <= iterations.number + 2


@on_virtual_time
@pytest.mark.parametrize("end", ["deadline", "aclose", "cancel_for_key", "task"])
async def test_whatever_ends_a_wait_ends_one_whose_predicate_checks_its_own_key(end):
    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        counted = Counted()

        async def checks_its_key():
            counted()
            purgatory.check_and_complete("key")
            return False

        task = asyncio.create_task(outcome(purgatory.wait_for(checks_its_key, ["key"], 60)))
        ends = {
            "deadline": lambda: loop._set_time(loop.time() + 61),
            "aclose": lambda: closing.append(loop.create_task(purgatory.aclose())),
            "cancel_for_key": lambda: purgatory.cancel_for_key("key"),
            "task": task.cancel,
        }
        closing = []
        Iterations(20, ends[end])
        expected = {"deadline": OperationTimeout, "task": asyncio.CancelledError}.get(end, OperationCancelled)
        assert type(await outcome_soon(task)) is expected
        assert counted.calls < 100


# 4. A predicate that swallows its cancellation


async def stubborn():
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(float("inf"))
    return False


@on_virtual_time
@pytest.mark.parametrize("end", ["deadline", "aclose", "cancel_for_key", "acancel_for_key"])
async def test_a_predicate_that_swallows_its_cancellation_and_returns_something_false_is_not_waited_for(end):
    async with Purgatory() as purgatory:
        counted = Counted()

        def predicate():
            counted()
            return stubborn()

        task = await begin(purgatory, predicate, 60)
        if end != "deadline":
            answer = getattr(purgatory, end)(*([] if end == "aclose" else ["key"]))
            if asyncio.iscoroutine(answer):
                await answer
        assert type(await outcome_soon(task)) is (OperationTimeout if end == "deadline" else OperationCancelled)
        assert counted.calls == 1
        assert purgatory.pending == purgatory.watched == 0


@on_virtual_time
async def test_a_predicate_may_wait_for_something_else_after_its_cancellation_and_the_wait_ends_with_it(purgatory):

    async def tidies_up():
        try:
            await asyncio.sleep(float("inf"))
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return False

    task = await begin(purgatory, tidies_up, 60)
    assert type(await outcome_soon(task)) is OperationTimeout


# 5. What was begun by the call of the predicate has looked before it is awaited


@on_virtual_time
@pytest.mark.parametrize("kind", ["future", "task", "work of a thread"])
async def test_a_check_after_an_awaitable_has_looked_is_not_lost_to_a_newcomer_of_a_busy_key(kind):
    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        is_true = []

        async def look():
            return bool(is_true)

        def change():
            is_true.append(True)
            purgatory.check_and_complete("key")

        def predicate():
            if not is_true:
                loop.call_soon(change)
            if kind == "task":
                return loop.create_task(look())
            looked = loop.create_future()
            if kind == "future":
                looked.set_result(bool(is_true))
            else:
                seen = bool(is_true)
                loop.call_later(1, lambda: looked.done() or looked.set_result(seen))
            return looked

        make_busy(purgatory, ready=True)
        assert await outcome(purgatory.wait_for(predicate, ["key"], 60)) is True
        assert loop.time() < 60


@on_virtual_time
async def test_a_newcomer_of_a_busy_key_is_registered_when_its_predicate_is_called(purgatory):
    registered = []

    async def predicate():
        return True

    def called():
        asyncio.get_running_loop().call_soon(lambda: registered.append(purgatory.pending))
        return predicate()

    make_busy(purgatory, ready=True)
    assert await purgatory.wait_for(called, ["key"], 60) is True
    assert registered == [1]


# 12. A tiny timeout


@on_virtual_time
@pytest.mark.parametrize("start", [1e9])
@pytest.mark.parametrize("timeout", [1e-12, 1e-300])
async def test_what_comes_to_a_busy_key_with_a_tiny_timeout_is_tried_once(purgatory, timeout, start):
    make_busy(purgatory)
    operation = Probe(timeout, ready=True)
    assert await outcome(purgatory.wait(operation, ["key"])) == ""
    assert operation.calls == ["try", "complete"]


@on_virtual_time
@pytest.mark.parametrize("start", [1e9])
async def test_a_wait_for_a_predicate_on_a_busy_key_ends_well_with_a_tiny_timeout(purgatory, start):
    make_busy(purgatory)
    holding = asyncio.create_task(outcome(purgatory.wait_for(lambda: "there", ["key"], 1e-12)))
    failing = asyncio.create_task(outcome(purgatory.wait_for(lambda: None, ["key"], 1e-12)))
    assert await holding == "there"
    assert type(await failing) is OperationTimeout


# 14. When aclose returns, runs have ended


@on_virtual_time
@pytest.mark.parametrize("takes", [0, 3])
async def test_aclose_returns_when_asynchronous_predicates_have_been_cancelled_and_have_ended(takes):
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
async def test_a_predicate_may_close_the_purgatory_in_which_it_waits():
    async with Purgatory() as purgatory:

        async def closes():
            await purgatory.aclose()
            return False

        task = await begin(purgatory, closes, 60)
        assert type(await outcome_soon(task)) is OperationCancelled


# 15. and 17. What a predicate may return


class FalseAwaitable:
    """Is awaitable, and false."""

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
async def test_whatever_is_awaitable_is_awaited(purgatory, predicate):
    assert await outcome(purgatory.wait_for(predicate, ["key"], 60)) == "value"


@on_virtual_time
@pytest.mark.parametrize("last", ["plain", "asynchronous"])
@pytest.mark.parametrize("first", ["plain", "asynchronous"])
async def test_a_predicate_may_return_an_awaitable_one_time_and_a_plain_value_the_next(first, last):
    async def later(value):
        await asyncio.sleep(0)
        return value

    async with Purgatory() as purgatory:
        calls = []

        def predicate():
            calls.append(True)
            kind, value = [(first, False), (last, False), (first, ""), (last, "value")][len(calls) - 1]
            return later(value) if kind == "asynchronous" else value

        task = await begin(purgatory, predicate, 60)
        for _ in range(3):
            await iterations(5)
            purgatory.check_and_complete("key")
        assert await outcome_soon(task) == "value"
        assert len(calls) == 4


# 23. What a predicate has begun


class Begun:
    """Is a predicate that begins some work when it is called, and notes how that ends."""

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
async def test_what_a_predicate_has_begun_does_not_go_on_after_the_wait_was_refused(kind):
    async with Purgatory(max_pending=1) as purgatory:
        watch_all(purgatory, [Probe()], ["another"])
        begun = Begun(kind)
        assert type(await outcome(purgatory.wait_for(begun, ["key"], 60))) is PurgatoryFull
        assert begun.made is None or await begun.is_over()


@on_virtual_time
@pytest.mark.parametrize("how", ["task", "aclose", "cancel_for_key"])
@pytest.mark.parametrize("kind", BEGUN)
async def test_what_a_predicate_has_begun_in_a_check_does_not_go_on_after_the_wait_was_ended(kind, how):
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


@on_virtual_time
async def test_the_work_of_a_predicate_that_is_awaited_ends_with_the_wait(purgatory):
    begun = Begun("task")
    task = await begin(purgatory, begun, 5)
    assert type(await outcome_soon(task)) is OperationTimeout
    assert await begun.is_over()
