"""Observers of a `ThresholdPurgatory`: each end of a wait is one event, on the same interface as
events of operations. An observer may advance thresholds, which changes no order of answers."""

import asyncio
from math import inf

import pytest
from helpers import Listener as Observer
from helpers import iterations, outcome, start_waits
from invariants import check
from loops import on_virtual_time

from purgatory import Cause, Ended, OperationState, ThresholdPurgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState
ERROR = KeyError("no")


class Listener(Observer):
    """Records starts as well."""

    def __init__(self):
        super().__init__()
        self.started = []

    def operation_started(self, it):
        self.started.append(id(it))

    def key_checked(self, *_):
        raise AssertionError("there are no checks")


ENDS = {
    "an advance": (
        lambda purgatory, _: purgatory.advance("key", 9),
        COMPLETED,
        Cause.KEY,
        "key",
        1,
        None,
    ),
    "fail": (
        lambda purgatory, _: purgatory.fail("key", ERROR),
        CANCELLED,
        Cause.FAILED,
        None,
        1,
        ERROR,
    ),
    "its task": (lambda _, task: task.cancel(), CANCELLED, Cause.CANCELLED, None, 1, None),
    "aclose": (
        lambda purgatory, _: asyncio.ensure_future(purgatory.aclose()),
        CANCELLED,
        Cause.CLOSED,
        None,
        1,
        None,
    ),
    "the deadline": (lambda *_: None, EXPIRED, Cause.DEADLINE, None, 2, None),
}


@on_virtual_time
@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("timeout", [40, None, inf])
async def test_each_end_is_notified_by_one_event(way, timeout):
    end, state, cause, key, failed_tries, error = ENDS[way]
    timeout = 40 if way == "the deadline" else timeout
    listener, loop = Listener(), asyncio.get_running_loop()
    async with ThresholdPurgatory("versions", observer=listener) as purgatory:
        await asyncio.sleep(3)
        begun = loop.time()
        waiting = asyncio.create_task(purgatory.wait("key", 9, timeout))
        await asyncio.sleep(1)
        assert listener.ended == [] and len(listener.started) == 1
        end(purgatory, waiting)
        await outcome(waiting)
        [ended] = listener.ended
        check(purgatory)
    assert listener.ended == [ended]
    assert ended == Ended(
        purgatory="versions",
        kind="wait",
        keys=("key",),
        started_at=begun,
        ended_at=pytest.approx(begun + (40 if cause is Cause.DEADLINE else 1), abs=0.002),
        timeout=40 if timeout == 40 else None,
        state=state,
        cause=cause,
        key=key,
        failed_tries=failed_tries,
        missed_trigger=False,
        exception=error,
        operation_id=listener.started[0],
    )


@on_virtual_time
@pytest.mark.parametrize("timeout", [0, -5])
async def test_immediate_wait_is_notified_as_well(timeout):
    listener = Listener()
    async with ThresholdPurgatory(observer=[listener]) as purgatory:
        purgatory.advance("key", 7)
        assert await purgatory.wait("key", 7, 40) == 7
        assert isinstance(await outcome(purgatory.wait("key", 8, timeout)), TimeoutError)
    first, second = listener.ended
    assert (first.state, first.cause, first.timeout, first.failed_tries) == (
        COMPLETED,
        Cause.FIRST_TRY,
        40,
        0,
    )
    assert (second.state, second.cause, second.timeout, second.failed_tries) == (
        EXPIRED,
        Cause.DEADLINE,
        0,
        1,
    )
    assert len(listener.started) == 2


# Observers that advance thresholds

MANY = 1200
"""Enough waits that waking them takes several iterations of the loop."""


class Meddler:
    """Calls a function on the first end for which `when` is true."""

    def __init__(self, when=lambda ended: True):
        self.when, self.what, self.ended = when, None, []

    def operation_ended(self, ended):
        self.ended.append(ended)
        if self.what is not None and self.when(ended):
            what, self.what = self.what, None
            what()

    def key_checked(self, key, tried, completed):
        pass


@on_virtual_time
@pytest.mark.parametrize("end", ["advance", "fail"])
@pytest.mark.parametrize("number", [3, MANY])
async def test_earlier_waits_are_answered_before_nested_ones(end, number):
    meddler, answered = Meddler(), []
    thresholds = ThresholdPurgatory(observer=meddler)
    await start_waits(
        thresholds, *(("a", threshold) for threshold in range(number)), ("b", 1), log=answered
    )
    meddler.what = lambda: thresholds.advance("b", 1)
    if end == "advance":
        thresholds.advance("a", number)
    else:
        thresholds.fail("a", ValueError())
    await iterations(10)
    assert [which for which, _ in answered] == list(range(number + 1))
    if end == "advance":
        assert thresholds.value("b") == 1
    await thresholds.aclose()


@on_virtual_time
async def test_nested_advance_of_same_key_keeps_order():
    meddler, answered = Meddler(), []
    thresholds = ThresholdPurgatory(observer=meddler)
    await start_waits(
        thresholds, *(("a", threshold) for threshold in (1, 2, 3, 4, 5)), log=answered
    )
    meddler.what = lambda: thresholds.advance("a", 5)
    assert thresholds.advance("a", 3) == 3
    await iterations(5)
    assert answered == [(0, 3), (1, 3), (2, 3), (3, 5), (4, 5)]
    assert [ended.ended_at for ended in meddler.ended] == [0.0] * 5
