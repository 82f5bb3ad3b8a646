"""The table ``keys``: for each purgatory and key the operations that watched it, and what its checks did."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline._pieces import one_chunk, read_piece
from purgatory.pipeline.report._operations import Operations
from purgatory.pipeline.report._plan import Ints, Window, coded, distinct, named, summed, texts

pc: Final[Any] = pyarrow.compute
SHOWN: Final = 100
"""How many keys of each sort come back to the program. The table has all."""
SCHEMA: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("key", pa.string()),
        *((name, pa.int64()) for name in ("operations", "checks", "tried", "completed", "missed_triggers", "false_wakeups")),
    ]
)
CHECKS: Final = ("run_id", "purgatory", "key", "second", "checks", "tried", "completed", "part")
IDENTITY: Final = ["run_id", "purgatory", "key", "second", "part"]
Left = dict[str, tuple[pa.Table, Any]]


def watchers_left(operations: Operations, window: Window) -> Left:
    """How many operations watched each key, and when those ended that missed their trigger.

    Returns:
        watching: purgatory, key, operations, missed_triggers. missed: purgatory, key, place (a span of the window), missed.
        Each with the shard of each row.
    """
    keys = operations.keys.flatten().dictionary_encode()
    names, code = keys.dictionary, keys.indices.to_numpy().astype(np.int64)
    if not len(code):
        return {}
    count = len(names)
    # A key that an operation names twice counts once.
    pair, _ = distinct(pc.list_parent_indices(operations.keys).to_numpy() * count + code)
    parent, code = pair // count, pair % count
    watched = operations.purgatory[parent] * count + code
    key, operations_of = distinct(watched)
    is_missed = operations.is_missed[parent]
    missed = np.bincount(np.searchsorted(key, watched[is_missed]), minlength=len(key))
    numbers = np.fromiter(map(crc32, (name.encode() for name in names.to_pylist())), np.int64, count)
    watching = pa.table(
        {
            **_named(operations, names, key),
            "operations": operations_of.astype(np.int64),
            "missed_triggers": missed.astype(np.int64),
        }
    )
    left: Left = {"watching": (watching, numbers[key % count])}
    if is_missed.any():
        spans = window.count + 2
        place = window.places(operations.end[parent[is_missed]]) + 1
        when, times = distinct(watched[is_missed] * spans + place)
        table = pa.table({**_named(operations, names, when // spans), "place": when % spans - 1, "missed": times})
        left["missed"] = (table, numbers[when // spans % count])
    return left


def _named(operations: Operations, names: pa.Array, key: Ints) -> dict[str, pa.Array]:
    return {
        "purgatory": named(operations.purgatories, key // len(names)),
        "key": pa.DictionaryArray.from_arrays(pa.array(key % len(names), pa.int32()), names),
    }


def checks_left(piece: str) -> Left:
    """The checks of a piece, with the shard of each."""
    rows = read_piece(piece, CHECKS)
    keys = rows["key"].chunk(0)
    numbers = np.array([crc32(name.encode()) for name in keys.dictionary.to_pylist()], np.int64)
    return {"checks": (rows, numbers[keys.indices.to_numpy()])}


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a shard."""

    rows: pa.Table
    copies: int
    """Rows of checks that were dropped."""
    tried: int
    """By the checks, as a proof of the table."""
    hot: pa.Table
    """Those whose checks tried most, and those that were watched by most."""
    missed: pa.Table
    hot_times: pa.Table
    """purgatory, key, place, tried, completed: of the hot ones."""
    missed_times: pa.Table
    """purgatory, key, place, missed: of the missed ones."""


