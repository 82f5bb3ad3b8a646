"""The thread that writes records to files.

Every quarter of a second it drains the two queues, in batches so that the loop's thread can run in
between, and makes rows. When the rows are old or large enough they become a file: written under a
hidden name, synced, renamed. So a visible file is complete, and a failed write loses nothing: its
rows are still in memory, and it is retried.

    operations/.abc-000007.parquet.partial  ->  operations/abc-000007.parquet

A file of a writer that was killed stays partial; a day later the next writer removes it. A folder
that was removed is created again with the next file.

If writes keep failing, the rows fill their half of `max_rows`, or `max_bytes`; then the thread
drops the queued rows. It is woken when a thousand records are queued, so that these do not become
many while it sleeps.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory._core.arguments import describe
from purgatory.journal._row_builder import (
    CHECK_FIELDS,
    ENDED_FIELDS,
    RowBuilder,
    aggregate,
    with_part,
)
from purgatory.journal._run_counter import RunCounter
from purgatory.journal._schema import FOLDERS

POLL_INTERVAL: Final = 0.25
RETRY_DELAY: Final = 1.0
MAX_BATCH: Final = 1_000
"""Records that become rows at once, which may hold the loop's thread up for some two
milliseconds."""
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Size of the keys that become rows at once."""
WAKE_RECORDS: Final = MAX_BATCH
"""Number of queued records at which the thread is woken."""
MAX_PLAIN_ROWS: Final = 100
"""Rows up to which a file has no dictionaries and statistics: they would cost more space and time
than they save."""

PARTIAL: Final = re.compile(r"\.[0-9a-f]{32}-[0-9]{6,}\.parquet\.partial")
"""The names of files that are being written."""
STALE_SECONDS: Final = 24 * 3600.0
"""Age at which a partial file is one of a writer that was killed. If not, its writer only repeats
it."""

log: Final = logging.getLogger("purgatory.journal")


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counts of a journal so far, of operations or, by name, of checks."""

    run_id: str
    """Identifies the rows of the run."""
    written: int
    """Operations in complete files."""
    waiting: int
    """Operations in memory."""
    dropped: int
    """Operations that were not recorded: `max_rows` or `max_bytes` were reached, or the journal was
    closed."""
    dropped_checks: int
    """Checks that were not recorded, for the same reasons."""
    lost: int
    """Operations that were recorded and not written: the disk failed until the journal was closed,
    or they could not be converted to rows."""
    lost_checks: int
    """Checks that were recorded and not written, for the same reasons."""
    files: int
    """Files that were written."""
    bytes: int
    """Size of these files."""
    failure: str | None
    """The error of the last attempt to write a file; None if it succeeded."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of files and of memory: see `Journal`."""

    file_seconds: float
    file_bytes: int
    max_rows: int
    max_bytes: int

    def __post_init__(self) -> None:
        if not self.file_seconds > 0:
            raise ValueError(f"file_seconds must be positive, got {self.file_seconds!r}")
        if not self.file_bytes >= 1:  # so that NaN is refused, too
            raise ValueError(f"file_bytes must be at least 1, got {self.file_bytes!r}")
        if not 8 * MAX_BATCH <= self.max_rows < inf:
            raise ValueError(
                f"max_rows must be at least {8 * MAX_BATCH} and finite, got {self.max_rows!r}"
            )
        if not self.max_bytes >= 1:
            raise ValueError(f"max_bytes must be at least 1, got {self.max_bytes!r}")


