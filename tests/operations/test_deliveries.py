"""Whoever `deliver` has counted gets the value, whatever ends the wait afterwards."""

import asyncio

import pytest
from helpers import iterations, outcome
from loops import on_every_loop, on_virtual_time

from purgatory import OperationCancelled, OperationTimeout, Purgatory

MANY = 2000
"""So many are answered in several iterations of the loop."""


async def begin_to_receive(purgatory, number, timeout=None):
    tasks = [asyncio.create_task(outcome(purgatory.receive("key", timeout))) for _ in range(number)]
    await iterations(2)
    return tasks


async def end(purgatory, how):
    loop = asyncio.get_running_loop()
    if how == "deadline":
        loop._set_time(loop.time() + 10)
    else:
        answer = getattr(purgatory, how)(*([] if how == "aclose" else ["key"]))
        if asyncio.iscoroutine(answer):
            await answer


@on_virtual_time
@pytest.mark.parametrize("how", ["aclose", "cancel_for_key", "acancel_for_key", "deadline"])
async def test_everybody_who_was_counted_receives_the_value_whatever_ends_the_waits_afterwards(how):
    purgatory = Purgatory()
    tasks = await begin_to_receive(purgatory, MANY, 5)
    assert purgatory.deliver("key", "value") == MANY
    await end(purgatory, how)
    assert [await task for task in tasks] == ["value"] * MANY
    assert purgatory.pending == 0
    statistics = purgatory.statistics()
    assert (statistics.completed, statistics.expired, statistics.cancelled) == (MANY, 0, 0)
    assert statistics.missed_triggers == 0


@on_virtual_time
@pytest.mark.parametrize("how", ["aclose", "cancel_for_key", "acancel_for_key"])
async def test_those_who_begin_to_receive_after_a_delivery_has_begun_are_cancelled_by_what_comes_next(how):
    purgatory = Purgatory()
    tasks = await begin_to_receive(purgatory, MANY)
    assert purgatory.deliver("key", "value") == MANY
    late = [asyncio.create_task(outcome(purgatory.receive("key"))) for _ in range(3)]
    await asyncio.sleep(0)
    await end(purgatory, how)
    assert [await task for task in tasks] == ["value"] * MANY
    assert [type(await task) for task in late] == [OperationCancelled] * 3


@on_virtual_time
async def test_the_first_of_two_deliveries_counts(purgatory):
    tasks = await begin_to_receive(purgatory, MANY)
    assert purgatory.deliver("key", "first") == MANY
    assert purgatory.deliver("key", "second") == 0
    assert [await task for task in tasks] == ["first"] * MANY


@on_virtual_time
async def test_everybody_who_was_counted_receives_the_value_if_the_purgatory_is_closed_within_a_hook():
    purgatory, closing = Purgatory(), []
    tasks = await begin_to_receive(purgatory, MANY)

    def deliver_and_close():
        assert purgatory.deliver("key", "value") == MANY
        closing.append(asyncio.ensure_future(purgatory.aclose()))
        return "done"

    assert await purgatory.wait_for(deliver_and_close, ["another"]) == "done"
    assert [await task for task in tasks] == ["value"] * MANY
    await closing[0]


# From other threads


@on_every_loop
async def test_a_value_that_a_thread_delivers_is_received_and_is_for_nobody_if_nobody_is_there(purgatory):
    receiving = asyncio.create_task(purgatory.receive("key", 60))
    await iterations(2)
    for value in ("first", "late"):
        await asyncio.to_thread(purgatory.deliver_threadsafe, "key", value)
    assert await receiving == "first"
    with pytest.raises(TypeError, match="unhashable"):
        purgatory.deliver_threadsafe([], 1)


def test_a_value_for_a_loop_that_is_not_there_is_delivered_to_nobody(run):
    purgatory = Purgatory()
    purgatory.deliver_threadsafe("key", 1)  # it is bound to none

    async def main():
        with pytest.raises(OperationTimeout):
            await purgatory.receive("key", 0)

    run(main)
    purgatory.deliver_threadsafe("key", 1)  # it is closed