def keys(watching: list[pa.Table], missed: list[pa.Table], checks: list[pa.Table], window: Window) -> Keys:
    """The rows of the table, of some keys: all that was left of them."""
    by = ["purgatory", "key"]
    checked, copies = _without_copies(checks)
    sums = [
        _wide(_plain(table), operations=table["operations"], missed_triggers=table["missed_triggers"]) for table in watching
    ]
    if checked is not None:
        sums.append(_wide(_plain(checked), **{name: checked[name] for name in ("checks", "tried", "completed")}))
    if sums:
        rows = summed(sums, by)
        rows = rows.append_column("false_wakeups", pc.subtract(rows["tried"], rows["completed"]))
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    else:
        rows = SCHEMA.empty_table()
    order = [("purgatory", "ascending"), ("key", "ascending")]
    by_tries = rows.sort_by([("tried", "descending"), ("operations", "descending"), *order]).slice(0, SHOWN)
    by_watchers = rows.sort_by([("operations", "descending"), *order]).slice(0, SHOWN)
    hot = pa.concat_tables([by_tries, by_watchers]).group_by(SCHEMA.names).aggregate([]).select(SCHEMA.names)
    missed_ones = rows.filter(pc.greater(rows["missed_triggers"], 0))
    missed_ones = missed_ones.sort_by([("missed_triggers", "descending"), *order]).slice(0, SHOWN)
    times = [_plain(table).append_column("place", table["place"]).append_column("missed", table["missed"]) for table in missed]
    return Keys(
        rows,
        copies,
        0 if checked is None else int(np.sum(checked["tried"].to_numpy())),
        hot,
        missed_ones,
        _hot_times(checked, hot, window),
        _of(summed(times, [*by, "place"]), missed_ones) if times else _empty("missed"),
    )


def _plain(table: pa.Table) -> pa.Table:
    return pa.table({name: table[name].cast(pa.string()) for name in ("purgatory", "key")})


def _wide(names: pa.Table, **sums: Any) -> pa.Table:
    zeros = np.zeros(len(names), np.int64)
    for name in ("operations", "checks", "tried", "completed", "missed_triggers"):
        names = names.append_column(name, pa.chunked_array([zeros]) if name not in sums else sums[name].cast(pa.int64()))
    return names


def _without_copies(checks: list[pa.Table]) -> tuple[pa.Table | None, int]:
    """One row for each run, purgatory, key, second and part. Of several we keep that with the largest counts."""
    if not checks:
        return None, 0
    rows = one_chunk(pa.concat_tables(checks))
    codes = [coded(rows[name])[0] for name in ("run_id", "purgatory", "key")]
    codes += [rows["second"].cast(pa.int64()).to_numpy(), rows["part"].to_numpy()]
    counts = [rows[name].to_numpy() for name in ("completed", "tried", "checks")]
    identity = pa.table(dict(zip(IDENTITY, codes, strict=True)))
    if identity.group_by(IDENTITY).aggregate([]).num_rows == rows.num_rows:
        return rows, 0
    order = np.lexsort((*counts, *codes))
    is_last = np.zeros(len(order), bool)
    is_last[-1] = True
    for code in codes:
        is_last[:-1] |= np.diff(code[order]) != 0
    kept = rows.take(pa.array(np.sort(order[is_last])))
    return one_chunk(kept), rows.num_rows - kept.num_rows


def _hot_times(checked: pa.Table | None, hot: pa.Table, window: Window) -> pa.Table:
    """What the checks of the hot keys did, span by span."""
    if checked is None:
        return _empty("tried", "completed")
    is_hot = pc.is_in(checked["key"].cast(pa.string()), value_set=hot["key"].combine_chunks())
    rows = checked.filter(is_hot)
    place = window.places(rows["second"].cast(pa.int64()).to_numpy())
    table = _plain(rows).append_column("place", pa.array(place))
    for name in ("tried", "completed"):
        table = table.append_column(name, rows[name])
    return _of(summed([table], ["purgatory", "key", "place"]), hot)


def _of(rows: pa.Table, keys_: pa.Table) -> pa.Table:
    """The rows that are of some keys."""
    wanted = set(zip(keys_["purgatory"].to_pylist(), keys_["key"].to_pylist(), strict=True))
    pairs: Iterator[tuple[str, str]] = zip(rows["purgatory"].to_pylist(), rows["key"].to_pylist(), strict=True)
    return rows.filter(pa.array([pair in wanted for pair in pairs], pa.bool_()))


def _empty(*names: str) -> pa.Table:
    text: list[str] = []
    return pa.table(
        {
            "purgatory": texts(text, []),
            "key": texts(text, []),
            **{name: pa.array([], pa.int64()) for name in ("place", *names)},
        }
    )
