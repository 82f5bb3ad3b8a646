"""The rows of a journal's files: of each file either all rows, or none and the reason.

A day may have 69,000 small files, so the cost of opening one matters. Small files are read as they are, by several threads, and
their rows are cast to `TYPES` together.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import UNREADABLE, Damaged, Part, Vanished, first_line, replaced_names

DICTIONARIES: Final = ("run_id", "purgatory", "kind", "key", "outcome")
"""The columns with few different values, which are dictionary-encoded."""
TYPES: Final = {
    folder: pa.schema(
        [
            pa.field(field.name, pa.dictionary(pa.int32(), pa.string()) if field.name in DICTIONARIES else field.type)
            for field in schema
        ]
    )
    for folder, schema in FOLDERS.items()
}
"""The columns of a folder, as `read` returns them."""
DEFAULTS: Final = {"part": 0}
"""The columns that journals of earlier versions lack, and their values then."""
SMALL_FILE_BYTES: Final = 1024 * 1024
"""A smaller file is read at once."""
FEW_ROWS: Final = 1000
"""With more rows, Parquet's own dictionaries are kept, to save memory. Below, encoding later is cheaper."""
ROWS_OF_BATCH: Final = 10_000
"""About so many rows go from a worker to Spark at once."""
FILES_PER_THREAD_TASK: Final = 100
"""An interruption waits for the tasks that have begun."""


@dataclass(slots=True)
class ReadResult:
    """The rows that were read, and the files that could not be."""

    table: pa.Table
    """The rows of all that could be read, with the columns and types of `TYPES`."""
    files: list[str] = field(default_factory=list)
    """Those that the rows are from, in order."""
    counts: list[int] = field(default_factory=list)
    """How many rows are from each of `files`."""
    damaged: dict[str, str] = field(default_factory=dict)
    """The reason for each file that cannot be read."""
    has_vanished: bool = False
    """Whether a file that was listed is gone."""


def read(parts: Sequence[Part], folder: str) -> ReadResult:
    """The rows of parts of files; of a file that is damaged none."""
    rows, tables = ReadResult(TYPES[folder].empty_table()), []
    for part, found in zip(parts, _results(parts, folder), strict=True):
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
        rows.table = pa.concat_tables([_cast(alike, folder) for alike in _concat_same_schema(tables)])
    return rows


def _results(parts: Sequence[Part], folder: str) -> list[pa.Table | Damaged | Vanished]:
    """The rows or the error of each part. pyarrow releases the GIL while it reads."""
    batches = [parts[first : first + FILES_PER_THREAD_TASK] for first in range(0, len(parts), FILES_PER_THREAD_TASK)]
    threads = min(pa.cpu_count(), len(batches))
    if threads < 2:
        return _try_each(parts, folder)
    with ThreadPoolExecutor(threads) as pool:
        return [found for some in pool.map(partial(_try_each, folder=folder), batches) for found in some]


def _try_each(parts: Sequence[Part], folder: str) -> list[pa.Table | Damaged | Vanished]:
    found: list[pa.Table | Damaged | Vanished] = []
    for part in parts:
        try:
            found.append(rows_of(part, folder))
        except (Damaged, Vanished) as error:
            found.append(error.with_traceback(None))
    return found


def rows_of(part: Part, folder: str) -> pa.Table:
    """The rows of a part of a file, with the columns of `TYPES`, and types that can be cast to theirs.

    Raises:
        Damaged: the file is no Parquet, lacks a column, or a page of it is not what was written.
        Vanished: the file is not there.
    """
    try:
        with pa.OSFile(part.file) as source:
            if part.groups is None and source.size() < SMALL_FILE_BYTES:
                return _rows_of_content(source.read_buffer(), folder)
            schema = FOLDERS[folder]
            metadata = pq.read_metadata(source)
            _check_columns(metadata.schema.to_arrow_schema(), folder)
            parquet = _with_dictionaries(source, metadata, schema)
            groups = range(parquet.num_row_groups) if part.groups is None else part.groups
            return _select_columns(parquet.read_row_groups(groups, columns=schema.names), folder)
    except FileNotFoundError:
        raise Vanished(part.file) from None
    except UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: BaseException) -> Damaged:
    return Damaged(f"cannot be read as Parquet: {first_line(error)}")


def _rows_of_content(content: pa.Buffer, folder: str) -> pa.Table:
    schema, source = FOLDERS[folder], pa.BufferReader(content)
    parquet = pq.ParquetFile(source, page_checksum_verification=True)
    if parquet.metadata.num_rows > FEW_ROWS:
        parquet = _with_dictionaries(source, parquet.metadata, schema)
    are_all = parquet.metadata.num_columns == len(schema)
    return _select_columns(parquet.read(None if are_all else schema.names, use_threads=False), folder)


