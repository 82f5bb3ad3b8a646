"""Wake-ups and fairness: no wake-up is lost, no waiter is overtaken or starves, and an iteration of
the loop keeps to its budget."""

import asyncio
from itertools import pairwise

import pytest
from helpers import Probe, in_thread, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationState, Purgatory
from purgatory._core.loop import MAX_PER_ITERATION

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


# No wake-up is lost


async def test_first_try_checking_its_key_is_tried_again(purgatory):

    def check_and_be_ready(operation):
        if len(operation.calls) == 1:
            purgatory.check_and_complete("key")
            # Too late for this try, which was not ready.
            asyncio.get_running_loop().call_soon(set)
            first_ready.append(operation)

    class Late(Probe):
        def try_complete(self):
            was_ready = self.ready
            super().try_complete()
            self.ready = True
            return was_ready and self.force_complete()

    first_ready = []
    operation = Late(None, trying=check_and_be_ready)
    # The check that its own try requested has completed it before the watch ends.
    assert purgatory.try_complete_else_watch(operation, ["key"]) is True
    assert operation.state is COMPLETED and purgatory.pending == 0


async def test_first_try_in_hook_checking_key_is_retried(purgatory):
    inner = Probe(None)
    inner.trying = lambda one: (
        purgatory.check_and_complete("inner"),
        setattr(one, "ready", len(one.calls) > 1),
    )
    outer = Probe(None, completing=lambda _: purgatory.try_complete_else_watch(inner, ["inner"]))
    watch_all(purgatory, [outer], ["outer"])
    outer.ready = True
    assert purgatory.check_and_complete("outer") == 2
    assert inner.state is COMPLETED and inner.calls == ["try", "try", "complete"]


async def test_operation_watched_after_check_in_hook_is_completed(
    purgatory,
):
    inner = Probe(None, ready=True)

    def check_then_watch(_):
        purgatory.check_and_complete("inner")
        purgatory.try_complete_else_watch(inner, ["inner"])

    outer = Probe(None, ready=True, completing=check_then_watch)
    assert purgatory.try_complete_else_watch(outer, ["outer"])
    assert inner.state is COMPLETED


# No waiter starves


