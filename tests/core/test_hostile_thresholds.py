"""Observers that advance thresholds do not change the order of answers, and a NaN within a value is
refused like NaN itself."""

import math
from decimal import Decimal

import pytest
from helpers import iterations, outcome, start_waits
from loops import on_virtual_time

from purgatory import Cause, OperationCancelled, ThresholdPurgatory

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


# Observers


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


# NaN within a value

NAN = math.nan
VALUES = [
    (NAN,),
    (1, NAN),
    (1, (2, NAN)),
    (1, (2, (NAN, 3))),
    [1, NAN],
    [1, [NAN]],
    (1, [NAN]),
    (1, Decimal("nan")),
]
WITH_NAN = pytest.mark.parametrize("value", VALUES, ids=repr)


def harmless(value):
    """The same value with zero for NaN."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(harmless, value))
    return value if value == value else 0


@on_virtual_time
@WITH_NAN
@pytest.mark.parametrize("timeout", [None, 5])
async def test_threshold_containing_nan_is_refused(value, timeout):
    thresholds = ThresholdPurgatory()
    assert type(await outcome(thresholds.wait("key", value, 1))) is ValueError
    [other] = await start_waits(thresholds, ("key", harmless(value)))
    assert type(await outcome(thresholds.wait("key", value, timeout or 1))) is ValueError
    assert thresholds.pending == 1
    assert thresholds.advance("key", harmless(value)) == 1
    assert await other == harmless(value)
    assert type(await outcome(thresholds.wait("key", value, timeout))) is ValueError
    assert thresholds.pending == 0
    thresholds._check()


@on_virtual_time
@WITH_NAN
async def test_value_containing_nan_is_refused(value):
    thresholds = ThresholdPurgatory()
    for known in (None, harmless(value)):
        if known is not None:
            thresholds.advance("key", known)
        for advance in (thresholds.advance, thresholds.advance_threadsafe):
            with pytest.raises(ValueError, match="cannot advance"):
                advance("key", value)
        await iterations(3)
        assert thresholds.value("key") == known
    await thresholds.aclose()


@on_virtual_time
async def test_refused_nan_leaves_other_waits_alone():
    thresholds = ThresholdPurgatory()
    waits = await start_waits(thresholds, ("key", (1, 2)), ("key", (1, 3)))
    assert type(await outcome(thresholds.wait("key", (1, NAN), 1))) is ValueError
    assert thresholds.advance("key", (1, 2)) == 1
    assert await waits[0] == (1, 2)
    await thresholds.aclose()
    assert type(await waits[1]) is OperationCancelled
