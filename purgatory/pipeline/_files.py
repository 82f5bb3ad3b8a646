"""The files of a journal: which there are, and which replace others since a compaction.

Names are literal: nothing in them is a pattern. A name with ``://`` is a URI, which only Spark can
    read: see `_remote`.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import RUNS
from purgatory.pipeline._programs import NoJournal

PARQUET: Final = (".parquet", ".pq")
"""The endings of the names of files that are read."""
COMPACTED: Final = "compacted-"
"""The prefix of the names of files that replace others."""
REPLACES: Final = b"purgatory.replaces"
"""The key in the footer of such a file under which the names of those others are, as a list in
JSON."""
SCHEME: Final = re.compile(r"[\w+.-]+:(//[^/]*)?")
"""The scheme and the host of a URI."""
RUN_COUNTER: Final = re.compile(rb"([0-9]{1,20})\n?")
"""The content of a file in the folder ``runs``."""
MAX_RUN_COUNTER: Final = 22
"""The bytes that are read of such a file: one more than the longest has."""
UNREADABLE: Final = (
    pa.ArrowException,
    OSError,
    ValueError,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""pyarrow's exceptions for a damaged file."""


class Damaged(Exception):
    """A file cannot be read; the message has the reason."""


class Vanished(Exception):
    """A file that was listed is gone: it was compacted, or too old to keep, meanwhile."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some row groups of a file; all of them if `groups` is `None`."""

    file: str
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The Parquet files of a folder of a journal, without files replaced by a compacted one."""

    sizes: dict[str, int]
    """In bytes, by the full name; 0 where it is not known."""
    others: list[str]
    """The full names of the files that are no Parquet, by their names."""
    replaced: frozenset[str] = frozenset()
    """The full names of the files that are there, and that another one replaces."""


class Storage(Protocol):
    """Folders and files, by full names."""

    def sizes(self, folder: str) -> dict[str, int] | None:
        """The sizes of all files below a folder by their names in it, such as
        ``day=2026-11-25/part-0.parquet``, without hidden ones; `None` if it is not there."""
        ...

    def read(self, file: str, limit: int) -> bytes:
        """The first `limit` bytes of a file."""
        ...

    def write(self, file: str, content: bytes) -> None: ...
    def make(self, folder: str) -> None: ...

    def move(self, folder: str, to: str) -> None:
        """Renames a folder; `to` does not exist."""
        ...

    def delete(self, folder: str) -> None:
        """Deletes a folder with all that is in it, if it is there."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of all that is in a folder, hidden or not; none if it is not there."""
        ...


