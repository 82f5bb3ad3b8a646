"""``python -m purgatory.pipeline compact``: merges a journal's many small files into few large
ones, and deletes old ones.

Eight workers that finish a file every ten seconds write 69,000 files a day. The files of a day that
are old enough are merged into one. Its footer names the files that it replaces, so that renaming it
replaces all of them atomically:

    .compacted-1f3a.parquet.partial     written and synced; hidden from readers
    compacted-1f3a.parquet              renamed; reports now ignore the files that it names, which
                                        are deleted, after a kill by the next compaction

A kill at any moment neither loses nor duplicates a row. Writers do not conflict with it, as they
only add files. A report that finds a file gone, or a new file that replaces others, starts reading
again. Other readers see rows twice until the old files are deleted. Rows are not changed, and
duplicates are kept; damaged files stay where they are.

Others may be able to write to the journal's directory. So the names in a footer must be plain
names, symbolic links are not followed, no existing file is truncated, and only files that were
listed are read: see `Folder`.
"""

import argparse
import errno
import json
import os
import re
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from io import FileIO
from operator import and_
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS, RUNS
from purgatory.pipeline._files import (
    COMPACTED,
    REPLACES,
    UNREADABLE,
    Part,
    Vanished,
    batches_of_parts,
    is_compacted,
    is_visible,
    replaced_names,
)
from purgatory.pipeline._programs import shown
from purgatory.pipeline._rows import nullable, read, unreadable

Files = dict[str, os.stat_result]
"""Files of a folder, by their names in it."""

DAY: Final = 86_400
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY}
MAX_FILE_BYTES: Final = 128 * 1024 * 1024
"""Approximate size of the small files that are merged into one."""
MAX_ROWS_IN_MEMORY: Final = 500_000
"""Approximate number of rows in memory at a time, and in a row group."""
READ_BYTES: Final = 2 * 1024 * 1024
"""Approximate number of bytes that are read at a time."""
LOCK: Final = ".compacting"
DAMAGED: Final = 3
"""Exit status if there are damaged files."""


