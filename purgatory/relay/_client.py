"""Calls a store, retries until the call succeeds or its timeout is over, and words the errors."""

import logging
from asyncio import gather, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import uniform
from typing import Any, Final, TypeVar, cast, final

from purgatory import RelayUnavailable, timeout
from purgatory._core.arguments import printable
from purgatory.relay._batcher import backoff
from purgatory.relay._forgetting import SAMPLES
from purgatory.relay._messages import (
    MAX_VALUE_BYTES,
    Change,
    ChangeMessage,
    Delivery,
    check_delivery,
    check_message,
)
from purgatory.relay._store import (
    NotWritten,
    Refused,
    Store,
    StoreWithDeliveries,
    SweptStore,
)
from purgatory.relay._writer import Call, Writer

MIN_SWEEP_INTERVAL: Final = 1.0
MAX_SWEEP_INTERVAL: Final = 60.0
"""Seconds between two searches for expired values or old keys; the minimum applies while there are
expired values."""

MAX_SWEPT: Final = 100
"""Maximum number of expired values removed by one call."""

SWEEP_PAUSE: Final = 0.005
"""Pause between two portions, in seconds, so that writes can run in between."""

log = logging.getLogger("purgatory.relay")

T = TypeVar("T")


@asynccontextmanager
async def answer_within(store: Store, seconds: float) -> AsyncIterator[None]:
    """Limits the block, which calls `store`, to `seconds`; then it raises RelayUnavailable."""
    try:
        async with timeout(seconds):
            yield
    except TimeoutError as error:
        raise RelayUnavailable(f"{store.address} gave no answer within {seconds} s") from error


