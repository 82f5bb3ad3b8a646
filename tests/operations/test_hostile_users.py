"""Code of users that is called in the middle of things and does harm: a `__repr__`, `__eq__`, `__del__`, `__getattr__`,
`__init__` or `cancel` of their own. It hurts at most the operation that it belongs to."""

import asyncio
import gc
from contextlib import suppress

import pytest
from helpers import Broken, Probe, collector, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import (
    IdleTracker,
    OperationCancelled,
    OperationReused,
    OperationState,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
    WrongLoop,
)
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Nameless(Probe):
    """An operation whose `__repr__` raises."""

    def __repr__(self):
        raise Broken("no name")


class Key:
    """A key whose `__repr__` raises."""

    def __repr__(self):
        raise Broken("no name")


# 6. and 25. A __repr__ that raises


def complete_and_fail(operation):
    operation.force_complete()
    raise ValueError("after it has completed")


@on_virtual_time
@pytest.mark.parametrize("number", [1, 2, 600])
async def test_a_failure_of_an_operation_without_a_name_leaves_nobody_behind_it_waiting(purgatory, number, reports):
    bad, *others = watch_all(purgatory, [Nameless(60), *(Probe(60) for _ in range(number))])
    bad.trying = complete_and_fail
    for other in others:
        other.ready = True
    purgatory.check_and_complete("key")
    await iterations(5)
    assert {operation.state for operation in [bad, *others]} == {COMPLETED}
    [report] = reports
    assert "Nameless" in report["message"] and isinstance(report["exception"], ValueError)


@on_virtual_time
async def test_checks_of_a_key_go_on_after_the_failure_of_an_operation_without_a_name(purgatory, reports):
    bad, other = watch_all(purgatory, [Nameless(60), Probe(60)])
    bad.trying = complete_and_fail
    with suppress(Broken):
        purgatory.check_and_complete("key")
    await iterations(5)
    other.ready = True
    purgatory.check_and_complete("key")
    await iterations(5)
    assert other.state is COMPLETED
    assert purgatory.pending == 0


class SaysTrue(Nameless):
    def try_complete(self):
        return True


@on_virtual_time
async def test_a_try_that_returns_true_without_completing_is_explained_also_for_an_operation_without_a_name(purgatory):
    with pytest.raises(TypeError, match="SaysTrue"):
        await purgatory.wait(SaysTrue(60), ["key"])


@on_virtual_time
async def test_a_hook_of_an_operation_without_a_name_that_nobody_awaits_is_reported(purgatory, reports):

    def failing(_):
        raise ValueError("in a hook")

    [bad, other] = watch_all(purgatory, [Nameless(60, completing=failing), Probe(60)])
    bad.ready = other.ready = True
    assert purgatory.check_and_complete("key") == 2
    await iterations(5)
    [report] = reports
    assert "Nameless" in report["message"] and isinstance(report["exception"], ValueError)


@on_virtual_time
async def test_two_failing_hooks_of_an_operation_without_a_name_are_reported_and_others_expire(reports):
    def failing(_):
        raise ValueError("in a hook")

    async with Purgatory() as purgatory:
        _, other = watch_all(purgatory, [Nameless(5, completing=failing, expiring=failing), Probe(5)])
        await asyncio.sleep(10)
        assert other.state is EXPIRED and other.result() == ""
        assert len(reports) == 2 and all("Nameless" in report["message"] for report in reports)


@on_virtual_time
async def test_refusals_name_the_type_of_an_operation_without_a_name():
    async with Purgatory(max_pending=1) as purgatory:
        operation = Nameless(60)
        purgatory.try_complete_else_watch(operation, ["key"])
        with pytest.raises(OperationReused, match="Nameless"):
            purgatory.try_complete_else_watch(operation, ["key"])
        for awaited in (purgatory.wait(Nameless(60), ["key"]), purgatory.wait_for(lambda: False, [Key()])):
            assert type(await outcome(awaited)).__name__ == "PurgatoryFull"
        operation.cancel()
        assert "Nameless" in str(await outcome(operation))


