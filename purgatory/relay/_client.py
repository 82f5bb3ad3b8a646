"""Calls of a store that are tried again until they succeed or their time is over, and that say what could not be done."""

from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from random import uniform
from typing import Any, Final, final

from purgatory import RelayUnavailable, timeout
from purgatory.relay._messages import Change, ChangeMessage
from purgatory.relay._store import Store
from purgatory.relay._write_batcher import WriteBatcher

MIN_BACKOFF: Final = 0.02
MAX_BACKOFF: Final = 1.0
"""Seconds between two attempts to reach a store."""


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures, with jitter, so that many processes do not come back at once."""
    return min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures, 10)) * uniform(0.5, 1.0)


@final
class StoreClient:
    """Opens a store, and writes to it.

    Args:
        store: a new one.
        timeout: seconds after which a call fails.
        write: makes changes in the store.
    """

    def __init__(
        self, store: Store, timeout: float, write: Callable[[Sequence[Change]], Awaitable[ChangeMessage]] | None = None
    ) -> None:
        self.store, self.timeout = store, timeout
        self.batcher = WriteBatcher(self.write if write is None else write, backoff)
        self.last_error: RelayUnavailable | None = None
        """Why the store could not be opened, the last time."""

    async def open(self) -> None:
        """Tries until the store is open."""
        for failures in count():
            try:
                await self.store.open()
                self.last_error = None
                return
            except RelayUnavailable as error:
                self.last_error = error
            await sleep(backoff(failures))

    async def close(self) -> None:
        """Closes the store, for as long as `timeout`."""
        self.batcher.close()
        try:
            async with timeout(self.timeout):
                await self.store.close()
        except (RelayUnavailable, TimeoutError):
            pass  # it is closed at the other end

    async def write(self, changes: Sequence[Change]) -> ChangeMessage:
        """Makes changes, once.

        Raises:
            RelayUnavailable: they were perhaps not made.
        """
        try:
            async with timeout(self.timeout):
                return await self.store.write(changes)
        except TimeoutError as error:
            raise RelayUnavailable(f"{self.store.address} gave no answer within {self.timeout} s") from error

    async def change(self, action: str, change: Change, connection: Any = None) -> int:
        """Makes a change together with others; the version of its key after that, or the one that a bump was given.

        Raises:
            RelayUnavailable: it was not made, or perhaps.
        """
        key, batcher = change.key, self.batcher
        try:
            async with timeout(self.timeout):
                if connection is not None:
                    return (await self.store.write([change], connection)).versions[key]
                return await batcher.submit(change)
        except TimeoutError:
            written = ", and it was perhaps written" if batcher.is_in_flight(key) else ""
            if batcher.is_locked(key):
                locked = f"cannot {action} {key!r}: others hold it locked at {self.store.address}{written}"
                raise RelayUnavailable(locked) from None
            error = self.unavailable(action, key, batcher.last_error)
            raise RelayUnavailable(f"{error}{written}") from batcher.last_error
        except RelayUnavailable as error:
            raise RelayUnavailable(f"cannot {action} {key!r}: {error}, and it was perhaps written") from error

    async def retry(self, action: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a call that may be made more than once.

        Raises:
            RelayUnavailable: it has failed until the time was over.
        """
        last_error: Exception | None = None
        try:
            async with timeout(self.timeout):
                for failures in count():
                    try:
                        return await call()
                    except RelayUnavailable as error:
                        last_error = error
                    await sleep(backoff(failures))
        except TimeoutError:
            raise self.unavailable(action, key, last_error) from last_error

    def unavailable(self, action: str, key: str, error: Exception | None) -> RelayUnavailable:
        """Says what could not be done, and why if that is known."""
        reason = "" if error is None else f": {error}"
        return RelayUnavailable(f"cannot {action} {key!r}: {self.store.address} gave no answer within {self.timeout} s{reason}")
