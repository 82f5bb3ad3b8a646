"""Observers of an `IdleTracker` and of a `Relay`, which share one interface."""

import asyncio

import pytest
from helpers import Listener, raiser
from invariants import check
from loops import on_virtual_time

from purgatory import Cause, IdleTracker, OperationState
from purgatory.metrics import Meter
from purgatory.relay import Relay


@on_virtual_time
async def test_observer_is_notified_of_idle_ids_alone():
    listener, meter, log, loop = Listener(), Meter(), [], asyncio.get_running_loop()
    with IdleTracker(30, log.append, name="connections", observer=[listener, meter]) as tracker:
        await asyncio.sleep(5)
        for name in ("quiet", "gone", "lively"):
            tracker.touch(name)
        await asyncio.sleep(10)
        tracker.touch("quiet")
        tracker.remove("gone")
        for _ in range(4):
            await asyncio.sleep(10)
            tracker.touch("lively")
        assert log == ["quiet"]
        [ended] = listener.ended
        check(tracker)
    assert (ended.purgatory, ended.kind, ended.keys) == ("connections", "id", ("quiet",))
    assert (ended.state, ended.cause, ended.timeout) == (OperationState.EXPIRED, Cause.DEADLINE, 30)
    assert ended.started_at == pytest.approx(15) and 45 <= ended.ended_at <= 45 + 30 / 8000
    assert listener.ended == [ended] and loop.time() == 55
    [kind] = meter.snapshot()
    assert kind.lateness.count == 1 and kind.lateness.sum == pytest.approx(ended.ended_at - 45)


@on_virtual_time
async def test_failing_observer_does_not_stop_tracker(reports):
    listener, log = Listener(), []
    listener.operation_ended = raiser(ZeroDivisionError())
    with IdleTracker(30, log.append, observer=listener) as tracker:
        for number in range(3):
            tracker.touch(number)
        await asyncio.sleep(31)
    assert sorted(log) == [0, 1, 2]
    assert [report["message"].split(" ")[:2] for report in reports] == [
        ["idle:", "operation_ended"]
    ] * 3


@pytest.mark.cpython
async def test_relay_notifies_of_its_waits(tmp_path):
    listener = Listener()
    async with Relay(f"file://{tmp_path}", observer=listener) as relay:
        waiting = asyncio.create_task(relay.wait("orders", 0, 30))
        await asyncio.sleep(0)
        await relay.bump("orders")
        assert await waiting == 1
    assert [(ended.purgatory, ended.kind, ended.keys) for ended in listener.ended] == [
        ("relay", "wait", ("orders",))
    ]
    assert listener.ended[0].cause in (Cause.KEY, Cause.FIRST_TRY)