@on_virtual_time
@pytest.mark.parametrize("busy", ["one hot key", "many hot keys", "hooks that go on for ever"])
async def test_key_named_by_thread_is_checked_despite_load(purgatory, busy):
    goes_on = True
    keys = range(20) if busy == "many hot keys" else [0]
    if busy == "hooks that go on for ever":

        def another(_):
            if goes_on:
                Probe(completing=another).force_complete()

        Probe(completing=another).force_complete()
    else:
        for key in keys:
            watch_all(purgatory, [Probe(None) for _ in range(5000 // len(keys))], [key])
    quiet = watch_all(purgatory, [Probe(None)], ["quiet"])[0]
    quiet.ready = True
    waited = 0
    for number in range(200):
        for key in keys:
            purgatory.check_and_complete(key)
        if number == 20:
            in_thread(purgatory.check_and_complete_threadsafe, "quiet")
        await iterations(1)
        waited += number >= 20 and not quiet.is_completed
    goes_on = False
    assert quiet.is_completed and waited <= 4
    await iterations(300)


# No iteration costs more than its budget


@on_virtual_time
async def test_crowd_is_cancelled_by_budget_per_iteration(purgatory):
    waiting = watch_all(
        purgatory, [Probe(30) for _ in range(5 * MAX_PER_ITERATION)], ["hot", "other"]
    )
    left = [purgatory.pending]

    async def look():
        while purgatory.pending:
            await iterations(1)
            left.append(purgatory.pending)

    looking = asyncio.create_task(look())
    await iterations(1)
    assert await purgatory.acancel_for_key("hot") == waiting
    await looking
    assert max(before - after for before, after in pairwise(left)) <= MAX_PER_ITERATION
    assert {operation.state for operation in waiting} == {CANCELLED} and purgatory.watched == 0
    assert await purgatory.acancel_for_key("hot") == []


# One hook at a time, whichever purgatory it belongs to


async def test_chain_across_purgatories_needs_no_deeper_stack():
    count = 5000
    purgatories = [Purgatory(str(number)) for number in range(count)]

    def next_one(operation):
        if operation.name + 1 < count:
            purgatories[operation.name + 1].check_and_complete("key")

    operations = [Probe(None, name=number, completing=next_one) for number in range(count)]
    for purgatory, operation in zip(purgatories, operations, strict=True):
        purgatory.try_complete_else_watch(operation, ["key"])
        operation.ready = True
    purgatories[0].check_and_complete("key")
    await iterations(4 * count // MAX_PER_ITERATION)
    assert {operation.state for operation in operations} == {COMPLETED}
    for purgatory in purgatories:
        await purgatory.aclose()


@on_virtual_time
async def test_no_hook_nests_across_purgatories():
    async with Purgatory("one") as one, Purgatory("two") as two:
        inside = []

        def enter(operation):
            assert not inside
            inside.append(operation)
            for purgatory in (one, two):
                purgatory.check_and_complete("key")
            for other in operations:
                other.force_complete()
            inside.pop()

        operations = [Probe(None, completing=enter) for _ in range(6)]
        for number, operation in enumerate(operations):
            (one, two)[number % 2].try_complete_else_watch(operation, ["key"])
        operations[0].ready = True
        one.check_and_complete("key")
        assert [operation.state for operation in operations] == [COMPLETED] * 6
        assert all(operation.calls.count("complete") == 1 for operation in operations)


# Closing within a hook


def closed_within(purgatory):
    """Closes a purgatory without waiting, as an eager task does."""
    with pytest.raises(StopIteration):
        purgatory.aclose().send(None)


async def test_close_within_first_try_answers_its_operation():
    purgatory = Purgatory()
    operation = Probe(30, trying=lambda _: closed_within(purgatory))
    assert isinstance(
        await asyncio.wait_for(outcome(purgatory.wait(operation, ["key"])), 5), OperationCancelled
    )
    assert operation.state is CANCELLED and purgatory.pending == purgatory.watched == 0
    assert purgatory.statistics().cancelled == 1


@on_virtual_time
async def test_close_waits_only_for_its_own_hooks():
    goes_on = True

    def another(_):
        if goes_on:
            Probe(completing=another).force_complete()

    Probe(completing=another).force_complete()
    purgatory = Purgatory()
    burst = watch_all(purgatory, [Probe(None) for _ in range(3 * MAX_PER_ITERATION)], ["key"])
    Probe(completing=lambda _: [operation.force_complete() for operation in burst]).force_complete()
    await asyncio.wait_for(purgatory.aclose(), 1)
    assert all(operation.calls[-1] == "complete" for operation in burst)
    goes_on = False
    await iterations(3)


# Ends outside a hook are answered at once


@on_virtual_time
async def test_force_complete_has_result_during_a_burst(purgatory):
    log = []
    burst = watch_all(
        purgatory, [Probe(None, log=log) for _ in range(4 * MAX_PER_ITERATION)], ["burst"]
    )
    others = watch_all(purgatory, [Probe(None, name=number) for number in range(3)], ["others"])
    starter = Probe(
        None, ready=True, completing=lambda _: [operation.force_complete() for operation in burst]
    )
    assert purgatory.try_complete_else_watch(starter, ["start"])
    log.clear()
    for other in others:
        assert other.force_complete() and other.result() == other.name
    assert log == []  # the burst runs in iterations of its own
    await iterations(5)
    assert [name for _, name in log].count("complete") >= 3 * MAX_PER_ITERATION


@on_virtual_time
async def test_first_try_causing_burst_has_result_at_once(purgatory):
    burst = watch_all(purgatory, [Probe(None) for _ in range(4 * MAX_PER_ITERATION)], ["burst"])
    first = Probe(None, name="first", ready=True)
    first.trying = lambda _: [operation.force_complete() for operation in burst]
    assert purgatory.try_complete_else_watch(first, ["key"]) and first.result() == "first"
    await iterations(5)
    assert all(operation.calls.count("complete") == 1 for operation in burst)


@on_virtual_time
async def test_work_beyond_budget_runs_although_hook_exits(reports):
    purgatory = Purgatory()
    operations = [Probe(None) for _ in range(3 * MAX_PER_ITERATION)]

    watch_all(purgatory, operations, ["key"])
    operations[10].completing = lambda _: (_ for _ in ()).throw(SystemExit)
    for operation in operations:
        operation.ready = True
    with pytest.raises(SystemExit):
        purgatory.check_and_complete("key")
    await iterations(8)
    assert {operation.state for operation in operations} == {COMPLETED}
    assert all(operation.calls.count("complete") == 1 for operation in operations)
    await outcome(operations[10])
