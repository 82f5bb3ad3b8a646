"""Every receiver counted by `deliver` gets the value, however its wait ends afterwards."""

import asyncio

import pytest
from helpers import Broken, iterations, outcome
from loops import on_every_loop, on_virtual_time

from purgatory import OperationTimeout, Purgatory

MANY = 2000
"""Enough receivers that answering them takes several iterations of the loop."""


async def begin_to_receive(purgatory, number, timeout=None):
    tasks = [asyncio.create_task(outcome(purgatory.receive("key", timeout))) for _ in range(number)]
    await iterations(2)
    return tasks


async def end(purgatory, how):
    loop = asyncio.get_running_loop()
    if how == "deadline":
        loop._set_time(loop.time() + 10)
    else:
        key = [] if how in ("aclose", "fail_all") else ["key"]
        answer = getattr(purgatory, how)(*key, *[Broken()] * how.startswith("fail"))
        if asyncio.iscoroutine(answer):
            await answer


@on_virtual_time
@pytest.mark.parametrize(
    "how", ["aclose", "cancel_for_key", "acancel_for_key", "deadline", "fail", "fail_all"]
)
async def test_counted_receivers_get_value_however_waits_end(how):
    purgatory = Purgatory()
    tasks = await begin_to_receive(purgatory, MANY, 5)
    assert purgatory.deliver("key", "value") == MANY
    await end(purgatory, how)
    assert [await task for task in tasks] == ["value"] * MANY
    assert purgatory.pending == 0
    statistics = purgatory.statistics()
    assert (statistics.completed, statistics.expired, statistics.cancelled) == (MANY, 0, 0)
    assert statistics.missed_triggers == 0


# From other threads


@on_every_loop
async def test_value_from_thread_reaches_only_current_receivers(purgatory):
    receiving = asyncio.create_task(purgatory.receive("key", 60))
    await iterations(2)
    for value in ("first", "late"):
        await asyncio.to_thread(purgatory.deliver_threadsafe, "key", value)
    assert await receiving == "first"
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.deliver_threadsafe([], 1)


def test_value_for_missing_loop_is_dropped(run):
    purgatory = Purgatory()
    purgatory.deliver_threadsafe("key", 1)  # the purgatory is unbound

    async def main():
        with pytest.raises(OperationTimeout):
            await purgatory.receive("key", 0)

    run(main)
    purgatory.deliver_threadsafe("key", 1)  # its loop is closed
