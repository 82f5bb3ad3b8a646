"""The queues of a threshold purgatory alone: their order, refusals, and the cost of each step."""

from decimal import Decimal
from functools import total_ordering
from math import inf, nan
from re import escape
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._core import threshold_queue as queue_module
from purgatory._core.threshold_queue import (
    SEGMENT_CAPACITY,
    UNKNOWN,
    ThresholdQueue,
    flatten,
    has_reached,
)


@total_ordering
class Counted:
    """A value that counts all comparisons."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return hash(self.number)

    def __lt__(self, other):
        Counted.comparisons += 1
        return self.number < other.number

    def __le__(self, other):
        Counted.comparisons += 1
        return self.number <= other.number


def compared(function, *arguments: Any) -> int:
    before = Counted.comparisons
    function(*arguments)
    return Counted.comparisons - before


class Standing:
    """The part of a waiter that a queue needs."""

    def __init__(self, queue, threshold):
        self.queue = queue
        self.threshold = threshold


def crowd(size: int) -> tuple[ThresholdQueue, list[Standing]]:
    queue = ThresholdQueue("key")
    waiters = [Standing(queue, Counted(number)) for number in range(size)]
    # Neither sorted nor random.
    for number in range(size):
        queue.add(waiters[number * 7919 % size])
    return queue, waiters


# Cost


def test_advance_cost_follows_what_it_completes():
    (crowded, _), (lone, _), (empty, _) = crowd(20_000), crowd(1), crowd(0)
    for queue in (crowded, lone, empty):
        queue.value = Counted(-2)
    # One comparison with the current value, one with the lowest threshold.
    assert compared(empty.advance, Counted(-1)) == 1
    assert compared(lone.advance, Counted(-1)) == compared(crowded.advance, Counted(-1)) == 2
    assert compared(lone.advance, Counted(0)) == 3
    assert compared(crowded.advance, Counted(0)) <= 5
    value = 0
    for reached in (1, 2, 3, 10, 100, 250):
        value += reached
        assert compared(crowded.advance, Counted(value)) <= 8 + 2 * reached.bit_length()
    assert compared(crowded.advance, Counted(value + 10_000)) <= 10_000 / 100
    crowded._check([])


def test_add_and_discard_cost_logarithmically():
    queue, waiters = crowd(20_000)
    for number in (0, 1, 5_000, 10_000, 19_999):
        assert compared(queue.discard, waiters[number]) <= 18
        assert compared(queue.add, waiters[number]) <= 20


def test_take_above_costs_logarithmically():
    queue, _ = crowd(20_000)
    assert compared(queue.take_above, Counted(20_000)) <= 18
    assert compared(queue.take_above, Counted(19_998)) <= 18
    queue._check(standing := [])
    assert len(standing) == 19_999


# Against a sorted list


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "discard", "advance", "take above", "clear"]),
            st.integers(0, 30),
        ),
        max_size=80,
    )
)
def test_queue_matches_sorted_list(steps):
    queue, waiting, value = ThresholdQueue("key"), [], None
    with patch.object(queue_module, "SEGMENT_CAPACITY", 4):
        for step, number in steps:
            if step == "add" and (value is None or number > value):
                waiter = Standing(queue, number)
                queue.add(waiter)
                waiting.append(waiter)
                waiting.sort(
                    key=lambda waiter: waiter.threshold
                )  # stable: equal thresholds keep the order of arrival
            elif step == "discard" and waiting:
                waiter = waiting.pop(number % len(waiting))
                assert queue.discard(waiter) is True and queue.discard(waiter) is False
            elif step == "advance" and value is not None and number < value:
                with pytest.raises(ValueError, match="never go backwards"):
                    queue.advance(number)
            elif step == "take above":
                taken = queue.take_above(number)
                expected = [waiter for waiter in waiting if waiter.threshold > number]
                waiting = [waiter for waiter in waiting if waiter.threshold <= number]
                assert list(flatten(taken)) == expected
            elif step in ("advance", "clear"):
                if step == "advance":
                    value = number
                    taken = queue.advance(number)
                else:
                    number, taken = inf, queue.clear()
                expected = [waiter for waiter in waiting if waiter.threshold <= number]
                waiting = waiting[len(expected) :]
                assert list(flatten(taken)) == expected
                assert not any(map(queue.discard, expected))
            if queue.segments or queue.value is not UNKNOWN:
                queue._check(standing := [])
                assert standing == waiting


# Refusals


SIGNALLING = Decimal("sNaN")  # raises in every comparison


@pytest.mark.parametrize(
    ("value", "threshold", "reached"),
    [
        (UNKNOWN, 1, False),
        (5, 5, True),
        (5, 4, True),
        (5, 6, False),
        ({1, 2}, {1}, True),
        ({1}, {1, 2}, False),
    ],
)
def test_threshold_is_reached_by_equal_or_higher_value(value, threshold, reached):
    assert has_reached("orders", value, threshold) is reached


@pytest.mark.parametrize(
    ("value", "threshold", "error", "message"),
    [
        (
            UNKNOWN,
            nan,
            ValueError,
            "cannot wait for 'orders' to reach nan: nothing ever does; it has no value",
        ),
        (5, nan, ValueError, "cannot wait for 'orders' to reach nan: nothing ever does; it has 5"),
        (
            5,
            Decimal("nan"),
            ValueError,
            "cannot wait for 'orders' to reach Decimal('NaN'): nothing ever does; it has 5",
        ),
        (
            UNKNOWN,
            (1, nan),
            ValueError,
            "cannot wait for 'orders' to reach (1, nan): nothing ever does; it has no value",
        ),
        (
            (1, 2),
            (1, [nan]),
            ValueError,
            "cannot wait for 'orders' to reach (1, [nan]): nothing ever does; it has (1, 2)",
        ),
        (
            5,
            "6",
            TypeError,
            "cannot tell whether 'orders' has reached '6': it has 5, and '<=' not supported",
        ),
        (
            5,
            SIGNALLING,
            TypeError,
            "cannot tell whether 'orders' has reached Decimal('sNaN'): it has 5, and ",
        ),
        (
            {1},
            {2},
            TypeError,
            "cannot tell whether 'orders' has reached {2}: it has {1}, neither below nor past it",
        ),
    ],
)
def test_incomparable_threshold_error_names_value_and_reason(value, threshold, error, message):
    with pytest.raises(error, match=escape(message)):
        has_reached("orders", value, threshold)


@pytest.mark.parametrize(
    ("known", "value", "error", "message"),
    [
        (
            UNKNOWN,
            nan,
            ValueError,
            "cannot advance 'orders' to nan: it has no value, and NaN is no value",
        ),
        (5, nan, ValueError, "cannot advance 'orders' to nan: it has 5, and NaN is no value"),
        (
            5,
            Decimal("nan"),
            ValueError,
            "cannot advance 'orders' to Decimal('NaN'): it has 5, and NaN is no value",
        ),
        (
            (1, 2),
            (1, nan),
            ValueError,
            "cannot advance 'orders' to (1, nan): it has (1, 2), and NaN is no value",
        ),
        (5, 4, ValueError, "cannot advance 'orders' to 4: it has 5, and values never go backwards"),
        (
            {1},
            {2},
            ValueError,
            "cannot advance 'orders' to {2}: it has {1}, and values never go backwards",
        ),
        (5, "6", TypeError, "cannot advance 'orders' to '6': it has 5, and '<=' not supported"),
        (
            UNKNOWN,
            SIGNALLING,
            TypeError,
            "cannot advance 'orders' to Decimal('sNaN'): it has no value, and ",
        ),
    ],
)
def test_refused_advance_error_names_value_and_reason(known, value, error, message):
    queue = ThresholdQueue("orders")
    queue.value = known
    queue.add(waiter := Standing(queue, 7))
    with pytest.raises(error, match=escape(message)):
        queue.advance(value)
    assert queue.value is known and queue.discard(waiter)


@pytest.mark.parametrize(("value", "next_value"), [(UNKNOWN, 1), (1, 1), (1, 2), ({1}, {1, 2})])
def test_a_value_may_stay_or_rise(value, next_value):
    queue = ThresholdQueue("orders")
    queue.value = value
    assert queue.advance(next_value) == [] and queue.value == next_value


@pytest.mark.parametrize(
    ("standing", "threshold", "reason"),
    [
        (3, "text", "others wait there, and '<' not supported"),
        (3, SIGNALLING, "others wait there, and "),
        (frozenset({1}), frozenset({2}), "others wait there, and it is neither below nor past"),
    ],
)
def test_unplaceable_threshold_is_refused_and_changes_nothing(standing, threshold, reason):
    queue = ThresholdQueue("orders")
    queue.add(waiter := Standing(queue, standing))
    with pytest.raises(TypeError, match=reason):
        queue.add(Standing(queue, threshold))
    queue._check(who := [])
    assert who == [waiter]


def test_incomparable_value_removes_no_waiter():
    queue = ThresholdQueue("orders")
    queue.add(waiter := Standing(queue, "text"))
    with pytest.raises(
        TypeError, match="cannot advance 'orders' to 3: it has no value, and '<=' not supported"
    ):
        queue.advance(3)
    assert queue.value is UNKNOWN and queue.discard(waiter)


# Segments


def test_long_segment_is_split_in_order():
    queue = ThresholdQueue("orders")
    waiters = [Standing(queue, number // 2) for number in range(4 * SEGMENT_CAPACITY)]
    for waiter in waiters[::-1]:
        queue.add(waiter)
    queue._check(standing := [])
    in_order = [each for pair in zip(waiters[1::2], waiters[::2], strict=True) for each in pair]
    assert standing == in_order and len(queue.segments) > 2
    assert not queue.discard(Standing(queue, 0)) and not queue.discard(Standing(queue, 10**6))
    size = 2 * (SEGMENT_CAPACITY + 1)
    assert list(flatten(queue.advance(SEGMENT_CAPACITY))) == in_order[:size]
    queue._check(standing := [])
    assert standing == in_order[size:]
    assert list(flatten(queue.clear())) == standing and queue.segments == []


# User code that calls back while thresholds are compared or released


class Meddling(int):
    """A threshold whose first comparison calls a function."""

    calls = []  # noqa: RUF012

    def _compare(self):
        while Meddling.calls:
            Meddling.calls.pop()()

    def __lt__(self, other):
        self._compare()
        return int(self) < int(other)

    def __le__(self, other):
        self._compare()
        return int(self) <= int(other)

    def __del__(self):
        self._compare()


@pytest.mark.parametrize("step", ["add", "add equal", "discard", "advance", "take above"])
@pytest.mark.parametrize("change", ["advance", "clear", "add", "discard", "take above"])
def test_change_during_comparison_repeats_the_search(step, change):
    queue = ThresholdQueue("orders")
    waiters = [Standing(queue, Meddling(number)) for number in range(2, 12, 2)]
    for waiter in waiters:
        queue.add(waiter)
    newcomer = Standing(queue, Meddling(6 if step == "add equal" else 7))
    other = Standing(queue, Meddling(5))
    taken = []
    changes = {
        "advance": lambda: taken.extend(flatten(queue.advance(Meddling(4)))),
        "clear": lambda: taken.extend(flatten(queue.clear())),
        "add": lambda: queue.add(other),
        "discard": lambda: taken.append(waiters[0]) if queue.discard(waiters[0]) else None,
        "take above": lambda: taken.extend(flatten(queue.take_above(8))),
    }
    Meddling.calls.append(changes[change])
    if step == "discard":
        taken += [waiters[2]] if queue.discard(waiters[2]) else []
    elif step in ("advance", "take above"):
        six = Meddling(6)
        part = queue.advance(six) if step == "advance" else queue.take_above(six)
        taken += flatten(part)
    else:
        queue.add(newcomer)
    assert not Meddling.calls
    everybody = [*waiters]
    everybody += [newcomer] * step.startswith("add") + [other] * (change == "add")
    if queue.segments or queue.value is not UNKNOWN:
        queue._check(left := [])
    else:
        left = []
    assert sorted(map(id, taken + left)) == sorted(map(id, everybody))


def test_released_threshold_finds_consistent_segments():
    queue = ThresholdQueue("orders")
    first, second = Standing(queue, Meddling(1)), Standing(queue, Meddling(1))
    queue.add(first)
    queue.add(second)
    queue.discard(first)
    first.threshold = None  # leaves the segment's reference as the last one
    queue.add(Standing(queue, 2))
    Meddling.calls.append(lambda: queue._check([]))
    assert queue.discard(second)
    Meddling.calls.clear()
    queue._check(left := [])
    assert len(left) == 1
