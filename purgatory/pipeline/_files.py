"""The files of a journal: which there are, and the rows of one.

A name is taken as it is: nothing in it is a pattern. A file that cannot be read as a whole is damaged, and its reason told.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS, RUNS

COMPACTED: Final = "compacted-"
"""How the names of files begin that stand for others."""
REPLACES: Final = b"purgatory.replaces"
"""Where the footer of such a file has the names of those others, as a list in JSON."""
DICTIONARIES: Final = ("run_id", "purgatory", "kind", "key", "outcome")
"""The columns that have few different values, and are kept as numbers with a list of the values."""
TYPES: Final = {
    folder: pa.schema(
        [
            pa.field(field.name, pa.dictionary(pa.int32(), pa.string()) if field.name in DICTIONARIES else field.type)
            for field in schema
        ]
    )
    for folder, schema in FOLDERS.items()
}
"""The columns of a folder, as `rows_of` returns them."""
ADDED: Final = {"part": 0}
"""The columns that journals of earlier versions lack, and what stands for them."""


UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError)
"""What pyarrow raises for a file that is not what it should be."""


class Damaged(Exception):
    """A file cannot be read; the message says why."""


class Vanished(Exception):
    """A file that was listed is gone: it was compacted, or too old to keep, meanwhile."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a folder: names and sizes in bytes, by name."""

    sizes: dict[str, int]
    replaced: int
    """How many more there are which another file stands for."""
    is_there: bool

    def __add__(self, other: "Listing") -> "Listing":
        """The two as one, of a folder of two journals."""
        return Listing(self.sizes | other.sizes, self.replaced + other.replaced, self.is_there or other.is_there)


@dataclass(frozen=True, slots=True)
class Part:
    """Some row groups of a file; all of them if `groups` is `None`."""

    file: str
    groups: tuple[int, ...] | None = None


def listed(task: tuple[str, str]) -> Listing:
    """The Parquet files of a folder of a journal.

    Args:
        task: the journal, a path or a URI, and the name of the folder.
    """
    journal, folder = task
    filesystem, root = _found(journal)
    selector = pyarrow.fs.FileSelector(f"{root.rstrip('/')}/{folder}", allow_not_found=True)
    found = filesystem.get_file_info(selector)
    is_there = bool(found) or filesystem.get_file_info(selector.base_dir).type == pyarrow.fs.FileType.Directory
    sizes = {
        f"{journal.rstrip('/')}/{folder}/{each.base_name}": each.size
        for each in sorted(found, key=lambda each: each.base_name)
        if each.is_file and each.base_name.endswith(".parquet") and not each.base_name.startswith((".", "_"))
    }
    replaced = {f"{journal.rstrip('/')}/{folder}/{name}" for file in sizes for name in replaced_by(file)} & sizes.keys()
    return Listing({name: size for name, size in sizes.items() if name not in replaced}, len(replaced), is_there)


def names_in(folder: str) -> list[str]:
    """The names of the files in a folder; none if it is not there.

    Raises:
        OSError: pyarrow cannot look there.
    """
    filesystem, root = _found(folder)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(root, allow_not_found=True))
    return [each.base_name for each in found if each.is_file]


def is_compacted(file: str) -> bool:
    """Whether a file stands for others, by its name."""
    return file.rsplit("/", 1)[-1].startswith(COMPACTED)


def replaced_by(file: str) -> list[str]:
    """The names of the files that this one stands for: those that were compacted into it."""
    if not is_compacted(file):
        return []
    try:
        with _opened(file) as source:
            return [str(name) for name in json.loads(pq.read_metadata(source).metadata.get(REPLACES, b"[]"))]
    except UNREADABLE:
        return []  # it is damaged, which whoever reads its rows will find; the others may still be there


def tallies(journal: str) -> dict[str, int]:
    """How many operations have ended in each run that goes on, was killed, or could not write all of its rows."""
    filesystem, root = _found(journal)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(f"{root.rstrip('/')}/{RUNS}", allow_not_found=True))
    counted = {}
    for each in found:
        if each.is_file and not each.base_name.startswith((".", "_")):
            try:
                with filesystem.open_input_stream(each.path) as file:
                    counted[each.base_name] = int(file.read(100))
            except (ValueError, OSError):
                continue  # it is being made, or the run has just ended
    return counted