def _with_dictionaries(source: Any, metadata: pq.FileMetaData, schema: pa.Schema) -> pq.ParquetFile:
    few = [name for name in schema.names if name in DICTIONARIES]
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=few, page_checksum_verification=True)


def check_values(rows: pa.Table) -> None:
    """Checks that texts are UTF-8, and that the offsets of lists and the indices of dictionaries are within bounds.

    Raises:
        Damaged: they do not.
    """
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _unreadable(error) from error


def _undamaged(tables: list[pa.Table], rows: ReadResult) -> list[pa.Table]:
    """The tables with valid values. The files of the others are added to `rows.damaged`."""
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


def _select_columns(rows: pa.Table, folder: str) -> pa.Table:
    """The columns of the folder, if they are there."""
    if rows.schema == FOLDERS[folder]:
        return rows
    _check_columns(rows.schema, folder)
    for name in DEFAULTS.keys() & (set(FOLDERS[folder].names) - {*rows.column_names}):
        rows = rows.append_column(name, pa.repeat(DEFAULTS[name], rows.num_rows))
    return rows.select(FOLDERS[folder].names)


def _check_columns(found: pa.Schema, folder: str) -> None:
    types = {field.name: type_name(field.type) for field in found}
    for field_ in FOLDERS[folder]:
        is_, should_be = types.get(field_.name), type_name(field_.type)
        if is_ is None and field_.name in DEFAULTS:
            continue
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


def plain(rows: pa.Table) -> pa.Table:
    """The rows, with plain columns in place of dictionary-encoded ones."""
    types = [each.type.value_type if pa.types.is_dictionary(each.type) else each.type for each in rows.schema]
    return rows.cast(pa.schema([each.with_type(type_) for each, type_ in zip(rows.schema, types, strict=True)]))


# -- on Spark's workers


def rows_and_account(
    batches: Iterator[pa.RecordBatch], folder: str, journal: str, replaced: frozenset[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of files, and after those of each file a row that tells of it.

    Args:
        batches: `path` and `content` of files.
        replaced: the full names of those to leave out.

    Returns:
        The columns of `FOLDERS`, and `file`, `damage` and `is_account`. In a row that tells of a file the columns of `FOLDERS`
        are null; `damage` says why the file cannot be read, if so.
    """
    waiting: list[pa.Table] = []
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            file = f"{journal}/{folder}/{path.as_py().rsplit('/', 1)[1]}"
            if file in replaced:
                continue
            rows, damage = TYPES[folder].empty_table(), None
            try:
                found = _rows_of_content(content.as_buffer(), folder)
                check_values(found)
                rows = _cast(found, folder)
            except Damaged as error:
                damage = str(error)
            except UNREADABLE as error:
                damage = str(_unreadable(error))
            waiting += [_told(plain(rows), file, None, is_account=False), _account(folder, file, damage)]
            if sum(table.num_rows for table in waiting) >= ROWS_OF_BATCH:
                yield from _batches(waiting)
                waiting = []
    if waiting:
        yield from _batches(waiting)


def _account(folder: str, file: str, damage: str | None) -> pa.Table:
    schema = plain(TYPES[folder].empty_table()).schema
    row = pa.table([pa.nulls(1, each.type) for each in schema], names=schema.names)
    return _told(row, file, damage, is_account=True)


def _told(rows: pa.Table, file: str, damage: str | None, *, is_account: bool) -> pa.Table:
    count = rows.num_rows
    told = {"file": pa.scalar(file), "damage": pa.scalar(damage, pa.string()), "is_account": pa.scalar(is_account)}
    for name, value in told.items():
        rows = rows.append_column(name, pa.repeat(value, count))
    return rows


def _batches(tables: list[pa.Table]) -> list[pa.RecordBatch]:
    rows = pa.concat_tables([each.cast(nullable(each.schema)) for each in tables])
    return list(rows.combine_chunks().to_batches(max_chunksize=ROWS_OF_BATCH))


def nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with nulls allowed, since some rows may be invalid."""
    return pa.schema([each.with_nullable(True) for each in schema])


def replaced_on_workers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The names that compacted files replace: a column `name`."""
    for batch in batches:
        for content in batch.column("content"):
            try:
                names = replaced_names(pa.BufferReader(content.as_buffer()))
            except UNREADABLE:
                continue  # it is damaged, as reading its rows will show
            yield pa.RecordBatch.from_pydict({"name": pa.array(names, pa.string())})
