"""The queues of a threshold purgatory alone: their order, refusals, and the cost of each step."""

from decimal import Decimal
from functools import total_ordering
from math import nan
from re import escape
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._core.threshold_queue import UNKNOWN, ThresholdQueue, has_reached


@total_ordering
class Counted:
    """A value that counts all comparisons of order."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

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


class Waiter:
    """The part of a waiter that a queue needs."""

    def __init__(self, threshold):
        self.threshold = threshold


def crowd(thresholds) -> tuple[ThresholdQueue, list[Waiter]]:
    queue, waiters = ThresholdQueue("orders"), list(map(Waiter, thresholds))
    for waiter in waiters:
        queue.add(waiter)
    return queue, waiters


def shuffled(size: int) -> list[Counted]:
    return [Counted(number * 7919 % size) for number in range(size)]


# Against a sorted list

THRESHOLDS = st.integers(0, 300)
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(THRESHOLDS, min_size=1, max_size=60)),
    st.tuples(st.just("discard"), st.lists(THRESHOLDS, min_size=1, max_size=60)),
    st.tuples(st.sampled_from(["advance", "take above"]), THRESHOLDS),
    st.tuples(st.sampled_from(["forget", "clear", "take all"]), st.none()),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(STEPS, max_size=30))
def test_queue_matches_sorted_list(steps):
    queue, waiting, most = ThresholdQueue("orders"), [], 0
    for step, argument in steps:
        if step == "add":
            for threshold in argument:
                if queue.value is UNKNOWN or threshold > queue.value:
                    waiting.append(Waiter(threshold))
                    queue.add(waiting[-1])
            waiting.sort(key=lambda waiter: waiter.threshold)  # equal ones stay in order of arrival
            most = max(most, len(waiting))
        elif step == "discard":
            for index in argument if waiting else ():
                if waiting:
                    waiter = waiting.pop(index % len(waiting))
                    assert queue.discard(waiter) is True and queue.discard(waiter) is False
        elif step == "advance" and queue.value is not UNKNOWN and argument < queue.value:
            with pytest.raises(ValueError, match="never go backwards"):
                queue.advance(argument)
        elif step == "forget":
            queue.value = UNKNOWN
        else:
            taken = {
                "advance": lambda waiter: waiter.threshold <= argument,
                "take above": lambda waiter: waiter.threshold > argument,
            }.get(step, lambda waiter: True)
            expected = [waiter for waiter in waiting if taken(waiter)]
            waiting = [waiter for waiter in waiting if not taken(waiter)]
            if step == "clear":
                assert sorted(queue.clear(), key=expected.index) == expected
            elif step.startswith("take"):
                assert queue.take_above(UNKNOWN if argument is None else argument) == expected
            else:
                assert queue.advance(argument) == expected and queue.value == argument
            assert not any(map(queue.discard, expected))
        assert queue._check() == waiting and queue.size == len(waiting)
        assert not waiting or queue.lowest == waiting[0].threshold
        assert len(queue._heap) <= 2 * most


# Cost


@pytest.mark.parametrize("size", [0, 1, 20_000])
def test_advance_below_all_compares_once(size):
    queue, _ = crowd(shuffled(size))
    queue.value = Counted(-2)
    # Another comparison is with the known value.
    assert compared(queue.advance, Counted(-1)) == 1 + (size > 0)


def test_advance_cost_follows_what_it_completes():
    queue, _ = crowd(shuffled(20_000))
    value = -1
    for reached in (1, 2, 10, 100, 250):
        value += reached
        assert compared(queue.advance, Counted(value)) <= 2 + 32 * reached
    # Many are found by one comparison with each, and are sorted.
    assert compared(queue.advance, Counted(10_000)) <= 20_000 * 18
    assert len(queue._check()) == len(queue._heap) == 9_999
    assert compared(queue.advance, Counted(10_001)) <= 2 + 32


def test_add_costs_logarithmically_and_discard_nothing():
    queue, waiters = crowd(shuffled(20_000))
    for waiter in waiters[::2]:
        assert compared(queue.discard, waiter) == 0
    queue.value = Counted(-1)
    for number in (0.5, 5_000.5, 19_999.5):
        assert compared(queue.add, Waiter(Counted(number))) <= 2 * 15 + 1


def test_left_thresholds_are_dropped_in_time():
    queue, waiters = crowd(range(1000))
    for waiter in waiters[1:]:
        queue.discard(waiter)
    queue.add(Waiter(1000))
    assert len(queue._heap) == 2
    for number in range(5000):
        queue.add(waiter := Waiter(number % 7 + 1))
        queue.discard(waiter)
        assert len(queue._heap) <= 5
    assert queue.advance(999) == [waiters[0]] and queue.lowest == 1000


# Refusals


SIGNALLING = Decimal("sNaN")  # raises in every comparison


@pytest.mark.parametrize(
    ("value", "threshold", "reached"),
    [
        (UNKNOWN, 1, False),
        (5, 5, True),
        (5, 4, True),
        (5, 6, False),
        (frozenset({1, 2}), frozenset({1}), True),
        (frozenset({1}), frozenset({1, 2}), False),
    ],
)
def test_threshold_is_reached_by_equal_or_higher_value(value, threshold, reached):
    assert has_reached("orders", value, threshold) is reached


NEVER = "nothing ever does; it has "


@pytest.mark.parametrize(
    ("value", "threshold", "error", "reason"),
    [
        (UNKNOWN, nan, ValueError, NEVER + "no value"),
        (5, nan, ValueError, NEVER + "5"),
        (5, Decimal("nan"), ValueError, NEVER + "5"),
        (UNKNOWN, (1, nan), ValueError, NEVER + "no value"),
        ((1, 2), (1, (2, nan)), ValueError, NEVER + "(1, 2)"),
        (5, "6", TypeError, "it has 5, and '<=' not supported"),
        (5, SIGNALLING, TypeError, "it has 5, and "),
        ({1}, {2}, TypeError, "it has {1}, neither below nor past it"),
    ],
)
def test_incomparable_threshold_error_names_value_and_reason(value, threshold, error, reason):
    is_nan = error is ValueError
    what = "wait for 'orders' to reach" if is_nan else "tell whether 'orders' has reached"
    with pytest.raises(error, match=escape(f"cannot {what} {threshold!r}: {reason}")):
        has_reached("orders", value, threshold)


@pytest.mark.parametrize(
    ("known", "value", "error", "reason"),
    [
        (UNKNOWN, nan, ValueError, "it has no value, and NaN is no value"),
        (5, nan, ValueError, "it has 5, and NaN is no value"),
        (5, Decimal("nan"), ValueError, "it has 5, and NaN is no value"),
        ((1, 2), (1, nan), ValueError, "it has (1, 2), and NaN is no value"),
        (5, 4, ValueError, "it has 5, and values never go backwards"),
        ({1}, {2}, ValueError, "it has {1}, and values never go backwards"),
        (5, "6", TypeError, "it has 5, and '<=' not supported"),
        (UNKNOWN, SIGNALLING, TypeError, "it has no value, and "),
    ],
)
def test_refused_advance_error_names_value_and_reason(known, value, error, reason):
    queue, waiters = crowd([7])
    queue.value = known
    with pytest.raises(error, match=escape(f"cannot advance 'orders' to {value!r}: {reason}")):
        queue.advance(value)
    assert queue.value is known and queue.discard(*waiters)


@pytest.mark.parametrize(("value", "next_value"), [(UNKNOWN, 1), (1, 1), (1, 2), ({1}, {1, 2})])
def test_a_value_may_stay_or_rise(value, next_value):
    queue = ThresholdQueue("orders")
    queue.value = value
    assert queue.advance(next_value) == [] and queue.value == next_value


OTHERS = "others wait there, and "


@pytest.mark.parametrize(
    ("others", "threshold", "reason"),
    [
        ([3], "text", f"cannot wait for 'orders' to reach 'text': {OTHERS}'<' not supported"),
        ([3], SIGNALLING, "cannot wait for 'orders' to reach Decimal('sNaN'): "),
        ([(1, "a"), (2,), (3,)], (1, 5), f"{OTHERS}'<' not supported"),
        ([frozenset({1})], frozenset({2}), f"{OTHERS}it is neither below nor past frozenset"),
    ],
)
def test_unplaceable_threshold_is_refused_and_changes_nothing(others, threshold, reason):
    queue, waiters = crowd(others)
    with pytest.raises(TypeError, match=escape(reason)):
        queue.add(Waiter(threshold))
    assert queue._check() == waiters and len(queue._heap) == queue.size


@pytest.mark.parametrize("others", [[], [3]])
def test_unhashable_threshold_is_refused_and_changes_nothing(others):
    queue, waiters = crowd(others)
    # CPython 3.14 has more words between.
    with pytest.raises(TypeError, match=r"cannot wait for 'orders' to reach \[1\]: .*unhashable"):
        queue.add(Waiter([1]))
    assert queue._check() == waiters and len(queue._heap) == queue.size


@pytest.mark.parametrize("place", [0, 1, 10, 100, 999])
def test_incomparable_value_removes_no_waiter(place):
    """The value is above the first thresholds, and cannot be compared with one of them."""
    thresholds = [(number, "text") for number in range(1000)]
    queue, waiters = crowd(thresholds)
    with pytest.raises(TypeError, match=r"cannot advance 'orders' to .*: it has no value, and '<"):
        queue.advance((place, 3))
    assert queue.value is UNKNOWN and queue._check() == waiters
    assert queue.advance((1000, "")) == waiters
