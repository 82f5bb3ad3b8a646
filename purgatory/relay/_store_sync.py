"""Keeps a follower in sync with its store, over connections that come and go.

One task listens to the channel, and subscribes again after a subscription has ended. Another task
does the follower's reads, one at a time; requests made during a read go into the next one. A
short-lived task announces this process now and then.

A timer finds losses that no message shows: every `resync` seconds it reads the changes, and sends a
probe through the channel. If the probe does not return in time, the connection is dead, even if it
reports no error, and is replaced.
"""

import logging
from asyncio import (
    AbstractEventLoop,
    Event,
    Future,
    Task,
    TimerHandle,
    gather,
    get_running_loop,
    sleep,
)
from collections.abc import Callable, Coroutine
from contextlib import suppress
from json import dumps
from random import uniform
from secrets import token_hex
from typing import Any, Final, final

from purgatory import RelayUnavailable, Timeout, timeout
from purgatory._core.arguments import printable
from purgatory._core.logs import RateLimit
from purgatory.relay._calls import backoff
from purgatory.relay._client import StoreClient
from purgatory.relay._follower import Follower, ReadRequest
from purgatory.relay._membership import About, Membership
from purgatory.relay._messages import Hint, Settled, decode
from purgatory.relay._store import Refused
from purgatory.relay._value_reader import ValueReader

REORDER_DELAY: Final = 0.02
"""Seconds for which a message may be late after later messages. Then it counts as lost."""

IDLE_TIME: Final = 1.0
"""Seconds for which a key is followed after its last waiter has left; at most twice as long."""

MAX_LOGGED: Final = 20
"""Limit of different errors logged until it is connected again."""

log = logging.getLogger("purgatory.relay")


