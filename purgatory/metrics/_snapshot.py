"""What a meter has counted, as plain data that does not change."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, final

from purgatory import Cause, OperationState

WAIT_BOUNDS: Final = (*(0.001 * 2**power for power in range(19)), inf)
"""In seconds: a millisecond, and twice that again and again, to 262 s. Round timeouts (1, 5, 10, 30, 60, 120) lie within."""

LATENESS_BOUNDS: Final = (*(0.00025 * 2**power for power in range(16)), inf)
"""In seconds: from a quarter of a millisecond to 8 s. A tick is a bound where it is the usual millisecond."""


@final
@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations there were, by how long they took."""

    bounds: tuple[float, ...]
    """The upper bounds in seconds, each included in its bucket; the last one is infinite."""
    counts: tuple[int, ...]
    """How many are in each bucket: above the bound before, and up to its own."""
    sum: float
    """Of all of them, in seconds."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def __add__(self, other: "Histogram") -> "Histogram":
        """Of the durations of both, which have the same bounds."""
        counts = tuple([one + another for one, another in zip(self.counts, other.counts, strict=True)])
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """A bound below which this share of them lies, in seconds; None if there are none. From 0 to 1."""
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"a quantile is of a share from 0 to 1, not of {share!r}")
        so_far, reached = 0, []
        for count in self.counts:
            so_far += count
            reached.append(so_far)
        return self.bounds[bisect_left(reached, max(share * so_far, 1))] if so_far else None


@final
@dataclass(frozen=True, slots=True)
class KindMetrics:
    """What has become of the operations of one kind in one purgatory."""

    purgatory: str
    """Its name."""
    kind: str
    """The name of the operations' class."""
    outcomes: Mapping[tuple[OperationState, Cause], int]
    """How many have ended so, those alone that there were."""
    waits: Mapping[OperationState, Histogram]
    """How long those waited that did wait, by how they ended."""
    lateness: Histogram
    """How long after their deadline those were told of that came to it."""
    missed_triggers: int
    """How many were completed by the last try at their deadline: nobody had checked their keys."""
    retries: int
    """How often a check found a condition that did not hold yet."""

    @property
    def ended(self) -> int:
        """How many have ended, in whatever way."""
        return sum(self.outcomes.values())
