"""The state that the pages show: a new version every second while a page is open, made once for all
of them.

    a page asks       the timer starts, unless it runs; the first version is made at once, or within
                      a second
    each 0.2 s        the lag of the loop is measured: how late the timer is
    each second       one purgatory after the other is described, each in its own iteration of the
                      loop; then there is a version
    no page asks      the history continues for five minutes, for pages that return; then the timer
                      stops

A version is JSON that is the same for every page, and the part of the history that a page does not
    have: for most, one point.
"""

import json
import os
import time
from asyncio import AbstractEventLoop, Future, TimerHandle, get_running_loop, shield
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from signal import SIGINT, SIGTERM
from socket import gethostname
from typing import TYPE_CHECKING, Any, Final, final

from purgatory.asgi._open import SignalChain
from purgatory.asgi._polls import LongPolls
from purgatory.asgi._versions import Versions
from purgatory.console._describe import (
    AnyPurgatory,
    KeyOf,
    describe,
    describe_other,
    describe_polls,
    describe_relay,
    describe_stream,
)

if TYPE_CHECKING:
    from purgatory.metrics import KindMetrics, Meter, StreamMeter
    from purgatory.relay import Relay

HISTORY: Final = 300
"""Points of the history, one for each refresh."""

IDLE_TIMEOUT: Final = 300.0
"""Seconds that the timer keeps running after the last request of a page."""

LAG_CHECKS_PER_REFRESH: Final = 5

STATE: Final = "state"
"""The key of the versions."""


@final
class Feed:
    """The versions of the state.

    Args:
        purgatories, polls, relay, meter, stream, key_of, address, name: see `console`.
        refresh: seconds between two versions.
        pages: where the pages wait; at SIGTERM and SIGINT they are answered.
    """

    def __init__(
        self,
        purgatories: Sequence[AnyPurgatory],
        polls: LongPolls | None,
        relay: "Relay | None",
        meter: "Meter | None",
        stream: "StreamMeter | None",
        key_of: KeyOf,
        address: str | None,
        name: str,
        refresh: float,
        pages: LongPolls,
    ) -> None:
        self._purgatories = tuple(purgatories)
        self.polls, self.relay, self.meter, self.stream = polls, relay, meter, stream
        self.key_of, self.address, self.name, self.host = key_of, address, name, gethostname()
        self.began_at = round(time.time(), 3)
        self.refresh = refresh
        self.pages = pages
        self._reset(None)
        self._chain = SignalChain((SIGTERM, SIGINT), pages.stop)
        if relay is not None:
            relay.introduce(self.announcement)

    @property
    def worker(self) -> str:
        """The name of this process."""
        return f"{os.getpid()}@{self.host}"

    def announcement(self) -> dict[str, Any]:
        """This worker's row on the pages of other workers: counts of waits, without names."""
        relay = self.relay
        pending = sum(each.pending for each in self._purgatories)
        if relay is not None:
            pending += relay.thresholds.pending + relay.replies.pending
        counts = {"pending": pending, "polls": None if self.polls is None else self.polls.open}
        return {
            "pid": os.getpid(),
            "host": self.host,
            "began": self.began_at,
            "address": self.address,
            **counts,
        }

    def _reset(self, loop: AbstractEventLoop | None) -> None:
        """Starts on a loop, with no history."""
        self.versions: Versions[str] = Versions()
        self._loop = loop
        self._handle: TimerHandle | None = None
        self._timer_due = self._refresh_due = self._asked_at = 0.0
        self._lag = 0.0
        """The greatest one since the last version."""
        self._history: deque[bytes] = deque(maxlen=HISTORY)
        self._kinds: Sequence[KindMetrics] | None = None
        """The meter's counts, for the version being made."""
        self._state = b""
        self._responses: dict[int, bytes] = {}
        """The JSON of this version, by how many points of the history it has."""
        self._first: Future[None] | None = None
        """Done when there is a version."""

    async def ready(self) -> None:
        """Starts the timer, unless it runs, and returns when there is a version."""
        loop = get_running_loop()
        if loop is not self._loop:
            self._stop()
            self._reset(loop)
        self._asked_at = loop.time()
        if self._handle is None:
            self._chain.install(loop)
            self._first = loop.create_future()
            self._refresh_due = self._timer_due = loop.time()
            self._on_timer()
        if self._first is not None and not self._first.done():
            await shield(self._first)  # several may wait for it

    def response(self, seen: int | None) -> bytes:
        """The current version, for a page that has `seen`."""
        now = self.versions.version(STATE)
        points = HISTORY if seen is None or not 0 <= now - seen < HISTORY else now - seen
        response = self._responses.get(points)
        if response is None:
            history = islice(self._history, max(len(self._history) - points, 0), None)
            response = self._responses[points] = (
                b'{"history":[' + b",".join(history) + b"]," + self._state[1:]
            )
        return response

    # -- the timer

    def _on_timer(self) -> None:
        loop = self._loop
        assert loop is not None
        now = loop.time()
        self._lag = max(self._lag, now - self._timer_due)
        if now - self._asked_at > IDLE_TIMEOUT:
            self._stop()
            return
        is_due = now >= self._refresh_due
        if is_due:
            self._refresh_due = now + self.refresh
        self._timer_due = min(now + self.refresh / LAG_CHECKS_PER_REFRESH, self._refresh_due)
        self._handle = loop.call_at(self._timer_due, self._on_timer)
        if is_due:
            self._kinds = None if self.meter is None else self.meter.snapshot()
            relay = [] if self.relay is None else [self.relay]
            self._describe(iter((*self._purgatories, *relay)), [], [])

    def _stop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
        self._chain.remove()

    def _describe(
        self,
        remaining: "Iterator[AnyPurgatory | Relay]",
        described: list[dict[str, Any]],
        points: list[Any],
    ) -> None:
        """Describes the next purgatory, and the remaining ones from the next iteration of the loop
        on."""
        for purgatory in remaining:
            fields, point = describe(purgatory, self._kinds, self.key_of)
            described.append(fields)
            points.append(point)
            assert self._loop is not None
            self._loop.call_soon(self._describe, remaining, described, points)
            return
        self._publish(described, points)

    def _publish(self, purgatories: list[dict[str, Any]], points: list[Any]) -> None:
        """Makes a version, and answers the pages."""
        assert self._loop is not None
        now, wall = self._loop.time(), round(time.time(), 3)
        state: dict[str, Any] = {
            "worker": {
                "id": self.versions.epoch,
                "pid": os.getpid(),
                "host": self.host,
                "began": self.began_at,
            },
            "service": self.name,
            "at": wall,
            "refresh": self.refresh,
            "pages": self.pages.open,
            "purgatories": purgatories,
            "polls": None if self.polls is None else describe_polls(self.polls),
            "relay": None if self.relay is None else describe_relay(self.relay, now),
            "others": None
            if self.relay is None
            else [describe_other(each, now) for each in self.relay.workers()],
            "stream": None if self.stream is None else describe_stream(self.stream, wall),
        }
        self._state = json.dumps(state, separators=(",", ":"), default=float).encode()
        self._history.append(
            json.dumps([wall, round(self._lag, 5), points], separators=(",", ":")).encode()
        )
        self._lag = 0.0
        self._responses.clear()
        self.versions.bump(STATE)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
