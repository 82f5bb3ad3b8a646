"""Opens a store and calls it: batches, retries, limits the time, and words the errors."""

import logging
from asyncio import Task, create_task, gather, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import uniform
from typing import Any, Final, NamedTuple, cast, final

from purgatory import RelayUnavailable, timeout
from purgatory._core.arguments import printable
from purgatory.relay._calls import Call, Calls, backoff
from purgatory.relay._forgetting import SAMPLES
from purgatory.relay._messages import (
    MAX_VALUE_BYTES,
    Change,
    ChangeMessage,
    Delivery,
    ReadResult,
    require_delivery,
    require_duration,
)
from purgatory.relay._store import NotWritten, Refused, Store, StoreWithDeliveries, SweptStore

MIN_SWEEP_INTERVAL: Final = 1.0
MAX_SWEEP_INTERVAL: Final = 60.0
"""Seconds between two searches for expired values or old keys; the minimum applies while there are
expired values."""

MAX_SWEPT: Final = 100
"""Maximum number of expired values removed by one call."""

SWEEP_PAUSE: Final = 0.005
"""Pause between two portions, in seconds, so that writes can run in between."""

log = logging.getLogger("purgatory.relay")


class Found(NamedTuple):
    """A version in the store, and the store's epoch."""

    version: int
    epoch: str


