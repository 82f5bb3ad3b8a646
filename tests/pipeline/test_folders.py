"""The types of files: columns that lose nothing are cast, others are refused in one line before the
first batch."""

from typing import Any

import pyarrow as pa
import pytest

from purgatory.pipeline.streaming._folders import readable_as

PAIRS = {"key": "string", "threshold": "bigint"}


def pairs(key: pa.DataType, threshold: pa.DataType, **more: pa.DataType) -> pa.DataType:
    return pa.struct({**more, "threshold": threshold, "key": key})


@pytest.mark.parametrize(
    ("found", "expected", "as_what"),
    [
        (pa.string(), "string", "string"),
        (pa.dictionary(pa.int32(), pa.large_string()), "string", "string"),
        (pa.int8(), "string", "bigint"),
        (pa.uint64(), "string", "decimal(20,0)"),
        (pa.float64(), "string", None),
        (pa.binary(), "string", None),
        (pa.bool_(), "string", None),
        (pa.uint32(), "bigint", "bigint"),
        (pa.uint64(), "bigint", None),
        (pa.string(), "bigint", None),
        (pa.float32(), "bigint", None),
        (pa.timestamp("s"), "timestamp", "timestamp"),
        (pa.timestamp("ms", "Europe/Berlin"), "timestamp", "timestamp"),
        (pa.timestamp("ns", "UTC"), "timestamp", None),
        (pa.int64(), "timestamp", None),
        (pa.date32(), "timestamp", None),
        (
            pa.list_(pairs(pa.int32(), pa.int16(), more=pa.float64())),
            PAIRS,
            "array<struct<key:bigint,threshold:bigint>>",
        ),
        (
            pa.large_list(pairs(pa.string(), pa.int64())),
            PAIRS,
            "array<struct<key:string,threshold:bigint>>",
        ),
        (pa.list_(pairs(pa.string(), pa.float64())), PAIRS, None),
        (pa.list_(pa.struct({"key": pa.string()})), PAIRS, None),
        (pa.map_(pa.string(), pa.int64()), PAIRS, None),
        (pa.string(), PAIRS, None),
    ],
)
def test_type_is_read_without_loss_or_refused(
    found: pa.DataType, expected: Any, as_what: str | None
) -> None:
    assert readable_as(found, expected) == as_what
