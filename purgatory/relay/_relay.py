"""`Relay`, the class that users call. It starts and ends waits; a `StoreSync` keeps the versions up
to date, and a `ValueReader` reads delivered values."""

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, final

from purgatory import (
    Observer,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    RelayUnavailable,
    ThresholdPurgatory,
    WrongLoop,
    timeout_at,
)
from purgatory._core.arguments import seconds
from purgatory.relay._client import StoreClient
from purgatory.relay._follower import Follower
from purgatory.relay._membership import About, Worker
from purgatory.relay._messages import (
    MAX_VALUE_BYTES,
    NO_POSITION,
    Change,
    ChangeMessage,
    ReadResult,
    require_duration,
    require_key,
    require_version,
)
from purgatory.relay._store import Password, Refused, Store, open_store
from purgatory.relay._store_sync import StoreSync
from purgatory.relay._value_reader import ValueReader


@final
@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """Counters and current state of a relay."""

    is_connected: bool
    """Whether it is subscribed, knows all writes before the subscription, and its last write did
    not fail. After a failed write it checks every `resync` seconds whether the store accepts writes
    again."""
    since: float
    """Loop time at which `is_connected` last changed."""
    received: int
    """Number of versions received in messages, including its own versions and keys without a waiter
    in this process."""
    sent: int
    """Number of changes written, where several changes of one key in one write count once, and of
    values that settled a key. Deliveries in a caller's transaction count also if it is rolled
    back."""
    resyncs: int
    """Number of reads of the changes because messages may have been lost: after a subscription,
    after a gap, and every `resync` seconds."""
    healed: int
    """Number of versions that a resync found because their messages were lost."""
    epochs: int
    """Number of the store's epochs seen; 1 while the store has lost no data."""
    watched: int
    """Number of keys with waiters, for a version or for a value."""


class EpochChanged(Exception):
    """Ends waits with a `seen` of another epoch than the store's.

    Args:
        epoch: the store's epoch; None if a read has shown for each of these waits that its `seen`
            is from another epoch.
        version: the current version of the key.
    """

    def __init__(self, epoch: str | None, version: int) -> None:
        super().__init__(epoch, version)
        self.epoch, self.version = epoch, version


