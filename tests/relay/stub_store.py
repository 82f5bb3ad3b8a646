"""A store that keeps nothing, for tests of what surrounds a store."""

import asyncio
from collections.abc import Callable
from typing import Any

from purgatory.relay import ChangeMessage, ReadResult

FOREVER = 120.0  # seconds; longer than any test


class StubStore:
    """A store without deliveries, as others may have written one.

    Attributes:
        reads, writes: the numbers of calls.
        last_read: the number of the last read that gets an answer; no write gets one.
        on_message: what passes a message to the relay.
    """

    address = "stub://"

    def __init__(self, last_read: float = float("inf")) -> None:
        self.is_closed = False
        self.reads = self.writes = 0
        self.last_read = last_read
        self.on_message: Callable[[bytes | str], None] | None = None

    async def open(self) -> None: ...

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        self.is_closed = True

    async def listen(self, on_subscribed: Callable[[], None], on_message: Any) -> None:
        self.on_message = on_message
        on_subscribed()
        try:
            await asyncio.sleep(FOREVER)
        finally:
            await asyncio.sleep(0.01)  # it is slow to stop

    async def read(self, keys: Any, since: int | None) -> ReadResult:
        self.reads += 1
        if self.reads > self.last_read:
            await asyncio.sleep(FOREVER)
        return ReadResult("e", 0, dict.fromkeys(keys, 0))

    async def write(self, changes: Any, connection: Any = None) -> ChangeMessage:
        self.writes += 1
        await asyncio.sleep(FOREVER)
        raise AssertionError

    async def forget(self, keys: Any) -> None: ...

    async def forget_unwritten(self, seconds: float) -> bool:
        return False

    async def renew(self, epoch: str) -> None: ...

    async def send(self, payload: bytes) -> None: ...
