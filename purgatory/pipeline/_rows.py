"""The rows of a journal's files: all rows of a file, or none and the reason.

A day may have 69,000 small files, so the cost of opening one matters. Small files are read by
several threads, and their rows are cast to `TYPES` together.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import (
    UNREADABLE,
    Damaged,
    Part,
    Vanished,
    first_line,
    replaced_names,
    row_groups_of,
)

DICTIONARIES: Final = ("run_id", "purgatory", "kind", "key", "outcome")
"""The columns with few different values, which are dictionary-encoded."""
TYPES: Final = {
    folder: pa.schema(
        [
            pa.field(
                field.name,
                pa.dictionary(pa.int32(), pa.string())
                if field.name in DICTIONARIES
                else field.type,
            )
            for field in schema
        ]
    )
    for folder, schema in FOLDERS.items()
}
"""The columns of a folder, as `read` returns them."""
OPTIONS: Final[dict[str, Any]] = {
    "page_checksum_verification": True,
    "coerce_int96_timestamp_unit": "us",
}
"""The options of the reader."""
INSTANT: Final = pa.timestamp("us", "UTC")
NOT_ON_SPARK: Final = "timeUnit=nanoseconds"
"""Words in the type of a column that Spark cannot read."""
SMALL_FILE_BYTES: Final = 1024 * 1024
"""The size of a file up to which it is read at once."""
FEW_ROWS: Final = 1000
"""The rows of a file up to which encoding dictionaries later is cheaper than keeping Parquet's,
which saves memory."""
FILES_PER_THREAD_TASK: Final = 100
"""The files of one task: an interruption waits for the tasks that have begun."""

SourceOf = Callable[[Part], pa.NativeFile]


@dataclass(slots=True)
class ReadResult:
    """The rows that were read, and the files that could not be."""

    table: pa.Table
    """The rows of all readable parts, with the columns and types of `TYPES`."""
    files: list[str] = field(default_factory=list)
    """The files of the rows, in order."""
    counts: list[int] = field(default_factory=list)
    """The number of rows of each of `files`."""
    damaged: dict[str, str] = field(default_factory=dict)
    """The reason for each file that cannot be read."""
    has_vanished: bool = False
    """Whether a listed file was deleted meanwhile."""


def _by_path(part: Part) -> pa.NativeFile:
    return pa.OSFile(part.file)


def read(parts: Sequence[Part], folder: str, source_of: SourceOf = _by_path) -> ReadResult:
    """Reads parts of files. A damaged part has no rows.

    Args:
        parts: the parts to read.
        folder: ``operations`` or ``checks``.
        source_of: opens the file of a part, in any thread.
    """
    rows, tables = ReadResult(TYPES[folder].empty_table()), []
    for part, found in zip(parts, _results(parts, folder, source_of), strict=True):
        if isinstance(found, Vanished):
            rows.has_vanished = True
        elif isinstance(found, Damaged):
            rows.damaged[part.file] = str(found)
        else:
            tables.append(found)
            rows.files.append(part.file)
    try:
        for alike in _concat_same_schema(tables):
            check_values(alike)
    except Damaged:
        tables = _undamaged(tables, rows)
    rows.counts = [table.num_rows for table in tables]
    if tables:
        rows.table = pa.concat_tables(
            [_cast(alike, folder) for alike in _concat_same_schema(tables)]
        )
    return rows


def _results(
    parts: Sequence[Part], folder: str, source_of: SourceOf
) -> list[pa.Table | Damaged | Vanished]:
    """The rows or the error of each part. pyarrow releases the GIL while it reads."""
    batches = [
        parts[first : first + FILES_PER_THREAD_TASK]
        for first in range(0, len(parts), FILES_PER_THREAD_TASK)
    ]
    threads = min(pa.cpu_count(), len(batches))
    if threads < 2:
        return _try_each(parts, folder, source_of)
    try_some = partial(_try_each, folder=folder, source_of=source_of)
    with ThreadPoolExecutor(threads) as pool:
        return [found for some in pool.map(try_some, batches) for found in some]


def _try_each(
    parts: Sequence[Part], folder: str, source_of: SourceOf
) -> list[pa.Table | Damaged | Vanished]:
    found: list[pa.Table | Damaged | Vanished] = []
    for part in parts:
        try:
            found.append(rows_of(part, folder, source_of))
        except (Damaged, Vanished) as error:
            found.append(error.with_traceback(None))
    return found


def rows_of(part: Part, folder: str, source_of: SourceOf = _by_path) -> pa.Table:
    """Reads a part of a file. It has the columns of `TYPES`, with types that can be cast to theirs.

    Raises:
        Damaged: the file is no Parquet, lacks a column, or has a damaged page.
        Vanished: the file was deleted.
    """
    try:
        with source_of(part) as source:
            if part.groups is None and source.size() < SMALL_FILE_BYTES:
                return _rows_of_content(source.read_buffer(), folder)
            schema = FOLDERS[folder]
            metadata = pq.read_metadata(source)
            _check_columns(_as_utc(metadata.schema.to_arrow_schema(), metadata), folder)
            parquet = _with_dictionaries(source, metadata, schema)
            groups = range(parquet.num_row_groups) if part.groups is None else part.groups
            rows = parquet.read_row_groups(groups, columns=schema.names)
            return _select_columns(rows, folder, metadata)
    except FileNotFoundError:
        raise Vanished(part.file) from None
    except UNREADABLE as error:
        raise unreadable(error) from error


def unreadable(error: BaseException) -> Damaged:
    """The error for a file that pyarrow cannot read."""
    return Damaged(f"cannot be read as Parquet: {first_line(error)}")


def _rows_of_content(content: pa.Buffer, folder: str) -> pa.Table:
    schema, source = FOLDERS[folder], pa.BufferReader(content)
    parquet = pq.ParquetFile(source, **OPTIONS)
    if parquet.metadata.num_rows > FEW_ROWS:
        parquet = _with_dictionaries(source, parquet.metadata, schema)
    are_all = parquet.metadata.num_columns == len(schema)
    rows = parquet.read(None if are_all else schema.names, use_threads=False)
    return _select_columns(rows, folder, parquet.metadata)


def _with_dictionaries(source: Any, metadata: pq.FileMetaData, schema: pa.Schema) -> pq.ParquetFile:
    few = [name for name in schema.names if name in DICTIONARIES]
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=few, **OPTIONS)


def check_values(rows: pa.Table) -> None:
    """Checks that texts are UTF-8, and that the offsets of lists and the indices of dictionaries
    are within bounds.

    Raises:
        Damaged: they do not.
    """
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise unreadable(error) from error


def _undamaged(tables: list[pa.Table], rows: ReadResult) -> list[pa.Table]:
    """The tables with valid values. The files of invalid tables are added to `rows.damaged`."""
    kept, files = [], []
    for table, file in zip(tables, rows.files, strict=True):
        try:
            check_values(table)
        except Damaged as error:
            rows.damaged[file] = str(error)
        else:
            kept.append(table)
            files.append(file)
    rows.files = files
    return kept


def _concat_same_schema(tables: list[pa.Table]) -> list[pa.Table]:
    """Concatenates tables in a row that have the same schema."""
    return [pa.concat_tables(some) for _, some in groupby(tables, lambda table: table.schema)]


def _cast(rows: pa.Table, folder: str) -> pa.Table:
    """The rows, cast to `TYPES`."""
    rows, schema = rows.replace_schema_metadata(), TYPES[folder]
    return rows if rows.schema == schema else rows.combine_chunks().cast(schema)


def _select_columns(rows: pa.Table, folder: str, metadata: pq.FileMetaData) -> pa.Table:
    """The columns of the folder, if they are there."""
    if rows.schema == FOLDERS[folder]:
        return rows
    schema = _as_utc(rows.schema, metadata)
    _check_columns(schema, folder)
    rows = rows if schema == rows.schema else rows.cast(schema)
    return rows.select(FOLDERS[folder].names)


def _as_utc(schema: pa.Schema, metadata: pq.FileMetaData) -> pa.Schema:
    """The schema with all instants in microseconds in UTC: of any unit and zone, and of INT96, which
    Spark writes in UTC. Timestamps without a zone stay as they are."""
    columns = map(metadata.schema.column, range(len(metadata.schema)))
    int96 = {column.path for column in columns if column.physical_type == "INT96"}
    return pa.schema(
        [
            field.with_type(INSTANT)
            if pa.types.is_timestamp(field.type) and (field.type.tz or field.name in int96)
            else field
            for field in schema
        ]
    )


def _check_columns(found: pa.Schema, folder: str) -> None:
    types = {field.name: type_name(field.type) for field in found}
    for field_ in FOLDERS[folder]:
        is_, should_be = types.get(field_.name), type_name(field_.type)
        if is_ is None:
            raise Damaged(f"has no column {field_.name}")
        if found.names.count(field_.name) > 1:
            raise Damaged(f"has the column {field_.name} more than once")
        if is_ != should_be:
            raise Damaged(f"column {field_.name} is {is_}, not {should_be}")


def type_name(type_: pa.DataType) -> str:
    """The name of a type; the same for variants that Parquet stores in the same way."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{type_name(type_.value_type)}>"
    return "string" if pa.types.is_large_string(type_) else str(type_)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with nulls allowed, since some rows may be invalid."""
    return pa.schema([each.with_nullable(True) for each in schema])


def damaged_files(files: Sequence[str], folder: str, *, whole: bool = True) -> dict[str, str]:
    """The reason for each file that cannot be read.

    Args:
        files: files of this machine.
        whole: read all rows; otherwise only footers.

    Raises:
        Vanished: a file is not there.
    """
    batches = [
        files[first : first + FILES_PER_THREAD_TASK]
        for first in range(0, len(files), FILES_PER_THREAD_TASK)
    ]
    found: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, min(pa.cpu_count(), len(batches)))) as pool:
        for damaged in pool.map(partial(_damaged_of, folder=folder, whole=whole), batches):
            found |= damaged
    return found


def _damaged_of(files: Sequence[str], folder: str, *, whole: bool) -> dict[str, str]:
    found = {}
    for file in files:
        try:
            check_footer(file, folder)
            groups = range(len(row_groups_of(file)))
            # One row group of a large file at a time, which bounds the memory.
            parts = [Part(file, (group,)) for group in groups] if len(groups) > 1 else [Part(file)]
            for part in parts if whole else ():
                check_values(rows_of(part, folder))
        except Damaged as error:
            found[file] = str(error)
    return found


def _check_for_spark(metadata: pq.FileMetaData, folder: str) -> None:
    schema = metadata.schema.to_arrow_schema()
    if schema != FOLDERS[folder]:
        _check_columns(_as_utc(schema, metadata), folder)
        for column in map(metadata.schema.column, range(len(metadata.schema))):
            if NOT_ON_SPARK in str(column.logical_type):
                raise Damaged(f"column {column.path} has nanoseconds, which Spark cannot read")


def check_footer(file: str, folder: str) -> None:
    """Checks the columns of a file, and their types.

    Raises:
        Damaged: they differ from the folder's, or the file is no Parquet.
        Vanished: the file is not there.
    """
    try:
        with pa.OSFile(file) as source:
            _check_for_spark(pq.read_metadata(source), folder)
    except FileNotFoundError:
        raise Vanished(file) from None
    except UNREADABLE as error:
        raise unreadable(error) from error


# -- on Spark's workers: files, not rows


def damaged_on_workers(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """The files that cannot be read: columns `path` and `damage`.

    Args:
        batches: `path` and `content` of files.
    """
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            try:
                buffer = content.as_buffer()
                _check_for_spark(pq.read_metadata(pa.BufferReader(buffer)), folder)
                check_values(_rows_of_content(buffer, folder))
                continue
            except Damaged as error:
                damage = str(error)
            except UNREADABLE as error:
                damage = str(unreadable(error))
            yield pa.RecordBatch.from_pydict({"path": [path.as_py()], "damage": [damage]})


def replaced_on_workers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The names that compacted files replace: a column `name`."""
    for batch in batches:
        for content in batch.column("content"):
            try:
                names = replaced_names(pa.BufferReader(content.as_buffer()))
            except UNREADABLE:
                continue  # it is damaged, as reading its rows will show
            yield pa.RecordBatch.from_pydict({"name": pa.array(names, pa.string())})
