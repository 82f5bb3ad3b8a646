"""Reads delivered values for the waiters of this process.

The channel only names the settled keys, and any message may be lost. So a key is read when a wait
for it starts, when a message names it, and whenever messages may have been missed: at each
confirmed subscription, at each resync and in a new epoch. Values are
kept only in the store: a value that was read goes to the current waiters and is then dropped.
"""

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

from purgatory import Purgatory
from purgatory.relay._calls import Call, Calls
from purgatory.relay._client import StoreClient
from purgatory.relay._messages import Change
from purgatory.relay._store import MAX_SETTLED_BYTES


@final
class ValueReader:
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
        self.calls = Calls("receiving", self._receive, max_failures=10)
        self._reads: dict[str, Call] = {}
        """Keys with waiters -> their last read."""
        self.on_error: Callable[[Exception], None] = lambda _: None

    def add_waiter(self, key: str) -> None:
        """Adds a waiter and schedules a read of the key, even if it has other waiters: it may just
        have been settled."""
        self.waiters[key] += 1
        self._read(key)

    def remove_waiter(self, key: str) -> None:
        """Removes a waiter."""
        self.waiters[key] -= 1
        if not self.waiters[key]:
            del self.waiters[key]
            self._reads.pop(key).answer.cancel()

    def on_settled(self, keys: Sequence[str] = ()) -> None:
        """Handles a message that names these keys; an empty one may concern all keys."""
        for key in keys or self.waiters:
            if key in self.waiters:
                self._read(key)

    def _read(self, key: str) -> None:
        """Reads a key, unless a read of it is queued already."""
        call = self._reads.get(key)
        if call is None or call.answer.done() or self.calls.is_perhaps_made(call):
            if call is not None:
                call.answer.cancel()
            call = self._reads[key] = self.calls.submit(Change(key, 0, 0))
            call.answer.add_done_callback(partial(self._on_answer, key))

    def _on_answer(self, key: str, answer: "Future[None]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            self._replies.deliver(key, error)

    async def _receive(self, changes: Sequence[Change]) -> Mapping[str, None]:
        keys = [change.key for change in changes]
        try:
            values = await self._client.settled(keys)
        except Exception as error:
            self.on_error(error)
            raise
        for key, value in values.items():
            self._replies.deliver(key, value)
        is_full = sum(map(len, values.values())) > MAX_SETTLED_BYTES
        return dict.fromkeys(values if is_full else keys)
