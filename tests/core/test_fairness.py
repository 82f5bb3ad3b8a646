"""Wake-ups and fairness: no wake-up is lost, no waiter is overtaken or starves, and an iteration of
the loop keeps to its budget."""

import asyncio

import pytest
from helpers import Probe, in_thread, iterations, watch_all
from invariants import MAX_PER_ITERATION
from loops import on_virtual_time

from purgatory import OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


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


# Closing within a hook


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
