"""``python -m purgatory.pipeline compact``: merges a journal's many small files into few large ones, and deletes old ones.

Eight workers that finish a file every ten seconds leave 69,000 a day. The files of a day that are old enough become one. Its
footer names the files that it replaces, so renaming it replaces all of them atomically:

    .compacted-1f3a.parquet.partial     written and synced: nobody reads it
    compacted-1f3a.parquet              renamed: from now on reports ignore the files that it names
                                        ... which are deleted, now or, after a kill, by the next compaction

Killed at any moment, it has neither lost nor duplicated a row. Writers do not conflict with it, as they only add files. A
report that finds a file gone, or a new one that replaces others, starts reading again. Other readers see rows twice until the
old files are deleted. Rows are not changed, and duplicates are kept; damaged files stay where they are.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import FOLDERS, RUNS
from purgatory.pipeline._files import COMPACTED, REPLACES, batches_of_parts, replaced_by
from purgatory.pipeline._rows import nullable, read

DAY: Final = 86_400
UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": DAY}
MAX_FILE_BYTES: Final = 128 * 1024 * 1024
"""About how much of the small files goes into one large file."""
MAX_ROWS_IN_MEMORY: Final = 500_000
"""About how many rows are in memory at a time, and in a row group."""
READ_BYTES: Final = 2 * 1024 * 1024
"""About how much is read at a time."""
LOCK: Final = ".compacting"
DAMAGED: Final = 3
"""The exit status if damaged files were found."""


@dataclass(slots=True)
class CompactionResult:
    """What was done in a folder."""

    compacted: int = 0
    """Files that were merged into others."""
    made: int = 0
    deleted: int = 0
    """Files that were too old to keep."""
    damaged: dict[str, str] = field(default_factory=dict)


def compact(
    journal: str, older_than: float, keep: float | None = None, now: float | None = None
) -> dict[str, CompactionResult]:
    """Compacts a journal.

    Args:
        journal: its directory.
        older_than: how old files have to be, in seconds. Younger ones are left alone.
        keep: how old they may get, in seconds; `None` for any age.
        now: in seconds since 1970, for tests.

    Returns:
        What was done, by folder.

    Raises:
        OSError: the directory cannot be read or written, or another compaction of it is going on.
    """
    now = time.time() if now is None else now
    done = {}
    with _exclusively(Path(journal)):
        for folder in FOLDERS:
            directory = Path(journal, folder)
            if not directory.is_dir():
                continue
            done[folder] = CompactionResult()
            _finish_interrupted(directory)
            if keep is not None:
                done[folder].deleted = _delete([path for path, age in _ages(directory, now) if age > keep])
            old = [path for path, age in _ages(directory, now) if age > older_than]
            for group in _groups(old):
                _compact(group, folder, done[folder])
        runs = Path(journal, RUNS)
        if keep is not None and runs.is_dir():
            _delete(path for path in runs.iterdir() if now - path.stat().st_mtime > keep)
    return done


@contextmanager
def _exclusively(journal: Path) -> Iterator[None]:
    """Locks the journal against other compactions during the block."""
    import fcntl  # noqa: PLC0415  (Windows, on which the other programs run, has none)

    with (journal / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"cannot compact {str(journal)!r}: another compaction of it is going on") from None
        yield


def _finish_interrupted(directory: Path) -> None:
    """Finishes a compaction that was killed."""
    _delete(directory.glob(f".{COMPACTED}*.partial"))
    for path in directory.glob(f"{COMPACTED}*.parquet"):
        _delete(map(Path, replaced_by(str(path))))


def _ages(directory: Path, now: float) -> list[tuple[Path, float]]:
    """The files, sorted by name, and the seconds since their last row was written."""
    paths = sorted(path for path in directory.glob("*.parquet") if not path.name.startswith((".", "_")))
    return [(path, now - path.stat().st_mtime) for path in paths]


def _groups(paths: list[Path]) -> Iterator[list[Path]]:
    """The files that are merged into one: of one day, so that they expire together."""
    days: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        days[int(path.stat().st_mtime // DAY)].append(path)
    for of_day in days.values():
        group: list[Path] = []
        filled = 0
        for path in of_day:
            size = path.stat().st_size
            if group and filled + size > MAX_FILE_BYTES:
                yield group
                group, filled = [], 0
            group.append(path)
            filled += size
        yield group


def _compact(group: list[Path], folder: str, done: CompactionResult) -> None:
    if len(group) < 2:
        return
    name = COMPACTED + sha256("\0".join(path.name for path in group).encode()).hexdigest()[:16] + ".parquet"
    target = group[0].with_name(name)
    partial = group[0].with_name(f".{name}.partial")
    replaced = _write(group, folder, partial, done)
    if len(replaced) < 2:
        partial.unlink()
        return
    latest = max(path.stat().st_mtime for path in replaced)
    os.utime(partial, (latest, latest))
    partial.rename(target)
    _sync(target.parent)
    _delete(replaced)
    done.made += 1
    done.compacted += len(replaced)


def _write(group: list[Path], folder: str, target: Path, done: CompactionResult) -> list[Path]:
    """Writes the rows of files into one, and returns those files: all that are not damaged."""
    replaced = []
    schema = nullable(FOLDERS[folder])
    with target.open("wb") as file:
        with pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            buffered: list[pa.Table] = []
            for some in batches_of_parts({str(path): path.stat().st_size for path in group}, {}, READ_BYTES):
                rows = read(some, folder)
                done.damaged |= rows.damaged
                replaced += [Path(file) for file in rows.files]
                buffered.append(rows.table)
                if sum(table.num_rows for table in buffered) >= MAX_ROWS_IN_MEMORY:
                    writer.write_table(_concatenated(buffered, schema))
                    buffered = []
            if buffered:
                writer.write_table(_concatenated(buffered, schema))
            writer.add_key_value_metadata({REPLACES.decode(): json.dumps([path.name for path in replaced])})
        file.flush()
        os.fsync(file.fileno())
    return replaced


def _concatenated(rows: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(rows).cast(schema).combine_chunks()


def _delete(paths: Iterable[Path]) -> int:
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()
            count += 1
    return count


def _sync(folder: Path) -> None:
    """Writes the new name to the disk before the files that it replaces are deleted."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def duration(text: str) -> float:
    """The seconds of a duration such as ``90s``, ``1h`` or ``30d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90s, 15m, 1h or 30d")
    return float(found[1]) * UNITS[found[2]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="the directory of a journal")
    parser.add_argument(
        "--older-than", type=duration, default=duration("1h"), metavar="AGE", help="leave younger files alone (default: 1h)"
    )
    parser.add_argument("--keep", type=duration, metavar="AGE", help="delete files whose rows are all older, such as 30d")
    parser.epilog = f"The exit status is {DAMAGED} if there are damaged files, which stay as they are."


def run(options: argparse.Namespace) -> int:
    """Compacts, and prints what was done."""
    if not Path(options.journal, "operations").is_dir():
        print(f"cannot compact {options.journal!r}: it has no folder 'operations'", file=sys.stderr)
        return 1
    found = compact(options.journal, options.older_than, options.keep)
    for folder, done in found.items():
        deleted = f"; {done.deleted:,} were too old and are deleted" if done.deleted else ""
        print(f"{folder}: {done.compacted:,} files became {done.made:,}{deleted}")
        for file, reason in done.damaged.items():
            print(f"left alone: {file}: {reason}")
    return DAMAGED if any(done.damaged for done in found.values()) else 0
