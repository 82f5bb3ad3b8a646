"""Reads delivered values for the waiters of this process.

The channel only names the settled keys, and any message may be lost. So a key is read when a wait
for it begins, when a message names it, and whenever messages may have been missed: at each
confirmed subscription, at each resync and in a new epoch. Values are
kept only in the store: a value that was read goes to the current waiters and is then dropped.
"""

from asyncio import Task, gather, get_running_loop, sleep
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast, final

from purgatory import Purgatory, RelayUnavailable
from purgatory.relay._client import answer_within, backoff
from purgatory.relay._store import (
    MAX_SETTLED_BYTES,
    Refused,
    Store,
    StoreWithDeliveries,
)

MAX_KEYS_PER_READ: Final = 100


@final
class Receiver:
    """Keys with waiters for their values in this process.

    Args:
        store: holds the values.
        timeout: time limit of a read, in seconds.
        replies: receives each value under its key, or the exception with which the read was
            refused.
    """

    def __init__(self, store: Store, timeout: float, replies: Purgatory[Any]) -> None:
        self._store, self._timeout, self._replies = store, timeout, replies
        self.waiters: dict[str, int] = {}
        """Keys -> number of waiters."""
        self._to_read: dict[str, None] = {}
        self._task: Task[None] | None = None
        self.on_error: Callable[[Exception], None] = lambda _: None

    def add_waiter(self, key: str) -> None:
        """Adds a waiter and schedules a read of the key, even if it has other waiters: it may just
        have been settled."""
        self.waiters[key] = self.waiters.get(key, 0) + 1
        self._read_soon([key])

    def remove_waiter(self, key: str) -> None:
        """Removes a waiter."""
        self.waiters[key] -= 1
        if not self.waiters[key]:
            del self.waiters[key]
            self._to_read.pop(key, None)

    def on_settled(self, keys: Sequence[str]) -> None:
        """Handles a message that names these keys; an empty one may concern all keys."""
        self._read_soon(key for key in keys or self.waiters if key in self.waiters)

    def recheck(self) -> None:
        """Schedules a read of all keys, since messages may have been missed."""
        self._read_soon(self.waiters)

    async def read(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values in the store, read without a retry.

        Raises:
            RelayUnavailable: the store gave no answer, or refused.
        """
        async with answer_within(self._store, self._timeout):
            return await cast(StoreWithDeliveries, self._store).settled(keys)

    async def close(self) -> None:
        """Cancels the reads."""
        self._to_read.clear()
        if self._task is not None:
            self._task.cancel()
            await gather(self._task, return_exceptions=True)

    def _read_soon(self, keys: Iterable[str]) -> None:
        self._to_read.update(dict.fromkeys(keys))
        if self._to_read and self._task is None:
            self._task = get_running_loop().create_task(
                self._run(), name="purgatory.relay: receiving"
            )

    async def _run(self) -> None:
        failures, limit = 0, MAX_KEYS_PER_READ
        try:
            await sleep(0.0)  # gather all waits of one loop iteration into one read
            while self._to_read:
                keys = tuple(islice(self._to_read, limit))
                for key in keys:
                    del self._to_read[key]
                try:
                    values = await self.read(keys)
                except Exception as error:
                    self.on_error(error)
                    is_unavailable = isinstance(error, RelayUnavailable)
                    if isinstance(error, Refused) or (not is_unavailable and len(keys) == 1):
                        for key in keys:
                            self._replies.deliver(key, error)
                        continue
                    self._read_again(keys)
                    if is_unavailable:
                        await sleep(backoff(failures))
                        failures += 1
                    else:
                        limit = len(keys) // 2  # find a foreign value by halving
                    continue
                failures, limit = 0, min(limit * 2, MAX_KEYS_PER_READ)
                for key, value in values.items():
                    self._replies.deliver(key, value)
                if sum(map(len, values.values())) > MAX_SETTLED_BYTES:
                    self._read_again(key for key in keys if key not in values)
        finally:
            self._task = None

    def _read_again(self, keys: Iterable[str]) -> None:
        """Schedules the keys that still have waiters, before all others."""
        waited = {key: None for key in keys if key in self.waiters}
        self._to_read = {**waited, **self._to_read}
