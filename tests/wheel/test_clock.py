"""`TickClock`: what floats do to the border between two ticks, near zero and far from it."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._wheel.clock import MAX_TICK, TickClock

TICKS = [0.001, 0.01, 0.25, 2.5, 0.0005, 1 / 3, 0.0003, 86_400.0]

of_any_tick = pytest.mark.parametrize("tick", TICKS)
at_any_loop_time = pytest.mark.parametrize("start", [0.0, 2e7, 1e9])


def hair(when: float) -> float:
    """The rounding error that two operations on floats may leave in an instant."""
    return 2 * math.ulp(when)


@of_any_tick
@at_any_loop_time
def test_the_instant_at_which_a_tick_begins_lies_in_it_and_is_due_in_it(tick: float, start: float) -> None:
    clock = TickClock(tick)
    for number in range(int(start / tick) - 2000, int(start / tick) + 2000):
        begin = clock.instant(number)
        assert clock.tick_at(begin) == clock.due_tick(begin) == number
        assert clock.tick_at(math.nextafter(begin, -math.inf)) == number - 1
        assert clock.due_tick(math.nextafter(begin, math.inf)) == clock.due_tick(begin + tick / 2) == number + 1


MOMENTS = given(st.sampled_from(TICKS), st.sampled_from([0.0, 2e7, 1e9]), st.floats(-1e4, 1e7, allow_nan=False))


@MOMENTS
@settings(max_examples=200, derandomize=True, deadline=None)
def test_a_moment_lies_in_its_tick_and_a_deadline_is_rounded_up_by_less_than_a_tick(
    tick: float, start: float, offset: float
) -> None:
    lies_in_its_tick(TickClock(tick), start + offset)


@pytest.mark.slow
@MOMENTS
@settings(max_examples=5000, derandomize=True, deadline=None)
def test_any_of_many_moments_lies_in_its_tick(tick: float, start: float, offset: float) -> None:
    lies_in_its_tick(TickClock(tick), start + offset)


def lies_in_its_tick(clock: TickClock, when: float) -> None:
    assert clock.instant(clock.tick_at(when)) <= when < clock.instant(clock.tick_at(when) + 1)
    due_tick = clock.due_tick(when)
    assert clock.instant(due_tick) >= when
    assert clock.instant(due_tick - 1) < when + hair(when)


@pytest.mark.parametrize(("tick", "milliseconds"), [(0.001, 1), (0.01, 10), (0.25, 250), (2.5, 2500)])
@at_any_loop_time
def test_a_clock_of_whole_milliseconds_meets_every_tick_exactly(tick: float, milliseconds: int, start: float) -> None:
    """uvloop's clock shows `n / 1000`."""
    clock, first = TickClock(tick), int(start) * 1000
    for n in range(first, first + 5000):
        assert clock.tick_at(n / 1000) == n // milliseconds


def test_multiplying_and_cutting_off_would_miss_some_of_those_ticks() -> None:
    """Or the test above would test nothing."""
    assert sum(int(n / 1000 * 1000) != n for n in range(5000)) > 10


@of_any_tick
def test_the_instants_of_ticks_only_ever_grow(tick: float) -> None:
    clock = TickClock(tick)
    for start in (-1e9, 0.0, 2e7, 1e9):
        instants = [clock.instant(int(start / tick) + step) for step in range(1000)]
        assert all(earlier < later for earlier, later in pairwise(instants))


def test_a_tick_that_does_not_divide_a_second_is_as_long_as_it_was_told() -> None:
    assert [TickClock(0.0003).instant(number) for number in (0, 1, 10)] == [0.0, 0.0003, pytest.approx(0.003)]
    assert [TickClock(2.5).instant(number) for number in (-1, 1, 3)] == [-2.5, 2.5, 7.5]


def test_deadlines_out_of_all_reach_are_due_at_the_last_tick_or_the_first() -> None:
    clock = TickClock(0.001)
    assert [clock.due_tick(when) for when in (math.inf, 1e300, 1e18)] == [MAX_TICK] * 3
    assert [clock.due_tick(when) for when in (-math.inf, -1e300, -1e18)] == [-MAX_TICK] * 3


def test_a_deadline_is_never_nan() -> None:
    with pytest.raises(ValueError, match="a deadline cannot be NaN"):
        TickClock(0.001).due_tick(math.nan)


@pytest.mark.parametrize("tick", [0, 0.0, -0.0, -0.001, math.nan, math.inf, -math.inf])
def test_a_tick_is_positive_and_finite(tick: float) -> None:
    with pytest.raises(ValueError, match=f"tick must be a positive, finite number of seconds, not {tick!r}"):
        TickClock(tick)


@pytest.mark.parametrize("tick", [9.99e-10, 1e-12, 1e-320])
def test_a_tick_is_not_shorter_than_what_a_clock_tells_apart(tick: float) -> None:
    with pytest.raises(ValueError, match=f"tick must be at least 1e-09 seconds, not {tick!r}: no clock tells shorter"):
        TickClock(tick)


@given(st.sampled_from([1e-9, 3e-9, 1e-7]), st.sampled_from([0.0, 9.007e6, 1e7, 2e7, 1e9]), st.floats(0, 1e6))
@settings(max_examples=200, derandomize=True, deadline=None)
def test_ticks_that_a_float_cannot_tell_apart_lie_within_hairs_of_their_time(tick: float, start: float, offset: float) -> None:
    clock, when = TickClock(tick), start + offset
    due_tick = clock.due_tick(when)
    assert due_tick < MAX_TICK
    assert abs(clock.instant(due_tick) - when) <= 1.001 * tick + hair(when)
    assert clock.tick_at(when + 4 * hair(when) + 1.001 * tick) >= due_tick
