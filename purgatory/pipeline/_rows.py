"""The rows of a journal's files, as pyarrow reads them: all rows of a file, or none and the reason.

A column that is missing has the value in the name of the file's folder, or else is null in each
row; one that no journal has is ignored. Whole numbers and
instants of other widths, units and zones are converted. pyarrow checks the checksums of pages, and
that texts are UTF-8, which DuckDB's reader does not.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import Vanished, first_line, in_folders

OPTIONS: Final[dict[str, Any]] = {
    "page_checksum_verification": True,
    "coerce_int96_timestamp_unit": "us",
}
"""The options of the reader."""
ERRORS: Final = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, RecursionError)
"""pyarrow's exceptions for a damaged file."""
NOT_ON_SPARK: Final = "timeUnit=nanoseconds"
"""Words in the schema of a file that Spark cannot read."""
FILE: Final = pa.field("file", pa.dictionary(pa.int32(), pa.string()))
"""The column that rows get."""
BATCH_BYTES: Final = 16 * 1024 * 1024
"""The size of a batch of Parquet in bytes, about."""
THREADS: Final = 2
"""The batches that are read at a time. pyarrow releases the GIL while it reads."""
KINDS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "text": lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_),
    "whole number": pa.types.is_integer,
    "number": pa.types.is_floating,
    "instant": lambda type_: pa.types.is_timestamp(type_) and type_.tz is not None,
}
"""Types that are converted to each other if no value is lost."""
NAIVE: Final = pa.timestamp("us")


class Damaged(Exception):
    """A file cannot be read; the message has the reason."""


Part = tuple[str, Sequence[int] | None]
"""Some row groups of a file, or all of them."""


SCHEMAS: Final = {
    folder: pa.schema([each.with_nullable(True) for each in schema])
    for folder, schema in FOLDERS.items()
}
"""The columns of a folder. They may be null, since some rows may be invalid."""


def rows_of(file: str, groups: Sequence[int] | None, folder: str) -> pa.Table:
    """Reads some row groups of a file of this machine, or all of it, with the columns of the folder.

    Raises:
        Damaged: the file is no Parquet, has a damaged page, or a column of another type.
        Vanished: the file was deleted.
    """
    try:
        with pa.OSFile(file) as source:
            given = in_folders(file.rpartition(f"/{folder}/")[2])
            return next(_tables(source, folder, [groups], given))
    except FileNotFoundError:
        raise Vanished(file) from None
    except ERRORS as error:
        raise _unreadable(error) from error


def _unreadable(error: BaseException) -> Damaged:
    return Damaged(f"cannot be read as Parquet: {first_line(error)}")


def _tables(
    source: Any,
    folder: str,
    parts: Iterable[Sequence[int] | None] | None = None,
    given: Mapping[str, str | None] = MappingProxyType({}),
) -> Iterator[pa.Table]:
    """The rows of each part, which is some row groups; without `parts` of each row group.

    Args:
        given: values of columns that the file may lack.
    """
    parquet, schema = pq.ParquetFile(source, **OPTIONS), SCHEMAS[folder]
    if parts is None:
        parts = [[group] for group in range(parquet.num_row_groups)]
    names = [name for name in parquet.schema_arrow.names if name in schema.names]
    for groups in parts:
        if groups is None:
            rows = parquet.read(names, use_threads=False)
        else:
            rows = parquet.read_row_groups(groups, names, use_threads=False)
        if rows.schema == FOLDERS[folder]:
            rows = pa.Table.from_arrays(rows.columns, schema=schema)
        elif rows.schema != schema:
            rows = _converted(rows, schema, parquet, given)
        rows.validate(full=True)
        yield rows


