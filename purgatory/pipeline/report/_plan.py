"""What all tasks of a report are told, and the arithmetic that they share. Times are microseconds since 1970, as integers."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
INSTANT: Final = pa.timestamp("us", "UTC")
POWERS: Final = 10 ** np.arange(19, dtype=np.int64)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the page shows, in spans of equal length."""

    start: int
    width: int
    """Of a span."""
    count: int

    def places(self, times: Ints) -> Ints:
        """In which span each time is; -1 before the window, `count` after it."""
        return np.clip((times - self.start) // self.width, -1, self.count)


@dataclass(frozen=True, slots=True)
class Plan:
    """What all tasks of a report are told."""

    work: str
    """The folder for what tasks leave for others."""
    tables: str
    """The folder of the tables."""
    shards: int
    """Into how many parts the work after the exchange is divided."""
    bounds: dict[str, tuple[int, int]]
    """The first and the last instant of each run. We take it that an operation whose start was not written waited from the
    first on, and one whose end was not written until the last."""
    runs: list[str]
    """Those that the page shows by themselves. All the others together have the next number."""
    window: Window


def rounded_down(values: Ints, digits: int) -> Ints:
    """The values with so many digits."""
    step = _step(values, digits)
    return values // step * step


def rounded_up(values: Ints, digits: int) -> Ints:
    """The values with so many digits."""
    step = _step(values, digits)
    return -(-values // step) * step


def _step(values: Ints, digits: int) -> Ints:
    length = np.searchsorted(POWERS, values, side="right")
    return POWERS[np.maximum(length - digits, 0)]


def instants(micros: Any) -> pa.Array:
    """Microseconds since 1970 as instants."""
    return pa.array(micros, pa.int64()).cast(INSTANT)


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """The different values, in order, and how often each is there. By sorting, which is faster here than `numpy.unique`."""
    ordered = np.sort(values)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    return ordered[starts], np.diff(starts, append=len(ordered))


def named(names: list[str], places: Any) -> pa.Array:
    """A column of texts, of which each is a place in a list."""
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(names, pa.string()))


def texts(names: list[str], places: Any) -> pa.Array:
    """The same without a dictionary."""
    return pa.array(names, pa.string()).take(pa.array(places, pa.int32()))


def coded(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """A column of texts as places in a list of the different ones, and that list."""
    if column.num_chunks == 0:
        return np.empty(0, np.int64), []
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = pa.table({"column": column}).unify_dictionaries()["column"].combine_chunks()
    chunk = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    return chunk.indices.to_numpy().astype(np.int64), chunk.dictionary.to_pylist()


def summed(tables: list[pa.Table], by: list[str]) -> pa.Table:
    """Adds up all other columns of tables that have the same columns."""
    rows = pa.concat_tables(tables)
    others = [name for name in rows.column_names if name not in by]
    grouped = rows.group_by(by).aggregate([(name, "sum") for name in others])
    return grouped.rename_columns([name.removesuffix("_sum") for name in grouped.column_names]).select(by + others)
