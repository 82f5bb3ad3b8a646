"""Registered objects refuse to be copied, since they are known by identity; a copy of an
unregistered object works like the original."""

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
@pytest.mark.parametrize(
    ("keys", "timeout"), [(["key"], None), (["key", "another"], 60)], ids=["one key", "two keys"]
)
async def test_waiting_operation_refuses_copy_and_keeps_waiting(purgatory, way, keys, timeout):
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
async def test_ended_operation_refuses_copy(purgatory, way, end):
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
@pytest.mark.parametrize(
    "times", [{"timeout": 5}, {"deadline": 5}, {}], ids=["timeout", "deadline", "no limit"]
)
async def test_copy_of_unwatched_operation_works_alone(way, times):
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
async def test_copy_of_unwatched_operation_completes_or_expires(purgatory, way):
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
@WAYS
async def test_copy_of_reset_operation_expires_beside_it(purgatory, way):
    original = Probe(5)
    watch_all(purgatory, [original])
    original.force_complete()
    original.__init__(5)
    copied = way(original)
    watch_all(purgatory, [original, copied])
    purgatory._check()
    await asyncio.sleep(10)
    assert original.state is copied.state is OperationState.EXPIRED
    purgatory._check()


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
async def test_waiting_timer_refuses_copy_and_is_called_once(way):
    called = []
    timer = WheelTimer()
    task = timer.call_later(5, called.append, True)
    with pytest.raises(TypeError):
        way(task)
    await asyncio.sleep(10)
    assert called == [True] and timer.size == 0


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
async def test_entered_timeout_refuses_copy_and_expires_once(way):
    with pytest.raises(TimeoutError):
        async with library.timeout(5) as limit:
            with pytest.raises(TypeError):
                way(limit)
            await asyncio.sleep(10)
    assert asyncio.current_task().cancelling() == 0


@on_virtual_time
async def test_deep_copy_of_unused_timer_works_alone():
    called = []
    timer = WheelTimer(max_pending=1)
    other = copy.deepcopy(timer)
    timer.call_later(1, called.append, "timer")
    other.call_later(2, called.append, "copy")
    assert (timer.size, other.size) == (1, 1)
    await asyncio.sleep(5)
    assert called == ["timer", "copy"]
    other._check()


@on_virtual_time
async def test_deep_copy_of_unused_tracker_works_alone():
    idle = []
    tracker = library.IdleTracker(5, idle.append)
    other = copy.deepcopy(tracker)
    other._on_idle = idle.append  # a deep copy of a bound method has its own list
    tracker.touch("tracked")
    other.touch("copy")
    assert ([*tracker], [*other]) == (["tracked"], ["copy"])
    await asyncio.sleep(10)
    assert sorted(idle) == ["copy", "tracked"]
    other._check()


@on_virtual_time
async def test_deep_copy_of_unused_thresholds_works_alone():
    thresholds = library.ThresholdPurgatory()
    other = copy.deepcopy(thresholds)
    other.advance_threadsafe("key", 3)
    waiting = asyncio.create_task(other.wait("key", 5, 30))
    await asyncio.sleep(1)
    assert (thresholds.pending, other.pending, other.value("key")) == (0, 1, 3)
    assert other.advance("key", 5) == 1 and await waiting == 5
    assert thresholds.value("key") is None
    other._check()