@final
class StoreClient:
    """Opens a store, and writes to it.

    Args:
        store: a new store, not opened yet.
        timeout: time limit of each call, in seconds.
        write: writes changes to the store; by default `StoreClient.write`.
        max_value: size limit of a delivered value, in bytes.

    Raises:
        ValueError, TypeError: `max_value` is not a positive integer.
    """

    def __init__(
        self,
        store: Store,
        timeout: float,
        write: Callable[[Sequence[Change]], Awaitable[ChangeMessage]] | None = None,
        max_value: int = MAX_VALUE_BYTES,
    ) -> None:
        if isinstance(max_value, bool) or not isinstance(max_value, int):
            raise TypeError(f"max_value must be an integer, got {max_value!r}")
        if max_value < 1:
            raise ValueError(f"max_value must be a positive number of bytes, got {max_value}")
        self.store, self.timeout = store, timeout
        self._write = write or self.write
        self.changes = Writer("writing", self._change_all)
        self.deliveries = Writer("delivering", self._settle)
        self.sent = 0
        """Number of changes written."""
        self._max_value = max_value
        self.last_error: RelayUnavailable | None = None
        """Error of the last retried call; None if it succeeded."""

    async def open(self) -> None:
        """Opens the store; retries until it succeeds."""
        await self._until_done(self.store.open)

    def stop(self) -> None:
        """Cancels unanswered writes and deliveries."""
        self.changes.close()
        self.deliveries.close()

    async def close(self) -> None:
        """Closes the store, within `timeout`."""
        self.stop()
        try:
            async with timeout(self.timeout):
                await self.store.close()
        except (RelayUnavailable, TimeoutError):
            pass  # the server closed it first, or does not answer

    async def write(self, changes: Sequence[Change]) -> ChangeMessage:
        """Writes the changes, without a retry.

        Raises:
            RelayUnavailable: the write failed; the changes may have been made.
        """
        async with answer_within(self.store, self.timeout):
            return check_message(await self.store.write(changes))

    async def change(self, action: str, change: Change, connection: Any = None) -> int:
        """Writes a change, batched with others. Returns the key's version after it; for a bump, the
        version allotted to it.

        Raises:
            RelayUnavailable: the change was not made, or may have been made; the message says
                which.
        """

        async def write() -> int:
            message = check_message(await self.store.write([change], connection))
            return message.versions[change.key]

        own = None if connection is None else write
        version: int = await self._answer(action, "written", self.changes, change, own)
        return version

    async def _answer(
        self,
        action: str,
        done: str,
        writer: Writer,
        request: Change | Delivery,
        own: Callable[[], Awaitable[int]] | None,
    ) -> Any:
        """The answer to a request, which `own` makes in the caller's transaction if it is given."""
        key, call = request.key, None
        try:
            async with timeout(self.timeout):
                if own is not None:
                    return await own()
                call = writer.submit(request)
                return await call.answer
        except TimeoutError:
            raise self._unanswered(action, done, writer, call, key) from writer.batcher.last_error
        except RelayUnavailable as error:
            perhaps = "" if isinstance(error, NotWritten) else f", and it was perhaps {done}"
            raise RelayUnavailable(f"cannot {action} {key!r}: {error}{perhaps}") from error

    def _unanswered(
        self, action: str, done: str, writer: Writer, call: Call | None, key: str
    ) -> RelayUnavailable:
        perhaps = f", and it was perhaps {done}" if call and call.is_perhaps_made else ""
        if call and call.is_locked:
            locked = f"another transaction holds it locked at {self.store.address}"
            return RelayUnavailable(f"cannot {action} {key!r}: {locked}{perhaps}")
        return RelayUnavailable(
            f"{self.unavailable(action, key, writer.batcher.last_error)}{perhaps}"
        )

    async def _change_all(self, changes: Sequence[Change]) -> Mapping[str, int]:
        message = await self._write(changes)
        self.sent += len(message.versions)
        return message.versions

    # -- deliveries

    def require_deliveries(self, action: str, key: str) -> None:
        """Raises TypeError if the store has no methods for deliveries."""
        if not hasattr(self.store, "settle"):
            raise TypeError(
                f"cannot {action} {key!r}: the store at {self.store.address} takes no deliveries, "
                "see purgatory.relay.StoreWithDeliveries"
            )

    async def deliver(self, key: str, value: bytes, ttl: float, connection: Any = None) -> bool:
        """Settles a key. Returns whether this call did it.

        Raises:
            RelayUnavailable: the value was not delivered, or may have been; the message says which.
            ValueError, TypeError: an argument is out of bounds or of a wrong type.
        """
        delivery = check_delivery(key, value, ttl, self._max_value)
        self.require_deliveries("deliver to", key)
        limit = getattr(self.store, "max_value", self._max_value)
        if len(value) > limit:
            raise ValueError(
                f"cannot deliver {len(value)} bytes to {key!r}: the server at {self.store.address} "
                f"takes at most {limit}"
            )

        return await self.settle("deliver to", delivery, connection)

    async def settle(self, action: str, delivery: Delivery, connection: Any = None) -> bool:
        """Settles a key, without a check. Returns whether this call did it.

        Raises:
            RelayUnavailable: as with `deliver`.
        """

        async def settle() -> int:
            store = cast(StoreWithDeliveries, self.store)
            return (await store.settle([delivery], connection))[delivery.key]

        own = None if connection is None else settle
        return bool(await self._answer(action, "delivered", self.deliveries, delivery, own))

    async def _settle(self, deliveries: Sequence[Delivery]) -> Mapping[str, int]:
        # Half the timeout leaves time for a second attempt.
        async with answer_within(self.store, self.timeout / 2.0):
            return await cast(StoreWithDeliveries, self.store).settle(deliveries)

    async def keep_house(self, forget_after: float | None = None) -> None:
        """Removes expired values, unless the store does so by itself, and forgets keys that were
        not written for `forget_after` seconds. Every process runs this; a search that finds none
        is cheap."""

        async def sweep() -> bool:
            return bool(await cast(SweptStore, self.store).sweep(MAX_SWEPT))

        jobs = []
        if hasattr(self.store, "sweep"):
            jobs.append(self._keep(sweep, MIN_SWEEP_INTERVAL, MAX_SWEEP_INTERVAL))
        if forget_after is not None:
            interval = min(forget_after / SAMPLES, MAX_SWEEP_INTERVAL)
            forget = partial(self.store.forget_unwritten, forget_after)
            jobs.append(self._keep(forget, interval, interval))
        await gather(*jobs)

    async def _keep(
        self, remove: Callable[[], Awaitable[bool]], minimum: float, maximum: float
    ) -> None:
        """Calls `remove`, which returns whether there is more, at intervals between two bounds."""
        interval = maximum / 2.0
        while True:
            await sleep(max(interval, minimum) * uniform(0.5, 1.0))
            interval = min(interval * 2.0, maximum)
            try:
                while await self._within_timeout(remove):
                    interval = minimum
                    await sleep(SWEEP_PAUSE)
            except (RelayUnavailable, TimeoutError):
                log.debug("%s: nothing was removed", self.store.address, exc_info=True)
            except Exception as error:
                log.warning("%s: cannot sweep: %s", self.store.address, printable(error))

    async def _within_timeout(self, call: Callable[[], Awaitable[T]]) -> T:
        async with timeout(self.timeout):
            return await call()

    async def retry(self, action: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        """Makes an idempotent call, with retries, and returns its result.

        Raises:
            RelayUnavailable: every attempt within the timeout failed.
        """
        try:
            return await self._within_timeout(partial(self._until_done, call))
        except Refused as error:
            raise RelayUnavailable(f"cannot {action} {key!r}: {error}") from error
        except TimeoutError:
            raise self.unavailable(action, key, self.last_error) from self.last_error

    async def _until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retries a call until it succeeds, or is refused."""
        failures = 0
        while True:
            try:
                result = await call()
                self.last_error = None
                return result
            except Refused:
                raise
            except RelayUnavailable as error:
                self.last_error = error
                await sleep(backoff(failures))
                failures += 1

    def unavailable(self, action: str, key: str, error: Exception | None) -> RelayUnavailable:
        """The error for a failed action, with the cause if it is known."""
        reason = "" if error is None else f": {error}"
        return RelayUnavailable(
            f"cannot {action} {key!r}: {self.store.address} gave no answer "
            f"within {self.timeout} s{reason}"
        )
