"""`Relay`: what users hold. It lets waits begin and end; what it knows comes from the follower, by way of the link."""

from asyncio import AbstractEventLoop, get_running_loop, sleep
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import isfinite
from types import TracebackType
from typing import Any, final

from purgatory import Observer, Purgatory, PurgatoryClosed, RelayUnavailable, ThresholdPurgatory, WrongLoop, timeout
from purgatory.relay._follower import Follower
from purgatory.relay._link import Link, pause
from purgatory.relay._messages import Change, News, check_key, check_version
from purgatory.relay._roll import About, Roll, Worker
from purgatory.relay._store import Store, open_store
from purgatory.relay._writes import Writes


@final
@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done so far, and how it stands now."""

    is_connected: bool
    """Whether news arrive, and all that came before them is known."""
    since: float
    """The loop's time when that has last changed."""
    received: int
    """Versions of keys that came as news, its own and those of keys that nobody here waits for among them."""
    sent: int
    """Writes, several to one key at a time being one."""
    resyncs: int
    """How often what had changed was read."""
    healed: int
    """Versions that were found so, and whose news were lost."""
    epochs: int
    """How many epochs of the store it has seen; 1 while nothing was lost there."""
    watched: int
    """Keys that somebody waits for."""


class Rebased(Exception):
    """Ends the waits for a key: what stands there is of another epoch than what some of them have seen."""

    def __init__(self, epoch: str | None, version: int) -> None:
        super().__init__(epoch, version)
        self.epoch, self.version = epoch, version