def in_two_runs(first, second):
    """Runs two coroutine functions, one run of the same loop after the other."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(first())
        return runner.run(second())


@pytest.mark.parametrize("method", ["check_and_complete", "deliver", "cancel_for_key", "acancel_for_key", "wait"])
def test_the_first_call_in_a_run_of_the_loop_does_its_work_whatever_a_key_says_of_itself(method):
    key, operation = Key(), Nameless(60)
    purgatory = Purgatory()

    async def first():
        if method != "wait":
            purgatory.try_complete_else_watch(operation, [key])

    async def second():
        operation.ready = True
        try:
            if method == "wait":
                await purgatory.wait(operation, [key])
            else:
                answer = getattr(purgatory, method)(key, *[1] * (method == "deliver"))
                if asyncio.iscoroutine(answer):
                    await answer
            if method == "deliver":
                purgatory.check_and_complete(key)
            assert operation.state is (CANCELLED if "cancel" in method else COMPLETED)
        finally:
            operation.cancel()

    in_two_runs(first, second)


@pytest.mark.parametrize("method", ["advance", "fail", "forget", "wait"])
def test_the_first_call_of_a_run_does_its_work_for_thresholds_too_whatever_a_key_says_of_itself(method):
    key, thresholds = Key(), ThresholdPurgatory()

    async def first():
        thresholds.advance("another", 1)

    async def second():
        if method == "wait":
            assert isinstance(await outcome(thresholds.wait(key, 1, 5)), TimeoutError)
        elif method == "advance":
            assert thresholds.advance(key, 5) == 0
            assert thresholds.value(key) == 5
        elif method == "fail":
            assert thresholds.fail(key, ValueError()) == 0
        else:
            assert thresholds.forget(key) is False

    in_two_runs(first, second)


@on_virtual_time
@pytest.mark.parametrize("timeout", [None, 5, 0])
async def test_what_a_wait_for_a_threshold_ends_with_does_not_depend_on_names(timeout):
    thresholds = ThresholdPurgatory()
    waiting = asyncio.create_task(outcome(thresholds.wait(Key(), 1, timeout)))
    await asyncio.sleep(10)
    await thresholds.aclose()
    assert type(await waiting).__name__ == ("OperationCancelled" if timeout is None else "OperationTimeout")


@on_virtual_time
async def test_waits_for_a_predicate_or_a_delivery_time_out_whatever_their_keys_say_of_themselves(purgatory):
    for awaited in (purgatory.wait_for(lambda: None, [Key()], 1), purgatory.receive(Key(), 1)):
        assert isinstance(await outcome(awaited), TimeoutError)


def test_the_first_touch_of_a_run_counts_whatever_an_id_says_of_itself():
    ids, idle = Key(), []
    tracker = IdleTracker(10.0, idle.append)

    async def first():
        tracker.touch(ids)

    async def second():
        await asyncio.sleep(5)
        tracker.touch(ids)
        await asyncio.sleep(7)
        assert idle == []
        tracker.remove(ids)

    in_two_runs(first, second)


@on_virtual_time
async def test_an_error_of_on_idle_is_reported_whatever_the_id_says_of_itself(reports):
    def on_idle(id_):
        idle.append(id_)
        raise ValueError("on_idle")

    idle = []
    tracker = IdleTracker(10.0, on_idle)
    tracker.touch(Key())
    tracker.touch(Key())
    await asyncio.sleep(20)
    assert len(idle) == len(reports) == 2
    assert all(isinstance(report["exception"], ValueError) and "Key" in report["message"] for report in reports)


@on_virtual_time
async def test_an_error_of_a_callback_is_reported_whatever_the_callback_says_of_itself(reports):
    class Callback:
        def __call__(self):
            called.append(True)
            raise ValueError("callback")

        def __repr__(self):
            raise Broken("no name")

    called, timer = [], WheelTimer()
    for _ in range(3):
        timer.call_later(1, Callback())
    await asyncio.sleep(5)
    assert len(called) == len(reports) == 3
    assert all(isinstance(report["exception"], ValueError) for report in reports)


@on_virtual_time
async def test_a_missed_trigger_of_keys_without_a_name_is_counted_and_ends_well():
    async with Purgatory("nameless keys") as purgatory:
        operations = watch_all(purgatory, [Probe(5), Probe(5)], [Key()])
        for operation in operations:
            operation.ready = True
        assert await asyncio.gather(*operations) == ["", ""]
        assert purgatory.statistics().missed_triggers == 2


class Talker:
    """An observer whose `__repr__` raises, as does all that it is told."""

    def operation_ended(self, ended):
        raise ValueError("an observer")

    def key_checked(self, key, tried, completed):
        raise ValueError("an observer")

    def __repr__(self):
        raise Broken("no name")


@on_virtual_time
async def test_an_observer_that_raises_is_reported_whatever_it_says_of_itself(reports):
    async with Purgatory(observer=Talker()) as purgatory:
        operations = watch_all(purgatory, [Probe(60), Probe(60)])
        for operation in operations:
            operation.ready = True
        assert purgatory.check_and_complete("key") == 2
        assert len(reports) == 3 and all(isinstance(report["exception"], ValueError) for report in reports)


# 24. Debug mode


class Jealous:
    """A key that cannot be compared with others, and whose hash is that of the number 42."""

    def __hash__(self):
        return hash(42)

    def __eq__(self, other):
        if other is self:
            return True
        raise Broken("not to be compared")


@on_virtual_time
async def test_in_debug_mode_errors_of_other_keys_do_not_leave_a_check():
    asyncio.get_running_loop().set_debug(True)
    async with Purgatory() as purgatory:
        watch_all(purgatory, [Probe(60)], [Jealous()])
        assert purgatory.check_and_complete("42") == 0
        assert purgatory.pending == 1


# 8. A finalizer that the collector runs while something joins


def with_garbage(finalize, threshold):
    """Makes garbage whose finalizer calls `finalize` when the collector has seen so many more allocations."""

    class Garbage:
        def __del__(self):
            gc.set_threshold(0)
            finalize()

    gc.collect()
    garbage = Garbage()
    garbage.itself = garbage
    del garbage
    gc.set_threshold(threshold, 1000, 1000)


THRESHOLDS = range(1, 80)


@pytest.fixture
def collecting():
    """The collector is on, has little to do, and is as it was afterwards."""
    thresholds = gc.get_threshold()
    with collector(is_on=True):
        yield
        gc.set_threshold(*thresholds)


@on_virtual_time
@pytest.mark.parametrize("keys", [["a"], ["a", "b"], ["b", "a", "c"]], ids="-".join)
async def test_a_finalizer_that_checks_a_key_while_an_operation_joins_its_list_completes_it_once(keys, collecting):
    purgatory = Purgatory()  # it is not closed: to close one that is damaged takes for ever
    for threshold in THRESHOLDS:
        [other] = watch_all(purgatory, [Probe(60)], ["b"])
        operation = Probe(60)

        def finalize():
            operation.ready = True
            purgatory.check_and_complete("a")

        with_garbage(finalize, threshold)
        purgatory.try_complete_else_watch(operation, keys)
        gc.set_threshold(0)
        gc.collect()
        purgatory.check_and_complete("a")
        assert operation.calls.count("complete") == 1
        assert operation.state is COMPLETED
        assert purgatory.pending == 1
        purgatory._check()
        other.cancel()


@on_virtual_time
async def test_a_finalizer_that_advances_a_key_while_a_wait_joins_its_queue_loses_neither(collecting):
    thresholds = ThresholdPurgatory()
    for threshold in THRESHOLDS:
        key = f"key {threshold}"
        with_garbage(lambda: thresholds.advance(key, 5), threshold)
        waiting = asyncio.create_task(outcome(thresholds.wait(key, 5, 60)))
        await iterations()
        gc.set_threshold(0)
        gc.collect()
        await iterations(2)
        thresholds._check()
        assert thresholds.value(key) == 5
        assert waiting.done() and waiting.result() == 5
        assert thresholds.pending == 0


@on_virtual_time
async def test_a_finalizer_that_touches_an_id_while_it_begins_to_be_tracked_does_not_track_it_twice(collecting):
    idle = []
    tracker = IdleTracker(10.0, idle.append)
    tracker.touch("first")
    for threshold in THRESHOLDS:
        with_garbage(lambda: tracker.touch(threshold), threshold)
        tracker.touch(threshold)
        gc.set_threshold(0)
        gc.collect()
        tracker._check()
    await asyncio.sleep(20)
    assert sorted(idle[1:]) == list(THRESHOLDS)


# 9. A cancel of their own


class Reluctant(Probe):
    """Overrides `cancel`, and counts how often it was called."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.cancels = answer, 0

    def cancel(self):
        self.cancels += 1
        if self.cancels > 1000:
            raise Broken("cancel is called for ever")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@on_virtual_time
