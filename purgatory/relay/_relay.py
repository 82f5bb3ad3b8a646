"""`Relay`, which users call. It begins and ends waits; a `StoreSync` keeps the versions up to date."""

from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from types import TracebackType
from typing import Any, final

from purgatory import Observer, Purgatory, PurgatoryClosed, RelayUnavailable, ThresholdPurgatory, WrongLoop, timeout, timeout_at
from purgatory.relay._client import StoreClient
from purgatory.relay._follower import Follower
from purgatory.relay._membership import About, Membership, Worker
from purgatory.relay._messages import Change, ChangeMessage, check_key, check_version
from purgatory.relay._store import Store, open_store
from purgatory.relay._store_sync import StoreSync


@final
@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done so far, and its current state."""

    is_connected: bool
    """Whether it is subscribed, everything that was written before is known, and its last write did not fail. After one that
    did, it tries every `resync` seconds whether the store takes writes again."""
    since: float
    """The loop's time when that has last changed."""
    received: int
    """Versions that came in messages, including its own and those of keys that nobody here waits for. None come while nobody
    waits for anything, from some seconds after the last wait on, unless a purgatory is attached."""
    sent: int
    """Changes that were written; several to one key in one write count once."""
    resyncs: int
    """How often it was read what had changed, or whether the store still is what it was, while nobody here waits."""
    healed: int
    """Versions that were found in this way, and whose messages were lost."""
    epochs: int
    """How many epochs of the store it has seen; 1 while nothing was lost there."""
    watched: int
    """Keys that somebody waits for."""


class EpochChanged(Exception):
    """Ends the waits for a key: some of them have seen a version of another epoch than the current one."""

    def __init__(self, epoch: str | None, version: int, is_latest: bool) -> None:
        super().__init__(epoch, version, is_latest)
        self.epoch, self.version, self.is_latest = epoch, version, is_latest