def groups_of(file: str) -> list[int]:
    """How many rows each row group of a file has; nothing if its footer cannot be read."""
    try:
        with _opened(file) as source:
            metadata = pq.read_metadata(source)
            return [metadata.row_group(place).num_rows for place in range(metadata.num_row_groups)]
    except UNREADABLE:
        return []


def rows_of(part: Part, folder: str) -> pa.Table:
    """The rows of a part of a file, with the columns and types that `TYPES` has for the folder.

    Raises:
        Damaged: the file is no Parquet, lacks a column, or a page of it is not what was written.
        Vanished: the file is not there.
    """
    schema = TYPES[folder]
    try:
        with _opened(part.file) as source:
            metadata = pq.read_metadata(source)
            _check_columns(metadata.schema.to_arrow_schema(), folder)
            few = [name for name in schema.names if name in DICTIONARIES]
            parquet = pq.ParquetFile(source, metadata=metadata, read_dictionary=few, page_checksum_verification=True)
            groups = range(parquet.num_row_groups) if part.groups is None else part.groups
            rows = parquet.read_row_groups(groups, columns=schema.names)
            for name in schema.names:
                if name not in rows.column_names:
                    rows = rows.append_column(name, pa.repeat(ADDED[name], rows.num_rows))
            rows = rows.select(schema.names).replace_schema_metadata()
            return rows if rows.schema == schema else rows.cast(schema)
    except FileNotFoundError:
        raise Vanished(part.file) from None
    except UNREADABLE as error:
        raise Damaged(f"cannot be read as Parquet: {_first_line(error)}") from error


def check_values(rows: pa.Table) -> None:
    """Makes sure that texts are UTF-8, and that lists and dictionaries point to what is there.

    Raises:
        Damaged: they do not.
    """
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Damaged(f"cannot be read as Parquet: {_first_line(error)}") from error


def _check_columns(found: pa.Schema, folder: str) -> None:
    types = {field.name: type_name(field.type) for field in found}
    for field in FOLDERS[folder]:
        is_, should_be = types.get(field.name), type_name(field.type)
        if is_ is None and field.name in ADDED:
            continue
        if is_ is None:
            raise Damaged(f"has no column {field.name}")
        if is_ != should_be:
            raise Damaged(f"column {field.name} is {is_}, not {should_be}")


def type_name(type_: pa.DataType) -> str:
    """The name of a type. Variants that are the same in a file have the same name."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{type_name(type_.value_type)}>"
    return "string" if pa.types.is_large_string(type_) else str(type_)


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    filesystem, name = _found(file)
    with filesystem.open_input_file(name) as source:
        yield source


def _found(place: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if "://" not in place:
        return pyarrow.fs.LocalFileSystem(), str(Path(place).absolute())
    scheme, rest = place.split("://", 1)
    root, _, name = rest.partition("/")
    if scheme == "file":
        return pyarrow.fs.LocalFileSystem(), f"/{name}"
    filesystem, base = _filesystem(f"{scheme}://{root}")
    return filesystem, f"{base.rstrip('/')}/{name}"


@cache
def _filesystem(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    try:
        filesystem, base = pyarrow.fs.FileSystem.from_uri(root)
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"cannot read {root!r}: {_first_line(error)}") from error
    return filesystem, str(base)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def parts(sizes: dict[str, int], groups: dict[str, list[int]], limit: int) -> Iterable[list[Part]]:
    """Divides files into portions of about `limit` bytes. The row groups of a larger file are divided, too."""
    portion: list[Part] = []
    filled = 0
    for file, size in sizes.items():
        if size > limit and len(groups.get(file, [])) > 1:
            count = len(groups[file])
            each = max(1, round(count * limit / size))
            yield from ([Part(file, tuple(range(first, min(first + each, count))))] for first in range(0, count, each))
            continue
        if filled and filled + size > limit:
            yield portion
            portion, filled = [], 0
        portion.append(Part(file))
        filled += size
    if portion:
        yield portion
