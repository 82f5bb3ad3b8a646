"""Rows as shards receive them, for the tests of decisions."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from purgatory.pipeline.streaming._events import Operation

OPERATIONS = pa.schema(
    {
        "operation_id": pa.string(),
        "keys": pa.list_(pa.string()),
        "thresholds": pa.list_(pa.int64()),
        "mode": pa.string(),
        "registered_at": pa.int64(),
        "deadline": pa.int64(),
    }
)
SIGNALS = pa.schema(
    {"key": pa.string(), "value": pa.int64(), "at": pa.int64(), "reporter": pa.int32()}
)


def operations_batch(operations: Iterable[Operation]) -> pa.RecordBatch:
    rows = [
        (
            each.operation_id,
            [key for key, _ in each.requirements],
            [threshold for _, threshold in each.requirements],
            each.mode,
            each.registered_at,
            each.deadline,
        )
        for each in operations
    ]
    return batch(rows, OPERATIONS)


def signals_batch(signals: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    """Of keys, values, instants, and the labels of the shards that report them."""
    return batch(signals, SIGNALS)


def batch(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema
    )