@final
class StoreClient:
    """Opens a store, and reads and writes it.

    Args:
        store: a new store, not opened yet.
        timeout: time limit of each call, in seconds.
        max_value: size limit of a delivered value, in bytes.
        forget_after: see `Relay`.
        write: writes changes to the store; by default `StoreClient.write`.
        on_read: called with the result of each read of versions, before its callers get it.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of a wrong type.
    """

    def __init__(
        self,
        store: Store,
        timeout: float,
        max_value: int = MAX_VALUE_BYTES,
        forget_after: float | None = None,
        write: Callable[[Sequence[Change]], Awaitable[ChangeMessage]] | None = None,
        on_read: Callable[[ReadResult], Awaitable[None]] | None = None,
    ) -> None:
        require_duration("timeout", timeout)
        if forget_after is not None:
            require_duration("forget_after", forget_after)
        if isinstance(max_value, bool) or not isinstance(max_value, int):
            raise TypeError(f"max_value must be an integer, got {max_value!r}")
        if max_value < 1:
            raise ValueError(f"max_value must be a positive number of bytes, got {max_value}")
        self.store, self.timeout = store, timeout
        self._max_value, self._forget_after = max_value, forget_after
        self._write, self._on_read = write or self.write, on_read
        self.changes = Calls("writing", self._change_all)
        self.deliveries = Calls("delivering", self._settle_all)
        self.reads = Calls("reading versions", self._read_all)
        self._forgets = Calls("forgetting", self._forget_all)
        self._sweeping: Task[None] | None = None
        self.sent = 0
        """Number of changes written, and of values that settled a key."""
        self.last_error: Exception | None = None
        """Last error of the opening; None once it succeeded."""

    async def open(self, begin: Callable[[], Awaitable[object]] | None = None) -> None:
        """Opens the store, and then calls `begin`; retries until `timeout` is over.

        Raises:
            RelayUnavailable: the store could not be reached within `timeout`.
        """
        failures = 0
        try:
            async with timeout(self.timeout):
                while True:
                    try:
                        await self.store.open()
                        break
                    except Refused:
                        raise
                    except RelayUnavailable as error:
                        self.last_error = error
                        await sleep(backoff(failures))
                        failures += 1
                self.last_error = None
                if begin is not None:
                    await begin()
        except TimeoutError as error:
            reason = f"{self.store.address} gave no answer within {self.timeout} s"
            if self.last_error is not None:
                reason = f"tried for {self.timeout} s: {self.last_error}"
            message = f"cannot open the relay: {reason}"
            raise RelayUnavailable(message) from self.last_error or error
        self._sweeping = create_task(self._keep_house(), name="purgatory.relay: sweeping")

    def stop(self) -> None:
        """Cancels unanswered calls."""
        for calls in (self.changes, self.deliveries, self.reads, self._forgets):
            calls.close()
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def close(self) -> None:
        """Closes the store, within `timeout`."""
        self.stop()
        try:
            async with timeout(self.timeout):
                await self.store.close()
        except (RelayUnavailable, TimeoutError):
            pass  # the server closed it first, or does not answer

    @asynccontextmanager
    async def limit(self, attempts: int = 1) -> AsyncIterator[None]:
        """Limits the block, which calls the store, to the time that as many attempts leave to each.

        Raises:
            RelayUnavailable: the time is over.
        """
        seconds = self.timeout / attempts
        try:
            async with timeout(seconds):
                yield
        except TimeoutError as error:
            raise RelayUnavailable(
                f"{self.store.address} gave no answer within {seconds} s"
            ) from error

    async def _answer(
        self,
        action: str,
        calls: Calls,
        request: Change | Delivery,
        own: Callable[[], Awaitable[Any]] | None = None,
        done: str = "",
    ) -> Any:
        """The answer to a request, which `own` makes in the caller's transaction if it is given.

        Raises:
            RelayUnavailable: there is none. If the request was perhaps made, the message says so,
                by the word `done`.
        """
        call: Call | None = None
        cause: Exception | None
        try:
            async with timeout(self.timeout):
                if own is not None:
                    return await own()
                call = calls.submit(request)
                return await call.answer
        except TimeoutError:
            cause = calls.last_error
            is_perhaps_made = call is None or calls.is_perhaps_made(call)
            if cause is None and call is not None and call.is_locked:
                reason = f"another transaction holds it locked at {self.store.address}"
            else:
                reason = f"{self.store.address} gave no answer within {self.timeout} s"
                reason += "" if cause is None else f": {cause}"
        except RelayUnavailable as error:
            cause, reason = error, str(error)
            is_perhaps_made = not isinstance(error, NotWritten)
        perhaps = f", and it was perhaps {done}" if done and is_perhaps_made else ""
        raise RelayUnavailable(f"cannot {action} {request.key!r}: {reason}{perhaps}") from cause

    # -- versions

    async def read(self, key: str, action: str = "read") -> Found:
        """Reads a version. The read starts after this call.

        Raises:
            RelayUnavailable: the store gave no answer, or refused.
        """
        found: Found = await self._answer(action, self.reads, Change(key, 0, 0))
        return found

    async def _read_all(self, changes: Sequence[Change]) -> Mapping[str, Found]:
        async with self.limit(attempts=2):
            result = await self.store.read([change.key for change in changes], None)
            if self._on_read is not None:
                await self._on_read(result)
        return {key: Found(version, result.epoch) for key, version in result.versions.items()}

    async def forget(self, key: str) -> None:
        """Forgets a key.

        Raises:
            RelayUnavailable: the store gave no answer, or refused.
        """
        await self._answer("forget", self._forgets, Change(key, 0, 0))

    async def _forget_all(self, changes: Sequence[Change]) -> Mapping[str, None]:
        keys = [change.key for change in changes]
        async with self.limit():
            await self.store.forget(keys)
        return dict.fromkeys(keys)

    async def write(self, changes: Sequence[Change]) -> ChangeMessage:
        """Writes the changes, without a retry.

        Raises:
            RelayUnavailable: the write failed; the changes may have been made.
        """
        async with self.limit():
            return await self.store.write(changes)

    async def change(self, action: str, change: Change, connection: Any = None) -> int:
        """Writes a change, batched with other writes. Returns the key's version after it; for a bump,
        the version allotted to it.

        Raises:
            RelayUnavailable: the change was not made, or may have been made; the message says
                which.
        """

        async def write() -> int:
            version = (await self.store.write([change], connection)).versions[change.key]
            self.sent += 1
            return version

        own = None if connection is None else write
        version: int = await self._answer(action, self.changes, change, own, "written")
        return version

    async def _change_all(self, changes: Sequence[Change]) -> Mapping[str, int]:
        message = await self._write(changes)
        self.sent += len(message.versions)
        return message.versions

    # -- deliveries

    def require_deliveries(self, action: str, key: str) -> StoreWithDeliveries:
        """The store. Raises TypeError if it has no methods for deliveries."""
        if not hasattr(self.store, "settle"):
            raise TypeError(
                f"cannot {action} {key!r}: the store at {self.store.address} takes no deliveries, "
                "see purgatory.relay.StoreWithDeliveries"
            )
        return cast(StoreWithDeliveries, self.store)

    async def deliver(self, key: str, value: bytes, ttl: float, connection: Any = None) -> bool:
        """Settles a key. Returns whether this call did it.

        Raises:
            RelayUnavailable: the value was not delivered, or may have been; the message says which.
            ValueError, TypeError: an argument is out of bounds or of a wrong type.
        """
        store = self.require_deliveries("deliver to", key)
        limit = min(self._max_value, getattr(store, "max_value", self._max_value))
        delivery = require_delivery(key, value, ttl, limit)

        async def settle() -> bool:
            return (await store.settle([delivery], connection))[key]

        own = None if connection is None else settle
        is_settled = await self.settle("deliver to", delivery, own)
        self.sent += is_settled
        return is_settled

    async def settle(
        self, action: str, delivery: Delivery, own: Callable[[], Awaitable[bool]] | None = None
    ) -> bool:
        """Settles a key, without a check. Returns whether this call did it.

        Raises:
            RelayUnavailable: as with `deliver`.
        """
        return bool(await self._answer(action, self.deliveries, delivery, own, "delivered"))

    async def _settle_all(self, deliveries: Sequence[Delivery]) -> Mapping[str, bool]:
        async with self.limit(attempts=2):
            return await cast(StoreWithDeliveries, self.store).settle(deliveries)

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values in the store, read without a retry.

        Raises:
            RelayUnavailable: the store gave no answer, or refused.
        """
        async with self.limit():
            return await cast(StoreWithDeliveries, self.store).settled(keys)

    # -- housekeeping

    async def _keep_house(self) -> None:
        """Removes expired values, unless the store does so by itself, and forgets keys that were
        not written for `forget_after` seconds. Every process runs this; a search that finds none
        is cheap."""
        jobs = []
        if hasattr(self.store, "sweep"):
            sweep = partial(cast(SweptStore, self.store).sweep, MAX_SWEPT)
            jobs.append(self._keep(sweep, MIN_SWEEP_INTERVAL, MAX_SWEEP_INTERVAL))
        if self._forget_after is not None:
            interval = min(self._forget_after / SAMPLES, MAX_SWEEP_INTERVAL)
            forget = partial(self.store.forget_unwritten, self._forget_after)
            jobs.append(self._keep(forget, interval, interval))
        await gather(*jobs)

    async def _keep(
        self, remove: Callable[[], Awaitable[int]], minimum: float, maximum: float
    ) -> None:
        """Calls `remove`, which returns whether there is more, at intervals between two bounds."""
        interval = maximum / 2.0
        while True:
            await sleep(max(interval, minimum) * uniform(0.5, 1.0))
            interval = min(interval * 2.0, maximum)
            try:
                has_more = True
                while has_more:
                    async with self.limit():
                        has_more = bool(await remove())
                    if has_more:
                        interval = minimum
                        await sleep(SWEEP_PAUSE)
            except RelayUnavailable:
                log.debug("%s: nothing was removed", self.store.address, exc_info=True)
            except Exception as error:
                log.warning("%s: cannot sweep: %s", self.store.address, printable(error))
