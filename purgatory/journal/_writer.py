"""The thread that turns notes into files.

Every quarter of a second it takes what waits in the two queues, a portion at a time so that the loop's thread gets its turn,
and makes rows of it. When these are old or large enough they become a file: written under a hidden name, synced, renamed. So
a file that can be seen is whole, and a failed one has cost nothing: its rows are still here, and it is tried again.

    operations/.abc-000007.parquet.partial  ->  operations/abc-000007.parquet

If that goes on failing, the rows fill their half of `max_rows`, then the queues theirs, and then notes are dropped.
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

from purgatory.journal._rows import CHECKED, ENDED, Rows, added_up, of_part
from purgatory.journal._schema import FOLDERS
from purgatory.journal._tally import Tally

SECONDS_BETWEEN_LOOKS: Final = 0.25
PORTION: Final = 1_000
"""How many notes become rows without a pause: about two milliseconds in which the loop's thread may have to wait."""
SECONDS_AFTER_FAILURE: Final = 1.0
FEW: Final = 100
"""Of so few rows, Parquet's dictionaries and statistics take more space than they save, and a reader's time."""

log: Final = logging.getLogger("purgatory.journal")


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """What has become of the notes so far, by operations, and by checks where that is said."""

    run_id: str
    written: int
    """In files that are whole."""
    waiting: int
    """In memory."""
    dropped: int
    """Refused, because `max_rows` were waiting, or the journal was closed."""
    dropped_checks: int
    lost: int
    """Given up: they could not be written when the journal was closed, or be made rows of."""
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
        if not 8 * PORTION <= self.max_rows < inf:
            raise ValueError(f"max_rows must be at least {8 * PORTION}, and finite, not {self.max_rows!r}")


class Writer:
    """Owns the queues, the rows and the thread."""

    def __init__(self, directory: Path, rows: Rows, limits: Limits) -> None:
        self.directory = directory
        self.queue_limit = limits.max_rows // 4
        """How many notes each of the two queues takes."""
        self.ended: list[Any] = []
        self.checked: list[Any] = []
        self.dropped = 0
        self.dropped_checks = 0
        self._rows = rows
        self._limits = limits
        self._operations: list[pa.Table] = []
        self._checks: list[pa.Table] = []
        self._oldest: float | None = None
        """When the first of the rows that are not in a file yet was made."""
        self._numbered = 0
        """How many operations have an id, or were dropped before one that has."""
        self._dropped_before = 0
        """How many of those were dropped."""
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
        self._tally = Tally(directory, rows.run_id)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Has everything written and the thread ended; returns when that is so."""
        self._stopping.set()
        self._thread.join()

    def abandon(self) -> None:
        """Lets go of what another process goes on with."""
        self._tally.close(is_all_written=False)

    def statistics(self) -> JournalStatistics:
        """A snapshot; what happens meanwhile may be counted or not."""
        return JournalStatistics(
            run_id=self._rows.run_id,
            written=self._written,
            waiting=_rows_in(self._operations) + len(self.ended) // len(ENDED),
            dropped=self.dropped,
            dropped_checks=self.dropped_checks,
            lost=self._lost,
            files=self._files,
            bytes=self._bytes,
            failure=self._failure,
        )

    def note_check(self, *note: Any) -> None:
        """Notes a check, as the journal does by itself when it knows its purgatory."""
        if len(self.checked) >= self.queue_limit * len(CHECKED):
            self.dropped_checks += 1
        else:
            self.checked.extend(note)

    def drop(self, _: object) -> None:
        """Counts an operation that ended after the journal was closed."""
        self.dropped += 1

    def drop_check(self, *_: object) -> None:
        """Counts a check of that time."""
        self.dropped_checks += 1

    # -- the thread

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(SECONDS_BETWEEN_LOOKS)
            try:
                self._look(stopping)
            except Exception as error:  # a defect of ours must not end the journal in silence
                self._fail(error)
        self._give_up()
        self._tally.close(is_all_written=not self._lost)

    def _noted(self) -> int:
        """How many operations have ended so far, dropped ones included."""
        return self._numbered + self.dropped - self._dropped_before + len(self.ended) // len(ENDED)

    def _look(self, stopping: bool) -> None:
        """Takes what waits; writes files as far as it is time for them."""
        self._tally.tell(self._noted())
        while self.ended or (self.checked and self._rows.purgatory):
            if not self._has_room():
                self._write()
            if not self._has_room():
                break
            self._take_portion()
            self._tally.tell(self._noted())
            time.sleep(0)  # the loop's thread may be waiting for its turn
            if self._is_full() or self._is_old():  # also while there is always more to take
                self._write()
        if stopping or self._is_old():
            self._write()

    def _has_room(self) -> bool:
        return _rows_in(self._operations) + _rows_in(self._checks) + 3 * PORTION <= self._limits.max_rows // 2

    def _take_portion(self) -> None:
        """Makes rows of the next notes."""
        dropped = self.dropped
        ended = _take(self.ended, len(ENDED))
        if ended:
            # What was dropped before these leaves a gap in the ids, by which a reader can count it.
            first = self._numbered + dropped - self._dropped_before
            self._numbered, self._dropped_before = first + len(ended) // len(ENDED), dropped
            try:
                operations = self._rows.of_operations(ended, first)
            except Exception:
                self._lost += len(ended) // len(ENDED)
                raise
            self._operations.append(operations)
        checked = _take(self.checked, len(CHECKED)) if self._rows.purgatory else []
        if checked:
            self._checks.append(self._rows.of_checks(checked))
        if self._oldest is None:
            self._oldest = time.monotonic()

    def _is_full(self) -> bool:
        held: int = sum(table.nbytes for table in (*self._operations, *self._checks))
        return held >= self._limits.file_bytes

    def _is_old(self) -> bool:
        return self._oldest is not None and time.monotonic() - self._oldest >= self._limits.file_seconds

    def _write(self) -> None:
        """Makes files of the rows."""
        if time.monotonic() < self._retry_at and not self._stopping.is_set():
            return
        try:
            if self._operations:
                self._write_file("operations", pa.concat_tables(self._operations))
                self._written += _rows_in(self._operations)
                self._operations = []
            if self._checks:
                self._checks = [added_up(self._checks)]
                self._write_file("checks", of_part(self._checks[0], self._files))
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
        self._retry_at = time.monotonic() + SECONDS_AFTER_FAILURE

    def _give_up(self) -> None:
        """Says what could not be written at the end."""
        self._lost += _rows_in(self._operations) + len(self.ended) // len(ENDED)
        lost_checks = _rows_in(self._checks) + len(self.checked) // len(CHECKED)
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
    """The next notes of a queue, each of so many fields.

    The loop's thread extends the list meanwhile. Each of these steps is one that no other thread gets in between.
    """
    notes = queue[: PORTION * fields]
    del queue[: len(notes)]
    return notes


def _rows_in(tables: list[pa.Table]) -> int:
    return sum(map(len, tables))


def write_parquet(rows: pa.Table, file: Any) -> None:
    """Writes a file of a journal, with checksums, so that damage is found and not misread."""
    is_worth_it = rows.num_rows > FEW
    pq.write_table(rows, file, write_page_checksum=True, use_dictionary=is_worth_it, write_statistics=is_worth_it)
