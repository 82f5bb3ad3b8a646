"""States stay consistent whatever user code runs in between: exits, hostile keys, finalizers, other
tasks that await the operation of a wait."""

import asyncio
import gc
import weakref
from itertools import pairwise

import pytest
from helpers import (
    Broken,
    Listener,
    Probe,
    collector,
    counts,
    iterations,
    outcome,
    raiser,
    watch_all,
)
from loops import on_virtual_time

from purgatory import (
    Cause,
    DelayedOperation,
    OperationReused,
    OperationState,
    Purgatory,
    PurgatoryFull,
)
from purgatory._core.conditions import Condition
from purgatory._core.loop import MAX_ITEMS, MAX_PER_ITERATION
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Starts(Listener):
    """Keeps the operations that start."""

    def __init__(self):
        super().__init__()
        self.started = []

    def operation_started(self, operation):
        self.started.append(operation)


class Equal:
    """A key whose value may change, and whose comparison may call a function."""

    def __init__(self, value, compare=None):
        self.value, self.compare = value, compare

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if self.compare is not None:
            self.compare()
        return isinstance(other, Equal) and self.value == other.value


# Other tasks that await the operation of a wait


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_awaiting_operation_of_wait_gives_its_value(asynchronous):
    async def later():
        await asyncio.sleep(0)
        return value

    value, observer = 0, Starts()
    async with Purgatory(observer=observer) as purgatory:
        predicate = later if asynchronous else lambda: value
        waiting = asyncio.create_task(purgatory.wait_for(predicate, ["key"]))
        await iterations(4)
        stranger = asyncio.create_task(outcome(observer.started[0]))
        await iterations()
        purgatory.check_and_complete("key")
        await iterations(4)
        assert not stranger.done()
        value = 7
        purgatory.check_and_complete("key")
        assert await waiting == await stranger == 7


async def test_predicate_turning_asynchronous_wakes_no_other_awaiter():
    async def later():
        return value

    value, observer = 0, Starts()

    def predicate():
        return later() if purgatory.pending else 0

    async with Purgatory(observer=observer) as purgatory:
        waiting = asyncio.create_task(purgatory.wait_for(predicate, ["key"]))
        await iterations()
        stranger = asyncio.create_task(outcome(observer.started[0]))
        await iterations()
        purgatory.check_and_complete("key")
        await iterations(4)
        assert not stranger.done()
        value = 7
        purgatory.check_and_complete("key")
        assert await waiting == await stranger == 7


