"""The events and decisions of shards, as rows and as Arrow batches.

Nearly all rows stay in batches until they are due. Only late and invalid ones become rows before.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

COMPLETED: Final = "completed"
EXPIRED: Final = "expired"
LATE: Final = "late"
MODES: Final = ("all", "any")

Origin = tuple[str, int, int]
"""The topic, partition and offset of a record."""
NOWHERE: Final = (None, None, None)

SIGNALS: Final = pa.schema({"at": pa.int64(), "key": pa.string(), "value": pa.int64()})
"""Signals, with the instants at which they count, in microseconds."""
REGISTRATIONS: Final = pa.schema(
    {
        "at": pa.int64(),
        "operation_id": pa.string(),
        "keys": pa.list_(pa.string()),
        "thresholds": pa.list_(pa.int64()),
        "mode": pa.string(),
        "registered_at": pa.int64(),
        "deadline": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
    }
)
"""Operations, with the instants at which they begin to wait, in microseconds."""


DECISIONS: Final = pa.schema(
    {
        "outcome": pa.string(),
        "operation_id": pa.string(),
        "decided_at": pa.int64(),
        "satisfied_keys": pa.list_(pa.string()),
        "reason": pa.string(),
        "key": pa.string(),
        "at": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
    }
)
"""The fields of `Decision`."""


class Operation(NamedTuple):
    """An operation, as a shard receives it. Instants are in microseconds."""

    operation_id: str
    requirements: tuple[tuple[str, int], ...]
    """Pairs of a key and a threshold, with distinct keys."""
    mode: str
    """`all` or `any` of the requirements."""
    registered_at: int
    deadline: int
    origin: Origin | None = None
    problem: str | None = None
    """Why its record could not be read; `None` if it could. The other fields are then what could be
    read."""


class Decision(NamedTuple):
    """The outcome of an operation; or, if `outcome` is `late`, an operation or signal without a
    decision, and the reason."""

    outcome: str
    operation_id: str | None = None
    decided_at: int | None = None
    satisfied_keys: list[str] | None = None
    """In the order of the requirements."""
    reason: str | None = None
    key: str | None = None
    """The key of a late signal."""
    at: int | None = None
    """If late: the instant of the registration or of the signal."""
    topic: str | None = None
    """If late, and read from Kafka: where the record is."""
    partition: int | None = None
    offset: int | None = None


def refusal(operation: Operation, now: int) -> str | None:
    """Why `operation` cannot be decided on when the watermark is at `now`; `None` if it can."""
    if operation.problem:
        return operation.problem
    if (
        operation.operation_id is None
        or operation.registered_at is None
        or operation.deadline is None
    ):
        return (
            "it lacks an id, an instant of registration or a deadline, or one is not between "
            "the years 1 and 9999"
        )
    if operation.mode not in MODES:
        return f"its mode is {operation.mode!r}, and neither 'all' nor 'any'"
    if not operation.requirements:
        return "it requires nothing"
    if any(key is None or threshold is None for key, threshold in operation.requirements):
        return "a requirement lacks its key or its threshold"
    if operation.deadline < operation.registered_at:
        return "its deadline is before its registration"
    if operation.deadline <= now:
        return "its deadline is not after the watermark"
    return None


def requirements_of(
    pairs: Iterable[tuple[str, int]] | None, mode: str
) -> tuple[tuple[str, int], ...]:
    """Requirements with each key once. Of several thresholds of a key the highest counts for `all`,
    the lowest for `any`."""
    required: dict[str, int] = {}
    decides = min if mode == "any" else max
    for key, threshold in pairs or ():
        if key is None or threshold is None:
            return ((key, threshold),)  # which has a `refusal`
        required[key] = decides(required.get(key, threshold), threshold)
    return tuple(required.items())


# -- as batches


def operations_of(batch: pa.RecordBatch) -> list[Operation]:
    """The rows of a batch that has the columns of `REGISTRATIONS` but `at`, and perhaps
    `problem`."""
    names = (
        "operation_id",
        "mode",
        "registered_at",
        "deadline",
        "topic",
        "partition",
        "offset",
        "problem",
    )
    nothing = [None] * batch.num_rows
    found = {
        name: batch.column(name).to_pylist() if name in batch.schema.names else nothing
        for name in names
    }
    rows = zip(*found.values(), pairs_of(batch), strict=True)
    return [
        Operation(
            operation_id,
            requirements_of(pairs, mode),
            mode,
            registered_at,
            deadline,
            None if topic is None else (topic, partition, offset),
            problem,
        )
        for operation_id, mode, registered_at, deadline, topic, partition, offset, problem, pairs in rows
    ]


def pairs_of(batch: pa.RecordBatch) -> list[tuple[tuple[str, int], ...]]:
    """For each row the pairs of `keys` and `thresholds`; none where there is no list."""
    keys, thresholds = batch.column("keys"), batch.column("thresholds")
    pairs = list(zip(keys.flatten().to_pylist(), thresholds.flatten().to_pylist(), strict=True))
    lengths = keys.value_lengths().fill_null(0).to_pylist()
    rows, end = [], 0
    for length in lengths:
        begin, end = end, end + length
        rows.append(tuple(pairs[begin:end]))
    return rows


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch without its schema."""
    return bytes(batch.serialize())


def from_bytes(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The inverse of `to_bytes`."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def to_stream(batch: pa.RecordBatch) -> bytes:
    """The rows of a batch with its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def from_stream(data: bytes) -> pa.RecordBatch:
    """The inverse of `to_stream`."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()
