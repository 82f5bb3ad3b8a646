"""The time that the page shows."""

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

SECOND: Final = 1_000_000
"""In microseconds, as all times and lengths here."""
Hour = dict[str, Any]
"""An hour: its number since 1970 (`hour`), the number of `starts` and `ends`, the `first` and the
`last`."""

SPANS: Final = 240
"""The most spans that the time is divided into."""
OUTLIERS: Final = 0.01
"""The share of events at each end that is left out if the window gets `SHORTER` times shorter: a
clock was wrong, or an operation waited for a year."""
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
    """The length of a span."""
    count: int


def window_of(hours: list[Hour]) -> Window:
    """The time of all events, without outliers.

    Args:
        hours: the hours with events.
    """
    if not hours:
        return Window(0, SECOND, 1)
    hours = sorted(hours, key=itemgetter("hour"))
    inner = _without_outliers(_without_outliers(hours[::-1])[::-1])
    shown = inner if SHORTER * _length(inner) < _length(hours) else hours
    length = _length(shown)
    width = next(
        (each for each in _LENGTHS if each * SPANS >= length),
        -(-length // (SPANS * 24 * HOUR)) * 24 * HOUR,
    )
    start = shown[0]["first"] // width * width
    return Window(start, width, (shown[-1]["last"] - start) // width + 1)


def _without_outliers(hours: list[Hour]) -> list[Hour]:
    allowed = OUTLIERS * sum(map(_events, hours))
    for place, hour in enumerate(hours):
        allowed -= _events(hour)
        if allowed < 0:
            return hours[place:]
    return hours


def _events(hour: Hour) -> int:
    return int(hour["starts"] + hour["ends"])


def _length(hours: list[Hour]) -> int:
    return int(hours[-1]["last"] - hours[0]["first"]) + 1
