"""Parquet files of other types: columns that lose nothing are cast, others are refused in one
line before the first batch."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from orders import OPERATIONS, SIGNALS, START
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from streams import decided, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


OPERATION = {
    "operation_id": "7",
    "requirements": [{"key": "3", "threshold": 1}],
    "mode": "all",
    "registered_at": START + 1_000_000,
    "deadline": START + 20_000_000,
}


SIGNAL = {"key": "3", "value": 1, "at": START + 5_000_000}


def put(
    folder: Path,
    name: str,
    row: dict[str, Any],
    schema: pa.Schema,
    file: str = "rows.parquet",
    **types: Any,
) -> Path:
    """One row, whose columns have the types of the schema, or others."""
    (folder / name).mkdir(exist_ok=True)
    fields = {field.name: types.get(field.name, field.type) for field in schema}
    kept = {column: type_ for column, type_ in fields.items() if type_ is not None}
    arrays = [pa.array([value(row[column], type_)], type_) for column, type_ in kept.items()]
    pq.write_table(pa.table(arrays, names=list(kept)), folder / name / file)
    return folder / name / file


def value(given: Any, type_: pa.DataType) -> Any:
    if isinstance(given, list) and type_ != OPERATIONS.field("requirements").type:
        return [{"key": int(pair["key"]), "threshold": pair["threshold"]} for pair in given]
    if pa.types.is_timestamp(type_):
        return (
            given if type_.unit == "us" else given * 1000 if type_.unit == "ns" else given // 1000
        )
    return (
        int(given)
        if pa.types.is_integer(type_)
        else float(given)
        if pa.types.is_floating(type_)
        else given
    )


def test_integer_ids_and_naive_instants_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    wanted = pa.list_(pa.struct({"threshold": pa.int16(), "key": pa.int32()}))
    naive = {"registered_at": pa.timestamp("us"), "deadline": pa.timestamp("ms", "Asia/Tokyo")}
    put(
        tmp_path,
        "operations",
        OPERATION,
        OPERATIONS,
        "100%.parquet",
        operation_id=pa.int32(),
        requirements=wanted,
        **naive,
    )
    put(
        tmp_path,
        "operations",
        OPERATION | {"operation_id": "8"},
        OPERATIONS,
        operation_id=pa.int64(),
        requirements=wanted,
    )
    put(tmp_path, "signals", SIGNAL, SIGNALS, key=pa.uint64(), value=pa.int8())
    put(
        tmp_path,
        "signals",
        SIGNAL | {"at": START + 60_000_000},
        SIGNALS,
        "more.parquet",
        key=pa.uint64(),
    )

    assert run(spark, tmp_path) == 0

    assert decided(spark, tmp_path) == [
        (name, "completed", START + 5_000_000, ("3",)) for name in ("7", "8")
    ]


@pytest.mark.parametrize(
    ("types", "complaint"),
    [
        (
            {"operation_id": pa.float64()},
            "operations: the column 'operation_id' must be string, got double",
        ),
        ({"mode": None}, "operations lacks the column 'mode'"),
        ({"deadline": pa.timestamp("ns")}, "TIMESTAMP(NANOS"),
    ],
)
def test_lossy_type_is_refused_without_a_checkpoint(
    spark: SparkSession, tmp_path: Path, types: dict[str, Any], complaint: str
) -> None:
    put(tmp_path, "operations", OPERATION, OPERATIONS, **types)
    put(tmp_path, "signals", SIGNAL, SIGNALS)

    with pytest.raises((ValueError, PySparkException), match=re.escape(complaint)):
        run(spark, tmp_path)

    assert not (tmp_path / "checkpoint" / "offsets").exists()


def test_unreadable_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "operations", OPERATION, OPERATIONS).write_bytes(b"PAR1 and nothing else")
    put(tmp_path, "signals", SIGNAL, SIGNALS)

    with pytest.raises((ValueError, PySparkException), match=r"rows\.parquet"):
        run(spark, tmp_path)