@final
class Relay:
    """Versions of keys, shared by processes through a store; a wait completes wherever the write was made.

        async with Relay("file:///run/app") as relay:
            await relay.bump("orders/7")                        # in one process: 42
            await relay.wait("orders/7", seen=41, timeout=20)   # in another: 42

    A key is a `str` of at most 512 bytes. Its version is 0 until it is written, and rises within an epoch. One relay per
    process and store is enough, for any number of keys and waits. Bound to the event loop that it is entered on.

    Args:
        store: an address, `file:///folder` (the workers of one machine, no server), `redis://host:port/db`, `rediss://`,
            `unix:///socket` or `postgresql://user@host/database`; or an object that has the methods of `purgatory.relay.Store`.
        resync: seconds between two looks at the store that no news ask for, each of which heals whatever was lost.
        timeout: seconds after which the store is taken to be away.
        prefix: of the names that a store at an address uses there; relays of one prefix share versions. Letters, digits and
            underscores.
        observer: is told of each wait that has ended, as of an operation of the kind "wait" in the purgatory "relay"; or a
            sequence of those who are. One that begins anew, in another epoch, is told of as one that failed.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
        ImportError: the client of the store is not installed.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        resync: float = 15.0,
        timeout: float = 5.0,
        prefix: str = "purgatory",
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        for name, seconds in (("resync", resync), ("timeout", timeout)):
            if not (isfinite(seconds) and seconds > 0.0):
                raise ValueError(f"{name} must be a positive, finite number of seconds, not {seconds!r}")
        if not (prefix.isascii() and prefix.replace("_", "a").isalnum() and len(prefix) <= 32):
            raise ValueError(f"prefix must consist of at most 32 letters, digits and underscores, not {prefix!r}")
        self._resync, self._timeout = resync, timeout
        self._is_open = self._is_closed = False
        self._loop: AbstractEventLoop | None = None
        self._link: Link | None = None
        self._attached: list[Purgatory[Any]] = []
        self._thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory("relay", observer=observer)
        self._follower = Follower(self._rise, self._rebase, self._tell)
        self._roll = Roll()
        self._writes = Writes(self._write, lambda tries: pause(min(tries, 2)))
        self._store = open_store(store, prefix)

    async def __aenter__(self) -> "Relay":
        """Opens the store, and returns when news arrive. While the store is away it is tried again, for `timeout`: a process
        that is started again meanwhile need not fail.

        Raises:
            RelayUnavailable: it could not be reached within `timeout`.
            ValueError: what is there is not a relay's.
            PurgatoryClosed: the relay was closed.
        """
        if self._is_closed:
            raise PurgatoryClosed(f"cannot open the relay at {self._store.address} again: it was closed")
        if self._loop is not None:
            raise RuntimeError(f"the relay at {self._store.address} is open already")
        self._loop = get_running_loop()
        away: RelayUnavailable | None = None
        try:
            async with timeout(self._timeout):
                for tries in count():
                    try:
                        await self._store.open()
                        break
                    except RelayUnavailable as error:
                        away = error
                    await sleep(pause(tries))
                self._roll.begin()
                self._link = Link(self._store, self._follower, self._roll, self._resync, self._timeout)
                await self._link.is_current.wait()
        except BaseException as error:
            trouble = None if self._link is None else self._link.trouble
            await self.aclose()
            if not isinstance(error, TimeoutError):
                raise
            why = f"{self._store.address} gave no answer within {self._timeout} s"
            if self._link is None and away is not None:
                why, trouble = f"tried for {self._timeout} s: {away}", away
            raise RelayUnavailable(f"cannot open the relay: {why}") from trouble or error
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
        self._is_closed, self._is_open = True, False
        self._writes.close()
        try:
            await self._thresholds.aclose()
        finally:
            try:
                if self._link is not None:
                    await self._link.close()
            finally:
                await self._close_store()

    async def _close_store(self) -> None:
        try:
            async with timeout(self._timeout):
                await self._store.close()
        except (RelayUnavailable, TimeoutError):
            pass  # it is closed at the other end

    # -- waiting

    async def wait(self, key: str, seen: int, timeout: float | None = None) -> int:
        """Waits until the version of `key` is above `seen`, and goes on waiting while the store is away.

        If the epoch of the store changes meanwhile, or if `seen` is above what the store has, and so from another epoch, it
        returns what stands there; the caller has to look anew in any case.

        Args:
            key: need not have been written.
            seen: the version that the caller has seen, 0 for none.
            timeout: in seconds; `None` and `inf` for no limit.

        Returns:
            The first version above `seen` that this process hears of, which may be there already.

        Cost: a question to the store if nobody here waits for the key yet; many at once are one question.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing came in time.
            OperationCancelled: `aclose` ended the wait.
            PurgatoryClosed: `aclose` was called before.
            RelayUnavailable: the relay is not open yet.
            ValueError, TypeError: an argument is out of its bounds or of another type.
            WrongLoop: called from another loop than the one that the relay was entered on.
        """
        self._need_open("wait for", key)
        check_version(seen, "seen")
        follower = self._follower
        when = None if timeout is None else self._time() + timeout
        while True:
            epoch = follower.epoch
            follower.watch(key, seen)
            if self._link is not None:
                self._link.wake()
            try:
                return await self._thresholds.wait(key, seen + 1, timeout)
            except Rebased as rebased:
                if rebased.version != seen or rebased.epoch != epoch:
                    return rebased.version
            finally:
                if follower.unwatch(key):
                    with suppress(WrongLoop):  # a generator that is closed when its loop is gone has nothing left to clean up
                        self._thresholds.forget(key)
            timeout = None if when is None else when - self._time()

    def _rise(self, key: str, version: int) -> None:
        self._thresholds.advance(key, version)

    def _rebase(self, key: str, version: int) -> None:
        self._thresholds.forget(key)
        self._thresholds.fail(key, Rebased(self._follower.epoch, version))
        self._thresholds.advance(key, version)

    # -- reading and writing

    async def version(self, key: str) -> int:
        """The version of `key` that stands in the store, read after this call; 0 if it was never written.

        Raises:
            RelayUnavailable: the store is away, or the relay not open.
            OperationCancelled, PurgatoryClosed, ValueError, TypeError, WrongLoop: as with `wait`.
        """
        link = self._need_open("read", key)
        try:
            async with timeout(self._timeout):
                return await link.ask(key)
        except TimeoutError:
            raise self._unavailable("read", key, link.trouble) from link.trouble

    async def bump(self, key: str, *, connection: Any = None) -> int:
        """Raises the version of `key` by one, and tells everyone. Several calls in one iteration of the loop are one write.

        A write that does not reach the store is tried again until `timeout` is over. If its answer was lost, it may be made
        twice.

        Args:
            key: need not have been written.
            connection: of the caller's, for PostgreSQL: an asyncpg connection. The version is then raised in his own
                transaction, and told if and only if that is committed; until then other writes to the key wait for it.

        Returns:
            The version that the store allotted to this call, and to no other.

        Raises:
            RelayUnavailable: the store is away, or the relay not open. The version was perhaps raised.
            TypeError: the store takes no `connection`, or none of this type.
            OperationCancelled, PurgatoryClosed, ValueError, WrongLoop: as with `wait`.
        """
        return await self._raise("bump", Change(key, 0, 1), connection)

    async def advance(self, key: str, version: int, *, connection: Any = None) -> int:
        """Raises the version of `key` to at least `version`, and tells everyone. For numbers that come from elsewhere.

        Returns:
            The version that stands then.

        Raises:
            As `bump`.
        """
        return await self._raise("advance", Change(key, check_version(version), 0), connection)

    async def _raise(self, doing: str, change: Change, connection: Any) -> int:
        key = change.key
        self._need_open(doing, key)
        try:
            async with timeout(self._timeout):
                if connection is not None:
                    return (await self._store.write([change], connection)).versions[key]
                return await self._writes.ask(*change)
        except TimeoutError:
            raise self._unavailable(doing, key, self._writes.trouble) from self._writes.trouble

    async def _write(self, changes: Sequence[Change]) -> News:
        latest = self._follower.latest
        patience = self._timeout / 2.0  # so that there is time for a second try
        try:
            async with timeout(patience):
                news = await self._store.write(changes)
        except TimeoutError as error:
            raise RelayUnavailable(f"{self._store.address} gave no answer within {patience} s") from error
        self._follower.wrote(news, latest)
        if self._link is not None:
            self._link.wake()
        return news

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
        """Has each news of a key, from now on, also call `purgatory.check_and_complete(key)`, for operations with conditions
        of their own. Each write comes at least once; after a change of epoch so does each key that the store has then.
        """
        if purgatory not in self._attached:
            self._attached.append(purgatory)
        self._follower.tells_all = True

    def _tell(self, key: str) -> None:
        for purgatory in self._attached:
            try:
                purgatory.check_and_complete(key)
            except Exception as error:
                loop, message = get_running_loop(), f"a purgatory that is attached to a relay cannot check {key!r}"
                loop.call_exception_handler({"message": message, "exception": error, "purgatory": purgatory})

    def introduce(self, about: About) -> None:
        """Has this process be known to the others that ask for `workers`; `purgatory.asgi.console` does so.

        Args:
            about: called when one of them asks, and when this one does: every 3 s, or somewhat more often when several begin to
                ask at once. What it returns has to go into JSON, of 4,000 bytes at most, and whoever may use the store can
                read it. It takes the place of what was given before.
        """
        self._roll.about = about

    def workers(self) -> list[Worker]:
        """Who else has introduced itself and was heard of in the last 10 s, in the order in which they were heard of first.

        Calls them, if nobody has for 3 s; those that answer are in the next list, so ask again. Nothing is kept in the store.
        On another loop than its own, and while the relay is not open, nobody is known.

        Cost: a message to everyone, and one from each that answers, which all processes of the relay hear.

        Raises:
            RuntimeError: no loop is running.
        """
        loop = get_running_loop()
        if self._link is None or not self._is_open or loop is not self._loop:
            return []
        now = loop.time()
        if self._roll.is_due(now):
            self._link.introduce(calls=True)
        return self._roll.others(now)

    def statistics(self) -> RelayStatistics:
        """A snapshot. Cost: O(1)."""
        follower, link = self._follower, self._link
        return RelayStatistics(
            is_connected=follower.is_current,
            since=0.0 if link is None else link.since,
            received=follower.received,
            sent=self._writes.sent,
            resyncs=follower.resyncs,
            healed=follower.healed,
            epochs=follower.epochs,
            watched=len(follower.watched),
        )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "connected" if self._follower.is_current else "not connected"
        return f"<Relay {self._store.address!r} {state} watched={len(self._follower.watched)}>"

    def _time(self) -> float:
        return get_running_loop().time()

    def _need_open(self, doing: str, key: str) -> Link:
        if not self._is_open or self._link is None:
            if self._is_closed:
                raise PurgatoryClosed(f"cannot {doing} {key!r}: the relay at {self._store.address} is closed")
            raise RelayUnavailable(
                f"cannot {doing} {key!r}: the relay at {self._store.address} is not open yet, see `async with`"
            )
        if get_running_loop() is not self._loop:
            raise WrongLoop(f"cannot {doing} {key!r}: the relay at {self._store.address} was entered on another event loop")
        check_key(key)
        return self._link

    def _unavailable(self, doing: str, key: str, trouble: Exception | None) -> RelayUnavailable:
        why = "" if trouble is None else f": {trouble}"
        return RelayUnavailable(f"cannot {doing} {key!r}: {self._store.address} gave no answer within {self._timeout} s{why}")
