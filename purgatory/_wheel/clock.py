"""Seconds and ticks: the only module that converts one to the other.

The event loop counts seconds in floats, the wheel counts ticks in integers. A deadline is rounded *up* to the next tick
and the present is rounded *down* to the last one, so that when a tick has begun, its deadlines are due:

    tick = 0.001    deadline 7.0423 s -> due tick 7043      now 7.0429 s -> tick 7042      tick 7043 -> 7.043 s

Floats make this delicate (Kafka counts integer milliseconds and never meets it). uvloop's clock shows whole
milliseconds, n / 1000, and 0.001 * n is often another float: `int(now * 1000)` misses some 1 of 200 exact wake-ups. So
where a second has a whole number of ticks an instant is computed by one division, which is correctly rounded and meets
the loop's own value, and rounding down is checked against it.
"""

from math import ceil, isfinite
from typing import Final, final

MIN_TICK: Final = 1e-9
"""In seconds. No loop's clock has a finer resolution."""

MAX_TICK: Final = 2**62
"""Ticks further away than this count as never: 146 years of the shortest ones, 146 million years of milliseconds.

Beyond 2**53 a float skips some ticks, with ticks of 1 ns from a loop time of 104 days on. Then a deadline is met by the next
tick that there is, at most a few units of the loop's own time in the last place later.
"""


@final
class TickClock:
    """Converts between the loop's seconds and a wheel's ticks.

    Args:
        tick: the length of one tick in seconds, finite and at least a nanosecond.

    Raises:
        ValueError: `tick` is shorter, or not finite.
    """

    __slots__ = ("is_whole", "rate", "tick")

    tick: float
    rate: float
    """Ticks in a second."""
    is_whole: bool
    """Whether that is a whole number: then a tick begins at its number divided by the rate, exactly."""

    def __init__(self, tick: float) -> None:
        if not (tick > 0.0 and isfinite(tick)):
            raise ValueError(f"tick must be a positive, finite number of seconds, not {tick!r}")
        if tick < MIN_TICK:
            raise ValueError(f"tick must be at least {MIN_TICK} seconds, not {tick!r}: no clock tells shorter times apart")
        rate = 1.0 / tick
        self.is_whole = rate >= 1.0 and abs(rate - round(rate)) <= 1e-9 * rate
        self.tick = float(tick)
        self.rate = float(round(rate)) if self.is_whole else rate

    def instant(self, tick_number: float) -> float:
        """The moment at which a tick begins, in seconds of the loop's time."""
        return tick_number / self.rate if self.is_whole else tick_number * self.tick

    def due_tick(self, when: float) -> int:
        """The first tick that does not begin before `when`; beyond `MAX_TICK` either way, that limit.

        The product may have been rounded past an integer, by one unit in the last place, so the result is checked both ways.

        Raises:
            ValueError: `when` is NaN.
        """
        ticks = when * self.rate
        if ticks != ticks:
            raise ValueError("a deadline cannot be NaN")
        if not -MAX_TICK < ticks < MAX_TICK:
            return MAX_TICK if ticks > 0 else -MAX_TICK
        due_tick = ceil(ticks)
        if self.instant(due_tick) < when:
            return due_tick + 1
        return due_tick - 1 if self.instant(due_tick - 1) >= when else due_tick

    def tick_at(self, now: float) -> int:
        """The last tick that has begun at `now`."""
        tick_number = int(now * self.rate)
        if self.instant(tick_number) > now:
            return tick_number - 1
        if self.instant(tick_number + 1) <= now:
            return tick_number + 1
        return tick_number
