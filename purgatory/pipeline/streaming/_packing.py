"""Packs rows for Spark: some ten thousand rows as one binary value, an Arrow batch.

Each value that Spark hands to Python, or takes from it, costs more than the decision about it. So
nothing is done row by row.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline.streaming._events import DECISIONS, from_bytes, to_bytes, to_stream

pc: Final[Any] = (
    pyarrow.compute
)  # its functions are made when it is imported, unseen by type checkers

PACKED: Final = "are_signals boolean, events binary, shard int"
"""Many rows in one value."""
PACKED_SIGNALS: Final = "are_signals boolean, events binary"
COUNTS: Final = ("registered", "completed", "expired", "late", "late_signals")
"""The counts of a shard; Spark adds up what each call adds to them."""
PACKED_OUTPUT: Final = ", ".join(
    ["decisions binary", "shard int", "due bigint", *(f"{name} bigint" for name in COUNTS)]
)
"""Rows with many decisions in one value; and a row for each call with its shard, the time of the
shard's next decision, and the call's additions to the counts."""
OUTPUT: Final = (
    "outcome string, operation_id string, decided_at bigint, satisfied_keys array<string>, "
    "reason string, key string, "
    "at bigint, topic string, partition int, offset bigint"
)
"""The columns of `DECISIONS`, as Spark knows them. Instants are in microseconds."""
MAX_DECISIONS_PER_VALUE: Final = 10_000
"""In `PACKED_OUTPUT`."""


def pack_operations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs rows by shard. Drops ticks, which have moved the watermark by now."""
    for batch in batches:
        rows = _without_ticks(batch)
        shards = rows.column("shard").to_numpy()
        rows = rows.drop_columns(["shard"])
        labels = np.unique(shards).tolist()
        events = [to_stream(rows.filter(pa.array(shards == label))) for label in labels]
        columns = [
            pa.array([False] * len(labels)),
            pa.array(events, pa.binary()),
            pa.array(labels, pa.int32()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["are_signals", "events", "shard"])


def pack_signals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs rows for all shards. Drops ticks."""
    for batch in batches:
        rows = _without_ticks(batch)
        if not rows.num_rows:
            continue  # no shard need be called for it
        yield pa.RecordBatch.from_pydict({"are_signals": [True], "events": [to_stream(rows)]})


def _without_ticks(batch: pa.RecordBatch) -> pa.RecordBatch:
    is_tick = batch.column("is_tick")
    rows = batch.drop_columns(["is_tick"])
    return rows.filter(pc.invert(is_tick)) if is_tick.true_count else rows


def pack_decisions(decisions: Iterable[pa.RecordBatch]) -> Iterable[bytes]:
    """Batches of `DECISIONS` as values of `PACKED_OUTPUT`."""
    for batch in decisions:
        for start in range(0, batch.num_rows, MAX_DECISIONS_PER_VALUE):
            yield to_bytes(batch.slice(start, MAX_DECISIONS_PER_VALUE))


def unpack_decisions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The inverse of `pack_decisions`."""
    for batch in batches:
        for value in batch.column(0).drop_null():
            yield from_bytes(value.as_buffer(), DECISIONS)