@dataclass(slots=True)
class CompactionResult:
    """Counts of a folder's files."""

    compacted: int = 0
    """Files that were merged into others."""
    made: int = 0
    """Files that others were merged into."""
    deleted: int = 0
    """Files that were too old to keep."""
    damaged: dict[str, str] = field(default_factory=dict)
    """The reason for each file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is held open: a link that takes its place meanwhile is not followed."""

    path: Path
    descriptor: int

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Opens a regular file, and refuses links.

        Raises:
            OSError: it is a link, a pipe, or anything else.
        """
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, mode, dir_fd=self.descriptor)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
        raise OSError(
            "cannot compact: expected a regular file, got something else: "
            f"{str(self.path / name)!r}"
        )

    def read(self, name: str, about: os.stat_result) -> pa.NativeFile:
        """Opens the file that `files` has listed, to read it.

        Args:
            name: its name in the folder.
            about: its status when it was listed.

        Raises:
            Vanished: it is gone, or was replaced or changed since.
        """
        try:
            descriptor = self.open(name, os.O_RDONLY)
        except OSError as error:
            raise Vanished(name) from error
        file = FileIO(descriptor)
        if _identity(os.fstat(descriptor)) != _identity(about):
            file.close()
            raise Vanished(name)
        return pa.PythonFile(file, mode="r")

    def files(self) -> Files:
        """The regular files, by name. Links are not followed."""
        found = {}
        with os.scandir(self.descriptor) as entries:
            for each in sorted(entries, key=lambda entry: entry.name):
                with suppress(FileNotFoundError):
                    if each.is_file(follow_symlinks=False):
                        found[each.name] = each.stat(follow_symlinks=False)
        return found

    def delete(self, names: Iterable[str]) -> int:
        """Deletes files, and returns how many were there."""
        count = 0
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.descriptor)
                count += 1
        return count

    def rename(self, name: str, to: str) -> None:
        """Renames a file. The new name is on the disk when this returns."""
        os.rename(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        os.fsync(self.descriptor)


def _identity(about: os.stat_result) -> tuple[int, ...]:
    """Distinguishes a file from others, and from itself after a change."""
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


@contextmanager
def _opened(path: Path, journal: Folder | None = None) -> Iterator[Folder]:
    """Opens a folder; one of a journal must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if journal is None:
        descriptor = os.open(path, flags)
    else:
        descriptor = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=journal.descriptor)
    try:
        yield Folder(path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opened_inside(journal: Folder, name: str) -> Iterator[Folder | None]:
    """A folder of a journal; None if it is not there."""
    path = journal.path / name
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(_opened(path, journal))
        except FileNotFoundError:
            folder = None
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise OSError(
                f"cannot compact: expected a folder, got something else: {str(path)!r}"
            ) from None
        yield folder


def compact(
    journal: str, older_than: float, keep: float | None = None, now: float | None = None
) -> dict[str, CompactionResult]:
    """Compacts a journal.

    It deletes and writes regular files in the journal's own folders, and follows no symbolic link
    there. A compacted file has the permissions that all files that it replaces have.

    Args:
        journal: its directory.
        older_than: age above which files are merged, in seconds.
        keep: age above which files are deleted, in seconds; None keeps all.
        now: the time, in seconds since 1970; for tests.

    Returns:
        The results, by folder.

    Raises:
        OSError: the directory cannot be read or written, a folder of it is a symbolic link, or
            another compaction of it is running.
    """
    now = time.time() if now is None else now
    results = {}
    with _exclusively(Path(journal)) as opened:
        for name in FOLDERS:
            with _opened_inside(opened, name) as folder:
                if folder is not None:
                    results[name] = _compact_folder(folder, name, older_than, keep, now)
        with _opened_inside(opened, RUNS) as runs:
            if keep is not None and runs is not None:
                runs.delete(_older_than(keep, runs.files(), now))
    return results


@contextmanager
def _exclusively(journal: Path) -> Iterator[Folder]:
    """Opens the journal, and locks it against other compactions during the block."""
    import fcntl  # noqa: PLC0415  (Windows, on which the other programs run, has none)

    with _opened(journal) as folder:
        lock = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(
                    f"cannot compact {str(journal)!r}: another compaction of it is running"
                ) from None
            yield folder
        finally:
            os.close(lock)


def _compact_folder(
    folder: Folder, kind: str, older_than: float, keep: float | None, now: float
) -> CompactionResult:
    result = CompactionResult()
    _finish_interrupted(folder, result)
    if keep is not None:
        result.deleted = folder.delete(_older_than(keep, _readable(folder), now))
    files = _readable(folder)
    old = {
        name: files[name]
        for name in _older_than(older_than, files, now)
        if str(folder.path / name) not in result.damaged
    }
    for group in _groups(old):
        _compact_group(folder, group, kind, result)
    return result


def _finish_interrupted(folder: Folder, result: CompactionResult) -> None:
    """Finishes a compaction that was killed."""
    files = folder.files()
    folder.delete(
        name for name in files if name.startswith(f".{COMPACTED}") and name.endswith(".partial")
    )
    for name, about in _readable(folder).items():
        if not is_compacted(name):
            continue
        file = str(folder.path / name)
        try:
            with folder.read(name, about) as source:
                replaced = replaced_names(source)
        except Vanished:
            continue
        except UNREADABLE as error:
            result.damaged[file] = str(unreadable(error))
        else:
            folder.delete(each for each in replaced if each in files)


def _readable(folder: Folder) -> Files:
    """The files that readers of the journal see."""
    return {name: about for name, about in folder.files().items() if is_visible(name)}


def _older_than(age: float, files: Files, now: float) -> list[str]:
    return [name for name, about in files.items() if now - about.st_mtime > age]


def _groups(files: Files) -> Iterator[Files]:
    """The files that are merged into one: of one day, so that they expire together."""
    days: dict[int, Files] = defaultdict(dict)
    for name, about in files.items():
        days[int(about.st_mtime // DAY)][name] = about
    for of_day in days.values():
        group: Files = {}
        filled = 0
        for name, about in of_day.items():
            if group and filled + about.st_size > MAX_FILE_BYTES:
                yield group
                group, filled = {}, 0
            group[name] = about
            filled += about.st_size
        yield group


def _compact_group(folder: Folder, group: Files, kind: str, result: CompactionResult) -> None:
    if len(group) < 2:
        return
    target = f"{COMPACTED}{sha256(chr(0).join(group).encode()).hexdigest()[:16]}.parquet"
    partial = f".{target}.partial"
    folder.delete([partial])  # a link; `_finish_interrupted` has deleted files
    descriptor = folder.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with open(descriptor, "wb") as file:  # noqa: PTH123  (it has no path)
        replaced = _write(folder, group, kind, file, result)
        if len(replaced) > 1:
            os.fchmod(file.fileno(), _common_mode([group[name] for name in replaced], descriptor))
            latest = max(group[name].st_mtime for name in replaced)
            os.utime(file.fileno(), (latest, latest))
            os.fsync(file.fileno())
    if len(replaced) < 2:
        folder.delete([partial])
        return
    folder.rename(partial, target)
    folder.delete(replaced)
    result.made += 1
    result.compacted += len(replaced)


def _common_mode(sources: list[os.stat_result], target: int) -> int:
    """The permissions that all sources have. Group permissions count only if all have one group."""
    mode = reduce(and_, (about.st_mode for about in sources), 0o666)
    is_one_group = {about.st_gid for about in sources} == {os.fstat(target).st_gid}
    return mode if is_one_group else mode & ~0o060


def _write(
    folder: Folder, group: Files, kind: str, file: BinaryIO, result: CompactionResult
) -> list[str]:
    """Writes the rows of files into one, and returns the names of the undamaged files."""
    replaced = []
    schema = nullable(FOLDERS[kind])
    sizes = {str(folder.path / name): about.st_size for name, about in group.items()}

    def source_of(part: Part) -> pa.NativeFile:
        name = Path(part.file).name
        return folder.read(name, group[name])

    with pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
        buffered: list[pa.Table] = []
        for some in batches_of_parts(sizes, {}, READ_BYTES):
            rows = read(some, kind, source_of)
            result.damaged |= rows.damaged
            replaced += [Path(each).name for each in rows.files]
            buffered.append(rows.table)
            if sum(table.num_rows for table in buffered) >= MAX_ROWS_IN_MEMORY:
                writer.write_table(_concatenated(buffered, schema))
                buffered = []
        if buffered:
            writer.write_table(_concatenated(buffered, schema))
        writer.add_key_value_metadata({REPLACES.decode(): json.dumps(replaced)})
    file.flush()
    return replaced


def _concatenated(rows: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(rows).cast(schema).combine_chunks()


def duration(text: str) -> float:
    """Parses a duration such as ``90s``, ``1h`` or ``30d``, to seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"expected a duration such as 90s, 15m, 1h or 30d, got {text!r}"
        )
    return float(found[1]) * UNITS[found[2]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="the directory of a journal")
    parser.add_argument(
        "--older-than",
        type=duration,
        default=duration("1h"),
        metavar="AGE",
        help="leave younger files alone (default: 1h)",
    )
    parser.add_argument(
        "--keep",
        type=duration,
        metavar="AGE",
        help="delete files whose rows are all older, such as 30d",
    )
    parser.epilog = (
        f"The exit status is {DAMAGED} if there are damaged files, which stay as they are."
    )


def run(options: argparse.Namespace) -> int:
    """Compacts a journal, and prints the counts."""
    if not Path(options.journal, "operations").is_dir():
        message = f"cannot compact {options.journal!r}: it has no folder 'operations'"
        print(shown(message), file=sys.stderr)
        return 1
    found = compact(options.journal, options.older_than, options.keep)
    for folder, done in found.items():
        deleted = f"; {done.deleted:,} were too old and are deleted" if done.deleted else ""
        merged = f"merged files: {done.compacted:,} became {done.made:,}"
        if not done.compacted:
            merged = f"no files to merge that are older than {options.older_than:,.0f} s"
        print(f"{folder}: {merged}{deleted}")
        for file, reason in done.damaged.items():
            print(shown(f"left alone: {file}: {reason}"))
    return DAMAGED if any(done.damaged for done in found.values()) else 0