def _converted(
    rows: pa.Table, schema: pa.Schema, parquet: pq.ParquetFile, given: Mapping[str, str | None]
) -> pa.Table:
    """The rows with the columns of the schema."""
    columns = []
    for field in schema:
        count = rows.column_names.count(field.name)
        if count > 1:
            raise Damaged(f"has the column {field.name} more than once")
        if count == 0:
            columns.append(_repeated(given.get(field.name), len(rows), field.type))
            continue
        column = rows[field.name]
        if column.type == NAIVE and _is_int96(parquet, field.name):  # which Spark writes in UTC
            column = column.cast(field.type)
        if _kind(column.type) != _kind(field.type):
            raise Damaged(f"column {field.name} is {column.type}, not {field.type}")
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _repeated(text: str | None, count: int, type_: pa.DataType) -> pa.Array:
    """A column of one value, which is null if the text is of another type."""
    try:
        return pa.repeat(pa.scalar(text, pa.string()).cast(type_), count)
    except ERRORS:
        return pa.nulls(count, type_)


def _is_int96(parquet: pq.ParquetFile, name: str) -> bool:
    columns = map(parquet.schema.column, range(len(parquet.schema.names)))
    return any(each.path == name and each.physical_type == "INT96" for each in columns)


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_dictionary(type_):
        return _kind(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list of {_kind(type_.value_type)}"
    return next((name for name, is_of in KINDS.items() if is_of(type_)), str(type_))


def batches(files: dict[str, int], folder: str, damaged: dict[str, str]) -> Iterator[pa.Table]:
    """Reads files of this machine. Rows have the name of their `file`.

    Args:
        files: the sizes of files, by their names.
        folder: ``operations`` or ``checks``.
        damaged: gets the reason for each file that cannot be read. A part of its rows may have been
            in an earlier batch.

    Raises:
        Vanished: a file was deleted meanwhile.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        for rows, unreadable in pool.map(partial(_batch, folder=folder), _parts(files)):
            damaged |= unreadable
            yield rows


def _parts(files: dict[str, int]) -> Iterator[list[Part]]:
    """Divides files into batches. A large file is divided by its row groups."""
    batch: list[Part] = []
    filled = 0
    for file, size in files.items():
        if filled and filled + size > BATCH_BYTES:
            yield batch
            batch, filled = [], 0
        if size > BATCH_BYTES and (count := _row_groups(file)) > 1:
            each = max(1, round(count * BATCH_BYTES / size))
            for first in range(0, count, each):
                yield [(file, range(first, min(first + each, count)))]
            continue
        batch.append((file, None))
        filled += size
    if batch:
        yield batch


def _row_groups(file: str) -> int:
    try:
        return int(pq.read_metadata(file).num_row_groups)
    except ERRORS:
        return 0  # as reading its rows will show


def _batch(parts: Sequence[Part], folder: str) -> tuple[pa.Table, dict[str, str]]:
    tables, files, damaged = [], [], {}
    for file, groups in parts:
        try:
            tables.append(rows_of(file, groups, folder))
            files.append(file)
        except Damaged as error:
            damaged[file] = str(error)
    rows = pa.concat_tables(tables) if tables else SCHEMAS[folder].empty_table()
    numbers = [number for number, table in enumerate(tables) for _ in range(len(table))]
    names = pa.DictionaryArray.from_arrays(
        pa.array(numbers, pa.int32()), pa.array(files, pa.string())
    )
    return rows.append_column(FILE, names), damaged


def damaged_on_workers(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """The files that cannot be read, on a worker of Spark: columns `path` and `damage`.

    Args:
        batches: `path` and `content` of files.
    """
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            damage = _damage_of(pa.BufferReader(content.as_buffer()), folder)
            if damage is not None:
                yield pa.RecordBatch.from_pydict({"path": [path.as_py()], "damage": [damage]})


def _damage_of(source: pa.NativeFile, folder: str) -> str | None:
    try:
        if NOT_ON_SPARK in str(pq.ParquetFile(source).schema):
            return "has nanoseconds, which Spark cannot read"
        for _ in _tables(source, folder):  # a row group at a time, which bounds the memory
            pass
    except Damaged as error:
        return str(error)
    except ERRORS as error:
        return str(_unreadable(error))
    return None
