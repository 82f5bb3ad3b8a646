"""The queues of a threshold purgatory by themselves: their order, what is refused, and what each step costs."""

from decimal import Decimal
from functools import total_ordering
from math import inf, nan
from re import escape
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._thresholds import queue as queue_module
from purgatory._thresholds.engine import _flatten
from purgatory._thresholds.queue import SEGMENT_CAPACITY, UNKNOWN, ThresholdQueue, has_reached


@total_ordering
class Counted:
    """A value that counts how often any two are compared."""

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
    """All that a queue needs of who waits in it."""

    def __init__(self, queue, threshold):
        self.queue = queue
        self.threshold = threshold


def crowd(size: int) -> tuple[ThresholdQueue, list[Standing]]:
    queue = ThresholdQueue("key")
    waiters = [Standing(queue, Counted(number)) for number in range(size)]
    # Not in order, and not at random.
    for number in range(size):
        queue.add(waiters[number * 7919 % size])
    return queue, waiters


# Cost


def test_an_advance_costs_what_it_completes_and_not_what_waits():
    (crowded, _), (lone, _), (empty, _) = crowd(20_000), crowd(1), crowd(0)
    for queue in (crowded, lone, empty):
        queue.value = Counted(-2)
    # One comparison is with the value that it has, one with the lowest threshold.
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


def test_adding_and_discarding_cost_the_logarithm_of_what_waits():
    queue, waiters = crowd(20_000)
    for number in (0, 1, 5_000, 10_000, 19_999):
        assert compared(queue.discard, waiters[number]) <= 18
        assert compared(queue.add, waiters[number]) <= 20


# Against a list that is sorted


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "advance", "clear"]), st.integers(0, 30)), max_size=80))
def test_a_queue_does_what_a_sorted_list_does(steps):
    queue, waiting, value = ThresholdQueue("key"), [], None
    with patch.object(queue_module, "SEGMENT_CAPACITY", 4):
        for step, number in steps:
            if step == "add" and (value is None or number > value):
                waiter = Standing(queue, number)
                queue.add(waiter)
                waiting.append(waiter)
                waiting.sort(key=lambda waiter: waiter.threshold)  # stable: equal ones stay in order of arrival
            elif step == "discard" and waiting:
                waiter = waiting.pop(number % len(waiting))
                assert queue.discard(waiter) is True and queue.discard(waiter) is False
            elif step == "advance" and value is not None and number < value:
                with pytest.raises(ValueError, match="never go backwards"):
                    queue.advance(number)
            elif step in ("advance", "clear"):
                if step == "advance":
                    value = number
                    taken = queue.advance(number)
                else:
                    number, taken = inf, queue.clear()
                expected = [waiter for waiter in waiting if waiter.threshold <= number]
                waiting = waiting[len(expected) :]
                assert (taken[0], list(_flatten(taken[1]))) == (len(expected), expected)
                assert not any(map(queue.discard, expected))
            if queue.segments or queue.value is not UNKNOWN:
                queue._check(standing := [])
                assert standing == waiting


# What is refused


SIGNALLING = Decimal("sNaN")  # which raises whenever it is compared


@pytest.mark.parametrize(
    ("value", "threshold", "reached"),
    [(UNKNOWN, 1, False), (5, 5, True), (5, 4, True), (5, 6, False), ({1, 2}, {1}, True), ({1}, {1, 2}, False)],
)
def test_a_threshold_is_reached_by_any_value_that_is_not_below_it(value, threshold, reached):
    assert has_reached("orders", value, threshold) is reached


