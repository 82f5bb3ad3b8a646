"""Observers of a `ThresholdPurgatory`: each end of a wait is one event, on the same interface as
events of operations. An observer may advance thresholds, which changes no order of answers."""

import asyncio
from math import inf

import pytest
from helpers import Listener as Observer
from helpers import iterations, outcome, raiser, start_waits
from loops import on_virtual_time

from purgatory import Cause, Ended, OperationState, ThresholdPurgatory
from purgatory.metrics import Meter

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
        purgatory._check()
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


@on_virtual_time
async def test_crowd_is_notified_as_it_is_woken():
    listener, meter = Listener(), Meter()
    async with ThresholdPurgatory("versions", observer=[meter, listener]) as purgatory:
        waiting = [asyncio.create_task(purgatory.wait("key", 1)) for _ in range(1300)]
        await asyncio.sleep(1)
        assert purgatory.advance("key", 1) == 1300
        assert len(listener.ended) == 512
        await asyncio.gather(*waiting)
    [kind] = meter.snapshot()
    assert kind.outcomes == {(COMPLETED, Cause.KEY): 1300} and kind.kind == "wait"
    assert listener.started == [ended.operation_id for ended in listener.ended]


@on_virtual_time
async def test_failing_observer_is_reported_and_ends_nothing(reports):
    listener, bad = Listener(), Listener()
    bad.operation_ended = bad.operation_started = raiser(ZeroDivisionError())
    async with ThresholdPurgatory("versions", observer=[bad, listener]) as purgatory:
        waiting = asyncio.create_task(purgatory.wait("key", 1))
        await asyncio.sleep(1)
        purgatory.advance("key", 1)
        assert await waiting == 1
    assert len(listener.ended) == 1
    assert [report["message"].split(" ")[:2] for report in reports] == [
        ["versions:", "operation_started"], ["versions:", "operation_ended"],
    ]  # fmt: skip


def test_it_may_have_another_loop_later():
    listener = Listener()
    purgatory = ThresholdPurgatory(observer=listener)

    async def main():
        waiting = asyncio.create_task(purgatory.wait("key", 1))
        await asyncio.sleep(0)
        purgatory.advance("key", 1)
        await waiting
        purgatory.forget("key")

    asyncio.run(main())
    asyncio.run(main())
    assert len(listener.ended) == 2
    with pytest.raises(TypeError, match="observer must have a method"):
        ThresholdPurgatory(observer=object())


class Chain(Listener):
    """Advances the next key whenever a wait has ended."""

    depth = 0

    def operation_ended(self, ended):
        super().operation_ended(ended)
        self.depth += 1
        assert self.depth == 1
        self.purgatory.advance(ended.keys[0] + 1, 1)
        self.depth -= 1


@on_virtual_time
async def test_nested_advances_are_notified_in_order(
    reports,
):
    chain, listener = Chain(), Listener()
    chain.purgatory = purgatory = ThresholdPurgatory(observer=[chain, listener])
    waiting = [
        asyncio.create_task(purgatory.wait(number, 1)) for number in range(500) for _ in range(2)
    ]
    await asyncio.sleep(1)
    assert purgatory.advance(0, 1) == 2
    assert await asyncio.gather(*waiting) == [1] * 1000
    assert reports == [] and purgatory.pending == 0
    assert sorted(ended.keys[0] for ended in listener.ended) == [
        number for number in range(500) for _ in range(2)
    ]


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
@pytest.mark.parametrize("end", ["advance", "fail", "aclose"])
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
    elif end == "fail":
        thresholds.fail("a", ValueError())
    else:
        await thresholds.aclose()
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


@on_virtual_time
async def test_deeply_nested_advances_keep_order():
    answered, keys = [], "abcdef"
    meddlers = [Meddler(lambda ended, key=key: ended.keys == (key,)) for key in keys[:-1]]
    thresholds = ThresholdPurgatory(observer=meddlers)
    await start_waits(
        thresholds, *((key, threshold) for key in keys for threshold in (1, 2)), log=answered
    )
    for meddler, key in zip(meddlers, keys[1:], strict=True):
        meddler.what = lambda key=key: thresholds.advance(key, 2)
    assert thresholds.advance("a", 2) == 2
    await iterations(5)
    assert [which for which, _ in answered] == list(range(12))
    assert thresholds.pending == 0
    thresholds._check()


@on_virtual_time
async def test_nested_fail_does_not_change_decided_waits():
    meddler, answered = Meddler(), []
    thresholds = ThresholdPurgatory(observer=meddler)
    error = ValueError()
    await start_waits(thresholds, *(("a", threshold) for threshold in (1, 2, 3, 4)), log=answered)
    meddler.what = lambda: thresholds.fail("a", error)
    assert thresholds.advance("a", 3) == 3
    await iterations(5)
    assert answered == [(0, 3), (1, 3), (2, 3), (3, error)]
    assert [ended.cause for ended in meddler.ended] == [Cause.KEY] * 3 + [Cause.FAILED]