@final
class Relay:
    """Versions of keys, shared by processes through a store; a wait completes wherever the write was made.

        async with Relay("file:///run/app") as relay:
            await relay.bump("orders/7")                        # in one process: 42
            await relay.wait("orders/7", seen=41, timeout=20)   # in another: 42

    A key is a `str` of at most 512 bytes. Its version is 0 until it is written, and rises within an epoch; of keys that are not
    there, it is the highest one that was ever forgotten. One relay per
    process and store is enough, for any number of keys and waits. Bound to the event loop that it is entered on; when it was
    closed it may be entered again, also on another.

    Args:
        store: an address, `file:///folder` (the workers of one machine, no server), `redis://host:port/db`, `rediss://`,
            `unix:///socket`, `postgresql://user@host/database` or `nats://host:port`; or an object that has the methods of
            `purgatory.relay.Store`.
        resync: seconds between two reads of what has changed, each of which finds whatever was lost.
        timeout: seconds after which the store is taken to be away.
        prefix: of the names that the store uses; relays of one prefix share versions. Letters, digits and underscores.
        forget_after: seconds after which a key that nobody has written is forgotten, as by `forget`, at the earliest, and an
            eighth of them later at most; None for never. It holds for all keys of the store, and the smallest one of its relays
            counts. Not for keys of `advance` whose numbers come from elsewhere: the floor may be above these.
        observer: is notified of each wait that has ended, as of an operation of the kind "wait" in the purgatory "relay"; or a
            sequence of observers. A wait that begins anew, in another epoch, is reported as one that failed.

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
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        durations = {"resync": resync, "timeout": timeout}
        if forget_after is not None:
            durations["forget_after"] = forget_after
        for name, seconds in durations.items():
            if not (isfinite(seconds) and seconds > 0.0):
                raise ValueError(f"{name} must be a positive, finite number of seconds, not {seconds!r}")
        if not (prefix.isascii() and prefix.replace("_", "a").isalnum() and len(prefix) <= 32):
            raise ValueError(f"prefix must consist of at most 32 letters, digits and underscores, not {prefix!r}")
        self._resync, self._timeout, self._forget_after = resync, timeout, forget_after
        self._is_open = self._is_closed = self._is_closing = False
        self._attached: list[Purgatory[Any]] = []
        self._membership = Membership()
        self._make = partial(open_store, store, prefix), partial(ThresholdPurgatory[str, int], "relay", observer=observer)
        self._renew()

    def _renew(self) -> None:
        """Makes everything that belongs to one time in which the relay is open."""
        make_store, make_thresholds = self._make
        self._loop: AbstractEventLoop | None = None
        self._sync: StoreSync | None = None
        self._client = StoreClient(make_store(), self._timeout, self._write)
        self._thresholds = make_thresholds()
        self._follower = Follower(self._on_advance, self._on_epoch_change, self._on_change)
        self._follower.reports_all_keys = bool(self._attached)

    async def __aenter__(self) -> "Relay":
        """Opens the store, and returns when it is subscribed. While the store is away it tries again, for `timeout`: a process
        that is started again meanwhile need not fail. A relay that was closed is opened anew, on any loop, with its attached
        purgatories; its statistics begin at 0.

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
                    self._store, self._follower, self._membership, self._resync, self._timeout, self._forget_after
                )
                await self._sync.is_current.wait()
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
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all waits, reads and writes with `OperationCancelled`, and all connections. What is being written may be lost.
        If its own task is cancelled, it does so before it raises. Idempotent.

        Raises:
            WrongLoop: called from another loop than the one that the relay was entered on; nothing has changed.
        """
        if self._is_closed:
            return
        if self._loop is not None and self._loop is not get_running_loop() and not self._loop.is_closed():
            raise WrongLoop(f"cannot close the relay at {self._store.address}: it was entered on another event loop")
        self._is_closed, self._is_open, self._is_closing = True, False, True
        self._client.batcher.close()
        try:
            await self._thresholds.aclose()
        finally:
            try:
                if self._sync is not None:
                    await self._sync.close()
            finally:
                try:
                    await self._client.close()
                finally:
                    self._is_closing = False

    # -- waiting

    async def wait(self, key: str, seen: int, timeout: float | None = None, *, epoch: str | None = None) -> int:
        """Waits until the version of `key` is above `seen`, and goes on waiting while the store is away.

        If the epoch of the store changes meanwhile, or if `seen` is above the store's version, and so from another epoch, it
        returns the current version; the caller has to read its data anew in any case.

        Args:
            key: need not have been written.
            seen: the version that the caller has seen, 0 for none.
            timeout: in seconds; `None` and `inf` for no limit.
            epoch: the one of `seen`; if it is not that of the store, the current version is returned at once. For numbers that
                come from elsewhere, as in a request. By default it is the one that this process knows.

        Returns:
            The first version above `seen` that this process receives; at once, if there is one already.

        Cost: a read if nobody here waits for the key yet, or if this process knows another epoch than `epoch`; many at once are
        one read.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing came in time.
            OperationCancelled: `aclose` ended the wait.
            PurgatoryClosed: `aclose` was called before.
            RelayUnavailable: the relay is not open yet.
            ValueError, TypeError: an argument is out of bounds or of a wrong type.
            WrongLoop: called from another loop than the one that the relay was entered on.
        """
        sync = self._require_open("wait for", key)
        check_version(seen, "seen", 53)
        follower = self._follower
        if not isinstance(epoch, str | None):
            raise TypeError(f"epoch is a str, not {epoch!r}")
        when = None if timeout is None else self._time() + timeout
        if epoch is not None and epoch != follower.epoch:  # perhaps this process does not know of it yet
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
                if change.epoch != epoch or change.version > seen or (change.is_latest and change.version < seen):
                    return change.version
            finally:
                if follower.remove_waiter(key):
                    with suppress(WrongLoop):  # the loop is gone, and a suspended coroutine is being closed
                        self._thresholds.forget(key)
            timeout = None if when is None else when - self._time()

    def _on_advance(self, key: str, version: int) -> None:
        self._thresholds.advance(key, version)

    def _on_epoch_change(self, key: str, version: int, is_latest: bool) -> None:
        self._thresholds.forget(key)
        self._thresholds.fail(key, EpochChanged(self._follower.epoch, version, is_latest))
        self._thresholds.advance(key, version)

    # -- reading and writing

    async def version(self, key: str) -> int:
        """The version of `key` in the store, read after this call; 0 if it was never written, or the floor that forgetting has
        left.

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
        """Raises the version of `key` by one, for all processes. Several calls in one iteration of the loop are one write.

        What was surely not written is tried again until `timeout` is over; what was perhaps written is not.

        Args:
            key: need not have been written.
            connection: for PostgreSQL: the caller's asyncpg connection. The version is then raised in its transaction, and
                published if and only if that is committed; until then other writes to the key wait for it.

        Returns:
            The version that the store allotted to this call, and to no other.

        Raises:
            RelayUnavailable: the store is away, others hold the key locked, or the relay is not open. If the message says so,
                the version was perhaps raised.
            TypeError: the store takes no `connection`, or none of this type.
            OperationCancelled, PurgatoryClosed, ValueError, WrongLoop: as with `wait`.
        """
        self._require_open("bump", key)
        return await self._client.change("bump", Change(key, 0, 1), connection)

    async def advance(self, key: str, version: int, *, connection: Any = None) -> int:
        """Raises the version of `key` to at least `version`, for all processes. For numbers that come from elsewhere.

        Returns:
            The version of `key` after that.

        Raises:
            RelayUnavailable, OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `bump`.
        """
        self._require_open("advance", key)
        return await self._client.change("advance", Change(key, check_version(version, "version", 52), 0), connection)

    async def forget(self, key: str) -> None:
        """Removes `key` from the store. Its version is the store's floor from now on, which is above all that were forgotten: a
        `bump` gives it a number that it never had. Who waits for it goes on waiting, and is answered by the next write.

        Raises:
            RelayUnavailable: the store is away, the relay is not open, or, on PostgreSQL, some transaction that has written is
                open all the time. It was perhaps forgotten.
            OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        self._require_open("forget", key)
        await self._client.retry("forget", key, partial(self._store.forget, [key]))

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
        """The epoch of the store, as far as this process knows. Versions rise within one epoch only.

        Raises:
            RelayUnavailable: the relay was never open.
        """
        if self._follower.epoch is None:
            raise RelayUnavailable(f"the epoch of {self._store.address} is not known: the relay is not open yet")
        return self._follower.epoch

    def attach(self, purgatory: Purgatory[Any]) -> None:
        """Calls `purgatory.check_and_complete(key)` for each change from now on, for operations with conditions of their own.
        Each write counts at least once; after a change of epoch so does each key that the store has then.

        Raises:
            TypeError: the purgatory watches a key now that is no `str`, and so would never be checked.
        """
        for key in purgatory._engine.by_key:
            if not isinstance(key, str):
                raise TypeError(
                    f"cannot attach the purgatory {purgatory._engine.name!r} to the relay at {self._store.address}: "
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
                loop, message = get_running_loop(), f"a purgatory that is attached to a relay cannot check {key!r}"
                loop.call_exception_handler({"message": message, "exception": error, "purgatory": purgatory})

    def introduce(self, about: About) -> None:
        """Lists this process among the `workers` of the others; `purgatory.asgi.console` does so.

        Args:
            about: called when any process wants the list: every 3 s, or somewhat more often when several begin at once. What
                it returns has to be JSON of at most 4,000 bytes, and whoever may use the store can read it. It replaces what
                was given before.
        """
        self._membership.about = about

    def workers(self) -> list[Worker]:
        """The other processes that have announced themselves in the last 10 s, in the order of their first announcements.

        Asks all to announce themselves, unless that was done in the last 3 s; those that do are in the next list, so call it
        again. Nothing is kept in the store. On another loop than its own, and while the relay is not open, the list is empty.

        Cost: a message to everyone, and one from each that is listed, which all processes of the relay receive.

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
        """Where the waits of this process are, to look at with `purgatory.inspect`; another one when the relay is opened again.
        What it is advanced to here, other processes do not know: write with `bump`."""
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
            watched=len(follower.followed),
        )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "connected" if self.statistics().is_connected else "not connected"
        return f"<Relay {self._store.address!r} {state} watched={len(self._follower.followed)}>"

    @property
    def _store(self) -> Store:
        return self._client.store

    def _time(self) -> float:
        return get_running_loop().time()

    def _require_open(self, action: str, key: str) -> StoreSync:
        if not self._is_open or self._sync is None:
            if self._is_closed:
                raise PurgatoryClosed(f"cannot {action} {key!r}: the relay at {self._store.address} is closed")
            raise RelayUnavailable(
                f"cannot {action} {key!r}: the relay at {self._store.address} is not open yet, see `async with`"
            )
        if get_running_loop() is not self._loop:
            raise WrongLoop(f"cannot {action} {key!r}: the relay at {self._store.address} was entered on another event loop")
        check_key(key)
        return self._sync
