"""The files of a journal: which there are, and which replace others since a compaction.

Names are literal: nothing in them is a pattern.
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

from purgatory.journal import RUNS

COMPACTED: Final = "compacted-"
"""The prefix of the names of files that replace others."""
REPLACES: Final = b"purgatory.replaces"
"""The key in the footer of such a file under which the names of those others are, as a list in JSON."""
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
    """How many more there are that another file replaces."""
    is_there: bool

    def __add__(self, other: "Listing") -> "Listing":
        """Both together, of a folder of two journals."""
        return Listing(self.sizes | other.sizes, self.replaced + other.replaced, self.is_there or other.is_there)


@dataclass(frozen=True, slots=True)
class Part:
    """Some row groups of a file; all of them if `groups` is `None`."""

    file: str
    groups: tuple[int, ...] | None = None


def list_files(task: tuple[str, str]) -> Listing:
    """The Parquet files of a folder of a journal.

    Args:
        task: the journal, a path or a URI, and the name of the folder.
    """
    journal, folder = task
    filesystem, root = _locate(journal)
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
    filesystem, root = _locate(folder)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(root, allow_not_found=True))
    return [each.base_name for each in found if each.is_file]


def is_compacted(file: str) -> bool:
    """Whether a file replaces others, by its name."""
    return file.rsplit("/", 1)[-1].startswith(COMPACTED)


def replaced_by(file: str) -> list[str]:
    """The names of the files that were compacted into this one."""
    if not is_compacted(file):
        return []
    try:
        with opened(file) as source:
            return [str(name) for name in json.loads(pq.read_metadata(source).metadata.get(REPLACES, b"[]"))]
    except UNREADABLE:
        return []  # it is damaged, as reading its rows will show; the others may still be there


def run_counters(journal: str) -> dict[str, int]:
    """How many operations have ended in each run that goes on, was killed, or could not write all of its rows."""
    filesystem, root = _locate(journal)
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(f"{root.rstrip('/')}/{RUNS}", allow_not_found=True))
    counted = {}
    for each in found:
        if each.is_file and not each.base_name.startswith((".", "_")):
            try:
                with filesystem.open_input_stream(each.path) as file:
                    counted[each.base_name] = int(file.read(100))
            except (ValueError, OSError):
                continue  # it is being written, or the run has just ended
    return counted


def row_groups_of(file: str) -> list[int]:
    """How many rows each row group of a file has; nothing if its footer cannot be read."""
    try:
        with opened(file) as source:
            metadata = pq.read_metadata(source)
            return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except UNREADABLE:
        return []


@contextmanager
def opened(file: str) -> Iterator[Any]:
    """A file that pyarrow can read."""
    if "://" in file:
        filesystem, name = _locate(file)
        source = filesystem.open_input_file(name)
    else:
        source = pa.OSFile(file)
    with source:
        yield source


def _locate(name: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if "://" not in name:
        return pyarrow.fs.LocalFileSystem(), str(Path(name).absolute())
    scheme, rest = name.split("://", 1)
    root, _, path = rest.partition("/")
    if scheme == "file":
        return pyarrow.fs.LocalFileSystem(), f"/{path}"
    filesystem, base = _filesystem(f"{scheme}://{root}")
    return filesystem, f"{base.rstrip('/')}/{path}"


@cache
def _filesystem(root: str) -> tuple[pyarrow.fs.FileSystem, str]:
    try:
        filesystem, base = pyarrow.fs.FileSystem.from_uri(root)
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"cannot read {root!r}: {first_line(error)}") from error
    return filesystem, str(base)


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def batches_of_parts(sizes: dict[str, int], groups: dict[str, list[int]], limit: int) -> Iterable[list[Part]]:
    """Divides files into batches of about `limit` bytes. A larger file is divided by its row groups."""
    batch: list[Part] = []
    filled = 0
    for file, size in sizes.items():
        if size > limit and len(groups.get(file, [])) > 1:
            count = len(groups[file])
            each = max(1, round(count * limit / size))
            yield from ([Part(file, tuple(range(first, min(first + each, count))))] for first in range(0, count, each))
            continue
        if filled and filled + size > limit:
            yield batch
            batch, filled = [], 0
        batch.append(Part(file))
        filled += size
    if batch:
        yield batch
