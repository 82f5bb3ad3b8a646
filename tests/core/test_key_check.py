"""Checks of keys: which operations are tried, in which order, the return value, and the budget of
an iteration of the loop."""

import asyncio
import gc

import pytest
from helpers import Broken, Probe, counts, iterations, outcome, watch_all
from invariants import MAX_PER_ITERATION, check
from loops import on_virtual_time

from purgatory import DelayedOperation, OperationCancelled, OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

BURST = 8 * MAX_PER_ITERATION + 7


# The return value of a check


async def test_check_counts_completions_of_nested_checks_too(purgatory):
    a = watch_all(purgatory, [Probe(30, ready=False) for _ in range(3)], ["a"])
    b = watch_all(purgatory, [Probe(30) for _ in range(2)], ["b"])
    forced = watch_all(purgatory, [Probe(30)], ["c"])[0]
    inner = []

    def completing(_):
        inner.append(purgatory.check_and_complete("b"))
        forced.force_complete()

    for operation in (a[0], a[2], *b):
        operation.ready = True
    a[0].completing = completing
    assert purgatory.check_and_complete("a") == 4 and inner == [0]
    assert forced.state is COMPLETED and purgatory.pending == 1


# Bursts coalesce


@on_virtual_time
@pytest.mark.parametrize("by", ["calls", "threads", "hooks"])
async def test_key_that_is_always_checked_is_queued_once(purgatory, by):
    waiting = watch_all(purgatory, [Probe(None) for _ in range(10 * MAX_PER_ITERATION)], ["hot"])
    log = waiting[0].log
    for operation in waiting:
        operation.log = log
    asked = 100
    for _ in range(asked):
        if by == "calls":
            purgatory.check_and_complete("hot")
        elif by == "threads":
            purgatory.check_and_complete_threadsafe("hot")
        else:
            Probe(completing=lambda _: purgatory.check_and_complete("hot")).force_complete()
        await iterations(1)
    before = len(log)
    assert before <= (asked + 1) * MAX_PER_ITERATION + len(waiting)
    await iterations(asked * 10)
    # The rest of the check in progress and one more check remain, not one check for each call.
    assert len(log) - before <= 2 * len(waiting)
    count = len(log)
    await iterations(30)
    assert len(log) == count


@on_virtual_time
async def test_check_requested_during_check_runs_once_more(purgatory):
    waiting = watch_all(purgatory, [Probe(None) for _ in range(3 * MAX_PER_ITERATION)], ["hot"])
    assert purgatory.check_and_complete("hot") == 0
    waiting[0].ready = True
    assert purgatory.check_and_complete("hot") == 0  # already tried by this check
    await iterations(10)
    assert waiting[0].state is COMPLETED
    assert {len(operation.calls) for operation in waiting[1:]} == {3}


# First come, first served


@on_virtual_time
@pytest.mark.parametrize(
    ("count", "at"),
    [
        (300, 0),
        (300, 299),
        (MAX_PER_ITERATION, 100),
        (2 * MAX_PER_ITERATION + 300, 2 * MAX_PER_ITERATION + 50),
    ],
)
@pytest.mark.parametrize("leaving", ["all leave", "some leave", "nobody leaves"])
async def test_newcomers_are_tried_in_order_after_check(purgatory, leaving, count, at):
    served, new = [], []

    def newcomers(number):
        for _ in range(number):
            new.append(
                Probe(
                    None, name=len(new), ready=True, completing=lambda one: served.append(one.name)
                )
            )
            watch_all(purgatory, new[-1:], ["hot"])

    def come_and_go(_):
        if not new:
            newcomers(5)
            for operation in old[
                :: {"all leave": 1, "some leave": 3, "nobody leaves": count}[leaving]
            ]:
                operation.cancel()
            newcomers(2 * MAX_PER_ITERATION)

    old = watch_all(purgatory, [Probe(None) for _ in range(count)], ["hot"])
    old[at].trying = come_and_go
    purgatory.check_and_complete("hot")
    await iterations(12)
    assert [number for number, name in enumerate(served) if number != name] == [] and len(
        served
    ) == len(new)
    assert {len(operation.calls) for operation in new} == {2}
    check(purgatory)
    purgatory.cancel_for_key("hot")
    assert purgatory.pending == purgatory.watched == 0


