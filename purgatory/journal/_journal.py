"""The journal of purgatories: an observer that records operations as they end, and a thread that
writes the records to files.

On the loop, the end of an operation and a check of a key cost one record each. The records wait in
two bounded queues. If the disk cannot keep up, further records are dropped and counted.

Each purgatory gets a recorder of its own, since a check does not name its purgatory.
"""

import asyncio
import os
import time
import uuid
import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Self, final

from purgatory import Ended, Observer
from purgatory.journal import _writer
from purgatory.journal._row_builder import CHECK_FIELDS, ENDED_FIELDS, RowBuilder
from purgatory.journal._writer import JournalStatistics, Limits, Writer


@final
class Journal:
    """Writes the operations of purgatories to Parquet files. Pass it to any number of purgatories
    as `observer`; close it last.

        async with (
            Journal("journal") as journal,
            Purgatory("jobs", observer=journal) as jobs,
            Purgatory("orders", observer=journal) as orders,
        ): ...

    A closed journal may be entered again, which starts a new run.

    Any number of journals, of any processes, may share a directory. If it is removed, it is created
    again with the next file. If the process is killed, the rows that are not yet in a file are
    lost: at most the rows of the last `file_seconds`. A file in ``runs`` then has the number of
    operations that had ended, at most a quarter of a second old. Instants are read from the loop's
    clock, converted to UTC with an offset that is measured once for each name of a purgatory, at
    its first event. Later changes of the machine's clock have no effect.

    In the child of a fork, as in servers that preload the application, the first event starts a new
    run.

    Args:
        directory: place of the folders ``operations`` and ``checks``; created if it does
            not exist. Files have the permissions of the umask.
        key_of: returns the journal's text for a key, for instance its hash. Called
            on the journal's own thread.
        file_seconds: age at which a file is finished, in seconds.
        file_bytes: size of its rows in memory at which a file is finished, if that is earlier.
        max_rows: number of rows that may wait in memory, at least 8,000; further ones are dropped
            and counted.
        max_bytes: approximate size of these rows, including their keys.

    Raises:
        OSError: the directory cannot be created or written to.
        ValueError: a limit is not positive, or `max_rows` is below 8,000.
        TypeError: `key_of` is not callable.
    """

    __slots__ = (
        "__weakref__", "_directory", "_forwarded", "_key_of", "_limits", "_pid", "_recorders",
        "_rows", "_stop", "_writer",
    )  # fmt: skip

    def __init__(
        self,
        directory: str | Path,
        *,
        key_of: Callable[[Any], str] = str,
        file_seconds: float = 10.0,
        file_bytes: int = 16 * 1024 * 1024,
        max_rows: int = 500_000,
        max_bytes: int = 128 * 1024 * 1024,
    ) -> None:
        limits = Limits(file_seconds, file_bytes, max_rows, max_bytes)
        if not callable(key_of):
            raise TypeError(f"key_of must be a function of a key, got {key_of!r}")
        self._directory, self._key_of, self._limits = Path(directory), key_of, limits
        self._recorders: weakref.WeakSet[_Recorder] = weakref.WeakSet()
        self._forwarded: _Recorder | None = None
        self._begin()
        _journals.add(self)

    def for_purgatory(self, name: str) -> Observer:
        """Returns the observer of a purgatory of this name. `Purgatory` calls it; so should an
        observer that forwards events to a journal."""
        recorder: Any = self._recorder_of(name)  # pyright regards slots as methods
        return recorder  # type: ignore[no-any-return]

    def operation_ended(self, ended: Ended) -> None:
        """Records an operation, for an observer that forwards events of any purgatory."""
        recorder = self._forwarded
        if recorder is None or recorder.purgatory != ended.purgatory:
            recorder = self._forwarded = self._recorder_of(ended.purgatory)
        recorder.operation_ended(ended)

    def key_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Records a check, of the purgatory that forwarded an operation last."""
        if self._forwarded is None:
            self._forwarded = self._recorder_of("")
        self._forwarded.key_checked(key, tried, completed)

    @property
    def run_id(self) -> str:
        """Identifies the rows of this journal in a shared directory."""
        self._begin_if_forked()
        return self._rows.run_id

    def statistics(self) -> JournalStatistics:
        """A snapshot, from any thread."""
        self._begin_if_forked()
        return self._writer.statistics()

    def close(self) -> JournalStatistics:
        """Writes all rows, and ends the journal's thread. Later events are dropped and counted; the
        first of them logs a warning. Idempotent.

        Blocks until the last file is written; on an event loop, use `aclose`.

        Returns:
            The counts of rows written, dropped and lost. A loss is also logged, as an error.
        """
        self._begin_if_forked()
        writer = self._writer
        for recorder in list(self._recorders):
            recorder.drop(writer)
        self._stop()
        return writer.statistics()

    async def aclose(self) -> JournalStatistics:
        """Runs `close` in a thread, so that the loop is not blocked."""
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

    def _recorder_of(self, purgatory: str) -> "_Recorder":
        self._begin_if_forked()
        recorder = _Recorder(self, purgatory)
        self._recorders.add(recorder)
        if not self._stop.alive:
            recorder.drop(self._writer)
        return recorder

    def _begin(self) -> None:
        """Starts a run, with its own thread."""
        self._pid = os.getpid()
        self._rows = RowBuilder(uuid.uuid4().hex, self._key_of)
        self._writer = Writer(self._directory, self._rows, self._limits)
        self._await_first_events()
        self._writer.start()
        # Also runs at exit, and when the journal is collected: it has no reference to `self`.
        self._stop = weakref.finalize(self, self._writer.stop)

    def _forked(self) -> None:
        """In the child of a fork: the thread and the run are the parent's."""
        if self._stop.detach() is not None:
            self._writer.abandon()
            self._await_first_events()
        else:
            self._pid = os.getpid()  # it was closed, and stays closed

    def _begin_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _await_first_events(self) -> None:
        for recorder in list(self._recorders):
            recorder.await_first_event()

    def _prepare(self, purgatory: str) -> Writer:
        """Measures the offset of the loop's clock from UTC, unless it is known, and returns the
        writer of the current run."""
        self._begin_if_forked()
        if purgatory not in self._rows.offsets:
            self._rows.offsets[purgatory] = time.time() - asyncio.get_running_loop().time()
        return self._writer


