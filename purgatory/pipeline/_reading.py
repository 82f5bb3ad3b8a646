"""Reads journals while they are written and compacted: each row once, each file whole or not at
all."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from purgatory.journal import FOLDERS
from purgatory.pipeline._errors import NoJournal
from purgatory.pipeline._files import (
    Listing,
    Storage,
    Vanished,
    is_compacted,
    list_files,
    run_counters,
)
from purgatory.pipeline._shown import without_secrets

ATTEMPTS: Final = 5
"""The attempts at reading a journal while it is compacted."""
FILES: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("file", pa.string()),
        ("damage", pa.string()),
        ("is_replaced", pa.bool_()),
    ]
)
TALLIES: Final = pa.schema([("run_id", pa.string()), ("ended", pa.int64())])


class Source(Protocol):
    """Reads the files of journals."""

    def storage(self, path: str) -> Storage:
        """The file system of a path or a URI.

        Raises:
            OSError: this source cannot reach it.
        """
        ...

    def replaced_by(self, files: list[str]) -> set[str]:
        """The files that were compacted into `files`, by the full names of both."""
        ...

    def read(self, folder: str, listings: dict[str, Listing]) -> dict[str, str]:
        """Reads the rows of a folder of journals. Each row has its `file`.

        Args:
            folder: ``operations`` or ``checks``.
            listings: the files of each journal.

        Returns:
            The reason for each file that cannot be read. None of its rows counts.

        Raises:
            Vanished: a file was deleted meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """The files of journals, and how many operations have ended in runs that still run or were
    killed."""

    files: pa.Table
    """A row for each file, with the columns of `FILES`."""
    tallies: pa.Table
    """A row for each run, with the columns of `TALLIES`."""

    @property
    def damaged(self) -> dict[str, str]:
        """The reason for each file that cannot be read."""
        return {
            row["file"]: row["damage"]
            for row in self.files.to_pylist()
            if row["damage"] is not None
        }


def read_journals(
    source: Source, journals: Sequence[str], folders: Sequence[str] = tuple(FOLDERS)
) -> Account:
    """Reads all rows of some folders of journals, each row once, even while they are compacted.

    Raises:
        NoJournal: a journal has no folder ``operations``, or is compacted all the time.
    """
    for _ in range(ATTEMPTS):
        with suppress(Vanished):
            return _read(source, journals, folders)
    raise is_compacted_all_the_time(journals)


def is_compacted_all_the_time(journals: Sequence[str]) -> NoJournal:
    """The error after `ATTEMPTS`."""
    return NoJournal(
        f"cannot read {', '.join(journals)}: it was compacted while it was read, {ATTEMPTS} times"
    )


def _read(source: Source, journals: Sequence[str], folders: Sequence[str]) -> Account:
    found = {
        folder: {name: _listing(source, name, folder) for name in journals} for folder in folders
    }
    damaged = {folder: source.read(folder, listings) for folder, listings in found.items()}
    # A compaction may delete a file before it is listed, and write the file that replaces it after
    # that folder was listed.
    for folder, listings in found.items():
        for name, listing in listings.items():
            now = list_files(source.storage(name), name, folder)
            if not set(filter(is_compacted, now)) <= listing.sizes.keys():
                raise Vanished(folder)
    lines = [
        {
            "folder": folder,
            "file": without_secrets(file),
            "damage": damaged[folder].get(file),
            "is_replaced": file in listing.replaced,
        }
        for folder, listings in found.items()
        for listing in listings.values()
        for file in (*listing.sizes, *listing.replaced)
    ]
    return Account(pa.Table.from_pylist(lines, FILES), _tallies(source, journals))


def _listing(source: Source, journal: str, folder: str) -> Listing:
    sizes = list_files(source.storage(journal), journal, folder)
    replaced = source.replaced_by([file for file in sizes if is_compacted(file)]) & sizes.keys()
    return Listing(
        {file: size for file, size in sizes.items() if file not in replaced}, frozenset(replaced)
    )


def _tallies(source: Source, journals: Sequence[str]) -> pa.Table:
    counted: dict[str, int] = {}
    for name in journals:
        for run, ended in run_counters(source.storage(name), name).items():
            counted[run] = max(ended, counted.get(run, 0))
    return pa.table({"run_id": [*counted], "ended": [*counted.values()]}, TALLIES)