async def test_wait_started_eagerly_in_hook_is_answered(purgatory):
    results = []

    def complete(_):
        coroutine = purgatory.wait_for(lambda: 7, ["key"])
        try:
            future = coroutine.send(None)
        except StopIteration as stop:
            results.append(stop.value)
            return
        future.add_done_callback(lambda _: finish(coroutine))

    def finish(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as stop:
            results.append(stop.value)

    watch_all(purgatory, [Probe(completing=complete)])[0].force_complete()
    await iterations(3)
    assert results == [7]


async def test_asynchronous_wait_with_zero_timeout_can_complete(purgatory):
    async def value():
        return 7

    assert await purgatory.wait_for(value, ["key"], 0) == 7
    assert counts(purgatory, "pending", "completed", "expired") == (0, 1, 0)


@on_virtual_time
async def test_asynchronous_wait_with_zero_timeout_ends_at_suspension(purgatory):
    async def value():
        await asyncio.sleep(5)
        return 7

    assert isinstance(await outcome(purgatory.wait_for(value, ["key"], 0)), TimeoutError)
    assert asyncio.get_running_loop().time() < 0.01
    assert counts(purgatory, "pending", "completed", "expired") == (0, 0, 1)


# Exits, of hooks and of the exception handler


def run_with_handler(handler, main):
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(handler)
        return runner.run(main())


def test_exit_of_exception_handler_leaves_everything_answered():
    def handler(loop, context):
        if exits:
            raise exits.pop()

    class Talker(Listener):
        def operation_ended(self, ended):
            raise Broken

    async def main():
        for operation in (first, second):
            purgatory.try_complete_else_watch(operation, ["key"])
        awaiting.append(asyncio.create_task(outcome(first)))
        await iterations()
        first.ready = second.ready = True
        purgatory.check_and_complete("key")
        await asyncio.sleep(5)

    async def rest():
        assert first.state is second.state is COMPLETED
        assert await awaiting[0] == "first"
        purgatory._check()
        later = Probe(ready=False)
        purgatory.try_complete_else_watch(later, ["key"])
        later.ready = True
        assert purgatory.check_and_complete("key") == 1

    purgatory = Purgatory(observer=Talker())
    first, second, awaiting = Probe(name="first"), Probe(name="second"), []
    exits = [SystemExit()]
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(handler)
        with pytest.raises(SystemExit):
            runner.run(main())
        runner.get_loop().set_exception_handler(lambda *_: None)
        runner.run(rest())


async def test_exit_of_first_try_is_one_event(reports):
    listener = Listener()
    purgatory = Purgatory(observer=listener)
    now = asyncio.get_running_loop().time()
    with pytest.raises(SystemExit):
        purgatory.try_complete_else_watch(Probe(5, trying=raiser(SystemExit())), ["key", "other"])
    await iterations(3)
    [ended] = listener.ended
    assert (ended.keys, ended.cause, ended.state) == (("key", "other"), Cause.FAILED, CANCELLED)
    assert ended.started_at >= now and ended.timeout == 5


# Observers


async def test_observer_forcing_a_start_gets_one_event():
    class Forcing(Starts):
        def operation_started(self, operation):
            operation.force_complete()

    listener = Forcing()
    async with Purgatory(observer=listener) as purgatory:
        operation = Probe(trying=lambda each: purgatory.try_complete_else_watch(Probe(), ["inner"]))
        purgatory.try_complete_else_watch(operation, ["key"])
        await iterations(3)
    assert len(set(listener.ended_ids)) == len(listener.ended) == 2
    assert {ended.keys for ended in listener.ended} == {("inner",), ("key",)}


# Bounded work


async def test_closing_counts_receivers_with_a_value(monkeypatch):
    purgatory = Purgatory()
    receiving = [asyncio.create_task(outcome(purgatory.receive("key"))) for _ in range(2000)]
    await iterations()
    assert purgatory.deliver("key", 1) == 2000
    steps = []
    sleep = asyncio.sleep
    monkeypatch.setattr(
        "purgatory._core.closing.sleep",
        lambda delay: (steps.append(purgatory.pending), sleep(0))[1],
    )
    assert await purgatory.aclose() == []
    assert len(steps) >= 2
    assert await asyncio.gather(*receiving) == [1] * 2000


async def test_requests_of_threads_arrive_in_portions(purgatory):
    watch_all(purgatory, [Probe()])
    for number in range(3 * MAX_ITEMS):
        purgatory.check_and_complete_threadsafe(number)
    inbox = purgatory._inbox
    sizes = [len(inbox)]
    while inbox:
        await iterations()
        sizes.append(len(inbox))
    assert max(before - after for before, after in pairwise(sizes)) <= MAX_ITEMS


async def test_new_checks_of_threads_queue_in_portions(purgatory):
    for number in range(3 * MAX_PER_ITERATION):
        purgatory.try_complete_else_watch(Probe(), [number])
    for number in range(3 * MAX_PER_ITERATION):
        purgatory.check_and_complete_threadsafe(number)
    assert purgatory._queue_from_threads(purgatory._inbox.take()) >= MAX_PER_ITERATION
    assert len(purgatory._checks) == MAX_PER_ITERATION
    assert len(purgatory._inbox) == 2 * MAX_PER_ITERATION
    await iterations(20)
    assert not purgatory._inbox


@on_virtual_time
async def test_expiry_compares_its_key_with_no_other():
    compared = []
    async with Purgatory() as purgatory:
        [operation] = watch_all(purgatory, [Probe(1)], [Equal(0, lambda: compared.append(1))])
        operation.ready = True
        for number in range(5 * MAX_ITEMS):  # more than the loop receives before the expiry
            purgatory.check_and_complete_threadsafe((number, "unrelated"))
        loop = asyncio.get_running_loop()
        loop._set_time(loop.time() + 2)  # the loop is blocked for so long
        compared.clear()
        await iterations(2)
        assert operation.state is COMPLETED and purgatory._inbox
        assert compared == [] and purgatory.statistics().missed_triggers == 1


# Keys


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("method", ["__hash__", "__eq__"])
async def test_key_that_watches_same_operation_is_refused(purgatory, method, keys):
    class Watching(Equal):
        is_on = False

        def watch(self):
            if Watching.is_on:
                Watching.is_on = False
                purgatory.try_complete_else_watch(operation, ["inner"])

        def __hash__(self):
            if method == "__hash__":
                self.watch()
            return 1

        def __eq__(self, other):
            if method == "__eq__":
                self.watch()
            return self is other

    operation = Probe()
    watch_all(purgatory, [Probe()], [Watching(1)])
    Watching.is_on = True
    watched = [Watching(2), "other"][:keys]
    with pytest.raises(OperationReused):
        purgatory.try_complete_else_watch(operation, watched)
    assert purgatory.pending in (1, 2)
    purgatory._check()
    await asyncio.wait_for(purgatory.aclose(), 5)
    assert purgatory.pending == purgatory.watched == 0


@pytest.mark.parametrize("raises", [False, True])
async def test_key_forcing_its_joining_operation_loses_no_hook(purgatory, raises, reports):
    def force():
        if forced:
            forced.pop().force_complete()
            if raises:
                raise Broken

    forced: list[Probe] = []
    operation = Probe(name="result")
    watch_all(purgatory, [Probe()], [Equal(1, force)])
    forced.append(operation)
    try:
        purgatory.try_complete_else_watch(operation, ["other", Equal(2, force)])
    except Broken:
        assert raises
    await iterations(3)
    assert operation.state is COMPLETED and operation.calls == ["try", "complete"]
    purgatory._check()


# Finalizers


@on_virtual_time
@pytest.mark.parametrize("end", ["force_complete", "cancel"])
async def test_end_between_wheel_and_expiry_counts_once(purgatory, end):
    [operation] = watch_all(purgatory, [Probe(5)])
    operation.ready = True
    purgatory._wheel.remove(operation)  # as `next_due` does
    assert getattr(operation, end)()
    operation._timer_expired()
    assert operation.calls == ["try"] + ["complete"] * (end == "force_complete")
    assert purgatory.statistics().missed_triggers == 0
    purgatory._check()


async def test_classes_of_operations_can_be_freed(purgatory):
    def use():
        class Local(Probe):
            pass

        purgatory.try_complete_else_watch(Local(ready=True), ["key"])
        return weakref.ref(Local)

    reference = use()
    for _ in range(3):  # without the GIL a collection may leave a class to the next one
        gc.collect()
    assert reference() is None


@pytest.mark.cpython
async def test_a_predicate_that_raises_leaves_no_cycle(purgatory):
    def fail():
        raise Broken

    with collector(False):
        for _ in range(5):
            assert isinstance(await outcome(purgatory.wait_for(fail, ["key"])), Broken)
        await iterations(4)
        assert not [each for each in gc.get_objects() if type(each) is Condition]
        assert gc.collect() == 0


# Refusals


async def test_ready_newcomer_behind_check_needs_a_place():
    async with Purgatory(max_pending=2 * MAX_PER_ITERATION) as purgatory:
        watch_all(purgatory, [Probe() for _ in range(2 * MAX_PER_ITERATION)])
        purgatory.check_and_complete("key")
        newcomer = Probe(ready=True)
        with pytest.raises(PurgatoryFull):
            purgatory.try_complete_else_watch(newcomer, ["key"])
        assert newcomer.calls == []
        await iterations(3)
        assert purgatory.try_complete_else_watch(newcomer, ["key"])


async def test_keys_and_name_are_public():
    async with Purgatory("letters") as purgatory:
        watch_all(purgatory, [Probe()], ["a", ("b", 1)])
        assert purgatory.name == "letters" and list(purgatory.keys()) == ["a", ("b", 1)]
    assert list(purgatory.keys()) == []
    assert issubclass(Probe, DelayedOperation)
