"""Known defects of similar libraries. A defect that another test file covers is not repeated
here."""

import asyncio
import gc
import weakref
from contextvars import ContextVar, copy_context
from math import inf, nextafter

import pytest
from helpers import Probe, iterations, outcome
from loops import on_every_loop, on_virtual_time

from purgatory import OperationReused, OperationState, Purgatory
from purgatory._core.loop import MAX_TIMER_DELAY

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

at_any_loop_time = pytest.mark.parametrize("start", [0.0, 2e7, 1e9])


# Completion


async def test_expiry_runs_no_hook_beside_a_condition_check(purgatory):
    """kafka#19759: `onExpiration` and `tryComplete` ran at the same time, on two threads."""
    inside = []

    def enter(operation):
        assert not inside, "a hook beside a hook"
        inside.append(operation)
        if operation.is_completed:
            purgatory.check_and_complete("key")
        inside.pop()

    operation = Probe(0.01, trying=enter, completing=enter, expiring=enter)
    waiting = asyncio.create_task(purgatory.wait(operation, ["key"]))
    while not waiting.done():
        purgatory.check_and_complete("key")
        await asyncio.sleep(0.001)
    assert await waiting is None and operation.state is EXPIRED
    assert operation.calls[-3:] == ["try", "complete", "expire"]


@on_virtual_time
@pytest.mark.parametrize("end", ["check", "expiry", "cancel"])
async def test_completed_operation_leaves_lists_of_all_keys(purgatory, end):
    """kafka#19928, kafka#20654: it stayed in the list of its second key until the broker ran out of
    memory."""
    for number in range(1000):
        operation = Probe(1)
        purgatory.try_complete_else_watch(operation, ["first", ("second", number), "third"])
        operation.ready = end == "check"
        if end == "check":
            purgatory.check_and_complete("first")
        elif end == "cancel":
            operation.cancel()
    await asyncio.sleep(2 if end == "expiry" else 0)
    statistics = purgatory.statistics()
    assert (statistics.pending, statistics.watched, statistics.keys) == (0, 0, 0)
    assert not purgatory._by_key


@on_virtual_time
async def test_missed_trigger_is_counted_and_completes_at_deadline(
    purgatory,
):
    """kafka#12783, kafka#20280: checkAndComplete was never called, so the request waited its whole
    timeout and failed."""
    ready = False
    waiting = asyncio.create_task(purgatory.wait_for(lambda: ready, ["key"], timeout=5))
    await asyncio.sleep(1)
    ready = True
    assert await waiting is True and asyncio.get_running_loop().time() == 5.0
    assert purgatory.statistics().missed_triggers == 1 and purgatory.statistics().expired == 0


@pytest.mark.parametrize("end", ["force_complete", "cancel"])
async def test_ending_operation_of_cancelled_awaiter_is_valid(purgatory, end):
    """aiosqlite#80, aio-pika#177: `InvalidStateError` from setting a future that its awaiter had
    cancelled."""
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    tasks = [asyncio.create_task(outcome(operation)) for _ in range(3)]
    await iterations()
    tasks[0].cancel()
    tasks[2].cancel()
    assert getattr(operation, end)()
    results = await asyncio.gather(*tasks)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, False, True]


async def test_waiter_woken_and_cancelled_loses_no_wake_up(purgatory):
    """cpython#112202: the wake-up of `asyncio.Condition` was lost with the task that had received
    it."""
    ready = False
    tasks = [
        asyncio.create_task(outcome(purgatory.wait_for(lambda: ready, ["key"]))) for _ in range(3)
    ]
    await iterations()
    ready = True
    assert purgatory.check_and_complete("key") == 3
    tasks[0].cancel()
    first, *others = await asyncio.gather(*tasks)
    assert isinstance(first, asyncio.CancelledError) and others == [True, True]


@on_virtual_time
async def test_first_deadline_is_kept_despite_repeated_tries(purgatory):
    """redis#14165: a blocked client that was tried again restarted its timeout, and waited for
    ever."""
    operation = Probe(2)
    purgatory.try_complete_else_watch(operation, ["key"])
    for _ in range(19):
        await asyncio.sleep(0.1)
        purgatory.check_and_complete("key")
        with pytest.raises(OperationReused):
            purgatory.try_complete_else_watch(operation, ["key"])
        assert operation.deadline == 2.0
    await asyncio.sleep(0.11)
    assert operation.state is EXPIRED


# Time