class Local:
    """The file system of this machine, as a `Storage`."""

    def sizes(self, folder: str) -> dict[str, int] | None:
        if not Path(folder).is_dir():
            return None
        sizes = {}
        with os.scandir(folder) as entries:
            for each in entries:
                if is_hidden(each.name):
                    continue
                with suppress(FileNotFoundError):  # it was compacted just now
                    if each.is_file():
                        sizes[each.name] = each.stat().st_size
                    elif each.is_dir():
                        sizes |= within(each.name, self.sizes(each.path))
        return sizes

    def read(self, file: str, limit: int) -> bytes:
        with Path(file).open("rb") as opened:
            return opened.read(limit)

    def write(self, file: str, content: bytes) -> None:
        """Writes a new file, and then gives it the name: a link that has the name is replaced."""
        partial = Path(f"{file}.partial")
        partial.unlink(missing_ok=True)
        with partial.open("xb") as opened:
            opened.write(content)
        partial.replace(file)

    def make(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)

    def move(self, folder: str, to: str) -> None:
        Path(folder).rename(to)

    def delete(self, folder: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def names(self, folder: str) -> list[str]:
        return [each.name for each in Path(folder).iterdir()] if Path(folder).is_dir() else []


def is_uri(name: str) -> bool:
    """Whether only Spark knows where a name leads."""
    return "://" in name


def distinct(names: Iterable[str]) -> list[str]:
    """Journals, each once, as any process understands them."""
    absolute = os.path.abspath  # a link stays as it is named
    return [*dict.fromkeys(name.rstrip("/") if is_uri(name) else absolute(name) for name in names)]


def is_hidden(name: str) -> bool:
    """Whether Spark and we leave a file or a folder out, by its name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def within(folder: str, sizes: dict[str, int] | None) -> dict[str, int]:
    """The sizes by names that begin with that of the folder."""
    return {f"{folder}/{name}": size for name, size in (sizes or {}).items()}


def relative(path: str, folder: str) -> str:
    """The name of a file in a folder, wherever a path or a URI names another host for it."""
    depth = len(_parts(folder))
    return "/".join(_parts(path)[depth:])


def _parts(path: str) -> list[str]:
    scheme = SCHEME.match(path)
    return [part for part in path[scheme.end() if scheme else 0 :].split("/") if part]


def is_visible(name: str) -> bool:
    """Whether a name is a plain file name, without a path, that readers of a folder see."""
    is_plain = not {*name} & {"/", "\0", os.sep}
    return name.endswith(".parquet") and not is_hidden(name) and is_plain


def is_compacted(file: str) -> bool:
    """Whether a file replaces others, by its name."""
    return file.rsplit("/", 1)[-1].startswith(COMPACTED)


def list_files(storage: Storage, journal: str, folder: str) -> tuple[dict[str, int], list[str]]:
    """The sizes of the Parquet files of a folder of a journal, by their full names, in the order of
    those; and the other files.

    Raises:
        NoJournal: it has no folder ``operations``.
    """
    found = storage.sizes(f"{journal}/{folder}")
    if found is None and folder == "operations":
        raise NoJournal(f"cannot read {journal!r} as a journal: it has no folder 'operations'")
    sizes = within(f"{journal}/{folder}", dict(sorted((found or {}).items())))
    files = {file: size for file, size in sizes.items() if file.endswith(PARQUET)}
    return files, [file for file in sizes if file not in files]


def replaced_by(file: str) -> list[str]:
    """The full names of the files that were compacted into this one, which is on this machine."""
    if not is_compacted(file):
        return []
    try:
        with pa.OSFile(file) as source:
            return [f"{file.rpartition('/')[0]}/{name}" for name in replaced_names(source)]
    except UNREADABLE:
        return []  # it is damaged, as reading its rows will show; the others may still be there


def replaced_names(source: pa.NativeFile) -> list[str]:
    """The names that the footer of a compacted file has: plain names of Parquet files.

    Raises:
        UNREADABLE: it is no Parquet, or a name is no such name. A path would lead elsewhere.
    """
    names = json.loads((pq.read_metadata(source).metadata or {}).get(REPLACES, b"[]"))
    bad = (
        [name for name in names if not (isinstance(name, str) and is_visible(name))]
        if isinstance(names, list)
        else [names]
    )
    if bad:
        raise ValueError(
            f"{REPLACES.decode()} must list plain names of Parquet files, got {bad[0]!r:.100}"
        )
    return [*names]


def run_counters(storage: Storage, journal: str) -> dict[str, int]:
    """The number of operations that have ended, for each run that is in progress, was killed, or
    could not write all of its rows."""
    counted = {}
    for name in storage.sizes(f"{journal}/{RUNS}") or ():
        try:
            found = RUN_COUNTER.fullmatch(storage.read(f"{journal}/{RUNS}/{name}", MAX_RUN_COUNTER))
        except OSError:
            continue  # the run has just ended
        if found is not None and int(found[1]) < 2**63:  # it is being written, or not ours
            counted[name] = int(found[1])
    return counted


def row_groups_of(file: str) -> list[int]:
    """How many rows each row group of a file has; nothing if its footer cannot be read."""
    try:
        with pa.OSFile(file) as source:
            metadata = pq.read_metadata(source)
            return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except UNREADABLE:
        return []


def first_line(error: BaseException) -> str:
    """The message of an exception, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def batches_of_parts(
    sizes: dict[str, int], groups: dict[str, list[int]], limit: int
) -> Iterable[list[Part]]:
    """Divides files into batches of about `limit` bytes. A larger file is divided by its row
    groups."""
    batch: list[Part] = []
    filled = 0
    for file, size in sizes.items():
        if size > limit and len(groups.get(file, [])) > 1:
            count = len(groups[file])
            each = max(1, round(count * limit / size))
            yield from (
                [Part(file, tuple(range(first, min(first + each, count))))]
                for first in range(0, count, each)
            )
            continue
        if filled and filled + size > limit:
            yield batch
            batch, filled = [], 0
        batch.append(Part(file))
        filled += size
    if batch:
        yield batch
