"""What a meter has counted, as immutable data."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, final

from purgatory import Cause, OperationState

WAIT_BOUNDS: Final = (*(0.001 * 2**power for power in range(19)), inf)
"""In seconds: 1 ms, doubled up to 262 s. No usual timeout (1, 5, 10, 30, 60, 120) is close below a bound."""

LATENESS_BOUNDS: Final = (*(0.00025 * 2**power for power in range(16)), inf)
"""In seconds: a quarter of a millisecond, doubled up to 8 s. The default tick, a millisecond, is a bound."""


@final
@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations there were, in buckets."""

    bounds: tuple[float, ...]
    """The inclusive upper bounds in seconds; the last one is infinite."""
    counts: tuple[int, ...]
    """How many are in each bucket: above the previous bound, and up to its own."""
    sum: float
    """The total of all durations, in seconds."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        """The histogram of the durations of both, which have the same bounds."""
        counts = tuple([one + another for one, another in zip(self.counts, other.counts, strict=True)])
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """The lowest bound, in seconds, that is not exceeded by this share of them, from 0 to 1; None if there are none."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"a quantile is of a share from 0 to 1, not of {share!r}")
        cumulative = list(accumulate(self.counts))
        total = cumulative[-1]
        return self.bounds[bisect_left(cumulative, max(share * total, 1))] if total else None


@final
@dataclass(frozen=True, slots=True)
class KindMetrics:
    """How the operations of one kind in one purgatory have ended."""

    purgatory: str
    """Its name."""
    kind: str
    """The name of the operations' class."""
    outcomes: Mapping[tuple[OperationState, Cause], int]
    """How many have ended, by state and cause; without zeros."""
    waits: Mapping[OperationState, Histogram]
    """How long operations waited, by state; without those that ended at their first try."""
    lateness: Histogram
    """How long after its deadline an operation ended, for those that reached it."""
    missed_triggers: int
    """How many only the last try, at their deadline, completed: nobody had checked their keys."""
    retries: int
    """How many tries by checks found a condition that did not hold yet."""

    @property
    def ended(self) -> int:
        """How many have ended, in total."""
        return sum(self.outcomes.values())