class Writer:
    """Owns the queues, the rows and the thread."""

    def __init__(self, directory: Path, rows: RowBuilder, limits: Limits) -> None:
        self.directory = directory
        self.queue_limit = limits.max_rows // 4
        """The capacity of each of the two queues, in records."""
        self.ended: list[Any] = []
        self.checked: list[Any] = []
        self.dropped = 0
        self.dropped_checks = 0
        """Written by the loop's thread; `_discarded_checks` is written by this one."""
        self._discarded = 0
        self._discarded_checks = 0
        self._known_dropped = 0
        """The number of dropped operations at the last poll."""
        self._is_dropping = False
        """Operations are being dropped, and a warning was logged."""
        self._rows = rows
        self._limits = limits
        self._operations: list[pa.Table] = []
        self._checks: list[pa.Table] = []
        self._oldest: float | None = None
        """The time at which the oldest row in memory was made."""
        self._next_id = 0
        """The next operation's id, unless one is dropped before it."""
        self._skipped_ids = 0
        """Ids that were left out so far, for dropped operations."""
        self._written = 0
        self._lost = 0
        self._lost_checks = 0
        self._has_logged_loss = False
        self._files = 0
        self._bytes = 0
        self._failure: str | None = None
        self._retry_at = 0.0
        self._sweep_at = 0.0
        self.wake = threading.Event()
        """Set when there is work, or the thread is to stop."""
        self._is_stopping = False
        self._thread = threading.Thread(
            target=self._run, name=f"journal {rows.run_id}", daemon=True
        )
        for folder in FOLDERS:  # before an event, if that fails
            (directory / folder).mkdir(parents=True, exist_ok=True)
        self._run_counter = RunCounter(directory, rows.run_id)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes everything, and ends the thread. Blocks meanwhile."""
        self._is_stopping = True
        self.wake.set()
        self._thread.join()

    def abandon(self) -> None:
        """Closes the parent's file, in the child of a fork."""
        self._run_counter.close(is_all_written=False)

    def statistics(self) -> JournalStatistics:
        """A snapshot; concurrent changes may be missing in it."""
        return JournalStatistics(
            run_id=self._rows.run_id,
            written=self._written,
            waiting=_rows_in(self._operations) + self._queued(),
            dropped=self._total_dropped,
            dropped_checks=self.dropped_checks + self._discarded_checks,
            lost=self._lost,
            lost_checks=self._lost_checks,
            files=self._files,
            bytes=self._bytes,
            failure=self._failure,
        )

    def drop(self, _: object) -> None:
        """Counts an operation that ended after the journal was closed."""
        if not self._is_dropping:
            self._is_dropping = True
            log.warning(
                "the journal %s is closed, and drops all operations until it is entered again",
                self.directory,
            )
        self.dropped += 1

    def drop_check(self, *_: object) -> None:
        """Counts a check after the journal was closed."""
        self.dropped_checks += 1

    # -- the thread

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self.wake.wait(POLL_INTERVAL)
            self.wake.clear()
            stopping = self._is_stopping
            try:
                self._poll(stopping)
            except Exception as error:  # a bug in here must not end the journal silently
                self._fail(error)
        self._discard_rest()
        self._is_dropping = False
        self._run_counter.close(is_all_written=not self._lost)

    def _queued(self) -> int:
        """The number of queued operations."""
        return len(self.ended) // len(ENDED_FIELDS)

    def _update_counter(self) -> None:
        """Writes the number of operations that have ended, dropped ones included."""
        self._run_counter.update(self._next_id + self.dropped - self._skipped_ids + self._queued())

    @property
    def _total_dropped(self) -> int:
        return self.dropped + self._discarded

    def _warn_of_drops(self) -> None:
        """Logs when records are first dropped."""
        dropped = self._total_dropped
        was_dropping, self._is_dropping = self._is_dropping, dropped > self._known_dropped
        self._known_dropped = dropped
        if self._is_dropping and not was_dropping:
            log.warning(
                "the journal %s drops operations: max_rows (%d) or max_bytes (%d) is reached, since"
                " its files do not keep up",
                self.directory,
                self._limits.max_rows,
                self._limits.max_bytes,
            )

    def _poll(self, stopping: bool) -> None:
        """Drains the queues, and writes the files that are due."""
        self._warn_of_drops()
        self._update_counter()
        while self.ended or self.checked:
            if not self._has_capacity():
                self._write()
            self._take_batch(self._has_capacity())
            self._update_counter()
            time.sleep(0)  # lets the loop's thread run
            if self._is_full() or self._is_old():  # the queues may never be empty
                self._write()
        if stopping or self._is_old():
            self._write()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + STALE_SECONDS
            self._remove_partial_files()

    def _has_capacity(self) -> bool:
        rows = _rows_in(self._operations) + _rows_in(self._checks)
        return (
            rows + 3 * MAX_BATCH <= self._limits.max_rows // 2
            and self._bytes_of_rows() < self._limits.max_bytes
        )

    def _bytes_of_rows(self) -> int:
        return sum(table.nbytes for table in (*self._operations, *self._checks))

    def _take_batch(self, has_capacity: bool) -> None:
        """Makes rows of the next records, or drops them."""
        dropped = self.dropped
        ended = _take(self.ended, ENDED_FIELDS, "keys")
        if ended:
            # Dropped operations leave a gap in the ids, so that readers can count them.
            first, count = (
                self._next_id + dropped - self._skipped_ids,
                len(ended) // len(ENDED_FIELDS),
            )
            self._next_id, self._skipped_ids = first + count, dropped
            if has_capacity:
                tables, lost = self._convert(
                    lambda some, skipped: self._rows.operations(some, first + skipped),
                    ended,
                    len(ENDED_FIELDS),
                )
                self._operations += tables
                self._lost += lost
            else:
                self._discarded += count
        checked = _take(self.checked, CHECK_FIELDS, "key")
        if checked and has_capacity:
            tables, lost = self._convert(
                lambda some, _: self._rows.checks(some), checked, len(CHECK_FIELDS)
            )
            self._checks += tables
            self._lost_checks += lost
        else:
            self._discarded_checks += len(checked) // len(CHECK_FIELDS)
        if self._oldest is None:
            self._oldest = time.monotonic()

    def _convert(
        self, make: Callable[[list[Any], int], pa.Table], records: list[Any], width: int
    ) -> tuple[list[pa.Table], int]:
        """Converts records to rows, and counts the records that cannot be converted. A batch that
        fails is converted in halves, so that a bad record costs itself alone.

        Args:
            make: takes records and the number of records before them; returns their rows.
            width: the number of fields of a record.
        """
        tables, lost, waiting = list[pa.Table](), 0, [(0, len(records))]
        while waiting:
            begin, end = waiting.pop()
            try:
                tables.append(make(records[begin:end], begin // width))
            except Exception as error:
                if end - begin > width:
                    middle = begin + (end - begin) // width // 2 * width
                    waiting += [(middle, end), (begin, middle)]
                    continue
                lost += 1
                if not self._has_logged_loss:
                    self._has_logged_loss = True
                    log.error(
                        "the journal %s loses a record, which cannot be converted to a row: %s."
                        " Logged once; statistics() counts further ones",
                        self.directory,
                        describe(error),
                    )
        return tables, lost

    def _is_full(self) -> bool:
        return self._bytes_of_rows() >= self._limits.file_bytes

    def _is_old(self) -> bool:
        return (
            self._oldest is not None
            and time.monotonic() - self._oldest >= self._limits.file_seconds
        )

    def _write(self) -> None:
        """Writes the rows to files."""
        if time.monotonic() < self._retry_at and not self._is_stopping:
            return
        try:
            self._run_counter.restore()
            if self._operations:
                self._write_file("operations", pa.concat_tables(self._operations))
                self._written += _rows_in(self._operations)
                self._operations = []
            if self._checks:
                self._checks = [aggregate(self._checks)]
                self._write_file("checks", with_part(self._checks[0], self._files))
                self._checks = []
        except OSError as error:
            self._fail(error)
        else:
            self._failure = None
            self._oldest = None

    def _write_file(self, folder: str, rows: pa.Table) -> None:
        """Writes a file, or leaves nothing behind."""
        name = f"{self._rows.run_id}-{self._files:06d}.parquet"
        partial = self.directory / folder / f".{name}.partial"
        partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as file:  # a link would lead elsewhere
                write_parquet(rows, file)
                file.flush()
                os.fsync(file.fileno())
            size = partial.stat().st_size
            partial.rename(self.directory / folder / name)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        self._files += 1
        self._bytes += size

    def _remove_partial_files(self) -> None:
        """Removes files of writers that were killed."""
        oldest = time.time() - STALE_SECONDS
        for folder in FOLDERS:
            with suppress(OSError), os.scandir(self.directory / folder) as entries:
                for each in entries:
                    is_partial = PARTIAL.fullmatch(each.name) is not None
                    if is_partial and each.stat(follow_symlinks=False).st_ctime < oldest:
                        Path(each.path).unlink(missing_ok=True)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            log.warning("cannot write the journal %s, and keep trying: %r", self.directory, error)
        self._failure = repr(error)
        self._retry_at = time.monotonic() + RETRY_DELAY

    def _discard_rest(self) -> None:
        """Counts and logs the rows that could not be written."""
        unwritten = _rows_in(self._operations) + self._queued()
        lost_checks = _rows_in(self._checks) + len(self.checked) // len(CHECK_FIELDS)
        self._lost += unwritten
        self._lost_checks += lost_checks
        self._operations, self._checks = [], []
        self.ended.clear()
        self.checked.clear()
        if unwritten or lost_checks:
            log.error(
                "the journal %s is closed without its last %d operations and %d checks: %s",
                self.directory,
                unwritten,
                lost_checks,
                self._failure,
            )


def _take(queue: list[Any], fields: Sequence[str], sized: str) -> list[Any]:
    """Removes the next records from a queue: up to `MAX_BATCH`, or `MAX_BATCH_BYTES`.

    The loop's thread extends the list meanwhile; each of these statements is atomic.

    Args:
        fields: names of a record's fields.
        sized: the field that counts as the size.
    """
    width = len(fields)
    records = queue[: MAX_BATCH * width]
    filled = count = 0
    for value in records[fields.index(sized) :: width]:
        if count and filled >= MAX_BATCH_BYTES:
            break
        filled += _size_of(value)
        count += 1
    del records[count * width :]
    del queue[: len(records)]
    return records


def _size_of(key: object) -> int:
    """The approximate size of a key, or of a tuple of keys, as text."""
    kind = type(key)
    if kind is str or kind is bytes:
        return len(key)  # type: ignore[arg-type]
    if kind is tuple:
        return sum(map(_size_of, key))  # type: ignore[call-overload]
    return 0


def _rows_in(tables: list[pa.Table]) -> int:
    return sum(map(len, tables))


def write_parquet(rows: pa.Table, file: Any) -> None:
    """Writes a file of a journal, with checksums, so that damage is detected."""
    has_many = rows.num_rows > MAX_PLAIN_ROWS
    pq.write_table(
        rows, file, write_page_checksum=True, use_dictionary=has_many, write_statistics=has_many
    )
