"""The journal of a purgatory: an observer that records what has ended, and a thread that writes the records to files.

On the loop, the end of an operation and a check of a key cost one record each. Records wait in two bounded queues: what exceeds
them, because the disk cannot keep up, is dropped and counted.
"""

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final, Self, final

from purgatory import Ended
from purgatory.journal._row_builder import CHECK_FIELDS, ENDED_FIELDS, RowBuilder
from purgatory.journal._writer import JournalStatistics, Limits, Writer

Fields = tuple[Any, ...]
"""The fields of an `Ended`."""

# Their positions.
PURGATORY: Final = Ended._fields.index("purgatory")
ENDED_AT: Final = Ended._fields.index("ended_at")
EXCEPTION: Final = Ended._fields.index("exception")


@final
class Journal:
    """Writes what happens in a purgatory to Parquet files. Pass it to the purgatory as `observer`; close it last.

        with Journal("journal") as journal:
            async with Purgatory("polls", observer=journal) as purgatory: ...

    A journal that was closed may be entered again: that begins a new run.

    One journal serves one purgatory; any number of journals, of any processes, may share a directory. What is not yet in a file
    when the process is killed is lost: at most the last `file_seconds`. A file in ``runs`` then says how many operations had
    ended, as of a quarter of a second earlier at most. Instants are those of the loop's clock, converted to UTC with an offset
    that is measured once, at the first event: later changes of the machine's clock have no effect.

    In the child of a process that forks, as servers do that preload the application, the first event begins a new run.

    Args:
        directory: where the files go, in the folders ``operations`` and ``checks``; created if it does not exist.
        key_of: what the journal contains in place of a key, for instance its hash. Called on the journal's own thread.
        file_seconds: a file is finished at this age, in seconds, ...
        file_bytes: ... or when its rows take so much memory, whichever comes first.
        max_rows: how many rows may wait in memory, in all; further ones are dropped and counted.

    Raises:
        OSError: the directory cannot be created or written to.
        ValueError: a limit is not positive, or `max_rows` is less than 8,000.
        TypeError: `key_of` cannot be called.
    """

    __slots__ = (
        "__weakref__", "_directory", "_key_of", "_limits", "_pid", "_rows", "_stop", "_writer", "ended_fields",
        "key_checked",
    )  # fmt: skip

    # The methods of an `Observer`, as attributes: they are replaced when the purgatory is known, and on `close`.
    ended_fields: Any
    key_checked: Any

    def __init__(
        self,
        directory: str | Path,
        *,
        key_of: Callable[[Any], str] = str,
        file_seconds: float = 10.0,
        file_bytes: int = 16 * 1024 * 1024,
        max_rows: int = 500_000,
    ) -> None:
        limits = Limits(file_seconds, file_bytes, max_rows)
        if not callable(key_of):
            raise TypeError(f"key_of must be a function of a key, not {key_of!r}")
        self._directory, self._key_of, self._limits = Path(directory), key_of, limits
        self._begin()
        _journals.add(self)

    @property
    def run_id(self) -> str:
        """Identifies the rows of this journal in a directory that several share."""
        self._begin_if_forked()
        return self._rows.run_id

    def statistics(self) -> JournalStatistics:
        """A snapshot, from any thread."""
        self._begin_if_forked()
        return self._writer.statistics()

    def close(self) -> JournalStatistics:
        """Writes what is left, and ends the journal's thread. Later events are dropped and counted, and the first of them is
        logged as a warning. Idempotent.

        Blocks until the last file is written; on an event loop, use `aclose`.

        Returns:
            What was written, dropped and lost. A loss is also logged, as an error.
        """
        self._begin_if_forked()
        writer = self._writer
        self.ended_fields, self.key_checked = writer.drop, writer.drop_check
        self._stop()
        return writer.statistics()

    async def aclose(self) -> JournalStatistics:
        """`close`, in a thread, so that the loop is not blocked."""
        return await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        self._begin_if_forked()
        if not self._stop.alive:  # it was closed
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Journal {str(self._writer.directory)!r} run_id={self.run_id}>"

    def _begin(self) -> None:
        """Begins a run, with its own thread."""
        self._pid = os.getpid()
        self._rows = RowBuilder(uuid.uuid4().hex, self._key_of)
        self._writer = Writer(self._directory, self._rows, self._limits)
        self.ended_fields, self.key_checked = self._first_ended, self._first_checked
        self._writer.start()
        # Also runs at exit, and when the journal is garbage collected: it has no reference to `self`.
        self._stop = weakref.finalize(self, self._writer.stop)

    def _forked(self) -> None:
        """In the child of a fork: the thread and the run are the parent's."""
        if self._stop.detach() is not None:
            self._writer.abandon()
            self.ended_fields, self.key_checked = self._first_ended, self._first_checked
        else:
            self._pid = os.getpid()  # it was closed, and stays closed

    def _begin_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _first_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Records a check before the first operation has ended: until then the purgatory is unknown."""
        self._begin_if_forked()
        self._writer.record_check(key, tried, completed, self._convert_clock())

    def operation_ended(self, ended: Ended) -> None:
        """Records it. Purgatories call `ended_fields` instead."""
        self.ended_fields(tuple(ended))

    def _first_ended(self, fields: Fields) -> None:
        """Records the first operation, which names the purgatory, and switches to the fast recorders."""
        self._begin_if_forked()
        self._convert_clock()
        self._rows.purgatory = fields[PURGATORY]
        self.ended_fields, self.key_checked = _recorders(fields[PURGATORY], self._writer)
        self.ended_fields(fields)

    def _convert_clock(self) -> float:
        """Measures the offset of the loop's clock from UTC, unless it is known, and returns the loop's time."""
        loop_time = asyncio.get_running_loop().time()
        if not self._rows.epoch:
            self._rows.epoch = time.time() - loop_time
        return loop_time


_journals: "weakref.WeakSet[Journal]" = weakref.WeakSet()
"""All that a fork copies."""


def _after_fork() -> None:
    for journal in list(_journals):
        journal._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _recorders(purgatory: str, writer: Writer) -> tuple[Callable[[Fields], None], Callable[[Hashable, int, int], None]]:
    """The two methods of the observer, as closures, because they run on the loop for each event."""
    loop_time = asyncio.get_running_loop().time
    ended, checked = writer.ended, writer.checked
    record_ended, record_checked = ended.extend, checked.extend
    limit_ended, limit_checked = writer.queue_limit * len(ENDED_FIELDS), writer.queue_limit * len(CHECK_FIELDS)
    ended_at = loop_time()

    def ended_fields(fields: Fields) -> None:
        nonlocal ended_at
        ended_at = fields[ENDED_AT]
        if len(ended) >= limit_ended:
            writer.dropped += 1
        elif (other := fields[PURGATORY]) != purgatory:
            raise ValueError(
                f"cannot journal an operation of {other!r}: this journal belongs to another purgatory, {purgatory!r}"
            )
        elif fields[EXCEPTION] is None:
            record_ended(fields)
        else:
            record_ended((*fields[:EXCEPTION], None, *fields[EXCEPTION + 1 :]))

    def key_checked(key: Hashable, tried: int, completed: int) -> None:
        if len(checked) >= limit_checked:
            writer.dropped_checks += 1
        else:
            # A check that completed operations happened when the last of them ended: saves reading the clock.
            record_checked((key, tried, completed, ended_at if completed else loop_time()))

    return ended_fields, key_checked
