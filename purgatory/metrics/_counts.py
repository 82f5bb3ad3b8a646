"""The counts of a meter, as immutable data."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, final

from purgatory import Cause, OperationState

WAIT_BOUNDS: Final = (*(0.001 * 2**power for power in range(19)), inf)
"""Bounds in seconds: 1 ms, doubled up to 262 s. No usual timeout (1, 5, 10, 30, 60, 120) is just
below a bound."""

LATENESS_BOUNDS: Final = (*(0.00025 * 2**power for power in range(16)), inf)
"""Bounds in seconds: a quarter of a millisecond, doubled up to 8 s. The default tick, a
millisecond, is a bound."""


@final
@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations, in buckets."""

    bounds: tuple[float, ...]
    """Inclusive upper bounds, in seconds; the last bound is infinite."""
    counts: tuple[int, ...]
    """Durations in each bucket: above the previous bound, up to its own."""
    sum: float
    """The total of all durations, in seconds."""

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        """The sum of both histograms, which have the same bounds."""
        counts = tuple(
            [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        )
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """The lowest bound, in seconds, that this share of the durations does not exceed; None if
        there are none.

        Args:
            share: from 0 to 1.

        Raises:
            ValueError: `share` is out of its bounds.
        """
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share must be between 0 and 1, got {share!r}")
        cumulative = list(accumulate(self.counts))
        total = cumulative[-1]
        return self.bounds[bisect_left(cumulative, max(share * total, 1))] if total else None


@final
@dataclass(frozen=True, slots=True)
class KindMetrics:
    """Counts of the operations of one kind in one purgatory that have ended."""

    purgatory: str
    """The purgatory's name."""
    kind: str
    """The name of the operations' class."""
    outcomes: Mapping[tuple[OperationState, Cause], int]
    """Operations by state and cause, without zeros."""
    waits: Mapping[OperationState, Histogram]
    """Times that operations waited, by state, without operations that ended at their first try."""
    lateness: Histogram
    """Times between the deadline and the end, of operations that reached their deadline."""
    missed_triggers: int
    """Operations that only the last try, at their deadline, completed: no check had tried them."""
    failed_tries: int
    """Failed tries: the sum of `Ended.failed_tries`."""

    @property
    def ended(self) -> int:
        """The number of operations that have ended."""
        return sum(self.outcomes.values())
