"""``python -m purgatory.pipeline compact``: merges a journal's many small files into few large ones.

Eight workers that finish a file every ten seconds write 69,000 files a day. The files of a day that
are old enough become one:

    .compacted-2026-11-25-1f3a.parquet    written and synced; hidden from readers
    compacted-2026-11-25-1f3a.parquet     renamed; then the files that it has the rows of are deleted

A kill between the two leaves rows twice, which a report counts as duplicates. Nothing is lost:
files are deleted when their rows are on the disk under a name that readers see. A report that finds
a file gone starts again. Damaged files stay where they are.
"""

import argparse
import os
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import Vanished
from purgatory.pipeline._programs import shown
from purgatory.pipeline._rows import SCHEMAS, batches
from purgatory.pipeline._snapshot import COMPACTED

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_FILE_BYTES: Final = 128 * 1024 * 1024
"""Approximate size of the small files that are merged into one."""
DAMAGED: Final = 3
"""Exit status if there are damaged files."""


def compact(folder: Path, kind: str, older_than: float) -> tuple[int, int, dict[str, str]]:
    """Merges the files of a folder.

    Args:
        folder: folder of a journal.
        kind: ``operations`` or ``checks``.
        older_than: the age from which files are merged, in seconds.

    Returns:
        The number of files that were merged, and of files that they became; and the reason for each
        file that cannot be read.
    """
    merged, made, damaged = 0, 0, dict[str, str]()
    for partial in folder.glob(f".{COMPACTED}*"):
        if partial.stat().st_ctime < time.time() - UNITS["d"]:
            partial.unlink()  # of a compaction that was killed
    for day, group in _groups(folder, time.time() - older_than):
        name = f"{COMPACTED}{day}-{sha256(''.join(group).encode()).hexdigest()[:8]}.parquet"
        partial, files = folder / f".{name}", group
        try:
            while len(files) > 1 and (bad := _write(partial, kind, files)):
                damaged |= bad
                files = {file: size for file, size in files.items() if file not in bad}
        except Vanished:
            files = {}  # another compaction merges them
        if len(files) < 2:
            partial.unlink(missing_ok=True)
        else:
            shutil.copystat(max(files, key=os.path.getmtime), partial)
            partial.rename(folder / name)
            _sync(folder)
            for file in files:
                Path(file).unlink(missing_ok=True)
            merged, made = merged + len(files), made + 1
    return merged, made, damaged


def _write(target: Path, kind: str, files: dict[str, int]) -> dict[str, str]:
    """Writes the rows of files into one, and returns the reason for each file that cannot be
    read."""
    schema, damaged = SCHEMAS[kind], dict[str, str]()
    with pq.ParquetWriter(target, schema, write_page_checksum=True) as writer:
        for rows in batches(files, kind, damaged):
            writer.write_table(rows.select(schema.names))
    _sync(target)
    return damaged


def _groups(folder: Path, until: float) -> Iterator[tuple[str, dict[str, int]]]:
    """The files that are merged into one, with their sizes: of one day, so that they are old on the
    same day."""
    days: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(folder.glob("[!._]*.parquet")):
        about = path.stat()
        if about.st_mtime < until and about.st_size <= MAX_FILE_BYTES:
            day = f"{datetime.fromtimestamp(about.st_mtime, UTC):%Y-%m-%d}"
            days[day][str(path)] = about.st_size
    for day, sizes in days.items():
        group, filled = dict[str, int](), 0
        for file, size in sizes.items():
            if filled + size > MAX_FILE_BYTES:
                yield day, group
                group, filled = {}, 0
            group[file] = size
            filled += size
        yield day, group


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    age, text = duration("1h"), "leave younger files alone (default: 1h)"
    parser.add_argument("--older-than", type=duration, default=age, metavar="AGE", help=text)
    parser.epilog = (
        f"The exit status is {DAMAGED} if there are damaged files, which stay as they are."
    )


def run(options: argparse.Namespace) -> int:
    """Compacts a journal, and prints the counts."""
    journal = Path(options.journal)
    if not (journal / "operations").is_dir():
        message = f"cannot compact {options.journal!r}: it has no folder 'operations'"
        print(shown(message), file=sys.stderr)
        return 1
    unreadable: dict[str, str] = {}
    for kind in FOLDERS:
        merged, made, damaged = compact(journal / kind, kind, options.older_than)
        print(f"{kind}: merged files: {merged:,} became {made:,}")
        for file, reason in damaged.items():
            print(shown(f"left alone: {file}: {reason}"))
        unreadable |= damaged
    return DAMAGED if unreadable else 0
