"""How the values of keys rose between two watermarks, if keys are forgotten some time after their
last signal.

The signals of a key form *lives*: one ends when no signal comes for longer than `forget_after`, and
the next one starts without a value.

    forget_after 60 s       12:00:00  12:00:50  12:01:40          12:03:00
    signals of "paid"       5         3         4                 2
    the value until then    5         5         5                 2
                            |------- first life -------| forgotten |-- second life

At 12:02:40 it is forgotten, so an operation registered at 12:02:50 with the threshold 4 waits; an
operation registered at 12:02:30 has its requirement.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.streaming._events import SIGNALS
from purgatory.pipeline.streaming._value_history import NEVER, Int64Array, ValueHistory

CHECKS_PER_LIFE: Final = 16
"""Keys are forgotten together, at multiples of this part of `forget_after`. It only bounds memory:
the value counts no more before."""
MIN_CHECK_INTERVAL: Final = 1_000_000
"""In microseconds."""


class ForgetfulHistory(ValueHistory):
    """The signals between two watermarks, and the values of keys before them.

    Args:
        signals: batches with the columns of `SIGNALS`, in any order; perhaps none.
        known: keys that had a value before, their last signals and values. `signals` and `known`
            together have at least one row.
        forget_after: in microseconds.

    Cost: O(n log n) in numpy.
    """

    def __init__(
        self,
        signals: list[pa.RecordBatch],
        known: list[tuple[str, int, int]],
        forget_after: int,
    ) -> None:
        rows = [{"key": key, "at": at, "value": value} for key, at, value in known]
        super().__init__([pa.RecordBatch.from_pylist(rows, schema=SIGNALS), *signals])
        self._forget_after = forget_after
        keys, instants = self._key_indexes, self._instants
        is_first = np.ones(len(keys), bool)
        is_first[1:] = (np.diff(keys) != 0) | (np.diff(instants) > forget_after)
        self._lives = np.cumsum(is_first) - 1
        self._keys_of_lives = keys[is_first]
        ranks = np.searchsorted(self._ranked, self._values)
        self._running_max = np.maximum.accumulate(self._lives * len(self._ranked) + ranks)
        # The index of a key and the rank of an instant as one number, which is ascending.
        self._times = np.unique(instants)
        self._places = keys * (len(self._times) + 1) + np.searchsorted(self._times, instants) + 1

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """The keys, the instants of their last signals, and their values then."""
        ends = np.append(np.flatnonzero(np.diff(self._key_indexes)), len(self._key_indexes) - 1)
        values = self._ranked[self._running_max[ends] % len(self._ranked)]
        instants = self._instants[ends].tolist()
        return zip(self.keys.to_pylist(), instants, values.tolist(), strict=True)

    def value_at(self, key: str, instant: int) -> int | None:
        """The value of a key at an instant; None if it has none."""
        indexes = self.key_indexes(pa.array([key]))
        last, is_alive = self._last_signals(indexes, np.array([instant], np.int64))
        if not is_alive[0]:
            return None
        return int(self._ranked[self._running_max[last[0]] % len(self._ranked)])

    def reached_at(
        self, indexes: Int64Array, thresholds: Int64Array, since: Int64Array | None = None
    ) -> Int64Array:
        """The instants at which thresholds were reached: before `since` if the value was not
        forgotten by then, otherwise later; `NEVER` if they were not."""
        assert since is not None
        last, is_alive = self._last_signals(indexes, since)
        following = np.minimum(last + 1, len(self._lives) - 1)
        lives = self._lives[np.where(is_alive, last, following)]
        # Without a signal after the last one, `following` may be a life before `since`.
        is_open = (indexes >= 0) & (is_alive | (last + 1 < len(self._lives)))
        instants = np.full(len(thresholds), NEVER)
        ranks = np.searchsorted(self._ranked, thresholds)
        while is_open.any():
            open_ = np.flatnonzero(is_open)
            found, is_reached = self._first_in_lives(lives[open_], ranks[open_])
            is_mine = self._keys_of_lives[lives[open_]] == indexes[open_]
            instants[open_[is_reached & is_mine]] = self._instants[found[is_reached & is_mine]]
            lives[open_] += 1
            is_open[open_] = is_mine & ~is_reached & (lives[open_] < len(self._keys_of_lives))
        return instants

    def _last_signals(
        self, indexes: Int64Array, since: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The last signals of keys at some instants, and whether their values count then. Where
        there is none, the signal before the first one of the key."""
        ranks = np.searchsorted(self._times, since, side="right")
        places = indexes * (len(self._times) + 1) + ranks
        last = np.searchsorted(self._places, places, side="right") - 1
        at = np.maximum(last, 0)
        is_alive = (last >= 0) & (indexes >= 0) & (self._key_indexes[at] == indexes)
        return last, is_alive & (since - self._instants[at] <= self._forget_after)

    def _first_in_lives(
        self, lives: Int64Array, ranks: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The first signals in lives that reach ranks of values, and whether there are any."""
        found = np.searchsorted(self._running_max, lives * len(self._ranked) + ranks)
        found = np.minimum(found, len(self._lives) - 1)
        is_reached = (self._lives[found] == lives) & (
            self._running_max[found] >= lives * len(self._ranked) + ranks
        )
        return found, is_reached & (ranks < len(self._ranked))

    def decisive_signals(
        self, indexes: Int64Array, thresholds: Int64Array
    ) -> Iterator[tuple[int, int, int]]:
        """The signals by which keys reached thresholds in any of their lives, each once."""
        firsts = np.searchsorted(self._keys_of_lives, indexes)
        counts = np.searchsorted(self._keys_of_lives, indexes, side="right") - firsts
        starts = np.cumsum(counts) - counts
        lives = np.repeat(firsts - starts, counts) + np.arange(counts.sum())
        ranks = np.repeat(np.searchsorted(self._ranked, thresholds), counts)
        found, is_reached = self._first_in_lives(lives, ranks)
        signals = np.unique(found[is_reached])
        return zip(
            self._key_indexes[signals].tolist(),
            self._instants[signals].tolist(),
            self._values[signals].tolist(),
            strict=True,
        )


def check_at(last_at: int, forget_after: int) -> int:
    """When to check whether a key with its last signal at `last_at` is to be forgotten: after it
    may be. In microseconds."""
    interval = max(forget_after // CHECKS_PER_LIFE, MIN_CHECK_INTERVAL)
    return ((last_at + forget_after) // interval + 1) * interval