class Crooked:
    """Fires a loop's timers too early or too late, and returns handles that can only be
    cancelled."""

    class Handle:
        def __init__(self, handle):
            self.cancel = handle.cancel

    def __init__(self, loop, late):
        self.loop, self.call_at, self.late = loop, loop.call_at, late
        loop.call_at = self
        loop.call_later = self.call_later  # asyncio.sleep stays as it is

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.loop.time() + delay, callback, *args, context=context)

    def __call__(self, when, callback, *args, context=None):
        when = max(when + self.late, self.loop.time() + 0.0001)  # time still advances
        return self.Handle(self.call_at(when, callback, *args, context=context))


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize(
    ("late", "tick"),
    [
        (-0.0015, 0.001),
        (-0.001, 0.01),
        (-1e-6, 0.001),
        (-1e-9, 0.01),
        (0.0, 0.001),
        (1e-6, 0.01),
        (0.0004, 0.001),
        (3.0, 0.01),
    ],
)
async def test_deadlines_hold_when_loop_fires_early_or_late(start, late, tick):
    """uvloop#233, uvloop#755: a timer of uvloop fires up to a millisecond before its time on the
    monotonic clock."""

    loop = asyncio.get_running_loop()
    wrong = []
    async with Purgatory(tick=tick, wheel_size=20) as purgatory:
        Crooked(loop, late)
        operations = []
        for number in range(60):
            operation = Probe(
                tick * (0.4 + number * 1.37),
                completing=lambda operation: wrong.append(loop.time() < operation.deadline),
            )
            operations.append(operation)
            purgatory.try_complete_else_watch(operation, [number])
        await asyncio.sleep(8)
        assert wrong == [False] * 60 and purgatory.pending == 0


@on_virtual_time
@at_any_loop_time
async def test_deadline_on_millisecond_grid_is_met_exactly(start):
    """`int(loop.time() * 1000)` falls a tick short of an exact wake-up in some 1 of 200 cases."""

    loop = asyncio.get_running_loop()
    late = []
    async with Purgatory() as purgatory:
        first = round(start * 1000)
        for number in range(1, 1000):
            operation = Probe(
                deadline=(first + number) / 1000,
                completing=lambda operation: late.append(loop.time() - operation.deadline),
            )
            purgatory.try_complete_else_watch(operation, [number])
        spun = purgatory.statistics().wake_ups
        await asyncio.sleep(2)
        spun = purgatory.statistics().wake_ups - spun
    assert len(late) == 999 and min(late) >= 0.0 and max(late) <= 0.001001
    assert spun < 2500


@on_virtual_time
@at_any_loop_time
async def test_deadline_indistinguishable_from_now_expires_on_time(start):
    """cpython#145706: far from zero `t + 1e-9 == t`."""

    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        operations = [
            Probe(1e-9),
            Probe(deadline=loop.time()),
            Probe(deadline=nextafter(loop.time(), inf)),
        ]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, ["key"])
        await asyncio.sleep(0.0011)
        assert [operation.state for operation in operations] == [EXPIRED] * 3


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("wheel_size", [2, 20, 512])
async def test_overdue_entries_of_all_levels_expire_once(start, wheel_size):
    """camunda#767: after a long idle stretch all due buckets of all levels are due at once."""

    loop = asyncio.get_running_loop()
    async with Purgatory(wheel_size=wheel_size) as purgatory:
        log = []
        for number in reversed(range(1000)):
            operation = Probe(0.001 + 0.0021 * number, name=number, log=log)
            purgatory.try_complete_else_watch(operation, [number])
        later = Probe(30, log=log)
        purgatory.try_complete_else_watch(later, ["later"])
        loop._set_time(loop.time() + 10)  # the stall
        await iterations(30)
        assert sorted(name for name, hook in log if hook == "expire") == list(range(1000))
        assert later.state is PENDING and loop.time() == start + 10


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("wheel_size", [2, 10, 20])
async def test_overflow_fires_neither_early_nor_late(start, wheel_size):
    """netty#7760, tokio#6612: an entry that moved to the next level fired early."""

    loop = asyncio.get_running_loop()
    fired = {}
    async with Purgatory(tick=1.0, wheel_size=wheel_size) as purgatory:
        spans = [wheel_size**level + off for level in range(1, 4) for off in (-1, 0, 1)]
        for span in spans:
            operation = Probe(
                span, name=span, completing=lambda one: fired.setdefault(one.name, loop.time())
            )
            purgatory.try_complete_else_watch(operation, [span])
        await asyncio.sleep(wheel_size**3 + 2)
    assert fired == {span: start + span for span in spans}


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("timeout", [1e-9, 1e-4, 0.001])
async def test_watching_again_in_draining_bucket_does_not_loop(start, timeout):
    """A hook that watches again with a tiny timeout, for ever, must not block the loop's other
    work."""

    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        count = 0

        def again(_=None):
            nonlocal count
            count += 1
            if not stopped:
                purgatory.try_complete_else_watch(
                    Probe(max(timeout, 1e-6), expiring=again), ["key"]
                )

        stopped = False
        again()
        await asyncio.sleep(0.05)
        stopped = True
        assert 10 < count < 1000
        await asyncio.sleep(0.01)
        assert purgatory.pending == 0 and loop.time() >= start + 0.06


