"""Parquet files of other types: columns that lose nothing are cast, others are refused in one
line before the first batch."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from orders import START
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from streams import decided, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


OPERATION = {
    "operation_id": 7,
    "requirements": [{"key": 3, "threshold": 1}],
    "mode": "all",
    "registered_at": START + 1_000_000,
    "deadline": START + 20_000_000,
}
SIGNAL = {"key": 3, "value": 1, "at": START + 5_000_000}
WANTED = pa.list_(pa.struct({"threshold": pa.int16(), "key": pa.int32()}))
LONG, MICROS = pa.int64(), pa.timestamp("us", "UTC")
TYPES = {
    "operations": {"operation_id": LONG, "requirements": WANTED, "mode": pa.string(),
                   "registered_at": MICROS, "deadline": MICROS},
    "signals": {"key": pa.uint64(), "value": LONG, "at": MICROS},
}  # fmt: skip


def put(folder: Path, name: str, row: dict[str, Any], file: str = "x", **types: Any) -> Path:
    """One row, with columns of these types, or without one."""
    (folder / name).mkdir(exist_ok=True)
    columns = {}
    for column, type_ in (TYPES[name] | types).items():
        if type_ is not None:
            is_millis = pa.types.is_timestamp(type_) and type_.unit == "ms"
            value = row[column] // 1000 if is_millis else row[column]
            columns[column] = pa.array([value]).cast(type_)
    pq.write_table(pa.table(columns), folder / name / f"{file}.parquet")
    return folder / name / f"{file}.parquet"


def test_integer_ids_and_naive_instants_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    tmp_path /= "a[1] {x,y}*?"  # no pattern
    tmp_path.mkdir()
    naive = {"registered_at": pa.timestamp("us"), "deadline": pa.timestamp("ms", "Asia/Tokyo")}
    put(tmp_path, "operations", OPERATION, "100%", operation_id=pa.int32(), **naive)
    put(tmp_path, "operations", OPERATION | {"operation_id": 8})
    put(tmp_path, "signals", SIGNAL, value=pa.int8())
    put(tmp_path, "signals", SIGNAL | {"at": START + 60_000_000}, "more")

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
    put(tmp_path, "operations", OPERATION, **types)
    put(tmp_path, "signals", SIGNAL)

    with pytest.raises((ValueError, PySparkException), match=re.escape(complaint)):
        run(spark, tmp_path)

    assert not (tmp_path / "checkpoint" / "offsets").exists()


def test_unreadable_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "operations", OPERATION).write_bytes(b"PAR1 and no more")
    put(tmp_path, "signals", SIGNAL)

    with pytest.raises((ValueError, PySparkException), match=r"x\.parquet"):
        run(spark, tmp_path)
