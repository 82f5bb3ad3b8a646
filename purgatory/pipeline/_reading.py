"""Reads journals while they are written and compacted: each row once, each file whole or not at
all."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from purgatory.journal import FOLDERS
from purgatory.pipeline._files import (
    Listing,
    Storage,
    Vanished,
    is_compacted,
    list_files,
    run_counters,
)
from purgatory.pipeline._programs import NoJournal, without_secrets

ATTEMPTS: Final = 5
"""The attempts at reading a journal while it is compacted."""
FILES: Final = pa.schema(
    [
        ("folder", pa.string()),
        ("file", pa.string()),
        ("state", pa.string()),
        ("reason", pa.string()),
    ]
)
READ: Final = "files"
REPLACED: Final = "files compacted"
UNREADABLE: Final = "files unreadable"
PASSED_OVER: Final = "files passed over"
"""The states of files, as the table ``reconciliation`` names them."""
NOT_PARQUET: Final = "its name does not end with .parquet or .pq"
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
            row["file"]: row["reason"]
            for row in self.files.to_pylist()
            if row["state"] == UNREADABLE
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of journals, listed once."""

    journals: list[str]
    listings: dict[str, dict[str, Listing]]
    """The files of each journal, by folder."""

    @classmethod
    def of(cls, storage: Callable[[str], Storage], journals: Sequence[str]) -> "Snapshot":
        """Lists the files of journals.

        Args:
            storage: the file system of a path or a URI.
            journals: paths or URIs, as `distinct` returns them.

        Raises:
            NoJournal: a journal has no folder ``operations``.
        """
        found = cls._listed(storage, journals)
        # A compaction may delete a file before it is listed, and write the file that replaces it
        # after that.
        while (again := cls._listed(storage, journals)).compacted() - found.compacted():
            found = again
        return found

    @classmethod
    def _listed(cls, storage: Callable[[str], Storage], journals: Sequence[str]) -> "Snapshot":
        return cls(
            [*journals],
            {
                folder: {
                    name: Listing(*list_files(storage(name), name, folder)) for name in journals
                }
                for folder in FOLDERS
            },
        )

    def sizes(self, folder: str) -> dict[str, int]:
        """The sizes of the files of a folder of all journals."""
        found = self.listings[folder].values()
        return {file: size for listing in found for file, size in listing.sizes.items()}

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(sum(self.sizes(folder).values()) for folder in self.listings)

    def compacted(self) -> set[str]:
        """The files that replace others."""
        return {
            file for folder in self.listings for file in self.sizes(folder) if is_compacted(file)
        }

    def without_replaced(self, source: Source) -> "Snapshot":
        """The files that no other one replaces."""
        replaced = source.replaced_by(sorted(self.compacted()))
        return Snapshot(
            self.journals,
            {
                folder: {name: _without(listing, replaced) for name, listing in listings.items()}
                for folder, listings in self.listings.items()
            },
        )


def _without(listing: Listing, replaced: set[str]) -> Listing:
    sizes = {file: size for file, size in listing.sizes.items() if file not in replaced}
    return Listing(sizes, listing.others, frozenset(listing.sizes.keys() & replaced))


def read_journals(source: Source, journals: Sequence[str]) -> Account:
    """Reads all rows of journals, each row once, even while they are compacted.

    Raises:
        NoJournal: a journal has no folder ``operations``, or is compacted all the time.
    """
    for _ in range(ATTEMPTS):
        with suppress(Vanished):
            return read_snapshot(source, Snapshot.of(source.storage, journals))
    raise is_compacted_all_the_time(journals)


def is_compacted_all_the_time(journals: Sequence[str]) -> NoJournal:
    """The error after `ATTEMPTS`."""
    return NoJournal(
        f"cannot read {', '.join(journals)}: it was compacted while it was read, {ATTEMPTS} times"
    )


def read_snapshot(source: Source, snapshot: Snapshot) -> Account:
    """Reads all rows of the files that were listed.

    Raises:
        Vanished: a file was deleted meanwhile.
    """
    lines: list[tuple[str, str, str, str | None]] = []
    for folder, listings in snapshot.without_replaced(source).listings.items():
        damaged = source.read(folder, listings)
        for listing in listings.values():
            for file in listing.sizes:
                state = UNREADABLE if file in damaged else READ
                lines.append((folder, file, state, damaged.get(file)))
            lines += [(folder, file, REPLACED, None) for file in sorted(listing.replaced)]
            lines += [(folder, file, PASSED_OVER, NOT_PARQUET) for file in listing.others]
    columns = [*zip(*lines, strict=True)] or [()] * len(FILES)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, FILES.types, strict=True)]
    arrays[1] = pa.array([without_secrets(file) for file in arrays[1].to_pylist()], pa.string())
    return Account(pa.Table.from_arrays(arrays, schema=FILES), _tallies(source, snapshot.journals))


def _tallies(source: Source, journals: Sequence[str]) -> pa.Table:
    counted: dict[str, int] = {}
    for name in journals:
        for run, ended in run_counters(source.storage(name), name).items():
            counted[run] = max(ended, counted.get(run, 0))
    return pa.table({"run_id": [*counted], "ended": [*counted.values()]}, TALLIES)