@on_every_loop
@pytest.mark.parametrize("timeout", [86_401.0, 1e9, 1e12, 1e300])
async def test_very_far_deadlines_are_accepted_by_every_loop(purgatory, timeout):
    """uvloop#259: a very far deadline was refused, or truncated to fire at once."""
    operations = [Probe(timeout), Probe(deadline=timeout)]
    for operation in operations:
        assert not purgatory.try_complete_else_watch(operation, ["key", "second"])
    await asyncio.sleep(0.005)
    assert purgatory.pending == 2
    operations[0].ready = True
    assert purgatory.check_and_complete("key") == 1 and operations[1].cancel()


@on_virtual_time
@pytest.mark.parametrize("days", [0.99, 1.0, 1.01, 40, 400])
async def test_far_deadline_is_met_in_daily_stages(days):
    loop = asyncio.get_running_loop()
    async with Purgatory() as purgatory:
        operation = Probe(days * MAX_TIMER_DELAY)
        await purgatory.wait(operation, ["key"])
        assert 0.0 <= loop.time() - operation.deadline <= 0.001
        assert purgatory.statistics().wake_ups <= days + 6


@on_virtual_time
async def test_timers_of_wheel_keep_no_context_alive():
    """A timer handle keeps the context of its creator alive; a bucket's handle has no single
    creator."""
    variable = ContextVar("variable")

    class Value:
        pass

    async with Purgatory() as purgatory:
        value = Value()
        context = copy_context()
        context.run(variable.set, value)
        operation = Probe(5)
        context.run(purgatory.try_complete_else_watch, operation, ["key"])
        purgatory.try_complete_else_watch(Probe(5), ["key"])
        operation.cancel()
        reference = weakref.ref(value)
        del value, context
        gc.collect()
        assert purgatory.pending == 1 and reference() is None


# asyncio


@pytest.mark.parametrize("cancel_first", [True, False])
async def test_cancellation_together_with_answer_is_not_swallowed(purgatory, cancel_first):
    """cpython#86296, cpython#134471: `asyncio.wait_for` returned the result, and the task continued
    uncancelled."""
    operation = Probe(30)
    task = asyncio.create_task(outcome(purgatory.wait(operation, ["key"])))
    await iterations()
    for cancels in (cancel_first, not cancel_first):
        if cancels:
            assert task.cancel()
        else:
            assert operation.force_complete()
    assert isinstance(await task, asyncio.CancelledError)
    assert operation.state is COMPLETED and operation.calls == ["try", "complete"]


async def test_cancellation_together_with_deadline_is_counted_once(purgatory):
    """cpython#102815: `uncancel` counts, so a library must not cancel or uncancel on behalf of
    others."""
    counts = []

    async def wait():
        try:
            async with asyncio.timeout(0.005):
                await purgatory.wait(Probe(0.005), ["key"])
        except TimeoutError:
            pass
        counts.append(asyncio.current_task().cancelling())

    await asyncio.gather(*[wait() for _ in range(20)])
    assert counts == [0] * 20 and purgatory.pending == 0


async def test_waits_work_in_tasks_of_any_kind(
    purgatory,
):
    """cpython#128550: an eager task runs before it is a task of the loop, up to its first
    suspension."""
    at_once = asyncio.create_task(purgatory.wait(Probe(ready=True, name=1), ["key"]))
    later = [asyncio.create_task(purgatory.wait(Probe(0.002, name=n), ["key"])) for n in range(2)]
    hosted = []
    host = Probe(
        completing=lambda _: hosted.append(
            asyncio.create_task(purgatory.wait(Probe(0.002), ["key"]))
        )
    )
    host.force_complete()
    assert await asyncio.gather(at_once, *later, *hosted) == [1, 0, 1, ""]
