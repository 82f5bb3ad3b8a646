"""Harmful user code in the middle of calls: `__repr__`, `__eq__`, `__getattr__` or `cancel`. It
harms its own operation at most."""

import asyncio
from contextlib import suppress

import pytest
from helpers import Broken, Probe, iterations, outcome, watch_all
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


# A raising `__repr__`


def complete_and_fail(operation):
    operation.force_complete()
    raise ValueError("after it has completed")


@on_virtual_time
@pytest.mark.parametrize("number", [1, 2, 600])
async def test_failing_operation_with_raising_repr_blocks_no_waiter(purgatory, number, reports):
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
async def test_check_continues_after_failure_with_raising_repr(purgatory, reports):
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
async def test_false_completion_with_raising_repr_is_explained(
    purgatory,
):
    with pytest.raises(TypeError, match="SaysTrue"):
        await purgatory.wait(SaysTrue(60), ["key"])


@on_virtual_time
async def test_unawaited_failure_with_raising_repr_is_reported(purgatory, reports):

    def failing(_):
        raise ValueError("in a hook")

    [bad, other] = watch_all(purgatory, [Nameless(60, completing=failing), Probe(60)])
    bad.ready = other.ready = True
    assert purgatory.check_and_complete("key") == 2
    await iterations(5)
    [report] = reports
    assert "Nameless" in report["message"] and isinstance(report["exception"], ValueError)


@on_virtual_time
async def test_two_failures_with_raising_repr_are_reported(
    reports,
):
    def failing(_):
        raise ValueError("in a hook")

    async with Purgatory() as purgatory:
        _, other = watch_all(
            purgatory, [Nameless(5, completing=failing, expiring=failing), Probe(5)]
        )
        await asyncio.sleep(10)
        assert other.state is EXPIRED and other.result() == ""
        assert len(reports) == 2 and all("Nameless" in report["message"] for report in reports)


@on_virtual_time
async def test_refusals_name_type_despite_raising_repr():
    async with Purgatory(max_pending=1) as purgatory:
        operation = Nameless(60)
        purgatory.try_complete_else_watch(operation, ["key"])
        with pytest.raises(OperationReused, match="Nameless"):
            purgatory.try_complete_else_watch(operation, ["key"])
        for awaited in (
            purgatory.wait(Nameless(60), ["key"]),
            purgatory.wait_for(lambda: False, [Key()]),
        ):
            assert type(await outcome(awaited)).__name__ == "PurgatoryFull"
        operation.cancel()
        assert "Nameless" in str(await outcome(operation))


