"""The one form of a row between Spark and the decisions: Arrow batches of some thousand rows.

Each value that Spark hands to Python, or takes from it, costs more than the decision about it. So
nothing is handed over row by row: a batch is one binary value.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

# Type checkers do not see its functions, which are created when it is imported.
pc: Final[Any] = pyarrow.compute
Int64Array = NDArray[np.int64]

COMPLETED: Final = "completed"
EXPIRED: Final = "expired"
LATE: Final = "late"
MODES: Final = ("all", "any")
BEFORE: Final = np.iinfo(np.int64).min
"""An instant before any other."""
NEVER: Final = np.iinfo(np.int64).max
"""An instant after any other."""
NOTHING_DUE: Final = NEVER
"""The time of a shard's next decision, if it has none."""

ORIGIN: Final = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
SIGNALS: Final = pa.schema([("at", pa.int64()), ("key", pa.string()), ("value", pa.int64())])
"""Signals, with the instants at which they count. All instants are in microseconds since 1970."""
REQUEST: Final = [
    ("operation_id", pa.string()),
    ("keys", pa.list_(pa.string())),
    ("thresholds", pa.list_(pa.int64())),
    ("mode", pa.string()),
    ("registered_at", pa.int64()),
    ("deadline", pa.int64()),
    *ORIGIN,
]
OPERATIONS: Final = pa.schema([*REQUEST, ("at", pa.int64()), ("satisfied", pa.list_(pa.bool_()))])
"""Operations, with the instants at which they start to wait, and for each requirement whether it
holds."""
PROBLEM: Final = ("problem", pa.string())
RECEIVED_SIGNALS: Final = pa.schema([*SIGNALS, ("reporter", pa.int32()), *ORIGIN, PROBLEM])
"""Signals from Spark. `reporter` is the shard that reports a late one, `problem` the reason why
the record could not be read."""
RECEIVED_OPERATIONS: Final = pa.schema([*REQUEST, PROBLEM])
"""Operations from Spark."""
DECIDED: Final = [
    ("outcome", pa.string()),
    ("operation_id", pa.string()),
    ("decided_at", pa.int64()),
    ("satisfied_keys", pa.list_(pa.string())),
    ("reason", pa.string()),
    ("key", pa.string()),
    ("at", pa.int64()),
    *ORIGIN,
]
DECISIONS: Final = pa.schema(DECIDED)
"""Outcomes of operations; or, if `outcome` is `late`, operations and signals without a decision,
with the reason and the instant of the registration or the signal."""
PACKED: Final = "shard int, are_signals boolean, events binary"
"""Many rows in one value. Signals are for all shards, and have none."""
COUNTS: Final = ("registered", "completed", "expired", "late", "late_signals")
"""The counts of a shard; Spark adds up what each call adds to them."""
PACKED_OUTPUT: Final = ", ".join(
    ["decisions binary", "shard int", "due bigint", *(f"{name} bigint" for name in COUNTS)]
)
"""Rows with many decisions in one value; and a row for each call with its shard, the time of the
shard's next decision, and the call's additions to the counts."""
MAX_ROWS: Final = 10_000
"""The most rows in one value."""


def filled(schema: pa.Schema, rows: int, **columns: Any) -> pa.RecordBatch:
    """A batch with the given columns; the remaining ones are null."""
    made = []
    for field in schema:
        column = columns.get(field.name)
        if column is None:
            column = pa.nulls(rows, field.type)
        made.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(made, schema=schema)


def columns_of(rows: pa.RecordBatch, schema: pa.Schema) -> dict[str, Any]:
    """The columns that `rows` and `schema` have in common."""
    return {name: rows.column(name) for name in schema.names if name in rows.schema.names}


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of all, perhaps without rows."""
    return pa.concat_batches(batches) if batches else filled(schema, 0)


def cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in batches for one value each."""
    return (rows.slice(start, MAX_ROWS) for start in range(0, rows.num_rows, MAX_ROWS))


def where(rows: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    """The rows that a mask of numpy selects."""
    return rows if mask.all() else rows.filter(pa.array(mask))


def selected(lists: pa.Array, mask: Any, starts: Int64Array) -> pa.Array:
    """The lists, with only the elements that a mask selects.

    Args:
        starts: for each list the place of its first element; at the end the number of elements.
    """
    ends = np.concatenate(([0], np.cumsum(mask)))[starts]
    return pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)), lists.flatten().filter(pa.array(mask, pa.bool_()))
    )


def starts_of(lists: pa.Array) -> Int64Array:
    """For each list the place of its first element in all; at the end the number of elements."""
    return np.concatenate(([0], np.cumsum(lists.value_lengths().to_numpy()))).astype(np.int64)


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch without its schema."""
    return bytes(batch.serialize())


def from_bytes(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of `to_bytes`."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def pack(batches: Iterator[pa.RecordBatch], are_signals: bool) -> Iterator[pa.RecordBatch]:
    """Packs rows, operations by shard. Drops ticks, which have moved the watermark by now."""
    schema = RECEIVED_SIGNALS if are_signals else RECEIVED_OPERATIONS
    for batch in batches:
        rows = where(batch, ~batch.column("is_tick").to_numpy(zero_copy_only=False))
        if not rows.num_rows:
            continue  # no shard need be called for it
        whole = rows.select(schema.names).cast(schema)
        shards = np.zeros(1) if are_signals else rows.column("shard").to_numpy()
        labels = [None] if are_signals else np.unique(shards).tolist()
        parts = [whole if label is None else where(whole, shards == label) for label in labels]
        columns = labels, [are_signals] * len(labels), list(map(to_bytes, parts))
        types = pa.int32(), pa.bool_(), pa.binary()
        yield pa.RecordBatch.from_arrays(
            list(map(pa.array, columns, types)), ["shard", "are_signals", "events"]
        )


def unpack(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches that `to_bytes` made the values of the first column of."""
    for batch in batches:
        for value in batch.column(0).drop_null():
            yield from_bytes(value.as_buffer(), schema)
