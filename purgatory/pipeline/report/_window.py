"""What the page shows of the time and of the runs: as much as fits."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from purgatory.pipeline._pieces import Hour, RunStats
from purgatory.pipeline.report._plan import SECOND, Window

RUNS: Final = 8
SPANS: Final = 240
"""Into how many spans the time is divided, at most."""
STRAYS: Final = 0.01
"""The share of events at both ends that is left out if the window gets `SHORTER` by it: a clock was wrong, or an operation
waited for a year."""
SHORTER: Final = 20
HOUR: Final = 3600 * SECOND
_LENGTHS: Final = (
    *(factor * unit for unit in (1_000, 10_000, 100_000) for factor in (1, 2, 5)),
    *(seconds * SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(hours * HOUR for hours in (1, 2, 3, 6, 12, 24, 48, 168)),
)


def shown_runs(run_stats: Iterable[RunStats]) -> list[str]:
    """The runs with the most operations."""
    rows: Counter[str] = Counter()
    for each in run_stats:
        rows[each.run_id] += each.rows
    return [run for run, _ in sorted(rows.items(), key=lambda item: (-item[1], item[0]))[:RUNS]]


def window_of(hours: Mapping[int, Hour]) -> Window:
    """The time in which things happened, without what strays far from the rest.

    Args:
        hours: for each hour since 1970 the number of events, the first and the last.
    """
    if not hours:
        return Window(0, SECOND, 1)
    ordered = [hours[hour] for hour in sorted(hours)]
    inner = _without_strays(_without_strays(ordered[::-1])[::-1])
    shown = inner if SHORTER * _length(inner) < _length(ordered) else ordered
    length = _length(shown)
    width = next((each for each in _LENGTHS if each * SPANS >= length), -(-length // (SPANS * 24 * HOUR)) * 24 * HOUR)
    start = shown[0].first // width * width
    return Window(start, width, (shown[-1].last - start) // width + 1)


def _without_strays(hours: list[Hour]) -> list[Hour]:
    allowed = STRAYS * sum(hour.events for hour in hours)
    for place, hour in enumerate(hours):
        allowed -= hour.events
        if allowed < 0:
            return hours[place:]
    return hours


def _length(hours: list[Hour]) -> int:
    return hours[-1].last - hours[0].first + 1
