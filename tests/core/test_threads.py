"""Calls from other threads: signals are never lost and wake the loop once per burst; all other
calls are errors."""

import asyncio
import gc
import threading
import weakref

import pytest
from helpers import Broken, Probe, Spy, in_thread, iterations
from loops import on_every_loop

from purgatory import OperationState, Purgatory

pytestmark = on_every_loop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


async def until(condition):
    """Waits in real time, even on virtual time."""
    while not condition():
        await asyncio.to_thread(threading.Event().wait, 0.001)


@pytest.mark.parametrize("keys", [1, 7])
async def test_burst_of_signals_wakes_loop_once_in_order(keys):
    spy = Spy(asyncio.get_running_loop())
    async with Purgatory() as purgatory:
        log = []
        operations = [Probe(30, name=key, log=log) for key in range(keys)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, [operation.name])
        log.clear()

        def burst():
            for number in range(100 * keys):
                purgatory.check_and_complete_threadsafe(number % keys)

        for round_ in range(3):
            # The loop is blocked until the thread ends.
            in_thread(burst)
            burst()
            assert spy.calls["call_soon_threadsafe"] == round_ + 1 and len(log) == round_ * keys
            await asyncio.sleep(0.01)
            assert log[round_ * keys :] == [(key, "try") for key in range(keys)]


async def test_failed_wake_up_is_raised_and_repeated(purgatory):
    def refuse(*_, context=None):
        raise Broken

    loop, operation = asyncio.get_running_loop(), Probe(30, ready=False)
    purgatory.try_complete_else_watch(operation, ["key"])
    operation.ready, wake = True, loop.call_soon_threadsafe
    loop.call_soon_threadsafe = refuse
    with pytest.raises(Broken):
        in_thread(purgatory.check_and_complete_threadsafe, "key")
    loop.call_soon_threadsafe = wake
    in_thread(purgatory.check_and_complete_threadsafe, "other")
    await iterations(3)
    assert operation.is_completed


# Signals without a receiver


def test_signal_before_first_use_has_no_effect(run):
    purgatory = Purgatory()
    purgatory.check_and_complete_threadsafe("key")
    in_thread(purgatory.check_and_complete_threadsafe, "key")

    async def main():
        async with purgatory:
            operation = Probe(30)
            purgatory.try_complete_else_watch(operation, ["key"])
            await asyncio.sleep(0.005)
            assert operation.calls == ["try"]

    run(main)


async def test_signal_while_draining_completes():
    purgatory = Purgatory()
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    closing = asyncio.create_task(purgatory.aclose(drain=20))
    await iterations(2)
    operation.ready = True
    await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key")
    assert await closing == [] and operation.state is COMPLETED


@pytest.mark.cpython
def test_signal_to_closed_loop_has_no_effect(loop_factory):
    class Key:
        pass

    purgatory, operation = Purgatory(), Probe(30)
    with asyncio.Runner(loop_factory=loop_factory) as runner:

        async def watch():
            purgatory.try_complete_else_watch(operation, ["key"])  # it is deleted below

        runner.run(watch())
    operation.ready = True
    keys = [Key() for _ in range(100)]
    for key in ["key", *keys]:
        in_thread(purgatory.check_and_complete_threadsafe, key)
        purgatory.check_and_complete_threadsafe(key)
    assert operation.state is PENDING
    references = [weakref.ref(key) for key in keys]
    del key, keys
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1
