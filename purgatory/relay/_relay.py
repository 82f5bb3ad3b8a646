"""`Relay`, which users call. It begins and ends waits; a `StoreSync` keeps the versions up to
date, and a `Receiver` reads what was delivered."""

from asyncio import AbstractEventLoop, Task, get_running_loop
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from types import TracebackType
from typing import Any, cast, final

from purgatory import (
    Observer,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    RelayUnavailable,
    ThresholdPurgatory,
    WrongLoop,
    timeout,
    timeout_at,
)
from purgatory._core.arguments import seconds
from purgatory.relay._client import StoreClient
from purgatory.relay._follower import Follower
from purgatory.relay._membership import About, Membership, Worker
from purgatory.relay._messages import (
    MAX_VALUE_BYTES,
    Change,
    ChangeMessage,
    check_key,
    check_version,
)
from purgatory.relay._receiver import Receiver
from purgatory.relay._store import Refused, Store, open_store
from purgatory.relay._store_sync import StoreSync


@final
@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done so far, and its current state."""

    is_connected: bool
    """Whether it is subscribed, everything that was written before is known, and its last write did
    not fail. After one that did, it tries every `resync` seconds whether the store takes writes
    again."""
    since: float
    """The loop's time when that has last changed."""
    received: int
    """Versions that came in messages, including its own and those of keys that nobody here waits
    for. None come while nobody waits for anything, from some seconds after the last wait on, unless
    a purgatory is attached."""
    sent: int
    """Changes that were written; several to one key in one write count once."""
    resyncs: int
    """How often it was read what had changed, or whether the store still is what it was, while
    nobody here waits."""
    healed: int
    """Versions that were found in this way, and whose messages were lost."""
    epochs: int
    """How many epochs of the store it has seen; 1 while nothing was lost there."""
    watched: int
    """Keys that somebody waits for, and keys that somebody receives."""