@pytest.mark.parametrize("how", ["aclose", "cancel_for_key", "acancel_for_key"])
@pytest.mark.parametrize("answer", [False, True, Broken()], ids=["false", "true", "raises"])
async def test_whatever_cancels_operations_does_not_ask_a_subclass(answer, how):
    purgatory = Purgatory()
    operations = watch_all(purgatory, [Probe(), Reluctant(answer), Probe()])
    waits = [asyncio.create_task(outcome(operation)) for operation in operations]
    await iterations()
    cancelled = getattr(purgatory, how)(*([] if how == "aclose" else ["key"]))
    if asyncio.iscoroutine(cancelled):
        cancelled = await cancelled
    assert cancelled == operations
    assert [operation.state for operation in operations] == [CANCELLED] * 3
    assert [type(await wait) for wait in waits] == [OperationCancelled] * 3
    assert operations[1].cancels == 0
    assert purgatory.pending == 0 and purgatory.statistics().cancelled == 3


@on_virtual_time
@pytest.mark.parametrize("answer", [False, Broken()], ids=["false", "raises"])
async def test_cancelling_the_task_of_a_wait_cancels_its_operation_without_asking_a_subclass(answer):
    purgatory = Purgatory()
    operation = Reluctant(answer)
    waiting = asyncio.create_task(outcome(purgatory.wait(operation, ["key"])))
    await iterations()
    waiting.cancel()
    assert type(await waiting) is asyncio.CancelledError
    assert operation.state is CANCELLED and purgatory.pending == 0


