"""How the values of keys rose between two watermarks: finds for many thresholds at once when each
was reached.

    signals of "paid", by instant       3   5   4   6   9   9   7
    the highest so far                  3   5   5   6   9   9   9
    thresholds                              4           8
    decisive signals                        *           *

All other signals complete nothing; of those only the highest value of each key matters. Decisive
signals are found by sorting and a binary search, in numpy, for all keys together.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

pc: Final[Any] = (
    pyarrow.compute
)  # its functions are made when it is imported, unseen by type checkers

Int64Array = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max
"""In place of an instant: the threshold was not reached."""


class ValueHistory:
    """The signals between two watermarks.

    Args:
        signals: batches with the columns of `SIGNALS`, in any order. There is at least one row.

    Cost: O(n log n) in numpy, some 0.3 µs for each signal.
    """

    def __init__(self, signals: list[pa.RecordBatch]) -> None:
        rows = pa.concat_batches(signals)
        coded = rows.column("key").dictionary_encode()
        self.keys: pa.Array = coded.dictionary
        """The keys with signals. Other methods take and return indexes in this array."""
        keys = coded.indices.to_numpy().astype(np.int64)
        instants = rows.column("at").to_numpy()
        order = np.lexsort((instants, keys))
        self._instants = instants[order]
        self._key_indexes = keys = keys[order]
        self._values = rows.column("value").to_numpy()[order]
        self._ranked, ranks = np.unique(self._values, return_inverse=True)
        # The index of a key and the rank of a value as one number, so that the running maximum
        # restarts with each key.
        self._running_max = np.maximum.accumulate(keys * len(self._ranked) + ranks)

    def key_indexes(self, keys: pa.Array) -> Int64Array:
        """The indexes of keys; -1 for those without signals."""
        found: Int64Array = (
            pc.index_in(keys, value_set=self.keys).fill_null(-1).to_numpy().astype(np.int64)
        )
        return found

    def final_values(self) -> Iterator[tuple[str, int]]:
        """The keys and their highest values."""
        ends = np.append(np.flatnonzero(np.diff(self._key_indexes)), len(self._key_indexes) - 1)
        values = self._ranked[self._running_max[ends] % len(self._ranked)]
        return zip(self.keys.to_pylist(), values.tolist(), strict=True)

    def reached_at(
        self,
        indexes: Int64Array,
        thresholds: Int64Array,
        since: Int64Array | None = None,  # noqa: ARG002
    ) -> Int64Array:
        """The instants at which thresholds of keys were reached; `NEVER` if they were not.

        Args:
            indexes: of the keys.
            thresholds: of the requirements.
            since: when they began to count. Without forgetting this makes no difference.
        """
        signals, is_reached = self._first_signals(indexes, thresholds)
        return np.where(is_reached, self._instants[signals], NEVER)

    def decisive_signals(
        self, indexes: Int64Array, thresholds: Int64Array
    ) -> Iterator[tuple[int, int, int]]:
        """The signals by which keys reached thresholds, each once: the index of the key, the
        instant, the value."""
        signals, is_reached = self._first_signals(indexes, thresholds)
        signals = np.unique(signals[is_reached])
        values = self._ranked[self._running_max[signals] % len(self._ranked)]
        return zip(
            self._key_indexes[signals].tolist(),
            self._instants[signals].tolist(),
            values.tolist(),
            strict=True,
        )

    def _first_signals(self, indexes: Int64Array, thresholds: Int64Array) -> tuple[Int64Array, Any]:
        """For each threshold the first signal that reached it, and whether there is one."""
        ranks = np.searchsorted(self._ranked, thresholds)
        signals = np.searchsorted(self._running_max, indexes * len(self._ranked) + ranks)
        signals = np.minimum(signals, len(self._running_max) - 1)
        is_reached = (
            (indexes >= 0) & (ranks < len(self._ranked)) & (self._key_indexes[signals] == indexes)
        )
        return signals, is_reached & (
            self._running_max[signals] >= indexes * len(self._ranked) + ranks
        )
