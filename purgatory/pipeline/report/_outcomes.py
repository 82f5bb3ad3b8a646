"""The table ``outcomes``: for each purgatory, kind and minute, how operations ended and how long they waited, exactly."""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline._validation import OUTCOMES
from purgatory.pipeline.report._exchange import shard_of
from purgatory.pipeline.report._operations import Operations
from purgatory.pipeline.report._plan import MINUTE, SECOND, Ints, coded, distinct, instants, named, texts

PERCENTILES: Final = {"wait_p50": 0.5, "wait_p90": 0.9, "wait_p99": 0.99, "wait_p999": 0.999}
SCHEMA: Final = pa.schema(
    [
        ("purgatory", pa.string()),
        ("kind", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        *((name, pa.int64()) for name in ("started", *OUTCOMES)),
        *((name, pa.float64()) for name in ("expiry_rate", *PERCENTILES, "wait_max")),
    ]
)
MINUTES: Final = 1 << 34
"""More than there are until the year 9999."""
WORST_MINUTES: Final = 50
STARTED: Final = len(OUTCOMES)
"""Stands where ends have their outcome."""


def outcomes_left(operations: Operations) -> tuple[pa.Table, Any]:
    """The ends, each with its outcome and its wait, which is null where the start is not known; and how many started.

    Returns:
        purgatory, kind, minute, what (a place in `OUTCOMES`, or `STARTED`), wait, count; and the shard of each row.
    """
    ends, starts = operations.has_end, operations.has_start
    key, count = distinct(operations.group[starts] * MINUTES + operations.begin[starts] // MINUTE)
    group = np.concatenate((operations.group[ends], key // MINUTES))
    minute = np.concatenate((operations.end[ends] // MINUTE, key % MINUTES))
    wait = pa.array(np.append(operations.wait[ends], np.zeros(len(key), np.int64)), mask=~np.append(starts[ends], key < 0))
    purgatories, kinds = ([each[place] for each in operations.groups] for place in (0, 1))
    purgatory_of, kind_of = (sorted(set(names)) for names in (purgatories, kinds))
    table = pa.table(
        {
            "purgatory": named(purgatory_of, np.array([purgatory_of.index(name) for name in purgatories], np.int64)[group]),
            "kind": named(kind_of, np.array([kind_of.index(name) for name in kinds], np.int64)[group]),
            "minute": pa.array(minute),
            "what": pa.array(np.append(operations.outcome[ends], np.full(len(key), STARTED, np.int8))),
            "wait": wait,
            "count": pa.array(np.append(np.ones(ends.sum(), np.int32), count.astype(np.int32))),
        }
    )
    return table, np.array([shard_of(*each) for each in operations.groups], np.int64)[group] + minute


def outcomes(left: list[pa.Table]) -> pa.Table:
    """The rows of the table, of some minutes.

    Args:
        left: what tasks left of these minutes.
    """
    if not left:
        return SCHEMA.empty_table()
    rows = pa.concat_tables(left)
    (purgatory, purgatories), (kind, kinds) = coded(rows["purgatory"]), coded(rows["kind"])
    pair, minute = purgatory * len(kinds) + kind, rows["minute"].to_numpy()
    key, place = np.unique(pair * MINUTES + minute, return_inverse=True)
    what, count = rows["what"].to_numpy(), rows["count"].to_numpy()
    counts = np.bincount(place * (STARTED + 1) + what, count, len(key) * (STARTED + 1)).astype(np.int64).reshape(len(key), -1)
    ended = counts[:, :STARTED].sum(axis=1)
    has_wait = rows["wait"].is_valid().to_numpy() & (what != STARTED)
    waits = _percentiles(rows["wait"].fill_null(0).to_numpy()[has_wait], place[has_wait], len(key))
    expired = counts[:, OUTCOMES.index("expired")]
    columns = {
        "purgatory": texts(purgatories, key // MINUTES // len(kinds)),
        "kind": texts(kinds, key // MINUTES % len(kinds)),
        "minute": instants(key % MINUTES * MINUTE),
        "started": counts[:, STARTED],
        **{name: counts[:, number] for number, name in enumerate(OUTCOMES)},
        "expiry_rate": pa.array(expired / np.maximum(ended, 1), mask=ended == 0),
        **waits,
    }
    return pa.table(columns, schema=SCHEMA)


def _percentiles(wait: Ints, place: Ints, count: int) -> dict[str, pa.Array]:
    """The percentiles, between the closest ranks, and the maximum of each place, in seconds; null where there is no wait."""
    order = np.lexsort((wait, place))
    wait, sizes = wait[order], np.bincount(place, minlength=count)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    is_empty = sizes == 0
    last = np.maximum(sizes - 1, 0)
    padded = np.append(wait, 0)  # so that an empty place at the end has something to point to

    def at(rank: Ints) -> Any:
        return padded[np.minimum(starts + rank, len(wait))]

    found = {}
    for name, share in PERCENTILES.items():
        rank = share * last
        low = np.floor(rank).astype(np.int64)
        below, above = at(low), at(np.minimum(low + 1, last))
        found[name] = pa.array((below + (rank - low) * (above - below)) / SECOND, mask=is_empty)
    return {**found, "wait_max": pa.array(at(last) / SECOND, mask=is_empty)}


def worst(rows: pa.Table) -> pa.Table:
    """The minutes with the most expiries."""
    order = [("expired", "descending"), ("minute", "ascending"), ("purgatory", "ascending"), ("kind", "ascending")]
    return rows.sort_by(order).slice(0, WORST_MINUTES)