# A failing try


class Ended(DelayedOperation[None]):
    """Its second try completes the operation and then raises."""

    def __init__(self, end, error):
        super().__init__(30)
        self.end, self.error, self.tries = end, error, 0

    def try_complete(self):
        self.tries += 1
        if self.tries == 1:
            return False
        if self.end is not None:
            getattr(self, self.end)()
        if self.error is not None:
            raise self.error
        return True


@pytest.mark.parametrize(
    ("end", "error", "raised", "reported"),
    [
        (None, Broken("no"), Broken, None),
        (None, None, TypeError, None),
        ("cancel", None, OperationCancelled, None),
        ("cancel", Broken("no"), OperationCancelled, Broken),
        ("force_complete", Broken("no"), None, Broken),
    ],
    ids=[
        "raises",
        "says yes and does nothing",
        "cancels itself",
        "cancels itself and raises",
        "completes and raises",
    ],
)
async def test_failing_try_ends_only_its_own_operation(end, error, raised, reported, reports):
    async with Purgatory() as purgatory:
        before, after = Probe(30), Probe(30)
        operation = Ended(end, error)
        for each in (before, operation, after):
            purgatory.try_complete_else_watch(each, ["key", "other"])
        waiting = asyncio.create_task(outcome(operation))
        await iterations()
        before.ready = after.ready = True
        assert purgatory.check_and_complete("key") == 2 + (end == "force_complete")
        assert before.state is after.state is COMPLETED and operation.is_completed
        answer = await waiting
        assert answer is None if raised is None else type(answer) is raised
        assert counts(purgatory) == (0, 0, 0) and purgatory.statistics().cancelled == (
            raised is not None
        )
    assert [type(report["exception"]) for report in reports] == (
        [] if reported is None else [reported]
    )


@on_virtual_time
async def test_check_reaches_newcomer_after_all_others_have_left(purgatory):
    loop = asyncio.get_running_loop()
    watch_all(purgatory, [Probe(None)], ["k"])[0].cancel()  # the loop looks soon if nothing waits
    newcomer = Probe(None, ready=True)
    loop.call_soon(purgatory.try_complete_else_watch, newcomer, ["k"])
    waiting = watch_all(purgatory, [Probe(None) for _ in range(BURST)], ["k"])
    purgatory.check_and_complete("k")  # the rest follows in the next iteration
    for operation in waiting:
        operation.cancel()
    await iterations(3)
    assert newcomer.state is COMPLETED and purgatory.pending == 0
    check(purgatory)


@pytest.mark.cpython  # which sets when garbage is collected
@pytest.mark.parametrize("count", [1, 2])
async def test_newcomer_waits_though_finalizer_ends_others(purgatory, count):
    class Dropped:
        def __init__(self, waiting):
            self.waiting, self.cycle = waiting, self

        def __del__(self):
            for operation in self.waiting:
                operation.cancel()

    thresholds, keys = gc.get_threshold(), ("key",)
    gc.freeze()  # so that collections are quick
    try:
        for allocations in range(1, 60):  # after which the finalizer runs
            gc.disable()
            gc.collect()
            Dropped(watch_all(purgatory, [Probe(30, ready=False) for _ in range(count)], keys))
            newcomer = Probe(30, ready=False)
            gc.set_threshold(allocations)
            gc.enable()
            purgatory.try_complete_else_watch(newcomer, keys)
            gc.collect()
            check(purgatory)
            assert purgatory.pending == 1
            newcomer.ready = True
            assert purgatory.check_and_complete("key") == 1 and not list(purgatory.keys())
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        gc.unfreeze()