@final
class _Recorder:
    """The observer of one purgatory. Its methods are attributes: the first event of a run and
    `Journal.close` replace them."""

    __slots__ = ("__weakref__", "_journal", "key_checked", "operation_ended", "purgatory")

    key_checked: Callable[[Hashable, int, int], None]
    operation_ended: Callable[[Ended], None]

    def __init__(self, journal: Journal, purgatory: str) -> None:
        self._journal = journal
        self.purgatory = purgatory
        self.await_first_event()

    def await_first_event(self) -> None:
        """Finds the writer and the clock when an event comes."""
        self.operation_ended, self.key_checked = self._first_ended, self._first_checked

    def drop(self, writer: Writer) -> None:
        """Counts further events as dropped."""
        self.operation_ended, self.key_checked = writer.drop, writer.drop_check

    def _first_checked(self, key: Hashable, tried: int, completed: int) -> None:
        self._switch()
        self.key_checked(key, tried, completed)

    def _first_ended(self, ended: Ended) -> None:
        self._switch()
        self.operation_ended(ended)

    def _switch(self) -> None:
        """Switches to the fast methods."""
        writer = self._journal._prepare(self.purgatory)
        self.operation_ended, self.key_checked = _recorders(self.purgatory, writer)


_journals: "weakref.WeakSet[Journal]" = weakref.WeakSet()
"""Journals that a fork copies."""


def _after_fork() -> None:
    for journal in list(_journals):
        journal._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _recorders(
    purgatory: str, writer: Writer
) -> tuple[Callable[[Ended], None], Callable[[Hashable, int, int], None]]:
    """The two methods of the observer. They run for each event, so they are closures."""
    loop_time = asyncio.get_running_loop().time
    ended, checked = writer.ended, writer.checked
    record_ended, record_checked = ended.extend, checked.extend
    limit_ended, limit_checked = (
        writer.queue_limit * len(ENDED_FIELDS),
        writer.queue_limit * len(CHECK_FIELDS),
    )
    many_ended, many_checked = (
        min(_writer.WAKE_RECORDS * len(ENDED_FIELDS), limit_ended),
        min(_writer.WAKE_RECORDS * len(CHECK_FIELDS), limit_checked),
    )
    is_awake, wake = writer.wake.is_set, writer.wake.set
    ended_at = loop_time()

    def operation_ended(event: Ended) -> None:
        nonlocal ended_at
        ended_at = event.ended_at
        if len(ended) >= many_ended:
            if len(ended) >= limit_ended:
                writer.dropped += 1
                return
            if not is_awake():
                wake()
        if event.exception is None:
            record_ended(event)
        else:
            record_ended(event._replace(exception=None))

    def key_checked(key: Hashable, tried: int, completed: int) -> None:
        if len(checked) >= many_checked:
            if len(checked) >= limit_checked:
                writer.dropped_checks += 1
                return
            if not is_awake():
                wake()
        # A check that completed operations happened when the last of them ended: saves reading the
        # clock.
        record_checked((purgatory, key, tried, completed, ended_at if completed else loop_time()))

    return operation_ended, key_checked
