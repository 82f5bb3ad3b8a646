"""How the values of keys rose in a stretch of time: when each of many thresholds was reached, found for all of them at once.

    signals of "paid", by instant       3   5   4   6   9   9   7
    the highest so far                  3   5   5   6   9   9   9
    thresholds                              4           8
    these two signals decide                *           *

All other signals complete nothing; of those of a key only the highest is still needed, as its value. Finding the few takes
sorting and a binary search, in numpy, for all keys together.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

pc: Final[Any] = pyarrow.compute  # its functions are made when it is imported, unseen by type checkers

Numbers = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max
"""The instant at which a threshold is reached that is not."""


class Course:
    """The signals of a stretch of time.

    Args:
        signals: batches with the columns of `SIGNALS`, in any order. There is at least one row.

    Cost: O(n log n) in numpy, some 0.3 µs for each signal.
    """

    def __init__(self, signals: list[pa.RecordBatch]) -> None:
        rows = pa.concat_batches(signals)
        coded = rows.column("key").dictionary_encode()
        self.keys: pa.Array = coded.dictionary
        """Those that have signals. They are told by their places here."""
        keys = coded.indices.to_numpy().astype(np.int64)
        instants = rows.column("at").to_numpy()
        order = np.argsort(instants, kind="stable")
        order = order[np.argsort(keys[order], kind="stable")]
        self._instants = instants[order]
        self._of_key = keys = keys[order]
        self._ranked, ranks = np.unique(rows.column("value").to_numpy()[order], return_inverse=True)
        # A key and the rank of a value as one number: so the highest so far begins anew with each key, and is ascending.
        self._so_far = np.maximum.accumulate(keys * len(self._ranked) + ranks)

    def places(self, keys: pa.Array) -> Numbers:
        """The places of keys; -1 for those without signals."""
        found: Numbers = pc.index_in(keys, value_set=self.keys).fill_null(-1).to_numpy().astype(np.int64)
        return found

    def highest(self) -> Iterator[tuple[str, int]]:
        """The keys, and their highest values."""
        ends = np.append(np.flatnonzero(np.diff(self._of_key)), len(self._of_key) - 1)
        values = self._ranked[self._so_far[ends] % len(self._ranked)]
        return zip(self.keys.to_pylist(), values.tolist(), strict=True)

    def reached(self, places: Numbers, thresholds: Numbers) -> Numbers:
        """When thresholds of the keys at `places` were reached; `NEVER` for those that were not."""
        signals, is_reached = self._first(places, thresholds)
        return np.where(is_reached, self._instants[signals], NEVER)

    def decisive(self, places: Numbers, thresholds: Numbers) -> Iterator[tuple[int, int, int]]:
        """The signals by which keys have come to thresholds, each once: the place of the key, the instant, the value."""
        signals, is_reached = self._first(places, thresholds)
        signals = np.unique(signals[is_reached])
        values = self._ranked[self._so_far[signals] % len(self._ranked)]
        return zip(self._of_key[signals].tolist(), self._instants[signals].tolist(), values.tolist(), strict=True)

    def _first(self, places: Numbers, thresholds: Numbers) -> tuple[Numbers, Any]:
        """The first signals by which thresholds were reached, and whether they were."""
        ranks = np.searchsorted(self._ranked, thresholds)
        signals = np.searchsorted(self._so_far, places * len(self._ranked) + ranks)
        signals = np.minimum(signals, len(self._so_far) - 1)
        is_reached = (places >= 0) & (ranks < len(self._ranked)) & (self._of_key[signals] == places)
        return signals, is_reached & (self._so_far[signals] >= places * len(self._ranked) + ranks)
