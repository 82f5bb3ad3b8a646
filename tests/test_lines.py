"""The lines of a threshold purgatory by themselves: their order, what is refused, and what each step costs."""

from functools import total_ordering
from math import inf
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import _lines, _waits
from purgatory._lines import UNKNOWN, Line


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
    """All that a line wants of who waits in it."""

    def __init__(self, line, threshold):
        self.line = line
        self.threshold = threshold


def crowd(size: int) -> tuple[Line, list[Standing]]:
    line = Line("key")
    waiters = [Standing(line, Counted(number)) for number in range(size)]
    # Not in order, and not at random.
    for number in range(size):
        line.join(waiters[number * 7919 % size])
    return line, waiters


# Cost


def test_an_advance_costs_what_it_completes_and_not_what_waits():
    (crowded, _), (lone, _), (empty, _) = crowd(100_000), crowd(1), crowd(0)
    for line in (crowded, lone, empty):
        line.value = Counted(-2)
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


def test_joining_and_leaving_cost_the_logarithm_of_what_waits():
    line, waiters = crowd(100_000)
    for number in (0, 1, 5_000, 50_000, 99_999):
        assert compared(line.leave, waiters[number]) <= 20
        assert compared(line.join, waiters[number]) <= 22


# Against a list that is sorted


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "advance", "clear"]), st.integers(0, 30)), max_size=80))
def test_a_line_does_what_a_sorted_list_does(steps):
    line, waiting, value = Line("key"), [], None
    with patch.object(_lines, "LONGEST_RUN", 4):
        for step, number in steps:
            if step == "join" and (value is None or number > value):
                waiter = Standing(line, number)
                line.join(waiter)
                waiting.append(waiter)
                waiting.sort(key=lambda waiter: waiter.threshold)  # stable: equal ones stay in order of arrival
            elif step == "leave" and waiting:
                waiter = waiting.pop(number % len(waiting))
                assert line.leave(waiter) is True and line.leave(waiter) is False
            elif step == "advance" and value is not None and number < value:
                with pytest.raises(ValueError, match="never go backwards"):
                    line.advance(number)
            elif step in ("advance", "clear"):
                if step == "advance":
                    value = number
                    taken = line.advance(number)
                else:
                    number, taken = inf, line.clear()
                expected = [waiter for waiter in waiting if waiter.threshold <= number]
                waiting = waiting[len(expected) :]
                assert (taken[0], list(_waits._one_by_one(taken[1]))) == (len(expected), expected)
                assert not any(map(line.leave, expected))
            if line.runs or line.value is not UNKNOWN:
                line._check(standing := [])
                assert standing == waiting
