"""The files of journals, listed once; and the account of them."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from purgatory.journal import FOLDERS, RUNS
from purgatory.journal._schema import INSTANT
from purgatory.pipeline._files import Storage, Vanished, in_folders, within
from purgatory.pipeline._programs import NoJournal, without_secrets

PARQUET: Final = (".parquet", ".pq")
"""The endings of the names of files that are read."""
COMPACTED: Final = "compacted-"
"""The prefix of the names of files that `compact` makes."""
RUN_COUNTER: Final = re.compile(rb"([0-9]{1,20})\n?")
"""The content of a file in the folder ``runs``."""
MAX_RUN_COUNTER: Final = 22
"""The bytes that are read of such a file: one more than the longest has."""
ATTEMPTS: Final = 5
"""The attempts at reading journals while they are compacted."""
FILES: Final = pa.schema([(name, pa.string()) for name in ("folder", "file", "state", "reason")])
READ: Final = "files"
UNREADABLE: Final = "files unreadable"
PASSED_OVER: Final = "files passed over"
"""The states of files, as the table ``reconciliation`` names them."""
NOT_PARQUET: Final = "its name does not end with .parquet or .pq"
TALLIES: Final = pa.schema([("run_id", pa.string()), ("ended", pa.int64())])
T = TypeVar("T")
StorageOf = Callable[[str], Storage]
"""The file system of a path or a URI."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of journals."""

    journals: list[str]
    sizes: dict[str, dict[str, int]]
    """The sizes of Parquet files in bytes, by folder and full name; 0 where it is not known."""
    others: dict[str, list[str]]
    """The full names of other files, by folder."""
    ended: dict[str, int]
    """The number of operations that have ended, for each run that is in progress, was killed, or
    could not write all of its rows."""

    @classmethod
    def of(cls, storage: StorageOf, journals: Sequence[str]) -> "Snapshot":
        """Lists the files of journals.

        Args:
            storage: the file system of a path or a URI.
            journals: paths or URIs, as `distinct` returns them.

        Raises:
            NoJournal: a journal has no folder ``operations``.
        """
        found = cls._listed(storage, journals)
        # A compaction may delete a file before it is listed, and write the file that has its rows
        # after that.
        while (again := cls._listed(storage, journals)).compacted() - found.compacted():
            found = again
        return found

    @classmethod
    def _listed(cls, storage: StorageOf, journals: Sequence[str]) -> "Snapshot":
        ended: dict[str, int] = {}
        for journal in journals:
            for run, count in _run_counters(storage(journal), journal).items():
                ended[run] = max(count, ended.get(run, 0))
        sizes: dict[str, dict[str, int]] = {folder: {} for folder in FOLDERS}
        others: dict[str, list[str]] = {folder: [] for folder in FOLDERS}
        for folder in FOLDERS:
            for journal in journals:
                found = storage(journal).sizes(f"{journal}/{folder}")
                if found is None and folder == "operations":
                    raise NoJournal(
                        f"cannot read {journal!r} as a journal: it has no folder 'operations'"
                    )
                _require_folders(journal, folder, found or {})
                files = dict(sorted(within(f"{journal}/{folder}", found).items()))
                others[folder] += [file for file in files if not file.endswith(PARQUET)]
                sizes[folder] |= {file: files[file] for file in files if file.endswith(PARQUET)}
        return cls([*journals], sizes, others, ended)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(sum(sizes.values()) for sizes in self.sizes.values())

    def compacted(self) -> set[str]:
        """The files that `compact` has made."""
        return {
            file
            for sizes in self.sizes.values()
            for file in sizes
            if file.rpartition("/")[2].startswith(COMPACTED)
        }

    def files(self, damaged: Mapping[str, str]) -> pa.Table:
        """A row for each file, with the columns of `FILES`.

        Args:
            damaged: the reason for each file that cannot be read.
        """
        lines: list[tuple[str, str, str, str | None]] = [
            (folder, file, UNREADABLE if file in damaged else READ, damaged.get(file))
            for folder, sizes in self.sizes.items()
            for file in sizes
        ]
        for folder, files in self.others.items():
            lines += [(folder, file, PASSED_OVER, NOT_PARQUET) for file in files]
        columns = [[line[at] for line in lines] for at in range(len(FILES))]
        columns[1] = list(map(without_secrets, columns[1]))
        return pa.table(columns, FILES)

    def tallies(self) -> pa.Table:
        """A row for each run in `ended`, with the columns of `TALLIES`."""
        return pa.table({"run_id": [*self.ended], "ended": [*self.ended.values()]}, TALLIES)


def _require_folders(journal: str, folder: str, names: Iterable[str]) -> None:
    columns = {column for name in names for column in in_folders(name)}
    if instants := columns & {each.name for each in FOLDERS[folder] if each.type == INSTANT}:
        raise NoJournal(
            f"cannot read {journal!r} as a journal: its folder {folder!r} is partitioned by "
            f"{instants.pop()!r}, and folders tell no instants: partition it by another column"
        )


def _run_counters(storage: Storage, journal: str) -> dict[str, int]:
    counted = {}
    for name in storage.sizes(f"{journal}/{RUNS}") or ():
        try:
            found = RUN_COUNTER.fullmatch(storage.read(f"{journal}/{RUNS}/{name}", MAX_RUN_COUNTER))
        except OSError:
            continue  # the run has just ended
        if found is not None and int(found[1]) < 2**63:  # it is being written, or not ours
            counted[name] = int(found[1])
    return counted


def read_whole(
    storage: StorageOf,
    journals: Sequence[str],
    read: Callable[[Snapshot], T],
    known: Snapshot | None = None,
) -> T:
    """Reads journals, again from a new snapshot if a file vanishes meanwhile.

    Args:
        storage: the file system of a path or a URI.
        journals: paths or URIs.
        read: reads the files of a snapshot. Raises `Vanished` if one of them is gone.
        known: the first snapshot, if there is one.

    Raises:
        NoJournal: a journal has no folder ``operations``, or is compacted all the time.
    """
    for _ in range(ATTEMPTS):
        with suppress(Vanished):
            return read(known or Snapshot.of(storage, journals))
        known = None
    raise NoJournal(
        f"cannot read {', '.join(journals)}: it was compacted while it was read, {ATTEMPTS} times"
    )