# 20. Attributes that are always there, and a second __init__


class Lenient(Probe):
    """Has every attribute."""

    def __getattr__(self, name):
        return None


async def by_first_try(purgatory, operation):
    operation.ready = True
    purgatory.try_complete_else_watch(operation, ["key"])


async def by_check(purgatory, operation):
    purgatory.try_complete_else_watch(operation, ["key"])
    operation.ready = True
    purgatory.check_and_complete("key")


async def by_force(purgatory, operation):
    purgatory.try_complete_else_watch(operation, ["key"])
    operation.force_complete()


async def by_force_in_a_hook(purgatory, operation):
    purgatory.try_complete_else_watch(operation, ["key"])
    await purgatory.wait(Probe(ready=True, completing=lambda _: operation.force_complete()), ["another"])


async def by_force_unwatched(purgatory, operation):
    operation.force_complete()


async def by_deadline(purgatory, operation):
    purgatory.try_complete_else_watch(operation, ["key"])
    await asyncio.sleep(100)


async def by_deadline_at_once(purgatory, operation):
    await asyncio.sleep(100)
    purgatory.try_complete_else_watch(operation, ["key"])


WAYS = [by_first_try, by_check, by_force, by_force_in_a_hook, by_force_unwatched, by_deadline, by_deadline_at_once]


@on_virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_hooks_run_once_for_an_operation_that_has_every_attribute(purgatory, way):
    operation = Lenient(deadline=60, name="its name")
    await way(purgatory, operation)
    assert operation.calls.count("complete") == 1
    assert await operation == "its name"


@on_virtual_time
async def test_an_operation_that_has_every_attribute_has_no_result_before_it_has_ended(purgatory):
    operation = Lenient(60)
    for _ in range(2):
        with pytest.raises(asyncio.InvalidStateError):
            operation.result()
        if not purgatory.pending:
            purgatory.try_complete_else_watch(operation, ["key"])
    operation.cancel()
    with pytest.raises(OperationCancelled):
        operation.result()


@on_virtual_time
@pytest.mark.parametrize(
    ("before", "way"),
    [(by_check, way) for way in WAYS] + [(before, by_check) for before in (by_deadline, by_first_try, by_force_unwatched)],
)
async def test_an_operation_that_is_initialised_again_serves_again(way, before):
    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        operation = Probe(60, name="first")
        await before(purgatory, operation)
        assert await operation == "first"
        operation.__init__(deadline=loop.time() + 60, name="second")
        assert operation.state is PENDING
        waiting = asyncio.create_task(outcome(operation)) if way is by_force_unwatched else None
        await iterations(2)
        await way(purgatory, operation)
        assert operation.calls.count("complete") == 1
        done = waiting or asyncio.create_task(outcome(operation))
        await asyncio.wait([done], timeout=100)
        assert done.done() and done.result() == "second"
        assert purgatory.pending == purgatory.watched == 0


@on_virtual_time
async def test_an_operation_that_was_cancelled_and_is_initialised_again_may_be_awaited_while_it_waits(purgatory):
    [operation] = watch_all(purgatory, [Probe(60)])
    operation.cancel()
    operation.__init__(60, name="again")
    waiting = asyncio.create_task(outcome(purgatory.wait(operation, ["key"])))
    await iterations(2)
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert await waiting == "again"
    assert operation.result() == "again"


def test_what_stands_in_the_way_of_a_call_from_outside_the_loop_is_told_whatever_a_key_says_of_itself():
    purgatory = Purgatory()

    async def first():
        await purgatory.wait(Probe(ready=True), ["key"])

    asyncio.run(first())
    for call in (purgatory.check_and_complete, purgatory.cancel_for_key):
        with pytest.raises(WrongLoop, match="Key"):
            call(Key())
