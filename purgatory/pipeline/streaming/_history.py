"""How the values of keys rose: finds for many thresholds at once when each was reached.

The signals of a key form *lives*: one ends when no signal comes for longer than `forget_after`, and
the next one starts without a value. Without `forget_after` a key has one life.

    forget_after 60 s       12:00:00  12:00:50  12:01:40          12:03:00
    signals of "paid"       5         3         4                 2
    the value until then    5         5         5                 2
                            |------- first life -------| forgotten |-- second life

At 12:02:40 it is forgotten, so an operation registered at 12:02:50 with the threshold 4 waits; an
operation registered at 12:02:30 has its requirement.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from purgatory.pipeline.streaming._rows import NEVER, Int64Array, pc


class History:
    """The signals between two watermarks, and the values of keys before them.

    Args:
        signals: rows with the columns of `SIGNALS`, in any order. For a value from before, the last
            signal of its key with the value that the key has.
        forget_after: microseconds after a key's last signal; None for never.

    Cost: O(n log n) in numpy, some 0.4 µs for each signal.
    """

    def __init__(self, signals: pa.RecordBatch, forget_after: int | None = None) -> None:
        coded = signals.column("key").dictionary_encode()
        self.keys: pa.Array = coded.dictionary
        keys = coded.indices.to_numpy().astype(np.int64)
        order = np.lexsort((signals.column("at").to_numpy(), keys))
        self._key = keys = keys[order]
        self._at = signals.column("at").to_numpy()[order]
        self._forget_after = NEVER if forget_after is None else forget_after
        is_first = np.ones(len(keys), bool)
        is_first[1:] = (np.diff(keys) != 0) | (np.diff(self._at) > self._forget_after)
        self._life = np.cumsum(is_first) - 1
        self._key_of_life = keys[is_first]
        self._ranked, ranks = np.unique(
            signals.column("value").to_numpy()[order], return_inverse=True
        )
        # A life and the rank of a value as one number, so that the running maximum restarts with
        # each life; the index of a key and the rank of an instant likewise.
        self._running_max = np.maximum.accumulate(self._life * len(self._ranked) + ranks)
        self._times = np.sort(self._at)
        self._places = keys * (len(self._times) + 1) + np.searchsorted(self._times, self._at) + 1

    def final(self) -> Iterator[tuple[str, int, int]]:
        """The keys, the instants of their last signals, and their values then."""
        ends = np.append(np.flatnonzero(np.diff(self._key)), len(self._key) - 1)
        if not len(self._key):
            ends = ends[:0]
        values = self._ranked[self._running_max[ends] % max(len(self._ranked), 1)]
        return zip(self.keys.to_pylist(), self._at[ends].tolist(), values.tolist(), strict=True)

    def reached_at(self, keys: pa.Array, thresholds: Int64Array, since: Int64Array) -> Int64Array:
        """The instants at which keys reached thresholds: before `since` if the value was not
        forgotten by then, otherwise later; `NEVER` if they did not."""
        found = np.full(len(thresholds), NEVER)
        indexes = pc.index_in(keys, value_set=self.keys).fill_null(-1).to_numpy().astype(np.int64)
        rows = np.flatnonzero(indexes >= 0)
        if not len(rows):
            return found
        indexes, since = indexes[rows], since[rows]
        ranks = np.searchsorted(self._ranked, thresholds[rows])
        # The last signal up to `since`; where there is none, a signal of the key before.
        places = indexes * (len(self._times) + 1)
        places += np.searchsorted(self._times, since, side="right")
        last = np.searchsorted(self._places, places, side="right") - 1
        is_alive = (last >= 0) & (self._key[last] == indexes)
        is_alive &= since - self._at[last] <= self._forget_after
        following = np.minimum(last + 1, len(self._life) - 1)
        lives = self._life[np.where(is_alive, last, following)]
        while True:
            is_open = (lives < len(self._key_of_life)) & (ranks < len(self._ranked))
            is_open[is_open] = self._key_of_life[lives[is_open]] == indexes[is_open]
            # Without a signal after the last one, `following` is a life before `since`.
            is_open &= is_alive | (last + 1 < len(self._life))
            rows, indexes, ranks, lives, last, is_alive = (
                each[is_open] for each in (rows, indexes, ranks, lives, last, is_alive)
            )
            if not len(rows):
                return found
            wanted = lives * len(self._ranked) + ranks
            first = np.minimum(np.searchsorted(self._running_max, wanted), len(self._life) - 1)
            is_reached = (self._life[first] == lives) & (self._running_max[first] >= wanted)
            found[rows[is_reached]] = self._at[first[is_reached]]
            lives = np.where(is_reached, len(self._key_of_life), lives + 1)
