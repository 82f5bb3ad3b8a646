"""Batches the writes of a process: however many calls are made at once, few writes go to the store, and few messages out.

    in one iteration of the loop    bump("a"), bump("a"), bump("b"), advance("a", 10)
    one write                       a: to at least 10, then by 2; b: by 1
    its result                      a: 12, b: 1      so the bumps return 11 and 12, and 1; the advance 12

While a write is under way the next batch gathers. A write that fails is tried again for as long as a caller waits for it. So a
write whose result was lost may be made twice: a version may rise by more than one for a bump, never by less.
"""

from asyncio import Future, Task, get_running_loop, sleep
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, final

from purgatory import OperationCancelled, RelayUnavailable
from purgatory.relay._messages import Change, ChangeMessage

MAX_CHANGES_PER_WRITE: Final = 100


@final
class PendingWrite:
    """The change to a key that is still to be written, and its waiters, each with the number of its bump or 0."""

    __slots__ = ("floor", "increment", "waiters")

    def __init__(self) -> None:
        self.floor = self.increment = 0
        self.waiters: list[tuple[Future[int], int]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether anybody still waits for it."""
        return any(not future.done() for future, _ in self.waiters)

    def finish(self, version: int) -> None:
        """Sets the results: the key has `version` now."""
        for future, number in self.waiters:
            if not future.done():
                future.set_result(version - self.increment + number if number else version)

    def fail(self, error: Exception) -> None:
        """Sets `error` as the exception of all waiters."""
        for future, _ in self.waiters:
            if not future.done():
                future.set_exception(error)


@final
class WriteBatcher:
    """The writes of a process.

    Args:
        write: makes changes; raises `RelayUnavailable` if it cannot.
        backoff: seconds to wait after that, by the number of failures before.
    """

    def __init__(self, write: Callable[[Sequence[Change]], Awaitable[ChangeMessage]], backoff: Callable[[int], float]) -> None:
        self._write, self._backoff = write, backoff
        self._pending: dict[str, PendingWrite] = {}
        self._task: Task[None] | None = None
        self.last_error: Exception | None = None
        """Why the last write has failed."""
        self.sent = 0
        """How many changes were written."""

    def submit(self, change: Change) -> Future[int]:
        """Has a change written, whose increment is 0 or 1; the version is the future's result."""
        key, floor, increment = change
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = PendingWrite()
        pending.floor = max(pending.floor, floor)
        pending.increment += increment
        loop = get_running_loop()
        future: Future[int] = loop.create_future()
        pending.waiters.append((future, pending.increment if increment else 0))
        if self._task is None:
            self._task = loop.create_task(self._run(), name="purgatory.relay: writing")
        return future

    async def _run(self) -> None:
        try:
            while self._pending:
                batch = dict(islice(self._pending.items(), MAX_CHANGES_PER_WRITE))
                for key in batch:
                    del self._pending[key]
                await self._send(batch)
        finally:
            self._task = None

    async def _send(self, batch: dict[str, PendingWrite]) -> None:
        failures = 0
        try:
            while batch := {key: pending for key, pending in batch.items() if pending.is_awaited}:
                changes = [Change(key, pending.floor, pending.increment) for key, pending in batch.items()]
                try:
                    message = await self._write(changes)
                except RelayUnavailable as error:
                    self.last_error = error
                    await sleep(self._backoff(failures))
                    failures += 1
                    continue
                self.sent += len(changes)
                self.last_error = None
                for key, pending in batch.items():
                    pending.finish(message.versions[key])
                return
        except Exception as error:
            for pending in batch.values():
                pending.fail(error)
        except BaseException:
            self._cancel(batch)
            raise

    def close(self) -> None:
        """Cancels what was not written."""
        if self._task is not None:
            self._task.cancel()
        self._cancel(self._pending)
        self._pending.clear()

    def _cancel(self, batch: dict[str, PendingWrite]) -> None:
        for key, pending in batch.items():
            pending.fail(OperationCancelled(f"{key!r} was perhaps not written: the relay was closed"))