@final
class Relay:
    """Versions of keys, shared by processes through a store; a wait completes wherever the write
    was made.

        async with Relay("file:///run/app") as relay:
            await relay.bump("orders/7")                        # in one process: 42
            await relay.wait("orders/7", seen=41, timeout=20)   # in another: 42

    A key is a `str` of at most 512 bytes. Its version is 0 until it is written, and rises within an
    epoch; a missing key has the highest version ever forgotten. One relay per process and store is
    enough, for any number of keys and waits. Bound to the event loop that it is entered on; a
    closed relay may be entered again, on the same loop or another.

    Args:
        store: an address, `file:///folder` (the workers of one machine, no server),
            `redis://host:port/db`, `rediss://`, `valkey://`, `valkeys://`, `unix:///socket`,
            `redis+sentinel://host1:port,host2:port/service/db`, `postgresql://user@host/database`,
            `nats://host:port` or `tls://host:port`; or an object that has the methods of
            `purgatory.relay.Store`. PostgreSQL and NATS take several hosts,
            `nats://host1:port,host2:port`.
        resync: seconds between two reads of the changes. Each read finds all versions whose
            messages were lost.
        timeout: seconds without an answer after which the store counts as unavailable.
        prefix: prefix of all names in the store; relays with the same prefix share versions. At
            most 32 letters, digits and underscores.
        forget_after: seconds without a write after which a key is forgotten, as by `forget`; never
            earlier, and at most an eighth of this time later. None for never. It applies to all
            keys of the store; of several relays, the smallest value counts. Do not use it for keys
            of `advance` whose numbers come from elsewhere: the floor may be above these numbers.
        max_value: size limit of a value given to `deliver`, in bytes.
        password: function that returns the password, called for each new connection, for passwords
            that change; it may be a coroutine function. The user is in the address. None for the
            password in the address.
        observer: an observer or a sequence of observers, notified of each ended wait as an
            operation of kind "wait" in the purgatory "relay". A wait that restarts in another epoch
            is reported as failed.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of a wrong type.
        ImportError: the client of the store is not installed.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        resync: float = 15.0,
        timeout: float = 5.0,
        prefix: str = "purgatory",
        forget_after: float | None = None,
        max_value: int = MAX_VALUE_BYTES,
        password: Password | None = None,
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        require_duration("resync", resync)
        self._resync = resync
        self._is_open = self._is_closed = self._is_closing = False
        self._attached: list[Purgatory[Any]] = []
        self._about: About | None = None

        def make_client() -> StoreClient:
            at = open_store(store, prefix, password)
            return StoreClient(at, timeout, max_value, forget_after, self._write, self._on_read)

        self._factories = (
            make_client,
            partial(ThresholdPurgatory[str, int], "relay", observer=observer),
            partial(Purgatory[Any], "relay", observer=observer),
        )
        self._reset()

    def _reset(self) -> None:
        """Creates the objects that serve from one opening of the relay to its closing."""
        make_client, make_thresholds, make_replies = self._factories
        self._loop: AbstractEventLoop | None = None
        self._sync: StoreSync | None = None
        self._client = make_client()
        self._thresholds = make_thresholds()
        self._replies = make_replies()
        self._values = ValueReader(self._client, self._replies)
        self._follower = Follower(
            self._thresholds.advance,
            self._on_epoch_change,
            self._on_ahead,
            self._on_change,
            self._on_dropped,
        )
        self._follower.reports_all_keys = bool(self._attached)

    async def __aenter__(self) -> "Relay":
        """Opens the store, and returns once it is subscribed. Retries for `timeout` while the store
        is unavailable, so a process restarted during an outage need not fail. A closed relay can be
        reopened, on any loop; it keeps its attached purgatories, and its statistics restart at 0.

        Raises:
            RelayUnavailable: the store could not be reached within `timeout`.
            ValueError: the store's address holds data that is not a relay's.
            RuntimeError: the relay is open, or being closed.
        """
        if self._is_closing:
            raise RuntimeError(f"the relay at {self._store.address} is being closed")
        if self._is_closed:
            self._reset()
            self._is_closed = False
        if self._loop is not None:
            raise RuntimeError(f"the relay at {self._store.address} is open already")
        self._loop = get_running_loop()
        try:
            await self._client.open(self._begin)
        except BaseException:
            await self.aclose()
            raise
        self._is_open = True
        return self

    async def _begin(self) -> None:
        self._sync = StoreSync(
            self._client, self._follower, self._values, lambda: self._about, self._resync
        )
        await self._sync.opened

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all waits, reads and writes with `OperationCancelled`, and closes all connections.
        Writes in flight may be lost. If its task is cancelled, it still closes everything before it
        raises. Idempotent.

        Raises:
            WrongLoop: called on another loop than the relay's; the relay is unchanged.
        """
        if self._is_closed:
            return
        if (
            self._loop is not None
            and self._loop is not get_running_loop()
            and not self._loop.is_closed()
        ):
            raise WrongLoop(
                f"cannot close the relay at {self._store.address}: "
                "it was entered on another event loop"
            )
        self._is_closed, self._is_open, self._is_closing = True, False, True
        self._client.stop()
        async with AsyncExitStack() as stack:  # each is closed, also if this is cancelled meanwhile
            stack.callback(self._end_closing)
            stack.push_async_callback(self._client.close)
            if self._sync is not None:
                stack.push_async_callback(self._sync.close)
            stack.push_async_callback(self._replies.aclose)
            stack.push_async_callback(self._thresholds.aclose)

    def _end_closing(self) -> None:
        self._is_closing = False

    # -- waiting

    async def wait(
        self, key: str, seen: int, timeout: float | None = None, *, epoch: str | None = None
    ) -> int:
        """Waits until the version of `key` is above `seen`, and keeps waiting while the store is
        unavailable.

        Returns the current version if the store starts another epoch meanwhile, or if `seen` is
        above the store's version and therefore from another epoch. In any case the caller must read
        its data again.

        Args:
            key: a key, written or not.
            seen: the version that the caller has seen, 0 for none.
            timeout: in seconds; `None` and `inf` for no limit. At zero or below, the store is read
                once, within the relay's own `timeout`.
            epoch: the epoch of `seen`, for versions from outside this process, such as from a
                request. If the store has another epoch, the current version is returned at once.
                Default: the epoch that this process knows.

        Returns:
            The first version above `seen` that this process receives; at once if it exists already.

        Cost: a read if the key has had no waiter in this process for a second, if `seen` is above
        its known version, if this process knows another epoch than `epoch`, or if `timeout` is
        zero. Many such calls at once share one read.

        Raises:
            OperationTimeout: a `TimeoutError`; no such version was received in time.
            OperationCancelled: `aclose` ended the wait.
            RuntimeError: the relay was never opened; a `PurgatoryClosed` after `aclose`.
            RelayUnavailable: the relay is being opened.
            ValueError, TypeError: an argument is out of bounds or of a wrong type.
            WrongLoop: called on another loop than the relay's.
        """
        sync = self._require_open("wait for", key)
        seen = require_version(seen, "seen", 53)
        follower = self._follower
        if not isinstance(epoch, str | None):
            raise TypeError(f"epoch must be a str, got {epoch!r}")
        if timeout is not None and seconds("timeout", timeout) <= 0.0:
            return await self._look(key, seen, epoch)
        now = get_running_loop().time
        when = None if timeout is None else now() + timeout
        # This process may not know the newer epoch yet, so the store is read.
        if epoch is not None and epoch != follower.epoch:
            with suppress(TimeoutError):
                async with timeout_at(when):
                    found = await self._client.reads.submit(Change(key, 0, 0)).answer
                if epoch != found.epoch:
                    return cast(int, found.version)
            timeout = None if when is None else when - now()
        epoch = epoch or follower.epoch
        while True:
            follower.add_waiter(key, seen)
            sync.wake()
            try:
                return await self._thresholds.wait(key, seen + 1, timeout)
            except EpochChanged as change:
                if change.epoch != epoch or change.version > seen:
                    return change.version
            finally:
                sync.remove_waiter(key)
            timeout = None if when is None else when - now()

    async def _look(self, key: str, seen: int, epoch: str | None) -> int:
        """Implements `wait` with a timeout of zero or less."""
        try:
            version, found = await self._client.read(key)
        except RelayUnavailable as error:
            raise OperationTimeout(f"cannot wait for {key!r} beyond {seen}: {error}") from error
        if version < seen or found != (epoch or self._follower.epoch):
            return version
        is_followed = key in self._follower.followed  # then the read has advanced it
        try:
            if not is_followed:
                self._thresholds.advance(key, version)
            return await self._thresholds.wait(key, seen + 1, 0.0)
        finally:
            if not is_followed:
                self._thresholds.forget(key)

    def _on_epoch_change(self, key: str, version: int) -> None:
        self._thresholds.forget(key)
        self._thresholds.fail(key, EpochChanged(self._follower.epoch, version))
        self._thresholds.advance(key, version)

    def _on_ahead(self, key: str, version: int) -> None:
        self._thresholds.fail(key, EpochChanged(None, version), above=version + 1)

    def _on_dropped(self, key: str) -> None:
        # WrongLoop: the loop is gone, and a suspended coroutine is being closed.
        with suppress(WrongLoop):
            self._thresholds.forget(key)

    # -- reading and writing

    async def version(self, key: str) -> int:
        """Reads the version of `key` from the store. A missing key has 0, or the floor if keys were
        forgotten. Afterwards `epoch` is the version's epoch, or a later one.

        Raises:
            RelayUnavailable: the store is unavailable, or the relay is being opened.
            OperationCancelled, RuntimeError, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        self._require_open("read", key)
        return (await self._client.read(key)).version

    async def bump(self, key: str, *, connection: Any = None) -> int:
        """Raises the version of `key` by one, for all processes. All calls in one loop iteration
        are one write.

        A write that was certainly not made is retried until `timeout`; a write that may have been
        made is not. If the call is cancelled, a write in flight may still be made.

        Args:
            key: a key, written or not.
            connection: only for PostgreSQL: the caller's asyncpg connection. The version is raised
                in its transaction, and published if and only if that transaction commits; until
                then other writes to the key wait. The transaction must be READ COMMITTED. Takes two
                round trips.

        Returns:
            The version allotted by the store, different for each call.

        Raises:
            RelayUnavailable: the store is unavailable, another transaction holds the key locked, or
                the relay is being opened. If the message says so, the version may have been raised.
            TypeError: the store does not support `connection`, or not of this type.
            ValueError: the key is out of bounds; or the transaction of `connection` is not READ
                COMMITTED, and nothing was written.
            OperationCancelled, RuntimeError, WrongLoop: as with `wait`.
        """
        self._require_open("bump", key)
        return await self._client.change("bump", Change(key, 0, 1), connection)

    async def advance(self, key: str, version: int, *, connection: Any = None) -> int:
        """Raises the version of `key` to at least `version`, for all processes. For numbers from
        outside the relay, such as offsets or database ids.

        Returns:
            The version of `key` after the write.

        Raises:
            RelayUnavailable, OperationCancelled, RuntimeError, ValueError, TypeError, WrongLoop:
                as with `bump`.
        """
        self._require_open("advance", key)
        return await self._client.change(
            "advance", Change(key, require_version(version, "version", 52), 0), connection
        )

    async def forget(self, key: str) -> None:
        """Removes `key` from the store. Its version is then the store's floor, the highest version
        of all forgotten keys, so its next `bump` returns a new number. Its waits continue, and the
        next write completes them.

        Raises:
            RelayUnavailable: the store is unavailable, the relay is being opened, or, on PostgreSQL,
                a transaction that has written stays open. The key may have been forgotten.
            OperationCancelled, RuntimeError, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        self._require_open("forget", key)
        await self._client.forget(key)

    # -- replies

    async def deliver(self, key: str, value: bytes, *, ttl: float, connection: Any = None) -> bool:
        """Delivers `value` to every `receive` of `key`, in any process, until `ttl` is over. The
        first call settles the key; later calls change nothing.

        A delivery without an answer is retried until `timeout`; the store recognizes it by a token.
        All calls in one loop iteration are one write.

        Args:
            key: a key; keys of values and keys of versions are separate.
            value: at most `max_value` bytes.
            ttl: seconds for which the store keeps the value, more than 0. Afterwards the key can be
                settled again.
            connection: only for PostgreSQL: the caller's asyncpg connection. The value is delivered
                if and only if its transaction commits; until then other deliveries to the key wait.

        Returns:
            Whether this call settled the key: True for one caller, False for later ones.

        Raises:
            RelayUnavailable: the store is unavailable, another transaction holds the key locked, or
                the relay is being opened. If the message says so, the value may have been delivered.
            TypeError: `value` is not `bytes`; or the store does not support deliveries, or
                `connection`, or not of this type.
            ValueError: `value` is larger than `max_value` or the server's limit, or `ttl` is not
                positive.
            OperationCancelled, RuntimeError, WrongLoop: as with `wait`.
        """
        self._require_open("deliver to", key)
        return await self._client.deliver(key, value, ttl, connection)

    async def receive(self, key: str, timeout: float | None = None) -> bytes:
        """Returns the value delivered to `key`, at once if the store has it. Keeps waiting while
        the store is unavailable. Every call before the end of the `ttl` returns the value.

        Args:
            key: a key; keys of values and keys of versions are separate.
            timeout: in seconds; `None` and `inf` for no limit. At zero or below, the store is read
                once, within the relay's own `timeout`.

        Cost: a read; many calls at once share one read.

        Raises:
            OperationTimeout: a `TimeoutError`; no value was delivered in time.
            OperationCancelled: `aclose` ended the wait.
            RelayUnavailable: the store refuses the read, or the relay is being opened.
            TypeError: the store does not support deliveries.
            RuntimeError, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        sync = self._require_open("receive", key)
        self._client.require_deliveries("receive", key)
        if timeout is not None and seconds("timeout", timeout) <= 0.0:
            return await self._look_for_value(key)
        self._values.add_waiter(key)
        try:
            sync.wake()
            value = await self._replies.receive(key, timeout)
        finally:
            self._values.remove_waiter(key)
        if isinstance(value, Refused):
            raise RelayUnavailable(f"cannot receive {key!r}: {value}") from value
        if isinstance(value, Exception):
            raise value
        return cast(bytes, value)

    async def _look_for_value(self, key: str) -> bytes:
        """Implements `receive` with a timeout of zero or less."""
        try:
            values = await self._client.settled([key])
        except RelayUnavailable as error:
            raise OperationTimeout(f"cannot receive {key!r}: {error}") from error
        if key not in values:
            raise OperationTimeout(f"cannot receive {key!r}: nothing was delivered to it")
        return values[key]

    async def _write(self, changes: Sequence[Change]) -> ChangeMessage:
        sync, latest = self._sync, self._follower.latest
        assert sync is not None
        try:
            message = await self._client.write(changes)
        except RelayUnavailable as error:
            sync.on_write(error)
            raise
        sync.on_write(None)
        self._follower.on_written(message, latest)
        sync.wake()
        return message

    async def _on_read(self, result: ReadResult) -> None:
        """Handles the result of a read for `version` or a wait. Returns when `epoch` is the
        result's, or a later one."""
        epoch, position, versions, *_ = result
        self._follower.on_written(ChangeMessage(epoch, NO_POSITION, position, versions), -1)
        if self._sync is not None:
            self._sync.wake()
            await self._sync.know_epoch(epoch)

    # -- state, attached purgatories, other processes

    @property
    def epoch(self) -> str:
        """The store's epoch, as known in this process. Versions rise only within one epoch.

        Raises:
            RuntimeError: the relay was never open.
            RelayUnavailable: the relay is being opened.
        """
        if self._follower.epoch is None:
            message = f"the epoch of {self._store.address} is not known: the relay is not open"
            if self._loop is None:
                raise RuntimeError(f"{message}: use it in `async with`")
            raise RelayUnavailable(f"{message} yet")
        return self._follower.epoch

    def attach(self, purgatory: Purgatory[Any]) -> None:
        """Calls `purgatory.check_and_complete(key)` for each change from now on, for operations
        with conditions of their own. Each write causes at least one call; a new epoch causes one
        for each key in the store.

        Raises:
            TypeError: the purgatory currently watches a key that is not a `str`; no change would
                check it.
        """
        for key in purgatory.keys():  # noqa: SIM118  # not a dictionary
            if not isinstance(key, str):
                raise TypeError(
                    f"cannot attach the purgatory {purgatory.name!r} to the relay at "
                    f"{self._store.address}: its keys must be str, got {key!r}"
                )
        if purgatory not in self._attached:
            self._attached.append(purgatory)
        self._follower.reports_all_keys = True
        if self._sync is not None:
            self._sync.wake()

    def _on_change(self, key: str) -> None:
        for purgatory in self._attached:
            try:
                purgatory.check_and_complete(key)
            except Exception as error:
                message = f"a purgatory attached to a relay cannot check {key!r}"
                get_running_loop().call_exception_handler(
                    {"message": message, "exception": error, "purgatory": purgatory}
                )

    def introduce(self, about: About) -> None:
        """Lists this process among the `workers` of other processes; `purgatory.console` does so.

        Args:
            about: returns this process's details: JSON of at most 4,000 bytes, which all users of
                the store can read. Called when any process requests the list: every 3 s, or
                slightly more often if several start at once. Replaces an earlier `about`.
        """
        self._about = about

    def workers(self) -> list[Worker]:
        """The other processes that have announced themselves in the last 10 s, in the order of
        their first announcements.

        Unless this was done in the last 3 s, it also asks all processes to announce themselves;
        their answers are in the next list, so call it again. The list is empty on another loop than
        the relay's, while the relay is not open, and on a store that takes no deliveries.

        Cost: a delivery, and one by each listed process.

        Raises:
            RuntimeError: no loop is running.
        """
        loop = get_running_loop()
        if self._sync is None or not self._is_open or loop is not self._loop:
            return []
        return self._sync.membership.others()

    @property
    def thresholds(self) -> ThresholdPurgatory[str, int]:
        """The waits of this process, for `purgatory.inspect`; a new object after each opening of
        the relay. Advancing it does not reach other processes: write with `bump`."""
        return self._thresholds

    @property
    def replies(self) -> Purgatory[Any]:
        """The calls of `receive` in this process, as `thresholds` has the waits for versions.
        Completing them here does not settle their keys: use `deliver`."""
        return self._replies

    def statistics(self) -> RelayStatistics:
        """A snapshot of the counters. Cost: O(1)."""
        follower, sync = self._follower, self._sync
        return RelayStatistics(
            is_connected=self._sync is not None and self._sync.is_current,
            since=0.0 if sync is None else sync.since,
            received=follower.received,
            sent=self._client.sent,
            resyncs=follower.resyncs,
            healed=follower.healed,
            epochs=follower.epochs,
            watched=len(follower.followed) - len(follower.idle) + len(self._values.waiters),
        )

    def __repr__(self) -> str:
        statistics = self.statistics()
        state = "connected" if statistics.is_connected else "not connected"
        if self._is_closed:
            state = "closed"
        return f"<Relay {self._store.address!r} {state} watched={statistics.watched}>"

    @property
    def _store(self) -> Store:
        return self._client.store

    def _require_open(self, action: str, key: str) -> StoreSync:
        relay = f"cannot {action} {key!r}: the relay at {self._store.address}"
        if self._is_closed:
            raise PurgatoryClosed(f"{relay} is closed: use it in `async with`")
        if self._loop is None:
            raise RuntimeError(f"{relay} is not open: use it in `async with`")
        if not self._is_open or self._sync is None:
            raise RelayUnavailable(f"{relay} is not open yet")
        if get_running_loop() is not self._loop:
            raise WrongLoop(f"{relay} was entered on another event loop")
        require_key(key)
        return self._sync
