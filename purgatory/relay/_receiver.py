"""Reads delivered values for the waiters of this process.

The channel only names the settled keys, and any message may be lost. So a key is read when a wait
for it begins, when a message names it, and whenever messages may have been missed: at each
confirmed subscription, at each resync and in a new epoch. Values are
kept only in the store: a value that was read goes to the current waiters and is then dropped.
"""

from asyncio import gather
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, final

from purgatory import Purgatory
from purgatory.relay._batcher import Batcher
from purgatory.relay._client import StoreClient
from purgatory.relay._store import MAX_SETTLED_BYTES


@final
class Receiver:
    """Keys with waiters for their values in this process.

    Args:
        client: reads the values.
        replies: receives each value under its key, or the exception with which the read was
            refused.
    """

    def __init__(self, client: StoreClient, replies: Purgatory[Any]) -> None:
        self._client, self._replies = client, replies
        self.waiters: Counter[str] = Counter()
        """Keys -> number of waiters."""
        self.batcher = Batcher(
            "receiving",
            self._receive,
            fail=replies.deliver,
            key=str,
            is_awaited=self.waiters.__contains__,
        )
        self.on_error: Callable[[Exception], None] = lambda _: None

    def add_waiter(self, key: str) -> None:
        """Adds a waiter and schedules a read of the key, even if it has other waiters: it may just
        have been settled."""
        self.waiters[key] += 1
        self.batcher.add([key])

    def remove_waiter(self, key: str) -> None:
        """Removes a waiter."""
        self.waiters[key] -= 1
        if not self.waiters[key]:
            del self.waiters[key]

    def on_settled(self, keys: Sequence[str] = ()) -> None:
        """Handles a message that names these keys; an empty one may concern all keys."""
        self.batcher.add(keys or self.waiters)

    async def close(self) -> None:
        """Cancels the reads."""
        task = self.batcher.task
        self.batcher.close()
        await gather(*[task] if task else [], return_exceptions=True)

    async def _receive(self, keys: list[str]) -> list[str]:
        try:
            values = await self._client.settled(keys)
        except Exception as error:
            self.on_error(error)
            raise
        for key, value in values.items():
            self._replies.deliver(key, value)
        is_full = sum(map(len, values.values())) > MAX_SETTLED_BYTES
        return [key for key in keys if is_full and key not in values]