class EpochChanged(Exception):
    """Ends waits that have seen a version of another epoch than `epoch`, the store's. None if a
    read has shown that for each of them."""

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
    epoch; of keys that are not there, it is the highest one that was ever forgotten. One relay per
    process and store is enough, for any number of keys and waits. Bound to the event loop that it
    is entered on; when it was closed it may be entered again, also on another.

    Args:
        store: an address, `file:///folder` (the workers of one machine, no server),
            `redis://host:port/db`, `rediss://`, `unix:///socket`, `postgresql://user@host/database`
            or `nats://host:port`; or an object that has the methods of `purgatory.relay.Store`.
        resync: seconds between two reads of what has changed, each of which finds whatever was
            lost.
        timeout: seconds after which the store is taken to be away.
        prefix: of the names that the store uses; relays of one prefix share versions. Letters,
            digits and underscores.
        forget_after: seconds after which a key that nobody has written is forgotten, as by
            `forget`, at the earliest, and an eighth of them later at most; None for never. It holds
            for all keys of the store, and the smallest one of its relays counts. Not for keys of
            `advance` whose numbers come from elsewhere: the floor may be above these.
        max_value: the largest value that `deliver` takes, in bytes.
        observer: is notified of each wait that has ended, as of an operation of the kind "wait" in
            the purgatory "relay"; or a sequence of observers. A wait that begins anew, in another
            epoch, is reported as one that failed.

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
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        durations = {"resync": resync, "timeout": timeout}
        if forget_after is not None:
            durations["forget_after"] = forget_after
        for name, duration in durations.items():
            if not (isfinite(duration) and duration > 0.0):
                raise ValueError(
                    f"{name} must be a positive, finite number of seconds, not {duration!r}"
                )
        if not (prefix.isascii() and prefix.replace("_", "a").isalnum() and len(prefix) <= 32):
            raise ValueError(
                f"prefix must consist of at most 32 letters, digits and underscores, not {prefix!r}"
            )
        self._resync, self._timeout, self._forget_after = resync, timeout, forget_after
        self._max_value = max_value
        self._is_open = self._is_closed = self._is_closing = False
        self._attached: list[Purgatory[Any]] = []
        self._membership = Membership()
        self._make = (
            partial(open_store, store, prefix),
            partial(ThresholdPurgatory[str, int], "relay", observer=observer),
            partial(Purgatory[Any], "relay", observer=observer),
        )
        self._renew()

    def _renew(self) -> None:
        """Makes everything that belongs to one time in which the relay is open."""
        make_store, make_thresholds, make_replies = self._make
        self._loop: AbstractEventLoop | None = None
        self._sync: StoreSync | None = None
        self._client = StoreClient(make_store(), self._timeout, self._write, self._max_value)
        self._thresholds = make_thresholds()
        self._replies = make_replies()
        self._receiver = Receiver(self._store, self._timeout, self._replies)
        self._sweeping: Task[None] | None = None
        self._follower = Follower(
            self._on_advance, self._on_epoch_change, self._on_ahead, self._on_change
        )
        self._follower.reports_all_keys = bool(self._attached)

    async def __aenter__(self) -> "Relay":
        """Opens the store, and returns when it is subscribed. While the store is away it tries
        again, for `timeout`: a process that is started again meanwhile need not fail. A relay that
        was closed is opened anew, on any loop, with its attached purgatories; its statistics begin
        at 0.

        Raises:
            RelayUnavailable: it could not be reached within `timeout`.
            ValueError: what is there is not a relay's.
            RuntimeError: it is open, or being closed.
        """
        if self._is_closing:
            raise RuntimeError(f"the relay at {self._store.address} is being closed")
        if self._is_closed:
            self._renew()
            self._is_closed = False
        if self._loop is not None:
            raise RuntimeError(f"the relay at {self._store.address} is open already")
        self._loop = get_running_loop()
        try:
            async with timeout(self._timeout):
                await self._client.open()
                self._membership.begin()
                self._sync = StoreSync(
                    self._store,
                    self._follower,
                    self._receiver,
                    self._membership,
                    self._resync,
                    self._timeout,
                    self._forget_after,
                )
                await self._sync.opened
                self._sweeping = self._loop.create_task(
                    self._client.keep_sweeping(), name="purgatory.relay: sweeping"
                )
        except BaseException as error:
            last_error = self._client.last_error if self._sync is None else self._sync.last_error
            await self.aclose()
            if not isinstance(error, TimeoutError):
                raise
            reason = f"{self._store.address} gave no answer within {self._timeout} s"
            if last_error is not None:
                reason = f"tried for {self._timeout} s: {last_error}"
            raise RelayUnavailable(f"cannot open the relay: {reason}") from last_error or error
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all waits, reads and writes with `OperationCancelled`, and all connections. What is
        being written may be lost. If its own task is cancelled, it does so before it raises.
        Idempotent.

        Raises:
            WrongLoop: called from another loop than the one that the relay was entered on; nothing
                has changed.
        """
        if self._is_closed:
            return
        if (
            self._loop is not None
            and self._loop is not get_running_loop()
            and not self._loop.is_closed()
        ):
            raise WrongLoop(
                f"cannot close the relay at {self._store.address}: it was entered on another event loop"
            )
        self._is_closed, self._is_open, self._is_closing = True, False, True
        self._client.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
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
        away.

        If the store begins another epoch meanwhile, or if `seen` is above the store's version, and
        therefore from another epoch, it returns the current version. In any case the caller must
        read its data again.

        Args:
            key: need not have been written.
            seen: the version that the caller has seen, 0 for none.
            timeout: in seconds; `None` and `inf` for no limit. With zero and less the store is
                asked once, for at most the `timeout` of the relay.
            epoch: the epoch of `seen`; if the store has another one, the current version is
                returned at once. For numbers that come from elsewhere, as in a request. By default
                the epoch that this process knows.

        Returns:
            The first version above `seen` that this process receives; at once, if there is one
            already.

        Cost: a read if the key has no waiter here yet, if `seen` is above its known version, if
        this process knows another epoch than `epoch`, or if `timeout` is zero; many at once are one
        read.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing came in time.
            OperationCancelled: `aclose` ended the wait.
            PurgatoryClosed: `aclose` was called before.
            RelayUnavailable: the relay is not open yet.
            ValueError, TypeError: an argument is out of bounds or of a wrong type.
            WrongLoop: called from another loop than the one that the relay was entered on.
        """
        sync = self._require_open("wait for", key)
        seen = check_version(seen, "seen", 53)
        follower = self._follower
        if not isinstance(epoch, str | None):
            raise TypeError(f"epoch is a str, not {epoch!r}")
        if timeout is not None and seconds("timeout", timeout) <= 0.0:
            return await self._look(sync, key, seen, epoch)
        when = None if timeout is None else self._time() + timeout
        if (
            epoch is not None and epoch != follower.epoch
        ):  # perhaps this process does not know of it yet
            with suppress(TimeoutError):
                async with timeout_at(when):
                    version = await sync.read(key)
                if epoch != follower.epoch:
                    return version
            timeout = None if when is None else when - self._time()
        while True:
            epoch = follower.epoch
            follower.add_waiter(key, seen)
            sync.poke()
            try:
                return await self._thresholds.wait(key, seen + 1, timeout)
            except EpochChanged as change:
                if change.epoch != epoch or change.version > seen:
                    return change.version
            finally:
                if follower.remove_waiter(key):
                    with suppress(
                        WrongLoop
                    ):  # the loop is gone, and a suspended coroutine is being closed
                        self._thresholds.forget(key)
            timeout = None if when is None else when - self._time()

    async def _look(self, sync: StoreSync, key: str, seen: int, epoch: str | None) -> int:
        """`wait` with a timeout of zero."""
        try:
            async with timeout(self._timeout):
                version = await sync.read(key)
        except TimeoutError:
            error = self._client.unavailable("read", key, sync.last_error)
            raise OperationTimeout(f"cannot wait for {key!r} beyond {seen}: {error}") from error
        if version < seen or epoch not in (None, self._follower.epoch):
            return version
        is_followed = key in self._follower.followed  # if so, the read has advanced it
        try:
            if not is_followed:
                self._thresholds.advance(key, version)
            return await self._thresholds.wait(key, seen + 1, 0.0)
        finally:
            if not is_followed:
                self._thresholds.forget(key)

    def _on_advance(self, key: str, version: int) -> None:
        self._thresholds.advance(key, version)

    def _on_epoch_change(self, key: str, version: int) -> None:
        self._thresholds.forget(key)
        self._thresholds.fail(key, EpochChanged(self._follower.epoch, version))
        self._thresholds.advance(key, version)

    def _on_ahead(self, key: str, version: int) -> None:
        self._thresholds.fail(key, EpochChanged(None, version), above=version + 1)

    # -- reading and writing

    async def version(self, key: str) -> int:
        """The version of `key` in the store, read after this call; 0 if it was never written, or
        the floor that forgetting has left.

        Raises:
            RelayUnavailable: the store is away, or the relay not open.
            OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        sync = self._require_open("read", key)
        try:
            async with timeout(self._timeout):
                return await sync.read(key)
        except TimeoutError:
            raise self._client.unavailable("read", key, sync.last_error) from sync.last_error

    async def bump(self, key: str, *, connection: Any = None) -> int:
        """Raises the version of `key` by one, for all processes. Several calls in one iteration of
        the loop are one write.

        A write that was surely not made is retried until `timeout`; one that was perhaps made is
        not. If the call is cancelled, a write in flight may still be made.

        Args:
            key: need not have been written.
            connection: for PostgreSQL: the caller's asyncpg connection. The version is then raised
                in its transaction, and published if and only if that is committed; until then other
                writes to the key wait for it.

        Returns:
            The version that the store allotted to this call, and to no other.

        Raises:
            RelayUnavailable: the store is away, others hold the key locked, or the relay is not
                open. If the message says so, the version was perhaps raised.
            TypeError: the store takes no `connection`, or none of this type.
            OperationCancelled, PurgatoryClosed, ValueError, WrongLoop: as with `wait`.
        """
        self._require_open("bump", key)
        return await self._client.change("bump", Change(key, 0, 1), connection)

    async def advance(self, key: str, version: int, *, connection: Any = None) -> int:
        """Raises the version of `key` to at least `version`, for all processes. For numbers that
        come from elsewhere.

        Returns:
            The version of `key` after that.

        Raises:
            RelayUnavailable, OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop:
                as with `bump`.
        """
        self._require_open("advance", key)
        return await self._client.change(
            "advance", Change(key, check_version(version, "version", 52), 0), connection
        )

    async def forget(self, key: str) -> None:
        """Removes `key` from the store. Its version is then the store's floor, the highest version
        of all forgotten keys, so its next `bump` returns a new number. Its waits continue, and the
        next write completes them.

        Raises:
            RelayUnavailable: the store is away, the relay is not open, or, on PostgreSQL, some
                transaction that has written is open all the time. It was perhaps forgotten.
            OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        self._require_open("forget", key)
        await self._client.retry("forget", key, partial(self._store.forget, [key]))

    # -- replies

    async def deliver(self, key: str, value: bytes, *, ttl: float, connection: Any = None) -> bool:
        """Delivers `value` to everyone who receives under `key`, in any process, until `ttl` is
        over. The first call settles the key; all others change nothing.

        A delivery without an answer is retried until `timeout`; the store recognises it by a
        token. Several calls in one iteration of the loop are one write.

        Args:
            key: apart from the keys of versions.
            value: at most `max_value` bytes.
            ttl: seconds for which the store keeps the value, more than 0. Then the key is free, and
                may be settled anew.
            connection: for PostgreSQL: the caller's asyncpg connection. The value is then delivered
                in its transaction, if and only if that is committed; until then other deliveries to
                the key wait for it.

        Returns:
            Whether this call has settled the key: True for one caller, False for all others.

        Raises:
            RelayUnavailable: the store is away, another transaction holds the key locked, or the
                relay is not open. If the message says so, the value was perhaps delivered.
            TypeError: `value` is no `bytes`; or the store takes no deliveries, no `connection`, or
                none of this type.
            ValueError: `value` is larger than `max_value` or than the server takes, or `ttl` is not
                positive.
            OperationCancelled, PurgatoryClosed, WrongLoop: as with `wait`.
        """
        self._require_open("deliver to", key)
        return await self._client.deliver(key, value, ttl, connection)

    async def receive(self, key: str, timeout: float | None = None) -> bytes:
        """Returns the value delivered to `key`, at once if it is there. Keeps waiting while the
        store is away. Every call before the end of its `ttl` returns it.

        Args:
            key: apart from the keys of versions.
            timeout: in seconds; `None` and `inf` for no limit. With zero and less the store is
                asked once, for at most the `timeout` of the relay.

        Cost: a read; many at once are one read.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: `aclose` ended the wait.
            RelayUnavailable: the store refuses the read, or the relay is not open yet.
            TypeError: the store takes no deliveries.
            PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        sync = self._require_open("receive", key)
        self._client.require_deliveries("receive", key)
        if timeout is not None and seconds("timeout", timeout) <= 0.0:
            return await self._look_for_value(key)
        self._receiver.add_waiter(key)
        try:
            sync.poke()
            value = await self._replies.receive(key, timeout)
        finally:
            self._receiver.remove_waiter(key)
        if isinstance(value, Refused):
            raise RelayUnavailable(f"cannot receive {key!r}: {value}") from value
        if isinstance(value, Exception):
            raise value
        return cast(bytes, value)

    async def _look_for_value(self, key: str) -> bytes:
        """`receive` with a timeout of zero."""
        try:
            values = await self._receiver.read([key])
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
        sync.poke()
        return message

    # -- around it

    @property
    def epoch(self) -> str:
        """The epoch of the store, as far as this process knows. Versions rise within one epoch
        only.

        Raises:
            RelayUnavailable: the relay was never open.
        """
        if self._follower.epoch is None:
            raise RelayUnavailable(
                f"the epoch of {self._store.address} is not known: the relay is not open yet"
            )
        return self._follower.epoch

    def attach(self, purgatory: Purgatory[Any]) -> None:
        """Calls `purgatory.check_and_complete(key)` for each change from now on, for operations
        with conditions of their own. Each write counts at least once; after a change of epoch so
        does each key that the store has then.

        Raises:
            TypeError: the purgatory watches a key now that is no `str`, and so would never be
                checked.
        """
        for key in purgatory.keys():  # noqa: SIM118  # it is no dictionary
            if not isinstance(key, str):
                raise TypeError(
                    f"cannot attach the purgatory {purgatory.name!r} to the relay at {self._store.address}: "
                    f"it watches {key!r}, and a key of a relay is a str"
                )
        if purgatory not in self._attached:
            self._attached.append(purgatory)
        self._follower.report_all_keys()
        if self._sync is not None:
            self._sync.poke()

    def _on_change(self, key: str) -> None:
        for purgatory in self._attached:
            try:
                purgatory.check_and_complete(key)
            except Exception as error:
                loop, message = (
                    get_running_loop(),
                    f"a purgatory that is attached to a relay cannot check {key!r}",
                )
                loop.call_exception_handler(
                    {"message": message, "exception": error, "purgatory": purgatory}
                )

    def introduce(self, about: About) -> None:
        """Lists this process among the `workers` of the others; `purgatory.asgi.console` does so.

        Args:
            about: called when any process wants the list: every 3 s, or somewhat more often when
                several begin at once. What it returns has to be JSON of at most 4,000 bytes, and
                whoever may use the store can read it. It replaces what was given before.
        """
        self._membership.about = about

    def workers(self) -> list[Worker]:
        """The other processes that have announced themselves in the last 10 s, in the order of
        their first announcements.

        Asks all to announce themselves, unless that was done in the last 3 s; those that do are in
        the next list, so call it again. On PostgreSQL the table keeps their last announcements
        until the next ones. On another loop than its own, and while the relay is not open, the list
        is empty.

        Cost: a message to everyone, and one from each that is listed, which all processes of the
            relay receive.

        Raises:
            RuntimeError: no loop is running.
        """
        loop = get_running_loop()
        if self._sync is None or not self._is_open or loop is not self._loop:
            return []
        now = loop.time()
        if self._membership.is_due(now):
            self._sync.announce(calls=True)
        return self._membership.others(now)

    @property
    def thresholds(self) -> ThresholdPurgatory[str, int]:
        """The waits of this process, for `purgatory.inspect`; a new object each time the relay is
        opened. Advancing it does not reach other processes: write with `bump`."""
        return self._thresholds

    def statistics(self) -> RelayStatistics:
        """A snapshot. Cost: O(1)."""
        follower, sync = self._follower, self._sync
        return RelayStatistics(
            is_connected=self._sync is not None and self._sync.is_current.is_set(),
            since=0.0 if sync is None else sync.since,
            received=follower.received,
            sent=self._client.batcher.sent,
            resyncs=follower.resyncs,
            healed=follower.healed,
            epochs=follower.epochs,
            watched=len(follower.followed) + len(self._receiver.waiters),
        )

    def __repr__(self) -> str:
        state = (
            "closed"
            if self._is_closed
            else "connected"
            if self.statistics().is_connected
            else "not connected"
        )
        return f"<Relay {self._store.address!r} {state} watched={self.statistics().watched}>"

    @property
    def _store(self) -> Store:
        return self._client.store

    def _time(self) -> float:
        return get_running_loop().time()

    def _require_open(self, action: str, key: str) -> StoreSync:
        if not self._is_open or self._sync is None:
            if self._is_closed:
                raise PurgatoryClosed(
                    f"cannot {action} {key!r}: the relay at {self._store.address} is closed"
                )
            raise RelayUnavailable(
                f"cannot {action} {key!r}: the relay at {self._store.address} is not open yet, see `async with`"
            )
        if get_running_loop() is not self._loop:
            raise WrongLoop(
                f"cannot {action} {key!r}: the relay at {self._store.address} was entered on another event loop"
            )
        check_key(key)
        return self._sync
