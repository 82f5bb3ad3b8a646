"""The journal of a purgatory: an observer that notes what has ended, for a thread of its own to write down.

On the loop an operation costs a note of what it knows anyway, and each check of a key another. The notes wait in two queues
that are bounded: what does not fit, because the disk cannot keep up, is dropped and counted.
"""

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

from purgatory import Ended
from purgatory.journal._rows import CHECKED, ENDED, Rows
from purgatory.journal._writer import JournalStatistics, Limits, Writer

Fields = tuple[Any, ...]
"""Those of an `Ended`."""

# Where these are in them.
PURGATORY: Final = Ended._fields.index("purgatory")
ENDED_AT: Final = Ended._fields.index("ended_at")
EXCEPTION: Final = Ended._fields.index("exception")


@final
class Journal:
    """Writes what happens in a purgatory to Parquet files: give it to the purgatory as its observer, and close it after it.

        with Journal("journal") as journal:
            async with Purgatory("polls", observer=journal) as purgatory: ...

    One journal serves one purgatory; any number of them, of any processes, may share a directory. What is not yet in a file
    when the process dies is lost: at most what has happened since `file_seconds` ago, and a file in ``runs`` then says how many
    operations had ended, to a quarter of a second. Instants are those of the loop's clock,
    put to UTC once, at the first event: setting the machine's clock later does not reach the journal.

    In a child of a process that forks, as servers do that load the application first, the journal begins a run of its own with
    the first event there.

    Args:
        directory: where the files go, in the folders ``operations`` and ``checks``; made if it is not there.
        key_of: what stands in the journal for a key, say a hash where keys are private. Called on the journal's own thread.
        file_seconds: a file is finished at this age, in seconds, ...
        file_bytes: ... or when its rows take so much memory, whichever comes first.
        max_rows: how many rows may wait in memory, in all; what comes beyond is dropped and counted.

    Raises:
        OSError: the directory cannot be made or written to.
        ValueError: a limit is not positive, or `max_rows` is less than 8,000.
        TypeError: `key_of` cannot be called.
    """

    __slots__ = (
        "__weakref__", "_directory", "_key_of", "_limits", "_pid", "_rows", "_stop", "_writer", "ended_fields",
        "key_checked",
    )  # fmt: skip

    # The methods of an `Observer`, but kept in slots: they change when the journal learns whom it serves, and at its end.
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
        """Names this journal's rows among those of others."""
        self._begin_if_forked()
        return self._rows.run_id

    def statistics(self) -> JournalStatistics:
        """A snapshot, from any thread."""
        self._begin_if_forked()
        return self._writer.statistics()

    def close(self) -> JournalStatistics:
        """Writes what is left, and ends the journal's thread. What happens later is dropped, and counted. Idempotent.

        Blocks until the last file is written; on a loop that has other work, use `aclose`.

        Returns:
            What was written, dropped and lost. If anything was lost it is also logged, as an error.
        """
        self._begin_if_forked()
        self.ended_fields, self.key_checked = self._writer.drop, self._writer.drop_check
        self._stop()
        return self.statistics()

    async def aclose(self) -> JournalStatistics:
        """`close`, in a thread, so that the loop is not held up."""
        return await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Journal {str(self._writer.directory)!r} run_id={self.run_id}>"

    def _begin(self) -> None:
        """Begins a run, with a thread of its own."""
        self._pid = os.getpid()
        self._rows = Rows(uuid.uuid4().hex, self._key_of)
        self._writer = Writer(self._directory, self._rows, self._limits)
        self.ended_fields, self.key_checked = self._first_ended, self._first_checked
        self._writer.start()
        # Also at the end of the program, and when nobody has the journal any more. Without a reference to `self`.
        self._stop = weakref.finalize(self, self._writer.stop)

    def _forked(self) -> None:
        """In a child of a process that has forked: the thread and the run are the parent's."""
        if self._stop.detach() is not None:
            self._writer.abandon()
            self.ended_fields, self.key_checked = self._first_ended, self._first_checked
        else:
            self._pid = os.getpid()  # it was closed, and stays so

    def _begin_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _first_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Until an operation has ended nobody knows the purgatory, but there is a loop."""
        self._begin_if_forked()
        loop_time = self._anchor()
        self._writer.note_check(key, tried, completed, loop_time)

    def operation_ended(self, ended: Ended) -> None:
        """Notes it: what a purgatory calls in place of this is `ended_fields`."""
        self.ended_fields(tuple(ended))

    def _first_ended(self, fields: Fields) -> None:
        """Learns whom the journal serves, and from now on notes what has ended in as few steps as can be."""
        self._begin_if_forked()
        self._anchor()
        self._rows.purgatory = fields[PURGATORY]
        self.ended_fields, self.key_checked = _recorders(fields[PURGATORY], self._writer)
        self.ended_fields(fields)

    def _anchor(self) -> float:
        """Puts the loop's clock to UTC, if that has not been done, and reads it."""
        loop_time = asyncio.get_running_loop().time()
        if not self._rows.epoch:
            self._rows.epoch = time.time() - loop_time
        return loop_time


_journals: "weakref.WeakSet[Journal]" = weakref.WeakSet()
"""Those that a child has to know of."""


def _tell_journals() -> None:
    for journal in list(_journals):
        journal._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_journals)


def _recorders(
    purgatory: str, writer: Writer
) -> tuple[Callable[[tuple[Any, ...]], None], Callable[[Hashable, int, int], None]]:
    """The two methods of the observer, as closures: on the loop every step counts."""
    loop_time = asyncio.get_running_loop().time
    ended, checked = writer.ended, writer.checked
    note_ended, note_checked = ended.extend, checked.extend
    limit_ended, limit_checked = writer.queue_limit * len(ENDED), writer.queue_limit * len(CHECKED)

    ended_at = loop_time()

    def ended_fields(fields: Fields) -> None:
        nonlocal ended_at
        ended_at = fields[ENDED_AT]
        if len(ended) >= limit_ended:
            writer.dropped += 1
        elif fields[PURGATORY] != purgatory:
            other = fields[PURGATORY]
            raise ValueError(
                f"cannot journal an operation of {other!r}: this journal belongs to another purgatory, {purgatory!r}"
            )
        elif fields[EXCEPTION] is None:
            note_ended(fields)
        else:
            note_ended((*fields[:EXCEPTION], None, *fields[EXCEPTION + 1 :]))

    def key_checked(key: Hashable, tried: int, completed: int) -> None:
        if len(checked) >= limit_checked:
            writer.dropped_checks += 1
        else:
            # Of a check that has completed something, the last thing told before it is when.
            note_checked((key, tried, completed, ended_at if completed else loop_time()))

    return ended_fields, key_checked
