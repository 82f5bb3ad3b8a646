"""Converts seconds to ticks and back; no other module does.

The event loop counts seconds in floats, the wheel counts ticks in integers. A deadline is rounded
*up* to the next tick and the present is rounded *down* to the last one, so that the deadlines of a
tick are due when it has begun:

    tick = 0.001    deadline 7.0423 s -> due tick 7043    now 7.0429 s -> tick 7042
                    tick 7043 -> 7.043 s

Floats make this delicate (Kafka counts integer milliseconds). uvloop's clock shows whole
milliseconds, n / 1000, and 0.001 * n is often another float: `int(now * 1000)` misses some 1 of 200
exact wake-ups. So if a second has a whole number of ticks, an instant is computed by one division,
which is correctly rounded and equals the loop's own value, and rounding down is checked against it.
"""

from math import ceil, inf
from typing import Final, final

from purgatory._core.arguments import describe, seconds

MIN_TICK: Final = 1e-9
"""In seconds; no loop's clock has a finer resolution."""

MAX_TICK: Final = 2**62
"""Ticks beyond this count as never: 146 years of nanoseconds, 146 million years of milliseconds.

Beyond 2**53, which ticks of 1 ns reach at a loop time of 104 days, a float skips some ticks. Then a
deadline is met by the next representable tick, a few units in the last place of the loop's time
later.
"""


@final
class TickClock:
    """Converts between the loop's seconds and a wheel's ticks.

    Args:
        tick: the length of one tick in seconds, finite and at least a nanosecond.

    Raises:
        ValueError, TypeError: `tick` is shorter, not finite, or no number.
    """

    __slots__ = ("is_whole", "rate", "tick")

    def __init__(self, tick: float) -> None:
        given, tick = tick, seconds("tick", tick)
        if not MIN_TICK <= tick < inf:
            raise ValueError(
                f"tick must be a finite number of seconds, at least {MIN_TICK}, got "
                f"{describe(given)}"
            )
        rate = 1.0 / tick
        self.is_whole = rate >= 1.0 and abs(rate - round(rate)) <= 1e-9 * rate
        """Whether `rate` is an integer. Then a tick begins exactly at its number divided by the
        rate."""
        self.tick = tick
        self.rate = float(round(rate)) if self.is_whole else rate
        """Ticks per second."""

    def instant(self, tick_number: float) -> float:
        """When a tick begins, in seconds of the loop's time."""
        return tick_number / self.rate if self.is_whole else tick_number * self.tick

    def due_tick(self, when: float) -> int:
        """The first tick that does not begin before `when`, which is not NaN; within `MAX_TICK`
        either way.

        The product may have been rounded past an integer, by one unit in the last place, so the
        result is checked both ways.
        """
        ticks = when * self.rate
        if not -MAX_TICK < ticks < MAX_TICK:
            return MAX_TICK if ticks > 0 else -MAX_TICK
        due_tick = ceil(ticks)
        if self.instant(due_tick) < when:
            return due_tick + 1
        return due_tick - 1 if self.instant(due_tick - 1) >= when else due_tick

    def tick_at(self, now: float) -> int:
        """The last tick that has begun by `now`."""
        tick_number = int(now * self.rate)
        if self.instant(tick_number) > now:
            return tick_number - 1
        if self.instant(tick_number + 1) <= now:
            return tick_number + 1
        return tick_number
