"""The thread that writes records to files.

Every quarter of a second it drains the two queues, in batches so that the loop's thread can run in between, and makes rows.
When the rows are old or large enough they become a file: written under a hidden name, synced, renamed. So a visible file is
complete, and a failed write loses nothing: its rows are still in memory, and it is retried.

    operations/.abc-000007.parquet.partial  ->  operations/abc-000007.parquet

If writes go on failing, the rows fill their half of `max_rows`, then the queues fill theirs, and then records are dropped.
"""

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal._row_builder import CHECK_FIELDS, ENDED_FIELDS, RowBuilder, aggregate, with_part
from purgatory.journal._run_counter import RunCounter
from purgatory.journal._schema import FOLDERS

POLL_INTERVAL: Final = 0.25
RETRY_DELAY: Final = 1.0
MAX_BATCH: Final = 1_000
"""Records that become rows at once: about two milliseconds in which the loop's thread may have to wait."""
MAX_PLAIN_ROWS: Final = 100
"""Files of at most so many rows have no dictionaries and statistics, which would take more space and time than they save."""

log: Final = logging.getLogger("purgatory.journal")


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What has become of the records so far. Counts operations, except `dropped_checks`."""

    run_id: str
    written: int
    """In complete files."""
    waiting: int
    """In memory."""
    dropped: int
    """Not recorded, because `max_rows` were waiting, or the journal was closed."""
    dropped_checks: int
    lost: int
    """Recorded and not written: the disk failed until the journal was closed, or they could not be converted to rows."""
    files: int
    bytes: int
    failure: str | None
    """Why the last attempt to write a file failed; `None` if it did not."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a file is finished, and how much may wait: see `Journal`."""

    file_seconds: float
    file_bytes: int
    max_rows: int

    def __post_init__(self) -> None:
        if not self.file_seconds > 0:
            raise ValueError(f"file_seconds must be positive, not {self.file_seconds!r}")
        if not self.file_bytes >= 1:  # so that NaN is refused, too
            raise ValueError(f"file_bytes must be at least 1, not {self.file_bytes!r}")
        if not 8 * MAX_BATCH <= self.max_rows < inf:
            raise ValueError(f"max_rows must be at least {8 * MAX_BATCH}, and finite, not {self.max_rows!r}")


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
        self._known_dropped = 0
        """How many were dropped at the last look."""
        self._is_dropping = False
        """Whether a warning has said so, and it goes on."""
        self._rows = rows
        self._limits = limits
        self._operations: list[pa.Table] = []
        self._checks: list[pa.Table] = []
        self._oldest: float | None = None
        """When the first row that is not in a file yet was made."""
        self._next_id = 0
        """The id of the next operation, if none is dropped before it."""
        self._skipped_ids = 0
        """How many ids were left out so far, for operations that were dropped."""
        self._written = 0
        self._lost = 0
        self._files = 0
        self._bytes = 0
        self._failure: str | None = None
        self._retry_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"journal {rows.run_id}", daemon=True)
        for folder in FOLDERS:
            (directory / folder).mkdir(parents=True, exist_ok=True)
        self._run_counter = RunCounter(directory, rows.run_id)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes everything, and ends the thread. Blocks until then."""
        self._stopping.set()
        self._thread.join()

    def abandon(self) -> None:
        """Closes the file that is the parent's, in a child of a process that has forked."""
        self._run_counter.close(is_all_written=False)

    def statistics(self) -> JournalStatistics:
        """A snapshot; concurrent changes may be missing in it."""
        return JournalStatistics(
            run_id=self._rows.run_id,
            written=self._written,
            waiting=_rows_in(self._operations) + self._queued(),
            dropped=self.dropped,
            dropped_checks=self.dropped_checks,
            lost=self._lost,
            files=self._files,
            bytes=self._bytes,
            failure=self._failure,
        )

    def record_check(self, *record: Any) -> None:
        """Records a check before the journal knows its purgatory."""
        if len(self.checked) >= self.queue_limit * len(CHECK_FIELDS):
            self.dropped_checks += 1
        else:
            self.checked.extend(record)

    def drop(self, _: object) -> None:
        """Counts an operation that ended after the journal was closed."""
        if not self._is_dropping:
            self._is_dropping = True
            log.warning("the journal %s is closed, and drops what ends from now on, until it is entered again", self.directory)
        self.dropped += 1

    def drop_check(self, *_: object) -> None:
        """Counts a check after that."""
        self.dropped_checks += 1

    # -- the thread

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(POLL_INTERVAL)
            try:
                self._poll(stopping)
            except Exception as error:  # a bug in here must not end the journal silently
                self._fail(error)
        self._discard_rest()
        self._is_dropping = False
        self._run_counter.close(is_all_written=not self._lost)

    def _queued(self) -> int:
        """How many operations wait in the queue."""
        return len(self.ended) // len(ENDED_FIELDS)

    def _update_counter(self) -> None:
        """Writes how many operations have ended so far, including those that were dropped."""
        self._run_counter.update(self._next_id + self.dropped - self._skipped_ids + self._queued())

    def _warn_of_drops(self) -> None:
        """Logs when records begin to be dropped."""
        was_dropping, self._is_dropping = self._is_dropping, self.dropped > self._known_dropped
        self._known_dropped = self.dropped
        if self._is_dropping and not was_dropping:
            most = self.queue_limit
            log.warning("the journal %s drops operations: %d wait already, and its files do not keep up", self.directory, most)

    def _poll(self, stopping: bool) -> None:
        """Drains the queues, and writes the files that are due."""
        self._warn_of_drops()
        self._update_counter()
        while self.ended or (self.checked and self._rows.purgatory):
            if not self._has_capacity():
                self._write()
            if not self._has_capacity():
                break
            self._take_batch()
            self._update_counter()
            time.sleep(0)  # lets the loop's thread run
            if self._is_full() or self._is_old():  # the queues may never be empty
                self._write()
        if stopping or self._is_old():
            self._write()

    def _has_capacity(self) -> bool:
        return _rows_in(self._operations) + _rows_in(self._checks) + 3 * MAX_BATCH <= self._limits.max_rows // 2

    def _take_batch(self) -> None:
        """Makes rows of the next records."""
        dropped = self.dropped
        ended = _take(self.ended, len(ENDED_FIELDS))
        if ended:
            # Operations that were dropped before these leave a gap in the ids, so that readers can count them.
            first, count = self._next_id + dropped - self._skipped_ids, len(ended) // len(ENDED_FIELDS)
            self._next_id, self._skipped_ids = first + count, dropped
            try:
                self._operations.append(self._rows.operations(ended, first))
            except Exception:
                self._lost += count
                raise
        checked = _take(self.checked, len(CHECK_FIELDS)) if self._rows.purgatory else []
        if checked:
            self._checks.append(self._rows.checks(checked))
        if self._oldest is None:
            self._oldest = time.monotonic()

    def _is_full(self) -> bool:
        return bool(sum(table.nbytes for table in (*self._operations, *self._checks)) >= self._limits.file_bytes)

    def _is_old(self) -> bool:
        return self._oldest is not None and time.monotonic() - self._oldest >= self._limits.file_seconds

    def _write(self) -> None:
        """Writes the rows to files."""
        if time.monotonic() < self._retry_at and not self._stopping.is_set():
            return
        try:
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
        try:
            with partial.open("wb") as file:
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

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            log.warning("cannot write the journal %s, and go on trying: %r", self.directory, error)
        self._failure = repr(error)
        self._retry_at = time.monotonic() + RETRY_DELAY

    def _discard_rest(self) -> None:
        """Counts and logs what could not be written at the end."""
        self._lost += _rows_in(self._operations) + self._queued()
        lost_checks = _rows_in(self._checks) + len(self.checked) // len(CHECK_FIELDS)
        self._operations, self._checks = [], []
        self.ended.clear()
        self.checked.clear()
        if self._lost or lost_checks:
            log.error(
                "the journal %s is closed without its last %d operations and %d rows of checks: %s",
                self.directory,
                self._lost,
                lost_checks,
                self._failure,
            )


def _take(queue: list[Any], fields: int) -> list[Any]:
    """Removes the next records from a queue, each of so many fields.

    The loop's thread extends the list meanwhile; each of these statements is atomic.
    """
    records = queue[: MAX_BATCH * fields]
    del queue[: len(records)]
    return records


def _rows_in(tables: list[pa.Table]) -> int:
    return sum(map(len, tables))


def write_parquet(rows: pa.Table, file: Any) -> None:
    """Writes a file of a journal, with checksums, so that damage is detected."""
    has_many = rows.num_rows > MAX_PLAIN_ROWS
    pq.write_table(rows, file, write_page_checksum=True, use_dictionary=has_many, write_statistics=has_many)
