"""The time that the page shows: as much as fits."""

from dataclasses import dataclass
from typing import Any, Final

SECOND: Final = 1_000_000
"""In microseconds, as all times and lengths here."""
Hour = dict[str, Any]
"""What happened in an hour: `hour` since 1970, the number of `events`, the `first` and the `last`."""

SPANS: Final = 240
"""Into how many spans the time is divided, at most."""
OUTLIERS: Final = 0.01
"""The share of events at both ends that is left out if the window gets `SHORTER` by it: a clock was wrong, or an operation
waited for a year."""
SHORTER: Final = 20
HOUR: Final = 3600 * SECOND
_LENGTHS: Final = (
    *(factor * unit for unit in (1_000, 10_000, 100_000) for factor in (1, 2, 5)),
    *(seconds * SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12, 24, 48, 168)),
)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the page shows, in spans of equal length."""

    start: int
    width: int
    """Of a span."""
    count: int


def window_of(hours: list[Hour]) -> Window:
    """The time in which things happened, without what is far from the rest.

    Args:
        hours: those in which anything happened, in order.
    """
    if not hours:
        return Window(0, SECOND, 1)
    inner = _without_outliers(_without_outliers(hours[::-1])[::-1])
    shown = inner if SHORTER * _length(inner) < _length(hours) else hours
    length = _length(shown)
    width = next((each for each in _LENGTHS if each * SPANS >= length), -(-length // (SPANS * 24 * HOUR)) * 24 * HOUR)
    start = shown[0]["first"] // width * width
    return Window(start, width, (shown[-1]["last"] - start) // width + 1)


def _without_outliers(hours: list[Hour]) -> list[Hour]:
    allowed = OUTLIERS * sum(hour["events"] for hour in hours)
    for place, hour in enumerate(hours):
        allowed -= hour["events"]
        if allowed < 0:
            return hours[place:]
    return hours


def _length(hours: list[Hour]) -> int:
    return int(hours[-1]["last"] - hours[0]["first"]) + 1
