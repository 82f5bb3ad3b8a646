"""A missed trigger means a forgotten check. An operation that completes at its deadline while a
check of its key is queued, in progress or requested by another thread does not count."""

import asyncio
import logging

import pytest
from helpers import Listener, Probe, in_thread, watch_all
from loops import on_virtual_time

from purgatory import OperationState, Purgatory

MANY = 2000
"""Enough operations under a key that a check takes several iterations of the loop."""


@pytest.fixture
def listener(caplog):
    """An observer that expects no missed trigger; none may be logged either."""
    listener = Listener()
    with caplog.at_level(logging.WARNING, "purgatory"):
        yield listener
    assert listener.ended
    assert not any(ended.missed_trigger for ended in listener.ended)
    assert not [record for record in caplog.records if "missed trigger" in record.getMessage()]


def let_time_pass(seconds):
    """Blocks the loop for the given time."""
    loop = asyncio.get_running_loop()
    loop._set_time(loop.time() + seconds)


def nothing_was_missed(purgatory, operations):
    assert {operation.state for operation in operations} == {OperationState.COMPLETED}
    assert purgatory.statistics().missed_triggers == 0


@on_virtual_time
async def test_deadline_during_check_is_no_missed_trigger(listener):
    async with Purgatory("in progress", observer=listener) as purgatory:
        operations = watch_all(purgatory, [Probe(5) for _ in range(MANY)], ["another", "key"])
        for operation in operations:
            operation.ready = True
        purgatory.check_and_complete("key")
        let_time_pass(10)
        await asyncio.sleep(1)
        nothing_was_missed(purgatory, operations)


def complete(purgatory, others, *, by_thread=False):
    def hook(_):
        for other in others:
            other.ready = True
            if by_thread:
                in_thread(purgatory.check_and_complete_threadsafe, other.name)
            else:
                purgatory.check_and_complete(other.name)

    return hook


@on_virtual_time
@pytest.mark.parametrize("by_thread", [False, True], ids=["by a hook", "by a thread"])
@pytest.mark.parametrize("hook", ["completing", "expiring", "trying"])
async def test_deadline_beside_checking_hooks_is_no_missed_trigger(hook, by_thread, listener):
    async with Purgatory("hooks", observer=listener) as purgatory:
        [first] = watch_all(purgatory, [Probe(0.004)], ["first"])
        others = [Probe(0.006, name=number) for number in range(3)]
        for other in others:
            watch_all(purgatory, [other], [other.name, "another"])
        setattr(first, hook, complete(purgatory, others, by_thread=by_thread))
        let_time_pass(1)
        await asyncio.sleep(1)
        assert first.state is OperationState.EXPIRED
        nothing_was_missed(purgatory, others)


@on_virtual_time
async def test_deadline_with_queued_check_is_no_missed_trigger(listener):
    async with Purgatory("queued", observer=listener) as purgatory:
        for number in range(3):
            watch_all(purgatory, [Probe() for _ in range(MANY)], [f"crowd {number}"])
        operations = watch_all(purgatory, [Probe(5) for _ in range(3)])

        def hook(_):
            for number in range(3):
                purgatory.check_and_complete(f"crowd {number}")
            for operation in operations:
                operation.ready = True
            purgatory.check_and_complete("key")
            let_time_pass(10)

        await purgatory.wait(Probe(ready=True, completing=hook), ["first"])
        await asyncio.sleep(1)
        nothing_was_missed(purgatory, operations)


@on_virtual_time
async def test_deadline_without_a_check_is_a_missed_trigger():
    listener = Listener()
    async with Purgatory("forgotten", observer=listener) as purgatory:
        watch_all(purgatory, [Probe() for _ in range(MANY)], ["another"])
        [operation] = watch_all(purgatory, [Probe(5)])
        operation.ready = True
        purgatory.check_and_complete("another")
        let_time_pass(10)
        await asyncio.sleep(1)
        assert operation.state is OperationState.COMPLETED
        assert purgatory.statistics().missed_triggers == 1 and listener.ended[0].missed_trigger