def in_two_runs(first, second):
    """Runs two coroutine functions, one after the other, each in its own run of the same loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(first())
        return runner.run(second())


@pytest.mark.parametrize(
    "method", ["check_and_complete", "deliver", "cancel_for_key", "acancel_for_key", "wait"]
)
def test_first_call_of_run_works_despite_raising_repr(method):
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
def test_first_thresholds_call_of_run_survives_raising_repr(
    method,
):
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
async def test_threshold_wait_ends_alike_despite_raising_repr(timeout):
    thresholds = ThresholdPurgatory()
    waiting = asyncio.create_task(outcome(thresholds.wait(Key(), 1, timeout)))
    await asyncio.sleep(10)
    await thresholds.aclose()
    assert type(await waiting).__name__ == (
        "OperationCancelled" if timeout is None else "OperationTimeout"
    )


@on_virtual_time
async def test_waits_time_out_despite_raising_repr_of_key(
    purgatory,
):
    for awaited in (purgatory.wait_for(lambda: None, [Key()], 1), purgatory.receive(Key(), 1)):
        assert isinstance(await outcome(awaited), TimeoutError)


def test_first_touch_of_run_counts_despite_raising_repr():
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
async def test_on_idle_error_is_reported_despite_raising_repr(reports):
    def on_idle(id_):
        idle.append(id_)
        raise ValueError("on_idle")

    idle = []
    tracker = IdleTracker(10.0, on_idle)
    tracker.touch(Key())
    tracker.touch(Key())
    await asyncio.sleep(20)
    assert len(idle) == len(reports) == 2
    assert all(
        isinstance(report["exception"], ValueError) and "Key" in report["message"]
        for report in reports
    )


@on_virtual_time
async def test_callback_error_is_reported_despite_raising_repr(reports):
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
async def test_missed_trigger_counts_despite_raising_repr_of_keys():
    async with Purgatory("nameless keys") as purgatory:
        operations = watch_all(purgatory, [Probe(5), Probe(5)], [Key()])
        for operation in operations:
            operation.ready = True
        assert await asyncio.gather(*operations) == ["", ""]
        assert purgatory.statistics().missed_triggers == 2


class Talker:
    """An observer whose `__repr__` raises."""

    def operation_ended(self, ended):
        raise ValueError("an observer")

    def key_checked(self, key, tried, completed):
        raise ValueError("an observer")

    def __repr__(self):
        raise Broken("no name")


@on_virtual_time
async def test_observer_error_is_reported_despite_raising_repr(reports):
    async with Purgatory(observer=Talker()) as purgatory:
        operations = watch_all(purgatory, [Probe(60), Probe(60)])
        for operation in operations:
            operation.ready = True
        assert purgatory.check_and_complete("key") == 2
        assert len(reports) == 3 and all(
            isinstance(report["exception"], ValueError) for report in reports
        )


# A subclass that overrides `cancel`


class Reluctant(Probe):
    """Overrides `cancel`, and counts its calls."""

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
async def test_library_does_not_call_overridden_cancel(answer, how):
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
async def test_cancelled_task_does_not_call_overridden_cancel(
    answer,
):
    purgatory = Purgatory()
    operation = Reluctant(answer)
    waiting = asyncio.create_task(outcome(purgatory.wait(operation, ["key"])))
    await iterations()
    waiting.cancel()
    assert type(await waiting) is asyncio.CancelledError
    assert operation.state is CANCELLED and purgatory.pending == 0


# Attributes that always exist


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
    await purgatory.wait(
        Probe(ready=True, completing=lambda _: operation.force_complete()), ["another"]
    )


async def by_force_unwatched(purgatory, operation):
    operation.force_complete()


async def by_deadline(purgatory, operation):
    purgatory.try_complete_else_watch(operation, ["key"])
    await asyncio.sleep(100)


async def by_deadline_at_once(purgatory, operation):
    await asyncio.sleep(100)
    purgatory.try_complete_else_watch(operation, ["key"])


WAYS = [
    by_first_try,
    by_check,
    by_force,
    by_force_in_a_hook,
    by_force_unwatched,
    by_deadline,
    by_deadline_at_once,
]


@on_virtual_time
@pytest.mark.parametrize("way", WAYS)
async def test_operation_with_every_attribute_runs_hooks_once(purgatory, way):
    operation = Lenient(deadline=60, name="its name")
    await way(purgatory, operation)
    assert operation.calls.count("complete") == 1
    assert await operation == "its name"


@on_virtual_time
async def test_operation_with_every_attribute_has_no_early_result(purgatory):
    operation = Lenient(60)
    for _ in range(2):
        with pytest.raises(asyncio.InvalidStateError):
            operation.result()
        if not purgatory.pending:
            purgatory.try_complete_else_watch(operation, ["key"])
    operation.cancel()
    with pytest.raises(OperationCancelled):
        operation.result()


def test_call_outside_loop_is_explained_despite_raising_repr():
    purgatory = Purgatory()

    async def first():
        await purgatory.wait(Probe(ready=True), ["key"])

    asyncio.run(first())
    for call in (purgatory.check_and_complete, purgatory.cancel_for_key):
        with pytest.raises(WrongLoop, match="Key"):
            call(Key())


class EndingLoop(VirtualTimeLoop):
    """Calls `end` when a future is made, as the collector calls a finalizer there."""

    end = None

    def create_future(self):
        future = super().create_future()
        if self.end is not None:
            end, self.end = self.end, None
            end()
        return future


@pytest.mark.parametrize("how", ["force_complete", "cancel"])
@pytest.mark.parametrize("way", ["wait", "await", "second await"])
def test_end_while_a_future_is_made_answers(how, way):
    async def main():
        loop, purgatory = asyncio.get_running_loop(), Purgatory()
        operation = Probe(60, name="answer")

        async def wait():
            if way == "wait":
                return await purgatory.wait(operation, ["key"])
            return await operation

        others = []
        if way != "wait":
            purgatory.try_complete_else_watch(operation, ["key"])
        if way == "second await":
            others = [asyncio.create_task(outcome(operation))]
            await iterations()
        task = asyncio.create_task(outcome(wait()))
        loop.end = getattr(operation, how)
        await iterations(3)
        assert operation.is_completed and task.done()
        for each in (task, *others):
            answer = await each
            assert isinstance(answer, OperationCancelled) if how == "cancel" else answer == "answer"

    with asyncio.Runner(loop_factory=EndingLoop) as runner:
        runner.run(main())