@final
class StoreSync:
    """Keeps a follower up to date.

    Args:
        client: a client of an open store.
        follower: a new follower.
        values: a new reader of delivered values.
        about: see `Membership`.
        resync: seconds between two reads of the changes, and between two probes.
    """

    def __init__(
        self,
        client: StoreClient,
        follower: Follower,
        values: ValueReader,
        about: Callable[[], About | None],
        resync: float,
    ) -> None:
        self._client, self._store = client, client.store
        self._follower, self._values = follower, values
        values.on_error = self._log_error
        self._resync = resync
        self._is_channel_trusted = getattr(self._store, "is_channel_trusted", True)
        self._loop: AbstractEventLoop = get_running_loop()
        self._has_work = Event()
        self._resync_timer: TimerHandle | None = None
        self._gap_timer: TimerHandle | None = None
        self._idle_timer: TimerHandle | None = None
        self._read_ended = Event()
        """Set, and replaced, when a read has ended."""
        self._listen_timeout: Timeout | None = None
        """Timeout of the subscription; runs until its confirmation, and while a probe is in
        flight."""
        self._id = token_hex(8)
        """Id that distinguishes its own probes from other processes' probes."""
        self._foreign_messages = RateLimit()
        """Rate limit of warnings about them: any user of the channel could fill the log."""
        self._is_closing = False
        self._is_probe_due = True
        """Whether to send a probe after the next read of the changes: after a resync or a
        subscription, but not after each hint."""
        self._takes_writes = True
        """Whether the last write succeeded."""
        self.is_current = False
        """Whether `follower.is_current` holds and the store accepts writes."""
        self.opened: Future[None] = self._loop.create_future()
        """Done when it is current for the first time, or when the store refuses the
        subscription."""
        self.since = self._loop.time()
        """Loop time at which `is_current` last changed."""
        self._logged: set[str] = set()
        """Errors logged since it was connected: with several servers they alternate."""
        self._tasks: set[Task[None]] = set()
        self.membership = Membership(client, about, self._start)
        self._start(self._keep_listening(), "listening")
        self._start(self._keep_reading(), "reading")
        self._schedule_resync()

    async def close(self) -> None:
        """Ends all tasks."""
        self._is_closing = True
        self.opened.cancel()
        for timer in (self._resync_timer, self._gap_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._values.calls.close()
        await gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> Task[None]:
        task = self._loop.create_task(work, name=f"purgatory.relay: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def wake(self) -> None:
        """Starts the reads and timers that the follower needs. Call it after each event that may
        have changed these needs."""
        follower = self._follower
        if follower.needs_read:
            self._has_work.set()
        elif follower.has_gap and self._gap_timer is None:
            self._gap_timer = self._loop.call_later(REORDER_DELAY, self._fill_gap)

    def remove_waiter(self, key: str) -> None:
        """Removes a waiter from the follower."""
        self._follower.remove_waiter(key)
        self._keep_idle()

    def _keep_idle(self) -> None:
        # The loop is closed if a suspended coroutine is closed after it.
        if self._follower.idle and self._idle_timer is None and not self._loop.is_closed():
            self._idle_timer = self._loop.call_later(IDLE_TIME, self._drop_idle)

    def _drop_idle(self) -> None:
        self._idle_timer = None
        self._follower.drop_idle()
        self._keep_idle()

    # -- listening

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            subscriptions = self._follower.subscriptions
            address, seconds = self._store.address, self._client.timeout
            error: Exception = RelayUnavailable(f"the subscription to {address} has ended")
            try:
                async with timeout(seconds) as self._listen_timeout:
                    await self._store.listen(self._on_subscribed, self._on_message)
            except TimeoutError:
                error = RelayUnavailable(f"no message from {address} within {seconds} s")
            except Exception as other:
                error = other
                if isinstance(error, Refused) and not self.opened.done():
                    self.opened.set_exception(error)
            finally:
                self._listen_timeout = None
                self._follower.on_disconnected()
                self._update_connected()
            self._log_error(error)
            failures = 0 if self._follower.subscriptions > subscriptions else failures + 1
            await sleep(backoff(failures))

    def _on_subscribed(self) -> None:
        if self._listen_timeout is not None:
            self._listen_timeout.reschedule(None)
        self._is_probe_due = True
        self._follower.on_subscribed()
        self._values.on_settled()
        self._update_connected()
        self.wake()

    def _on_message(self, payload: bytes | str) -> None:
        try:
            message = decode(payload)
        except ValueError as error:
            more = self._foreign_messages.allow()
            if more is not None:
                log.warning("%s: %s%s", self._store.address, printable(error), more)
            return
        if isinstance(message, str):
            id_, _, number = message.partition(":")
            # The number is checked, because any user of the store can send a message.
            is_own = id_ == self._id and number.isdecimal() and len(number) < 20
            if is_own and self._follower.on_probe(int(number)) and self._listen_timeout is not None:
                self._listen_timeout.reschedule(None)
        elif isinstance(message, Settled):
            self._values.on_settled(message.keys)
            self.membership.on_settled(message.keys)
        else:
            if isinstance(message, Hint) or not self._is_channel_trusted:
                self._follower.on_hint(
                    Hint(message.keys if isinstance(message, Hint) else tuple(message.versions))
                )
            else:
                self._follower.on_message(message)
            self.wake()

    def on_write(self, error: Exception | None) -> None:
        """Handles the outcome of a write, which may fail on a full disk or a read-only replica."""
        self._takes_writes = error is None
        if error is not None:
            self._log_error(error)
        self._update_connected()

    async def _probe(self) -> None:
        """Sends a probe through the channel, and ends the subscription if it does not return in
        time. If the last write failed, also checks whether the store accepts writes again."""
        if not self._takes_writes:
            with suppress(RelayUnavailable):
                async with self._client.limit(attempts=2):
                    await self._store.write(())
                self.on_write(None)
        if self._follower.is_subscribed:
            number = self._follower.begin_probe()
            self._expect_probe()
            try:
                async with self._client.limit(attempts=2):
                    await self._store.send(dumps(f"{self._id}:{number}").encode())
            except Exception:  # a dead connection shows by the missing probe
                log.debug("%s: a probe was not sent", self._store.address, exc_info=True)

    def _expect_probe(self) -> None:
        """Ends the subscription, unless a probe returns in time."""
        running = self._listen_timeout
        if running is not None and running.when() is None:
            running.reschedule(self._loop.time() + self._client.timeout)

    # -- reading

    async def _keep_reading(self) -> None:
        failures = 0
        while True:
            await self._has_work.wait()
            follower = self._follower
            if not follower.needs_read:
                self._has_work.clear()
                continue
            request = follower.begin_read()
            try:
                await self._read(request)
                self._read_ended.set()
                self._read_ended = Event()
            except Exception as error:
                follower.on_read_failed(request)
                follower.resync()
                self._is_probe_due = True
                self._expect_probe()
                self._log_error(error)
                await sleep(backoff(failures))
                failures += 1
                continue
            failures = 0
            self._update_connected()
            if request.since is not None and self._is_probe_due and not follower.wants_changes:
                self._is_probe_due = False
                self._schedule_resync()
                await self._probe()

    async def _read(self, request: ReadRequest) -> None:
        follower, store = self._follower, self._store
        epochs = follower.epochs
        async with self._client.limit(attempts=2):
            if follower.epoch_to_end is not None:
                log.warning("%s went back behind an earlier answer: its epoch ends", store.address)
                await store.renew(follower.epoch_to_end)
                follower.epoch_to_end = None
            result = await store.read(request.keys, request.since)
        follower.on_read(request, result)
        if follower.epochs > epochs > 0:
            log.warning("%s begins a new epoch, %s", store.address, follower.epoch)
            self._values.on_settled()

    async def know_epoch(self, epoch: str) -> None:
        """Returns when the follower has read an epoch that was found in the store, or a later one;
        at once, unless the epoch is new here."""
        while self._follower.epoch != epoch and self._follower.is_reading_changes:
            await self._read_ended.wait()

    def _schedule_resync(self) -> None:
        if self._resync_timer is not None:
            self._resync_timer.cancel()
        self._resync_timer = self._loop.call_later(
            self._resync * uniform(0.9, 1.0), self._read_changes, self._recheck
        )

    def _recheck(self) -> None:
        self._follower.recheck()
        self._values.on_settled()

    def _read_changes(self, request: Callable[[], None]) -> None:
        self._is_probe_due = True
        request()
        self._has_work.set()

    def _fill_gap(self) -> None:
        self._gap_timer = None
        if self._follower.has_gap:
            self._read_changes(self._follower.resync)

    # -- whether it is connected

    def _update_connected(self) -> None:
        is_current = self._follower.is_current and self._takes_writes
        if is_current is self.is_current:
            return
        self.is_current, self.since = is_current, self._loop.time()
        if is_current:
            if not self.opened.done():
                self.opened.set_result(None)
            self._logged.clear()
            log.info("%s: connected", self._store.address)
        elif not self._is_closing:
            log.warning("%s: not connected", self._store.address)

    def _log_error(self, error: Exception) -> None:
        """Logs an error of the connection, unless it was logged since the last connection."""
        if str(error) not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(str(error))
            log.warning(
                "%s",
                printable(error),
                exc_info=None if isinstance(error, RelayUnavailable) else error,
            )
        self._client.last_error = error
