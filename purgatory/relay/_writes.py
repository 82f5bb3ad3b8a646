"""Writes of a process, gathered: however many are asked for at once, few go to the store, and everyone hears few news.

    in one turn     bump("a"), bump("a"), bump("b"), advance("a", 10)
    one write       a: to at least 10, then 2 more; b: 1 more
    its answer      a: 12, b: 1      so the bumps got 11 and 12, and 1; the advance 12

While a write is under way others gather for the next. One that does not reach the store is tried again until nobody waits for
it any more. So a write whose answer was lost may be made twice: a version may rise by more than one for a bump, never by less.
"""

from asyncio import Future, Task, get_running_loop, sleep
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, final

from purgatory import OperationCancelled, RelayUnavailable
from purgatory.relay._messages import Change, News

MOST_CHANGES: Final = 100
"""How many keys go into one write."""


@final
class Writing:
    """What is asked of a key, until it is written: the change, and who waits for it, with the number of his bump or 0."""

    __slots__ = ("at_least", "more", "waiting")

    def __init__(self) -> None:
        self.at_least = self.more = 0
        self.waiting: list[tuple[Future[int], int]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether anybody still waits for it."""
        return any(not future.done() for future, _ in self.waiting)

    def end(self, version: int) -> None:
        """Answers everyone: the key has `version` now."""
        for future, number in self.waiting:
            if not future.done():
                future.set_result(version - self.more + number if number else version)

    def fail(self, error: Exception) -> None:
        """Tells everyone."""
        for future, _ in self.waiting:
            if not future.done():
                future.set_exception(error)


@final
class Writes:
    """The writes of a process.

    Args:
        write: makes changes, and raises `RelayUnavailable` if it could not.
        pauses: in seconds, between two tries.
    """

    def __init__(self, write: Callable[[Sequence[Change]], Awaitable[News]], pauses: Callable[[int], float]) -> None:
        self._write, self._pauses = write, pauses
        self._pending: dict[str, Writing] = {}
        self._task: Task[None] | None = None
        self.trouble: Exception | None = None
        """Why the last try has failed."""
        self.sent = 0
        """How many changes were written."""

    def ask(self, key: str, at_least: int, more: int) -> Future[int]:
        """Has `key` raised to `at_least`, or by `more`, which is 0 or 1; the version is the future's result."""
        writing = self._pending.get(key)
        if writing is None:
            writing = self._pending[key] = Writing()
        writing.at_least = max(writing.at_least, at_least)
        writing.more += more
        loop = get_running_loop()
        future: Future[int] = loop.create_future()
        writing.waiting.append((future, writing.more if more else 0))
        if self._task is None:
            self._task = loop.create_task(self._work(), name="purgatory.relay: writes")
        return future

    async def _work(self) -> None:
        try:
            while self._pending:
                batch = dict(islice(self._pending.items(), MOST_CHANGES))
                for key in batch:
                    del self._pending[key]
                await self._send(batch)
        finally:
            self._task = None

    async def _send(self, batch: dict[str, Writing]) -> None:
        tries = 0
        try:
            while batch := {key: writing for key, writing in batch.items() if writing.is_awaited}:
                changes = [Change(key, writing.at_least, writing.more) for key, writing in batch.items()]
                try:
                    news = await self._write(changes)
                except RelayUnavailable as error:
                    self.trouble = error
                    await sleep(self._pauses(tries))
                    tries += 1
                    continue
                self.sent += len(changes)
                self.trouble = None
                for key, writing in batch.items():
                    writing.end(news.versions[key])
                return
        except Exception as error:
            for writing in batch.values():
                writing.fail(error)
        except BaseException:
            self._give_up(batch)
            raise

    def close(self) -> None:
        """Gives up what was not written."""
        if self._task is not None:
            self._task.cancel()
        self._give_up(self._pending)
        self._pending.clear()

    def _give_up(self, writings: dict[str, Writing]) -> None:
        for key, writing in writings.items():
            writing.fail(OperationCancelled(f"{key!r} was perhaps not written: the relay was closed"))
