"""Checks the types of Parquet files before the first batch: types that can be cast without loss are
read, others are refused.

    expected    may be in the files
    string      strings; any integers
    bigint      any integers of up to 64 bits that have a sign, or of up to 32 that have none
    timestamp   timestamps in seconds to microseconds; without a time zone they are taken as UTC

Files that differ may lie in one folder as long as the same type of Spark reads them all.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from purgatory.pipeline._files import is_uri
from purgatory.pipeline._session import literal

MAX_FILES: Final = 1000
"""Files to check, the newest ones. A wrong type in another file ends the query later, also with one
line."""
FOUND_SCHEMA: Final = "file string, position int, found string, reads string"
"""For each file and column: its type, and the type that Spark shall read it as; null if it cannot
be cast."""


def types_of(spark: SparkSession, folder: str, kind: str, schema: StructType) -> StructType:
    """The columns of `schema`, with the types by which Spark can read the present Parquet files
    of `folder`.

    Args:
        kind: name of the rows in messages.

    Raises:
        ValueError: a file cannot be read, lacks a column, or has a column that cannot be cast
            without loss.
    """
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    found = (
        ["path", "content"] if is_uri(folder) else ["path"]
    )  # a file that only Spark reaches is read whole
    files = spark.read.format("binaryFile").load(literal(folder)).select("modificationTime", *found)
    newest = files.orderBy(F.desc("modificationTime"), "path").limit(MAX_FILES).select(found)
    wanted = [(field.name, _plain(field.dataType)) for field in schema]
    seen = newest.mapInArrow(partial(inspect_files, wanted=wanted), FOUND_SCHEMA)
    kinds = (
        seen.groupBy("position", "found", "reads")
        .agg(F.min("file").alias("file"))
        .orderBy("position", "file")
        .collect()
    )
    fields = []
    for position, field in enumerate(schema):
        types = [row for row in kinds if row.position == position]
        for row in types:
            if row.reads is None:
                expected = field.dataType.simpleString()
                raise ValueError(
                    f"{kind}: the column {field.name!r} must be {expected}, not {row.found}, in "
                    f"{row.file}"
                )
        fields.append(StructField(field.name, _one_of(types, kind, field)))
    return StructType(fields)


def _one_of(types: list[Any], kind: str, field: StructField) -> DataType:
    """The type that reads them all."""
    reads = {row.reads: row for row in types}
    if len(reads) > 1:
        first, second = sorted(reads.values(), key=lambda row: str(row.file))[:2]
        raise ValueError(
            f"{kind}: the column {field.name!r} must be of one type, not {first.found} in "
            f"{first.file} "
            f"and {second.found} in {second.file}"
        )
    return _of_plain(next(iter(reads)), field.dataType) if reads else field.dataType


def _plain(type_: DataType) -> Any:
    """A type without Spark's classes: a name, or a dictionary of the fields in the structures of a
    list."""
    if isinstance(type_, ArrayType):
        assert isinstance(type_.elementType, StructType)
        return {field.name: _plain(field.dataType) for field in type_.elementType}
    return type_.simpleString()


def _of_plain(reads: str, expected: DataType) -> DataType:
    return DataType.fromDDL(reads) if reads != expected.simpleString() else expected


# -- on the executors


def inspect_files(
    batches: Iterator[pa.RecordBatch], wanted: list[tuple[str, Any]]
) -> Iterator[pa.RecordBatch]:
    """Reads the footer of each file, of its `content` or else by its `path`; returns the rows of
    `FOUND_SCHEMA`."""
    names = ("file", "position", "found", "reads")
    types = (pa.string(), pa.int32(), pa.string(), pa.string())
    for batch in batches:
        contents = (
            batch.column("content") if "content" in batch.schema.names else [None] * batch.num_rows
        )
        files = zip(batch.column("path").to_pylist(), contents, strict=True)
        rows = [row for path, content in files for row in _columns_of(path, content, wanted)]
        columns = zip(*rows, strict=True) if rows else ((),) * 4
        yield pa.RecordBatch.from_arrays(
            [pa.array(list(c), t) for c, t in zip(columns, types, strict=True)], names
        )


def _columns_of(
    path: str, content: Any, wanted: list[tuple[str, Any]]
) -> Iterator[tuple[str, int, str, str | None]]:
    file = "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
    try:
        with (
            Path(file).open("rb")
            if content is None
            else pa.BufferReader(content.as_buffer()) as source
        ):
            types = {field.name: field.type for field in pq.ParquetFile(source).schema_arrow}
    except Exception as error:
        for position in range(len(wanted)):
            yield file, position, f"unreadable ({str(error).splitlines()[0]})", None
        return
    for position, (name, expected) in enumerate(wanted):
        if name in types:
            yield file, position, str(types[name]), readable_as(types[name], expected)
        else:
            yield file, position, "missing", None


def readable_as(found: pa.DataType, expected: Any) -> str | None:
    """The type of Spark as which a column is read without loss; `None` if it cannot be cast to the
    expected type.

    Args:
        expected: a name, or a dictionary of the fields in the structures of a list.
    """
    if pa.types.is_dictionary(found):
        found = found.value_type
    if isinstance(expected, dict):
        return _list_readable_as(found, expected)
    if expected == "timestamp":
        return "timestamp" if pa.types.is_timestamp(found) and found.unit != "ns" else None
    if pa.types.is_integer(found):
        if found == pa.uint64():
            return "decimal(20,0)" if expected == "string" else None
        return "bigint"
    is_text = pa.types.is_string(found) or pa.types.is_large_string(found)
    return "string" if is_text and expected == "string" else None


def _list_readable_as(found: pa.DataType, expected: dict[str, Any]) -> str | None:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)) or not pa.types.is_struct(
        found.value_type
    ):
        return None
    types = {field.name: field.type for field in found.value_type}
    fields = {
        name: readable_as(types[name], type_) if name in types else None
        for name, type_ in expected.items()
    }
    if None in fields.values():
        return None
    return f"array<struct<{','.join(f'{name}:{type_}' for name, type_ in fields.items())}>>"
