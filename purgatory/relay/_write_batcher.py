"""Batches the writes of a process, so that many calls at once become few writes and few messages.

    in one iteration of the loop    bump("a"), bump("a"), bump("b"), advance("a", 10)
    one write                       a: to at least 10, then by 2; b: by 1
    its result                      a: 12, b: 1      so the bumps return 11 and 12, and 1; the
                                                     advance 12

While a write is in flight, the next batch gathers. A write that was certainly not made is retried
as long as its caller waits. A write that may have been made is not retried, except for advances,
which are idempotent. Keys locked by other transactions are retried on their own, so that they delay
no other keys.
"""

from asyncio import Event, Future, Task, get_running_loop, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, final

from purgatory import OperationCancelled, RelayUnavailable, timeout_at
from purgatory.relay._messages import Change, ChangeMessage
from purgatory.relay._store import NotWritten, Refused

MAX_CHANGES_PER_WRITE: Final = 100

MAX_CALLS_PER_WRITE: Final = 1_000
"""Limit of calls per write: all their callers resume in one loop iteration."""

Call = tuple[Change, Future[int]]


@final
class PendingWrite:
    """The calls that change one key, in order."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def change(self) -> Change | None:
        """The combined change of the calls whose callers still wait, or None without any."""
        self.calls = [call for call in self.calls if not call[1].done()]
        if not self.calls:
            return None
        changes = [change for change, _ in self.calls]
        return Change(
            changes[0].key,
            max(change.floor for change in changes),
            sum(change.increment for change in changes),
        )

    @property
    def is_awaited(self) -> bool:
        """Whether any caller still waits for it."""
        return any(not future.done() for _, future in self.calls)

    def finish(self, version: int, increment: int) -> None:
        """Sets the results of the calls: the write has raised the version by `increment` to
        `version`."""
        number = version - increment
        for change, future in self.calls:
            number += change.increment
            if not future.done():
                future.set_result(number if change.increment else version)

    def fail(self, error: Exception, bumps_only: bool = False) -> None:
        """Sets `error` as the exception of all calls, or of the bumps among them."""
        for change, future in self.calls:
            if not future.done() and (change.increment or not bumps_only):
                future.set_exception(error)


Batch = dict[str, PendingWrite]


@final
class WriteBatcher:
    """Batches and retries the writes of a process.

    Args:
        write: writes changes to the store; raises `RelayUnavailable` on failure.
        backoff: maps the number of earlier failures to the delay before a retry, in seconds.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Change]], Awaitable[ChangeMessage]],
        backoff: Callable[[int], float],
    ) -> None:
        self._write, self._backoff = write, backoff
        self._queue: deque[Call] = deque()
        self._locked: Batch = {}
        """Pending writes of keys that other transactions hold locked."""
        self._in_flight: dict[str, Change] = {}
        """Changes of the write in flight, by key."""
        self._lock_failures = 0
        self._retry_at = 0.0
        """Loop time of the next attempt to write the locked keys."""
        self._submitted = Event()
        self._task: Task[None] | None = None
        self.last_error: Exception | None = None
        """Error of the last write, or None if it succeeded."""
        self.sent = 0
        """Number of changes written."""

    def submit(self, change: Change) -> Future[int]:
        """Queues a change, whose increment is 0 or 1. The future's result is the version."""
        loop = get_running_loop()
        future: Future[int] = loop.create_future()
        self._queue.append((change, future))
        self._submitted.set()
        if self._task is None:
            self._task = loop.create_task(self._run(), name="purgatory.relay: writing")
        return future

    def is_locked(self, key: str) -> bool:
        """Whether another transaction holds `key` locked."""
        return key in self._locked

    def is_in_flight(self, key: str) -> bool:
        """Whether `key` is part of the write in flight, which may succeed though the caller has
        stopped waiting."""
        return key in self._in_flight

    async def _run(self) -> None:
        loop = get_running_loop()
        try:
            while self._queue or self._locked:
                if self._locked and loop.time() >= self._retry_at:
                    keys = list(self._locked)
                    for first in range(0, len(keys), MAX_CHANGES_PER_WRITE):
                        part = keys[first : first + MAX_CHANGES_PER_WRITE]
                        await self._send({key: self._locked[key] for key in part})
                    self._lock_failures = self._lock_failures + 1 if self._locked else 0
                    self._retry_at = loop.time() + self._backoff(self._lock_failures)
                elif self._queue:
                    await self._send(self._next_batch())
                else:
                    self._submitted.clear()
                    with suppress(TimeoutError):
                        async with timeout_at(self._retry_at):
                            await self._submitted.wait()
        finally:
            self._task = None

    def _next_batch(self) -> Batch:
        batch: Batch = {}
        for _ in range(min(len(self._queue), MAX_CALLS_PER_WRITE)):
            key = self._queue[0][0].key
            if key not in batch and len(batch) == MAX_CHANGES_PER_WRITE:
                break
            writes = self._locked if key in self._locked else batch
            writes.setdefault(key, PendingWrite()).calls.append(self._queue.popleft())
        return batch

    async def _send(self, batch: Batch) -> None:
        """Writes a batch. Locked keys move to `_locked`."""
        failures = 0
        try:
            while changes := {
                key: change for key, pending in batch.items() if (change := pending.change())
            }:
                try:
                    message = await self._write_once(changes)
                except Refused:
                    raise
                except RelayUnavailable as error:
                    self.last_error = error
                    if not isinstance(error, NotWritten):
                        for pending in batch.values():
                            pending.fail(error, bumps_only=True)
                    await sleep(self._backoff(min(failures, 2)))
                    failures += 1
                    continue
                self.sent += len(message.versions)
                self.last_error = None
                for key, (_, _, increment) in changes.items():
                    if key in message.versions:
                        batch[key].finish(message.versions[key], increment)
                    else:
                        self._locked[key] = batch[key]
                break
            for key in batch:
                if key in self._locked and not self._locked[key].is_awaited:
                    del self._locked[key]
        except Exception as error:
            for pending in batch.values():
                pending.fail(error)
        except BaseException:
            self._cancel(batch)
            raise

    async def _write_once(self, changes: dict[str, Change]) -> ChangeMessage:
        self._in_flight = changes
        try:
            return await self._write(tuple(changes.values()))
        finally:
            self._in_flight = {}

    def close(self) -> None:
        """Cancels unwritten changes."""
        if self._task is not None:
            self._task.cancel()
        while self._queue:
            self._cancel(self._next_batch())
        self._cancel(self._locked)
        self._locked.clear()

    def _cancel(self, batch: Batch) -> None:
        for key, pending in batch.items():
            pending.fail(
                OperationCancelled(f"{key!r} was perhaps not written: the relay was closed")
            )
