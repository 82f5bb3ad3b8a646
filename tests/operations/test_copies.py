"""What is registered by identity is not copied; what is not registered yet is, and the copy serves as well as the original."""

import asyncio
import copy
import pickle

import pytest
from helpers import Probe, watch_all
from loops import on_virtual_time

import purgatory as library
from purgatory import OperationState, Purgatory, WheelTimer


def pickled(original):
    return pickle.loads(pickle.dumps(original))


WAYS = pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickled])


@on_virtual_time
@WAYS
@pytest.mark.parametrize(("keys", "timeout"), [(["key"], None), (["key", "another"], 60)], ids=["one key", "two keys"])
async def test_an_operation_that_waits_is_not_copied_and_waits_on(purgatory, way, keys, timeout):
    [operation] = watch_all(purgatory, [Probe(timeout)], keys)
    with pytest.raises(TypeError):
        way(operation)
    assert (purgatory.pending, purgatory.watched) == (1, len(keys))
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1
    assert purgatory.pending == purgatory.watched == 0


@on_virtual_time
@WAYS
@pytest.mark.parametrize("end", ["complete", "cancel", "expire", "unwatched"])
async def test_an_operation_that_has_ended_is_not_copied(purgatory, way, end):
    operation = Probe(5)
    if end != "unwatched":
        watch_all(purgatory, [operation])
    if end == "expire":
        await asyncio.sleep(10)
    elif end == "cancel":
        operation.cancel()
    else:
        operation.force_complete()
    with pytest.raises(TypeError):
        way(operation)


@on_virtual_time
@WAYS
@pytest.mark.parametrize("times", [{"timeout": 5}, {"deadline": 5}, {}], ids=["timeout", "deadline", "no limit"])
async def test_a_copy_of_an_unwatched_operation_serves_as_well_as_the_original(way, times):
    keys = ["key", "another"] if times else ["key"]
    async with Purgatory() as purgatory:
        original = Probe(**times, name="name")
        copied = way(original)
        assert copied is not original and copied.state is OperationState.PENDING
        watch_all(purgatory, [original, copied], keys)
        assert purgatory.pending == 2 and copied.deadline == original.deadline
        purgatory._check()
        copied.ready = True
        assert purgatory.check_and_complete("key") == 1
        assert await copied == "name"
        assert original.state is OperationState.PENDING and purgatory.pending == 1
        original.cancel()
        purgatory._check()


@on_virtual_time
@WAYS
async def test_a_copy_of_an_unwatched_operation_can_be_completed_or_expire(purgatory, way):
    first, second = way(Probe(5)), way(Probe(5, name="forced"))
    watch_all(purgatory, [first, second], ["key", "another"])
    assert second.force_complete() is True
    assert await second == "forced"
    await first
    assert first.state is OperationState.EXPIRED
    unwatched = way(Probe(name="never watched"))
    assert unwatched.force_complete() is True
    assert unwatched.result() == "never watched"


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
async def test_a_timer_that_waits_is_not_copied_and_is_called_once(way):
    called = []
    timer = WheelTimer()
    task = timer.call_later(5, called.append, True)
    with pytest.raises(TypeError):
        way(task)
    await asyncio.sleep(10)
    assert called == [True] and timer.size == 0


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
async def test_a_timeout_that_was_entered_is_not_copied_and_strikes_once(way):
    with pytest.raises(TimeoutError):
        async with library.timeout(5) as limit:
            with pytest.raises(TypeError):
                way(limit)
            await asyncio.sleep(10)
    assert asyncio.current_task().cancelling() == 0
