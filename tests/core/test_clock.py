"""`TickClock`: float rounding at the border of two ticks, near zero and far from it."""

import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._core.clock import MAX_TICK, TickClock

TICKS = [0.001, 0.01, 0.25, 2.5, 0.0005, 1 / 3, 0.0003, 86_400.0]

of_any_tick = pytest.mark.parametrize("tick", TICKS)
at_any_loop_time = pytest.mark.parametrize("start", [0.0, 2e7, 1e9])


def hair(when: float) -> float:
    """The rounding error that two operations on floats may leave in an instant."""
    return 2 * math.ulp(when)


@of_any_tick
@at_any_loop_time
def test_instant_of_tick_maps_back_to_it(tick: float, start: float) -> None:
    clock = TickClock(tick)
    for number in range(int(start / tick) - 2000, int(start / tick) + 2000):
        begin = clock.instant(number)
        assert clock.tick_at(begin) == clock.due_tick(begin) == number
        assert clock.tick_at(math.nextafter(begin, -math.inf)) == number - 1
        assert (
            clock.due_tick(math.nextafter(begin, math.inf))
            == clock.due_tick(begin + tick / 2)
            == number + 1
        )


MOMENTS = given(
    st.sampled_from(TICKS), st.sampled_from([0.0, 2e7, 1e9]), st.floats(-1e4, 1e7, allow_nan=False)
)


@MOMENTS
@settings(max_examples=200, derandomize=True, deadline=None)
def test_deadline_rounds_up_by_under_one_tick(tick: float, start: float, offset: float) -> None:
    lies_in_its_tick(TickClock(tick), start + offset)


@pytest.mark.slow
@MOMENTS
@settings(max_examples=5000, derandomize=True, deadline=None)
def test_many_deadlines_round_up_within_one_tick(tick: float, start: float, offset: float) -> None:
    lies_in_its_tick(TickClock(tick), start + offset)


def lies_in_its_tick(clock: TickClock, when: float) -> None:
    assert clock.instant(clock.tick_at(when)) <= when < clock.instant(clock.tick_at(when) + 1)
    due_tick = clock.due_tick(when)
    assert clock.instant(due_tick) >= when
    assert clock.instant(due_tick - 1) < when + hair(when)


@pytest.mark.parametrize(
    ("tick", "milliseconds"), [(0.001, 1), (0.01, 10), (0.25, 250), (2.5, 2500)]
)
@at_any_loop_time
def test_millisecond_clock_meets_every_tick_exactly(
    tick: float, milliseconds: int, start: float
) -> None:
    """uvloop's clock shows `n / 1000`."""
    clock, first = TickClock(tick), int(start) * 1000
    for n in range(first, first + 5000):
        assert clock.tick_at(n / 1000) == n // milliseconds


def test_naive_conversion_misses_some_ticks() -> None:
    """Otherwise the test above would test nothing."""
    assert sum(int(n / 1000 * 1000) != n for n in range(5000)) > 10


@of_any_tick
def test_instants_of_ticks_increase(tick: float) -> None:
    clock = TickClock(tick)
    for start in (-1e9, 0.0, 2e7, 1e9):
        instants = [clock.instant(int(start / tick) + step) for step in range(1000)]
        assert all(earlier < later for earlier, later in pairwise(instants))


def test_tick_that_divides_no_second_keeps_its_length() -> None:
    assert [TickClock(0.0003).instant(number) for number in (0, 1, 10)] == [
        0.0,
        0.0003,
        pytest.approx(0.003),
    ]
    assert [TickClock(2.5).instant(number) for number in (-1, 1, 3)] == [-2.5, 2.5, 7.5]


def test_far_deadlines_are_clamped_to_extreme_ticks() -> None:
    clock = TickClock(0.001)
    assert [clock.due_tick(when) for when in (math.inf, 1e300, 1e18)] == [MAX_TICK] * 3
    assert [clock.due_tick(when) for when in (-math.inf, -1e300, -1e18)] == [-MAX_TICK] * 3


@pytest.mark.parametrize("tick", [0, 0.0, -0.0, -0.001, math.inf, -math.inf])
def test_tick_must_be_positive_and_finite(tick: float) -> None:
    message = f"tick must be a finite number of seconds, at least 1e-09, got {tick!r}"
    with pytest.raises(ValueError, match=message):
        TickClock(tick)


@pytest.mark.parametrize("tick", [9.99e-10, 1e-12, 1e-320])
def test_tick_below_a_nanosecond_is_refused(tick: float) -> None:
    with pytest.raises(ValueError, match=f"at least 1e-09, got {tick!r}"):
        TickClock(tick)
    assert TickClock(1e-9).tick == 1e-9


@pytest.mark.parametrize(
    ("tick", "error"),
    [(math.nan, ValueError), (10**400, ValueError), ("0.1", TypeError), (None, TypeError)],
    ids=lambda value: repr(value)[:12],
)
def test_tick_that_is_no_number_is_refused(tick: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="tick "):
        TickClock(tick)


def test_tick_of_any_number_is_stored_as_float() -> None:
    clock = TickClock(Decimal("0.25"))  # type: ignore[arg-type]
    assert (type(clock.tick), clock.tick, clock.rate) == (float, 0.25, 4.0)


@given(
    st.sampled_from([1e-9, 3e-9, 1e-7]),
    st.sampled_from([0.0, 9.007e6, 1e7, 2e7, 1e9]),
    st.floats(0, 1e6),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_indistinguishable_ticks_stay_near_their_time(
    tick: float, start: float, offset: float
) -> None:
    clock, when = TickClock(tick), start + offset
    due_tick = clock.due_tick(when)
    assert due_tick < MAX_TICK
    assert abs(clock.instant(due_tick) - when) <= 1.001 * tick + hair(when)
    assert clock.tick_at(when + 4 * hair(when) + 1.001 * tick) >= due_tick