@pytest.mark.parametrize(
    ("value", "threshold", "error", "message"),
    [
        (UNKNOWN, nan, ValueError, "cannot wait for 'orders' to reach nan: nothing ever does; it has no value"),
        (5, nan, ValueError, "cannot wait for 'orders' to reach nan: nothing ever does; it has 5"),
        (5, Decimal("nan"), ValueError, "cannot wait for 'orders' to reach Decimal('NaN'): nothing ever does; it has 5"),
        (UNKNOWN, (1, nan), ValueError, "cannot wait for 'orders' to reach (1, nan): nothing ever does; it has no value"),
        ((1, 2), (1, [nan]), ValueError, "cannot wait for 'orders' to reach (1, [nan]): nothing ever does; it has (1, 2)"),
        (5, "6", TypeError, "cannot tell whether 'orders' has reached '6': it has 5, and '<=' not supported"),
        (5, SIGNALLING, TypeError, "cannot tell whether 'orders' has reached Decimal('sNaN'): it has 5, and "),
        ({1}, {2}, TypeError, "cannot tell whether 'orders' has reached {2}: it has {1}, neither below nor past it"),
    ],
)
def test_a_threshold_that_cannot_be_compared_is_refused_with_the_value_and_the_reason(value, threshold, error, message):
    with pytest.raises(error, match=escape(message)):
        has_reached("orders", value, threshold)


@pytest.mark.parametrize(
    ("known", "value", "error", "message"),
    [
        (UNKNOWN, nan, ValueError, "cannot advance 'orders' to nan: it has no value, and NaN is no value"),
        (5, nan, ValueError, "cannot advance 'orders' to nan: it has 5, and NaN is no value"),
        (5, Decimal("nan"), ValueError, "cannot advance 'orders' to Decimal('NaN'): it has 5, and NaN is no value"),
        ((1, 2), (1, nan), ValueError, "cannot advance 'orders' to (1, nan): it has (1, 2), and NaN is no value"),
        (5, 4, ValueError, "cannot advance 'orders' to 4: it has 5, and values never go backwards"),
        ({1}, {2}, ValueError, "cannot advance 'orders' to {2}: it has {1}, and values never go backwards"),
        (5, "6", TypeError, "cannot advance 'orders' to '6': it has 5, and '<=' not supported"),
        (UNKNOWN, SIGNALLING, TypeError, "cannot advance 'orders' to Decimal('sNaN'): it has no value, and "),
    ],
)
def test_a_value_that_is_no_advance_is_refused_with_the_value_and_the_reason(known, value, error, message):
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
    assert queue.advance(next_value) == (0, []) and queue.value == next_value


@pytest.mark.parametrize(
    ("standing", "threshold", "reason"),
    [
        (3, "text", "others wait there, and '<' not supported"),
        (3, SIGNALLING, "others wait there, and "),
        (frozenset({1}), frozenset({2}), "others wait there, and it is neither below nor past"),
    ],
)
def test_a_threshold_that_has_no_place_among_the_others_is_refused_and_changes_nothing(standing, threshold, reason):
    queue = ThresholdQueue("orders")
    queue.add(waiter := Standing(queue, standing))
    with pytest.raises(TypeError, match=reason):
        queue.add(Standing(queue, threshold))
    queue._check(who := [])
    assert who == [waiter]


def test_a_value_that_others_cannot_be_compared_with_is_refused_and_takes_nobody_out():
    queue = ThresholdQueue("orders")
    queue.add(waiter := Standing(queue, "text"))
    with pytest.raises(TypeError, match="cannot advance 'orders' to 3: it has no value, and '<=' not supported"):
        queue.advance(3)
    assert queue.value is UNKNOWN and queue.discard(waiter)


# Segments


def test_a_segment_that_has_grown_too_long_is_split_and_the_order_stays():
    queue = ThresholdQueue("orders")
    waiters = [Standing(queue, number // 2) for number in range(4 * SEGMENT_CAPACITY)]
    for waiter in waiters[::-1]:
        queue.add(waiter)
    queue._check(standing := [])
    in_order = [each for pair in zip(waiters[1::2], waiters[::2], strict=True) for each in pair]
    assert standing == in_order and len(queue.segments) > 2
    assert not queue.discard(Standing(queue, 0)) and not queue.discard(Standing(queue, 10**6))
    size, taken = queue.advance(SEGMENT_CAPACITY)
    assert (size, len(taken)) == (2 * (SEGMENT_CAPACITY + 1), SEGMENT_CAPACITY + 1)
    queue._check(standing := [])
    assert standing == in_order[size:]
    size, taken = queue.clear()
    assert (size, len(taken), queue.segments) == (len(standing), len(standing) // 2, [])
