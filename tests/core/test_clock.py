"""`TickClock`: float rounding at the border of two ticks, near zero and far from it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory._core.wheel import MAX_TICK, TickClock

TICKS = [0.001, 0.01, 0.25, 2.5, 0.0005, 1 / 3, 0.0003, 86_400.0]

of_any_tick = pytest.mark.parametrize("tick", TICKS)


def hair(when: float) -> float:
    """The rounding error that two operations on floats may leave in an instant."""
    return 2 * math.ulp(when)


@of_any_tick
@pytest.mark.parametrize("start", [-1e9, 0.0, 2e7, 1e9])
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


@given(
    st.sampled_from(TICKS), st.sampled_from([0.0, 2e7, 1e9]), st.floats(-1e4, 1e7, allow_nan=False)
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_deadline_rounds_up_by_under_one_tick(tick: float, start: float, offset: float) -> None:
    clock, when = TickClock(tick), start + offset
    assert clock.instant(clock.tick_at(when)) <= when < clock.instant(clock.tick_at(when) + 1)
    due_tick = clock.due_tick(when)
    assert clock.instant(due_tick) >= when
    assert clock.instant(due_tick - 1) < when + hair(when)


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
