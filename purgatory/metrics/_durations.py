"""Counts durations into buckets, cheaply.

Durations are appended to a list. At 512 the list is sorted, and each bound is searched in it. This
costs half as much as searching each duration among the bounds.

    recent     0.3  0.001  40.0  0.7           sorted      0.001 | 0.3  0.7 | 40.0
    bounds     0.1  1.0  inf                   counts      1       2          1
"""

from bisect import bisect_right
from itertools import pairwise
from threading import RLock
from typing import Final, final

from purgatory.metrics._counts import Histogram

MAX_UNSORTED: Final = 512

_lock: Final = RLock()
"""Held while durations are moved to their buckets, or read, perhaps on another thread."""


@final
class Durations:
    """Counts of durations, in buckets. One thread writes, any thread may read.

    Args:
        bounds: the upper bounds, in ascending order; the last bound is infinite.
    """

    __slots__ = ("_bounds", "_counts", "_recent", "_sum", "add")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0
        self._recent: list[float] = []
        recent, append = self._recent, self._recent.append

        def add(duration: float) -> None:
            """Counts a duration, in seconds."""
            append(duration)
            if len(recent) >= MAX_UNSORTED:
                self._sort()

        self.add = add

    def histogram(self) -> Histogram:
        """All durations so far."""
        with _lock:
            recent = sorted(self._recent)
            counts = [
                one + other
                for one, other in zip(self._counts, self._bucket_counts(recent), strict=True)
            ]
            return Histogram(self._bounds, tuple(counts), self._sum + sum(recent))

    def _sort(self) -> None:
        with _lock:
            batch = self._recent[:]
            del self._recent[: len(batch)]  # keeps what another thread has added meanwhile
            batch.sort()
            self._counts = [
                one + other
                for one, other in zip(self._counts, self._bucket_counts(batch), strict=True)
            ]
            self._sum += sum(batch)

    def _bucket_counts(self, durations: list[float]) -> list[int]:
        """The number of the sorted `durations` in each bucket."""
        ends = [0, *(bisect_right(durations, bound) for bound in self._bounds)]
        return [end - begin for begin, end in pairwise(ends)]
