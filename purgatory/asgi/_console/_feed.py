"""What the pages live on: a new version every second while one is open, made once for all of them.

    a page asks       the clock starts, unless it runs; the first version is made at once, or within a second
    each 0.2 s        how late the clock is, which is how long the loop was held up
    each second       one purgatory after the other is described, each in its own iteration of the loop, then told as a version
    nobody asks       for five minutes the history goes on, for pages that come back; then the clock stops, and nothing is left

A version is bytes, the same for every page, and the part of the history that a page has not had: for most, one point.
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

from purgatory.asgi._console._describe import (
    KeyOf,
    Watched,
    describe,
    describe_other,
    describe_polls,
    describe_relay,
    describe_stream,
    introduce,
)
from purgatory.asgi._polls import LongPolls
from purgatory.asgi._shutdown import SignalChain
from purgatory.asgi._versions import Versions

if TYPE_CHECKING:
    from purgatory.metrics import KindMetrics, Meter, StreamMeter
    from purgatory.relay import Relay

KEPT: Final = 300
"""So many points of the history, a refresh apart, are kept."""

PATIENCE: Final = 300.0
"""Seconds that the clock goes on when nobody asks."""

BEATS: Final = 5
"""How often in each refresh the clock looks how late it is."""

STATE: Final = "state"
"""The key of the versions."""


@final
class Feed:
    """The versions of what there is to see.

    Args:
        purgatories, polls, relay, meter, key_of, address, stream: see `console`.
        refresh: seconds between two versions.
        pages: where the pages wait; at SIGTERM and SIGINT they are answered.
    """

    def __init__(
        self,
        purgatories: Sequence[Watched],
        polls: LongPolls | None,
        relay: "Relay | None",
        meter: "Meter | None",
        key_of: KeyOf,
        address: str | None,
        refresh: float,
        pages: LongPolls,
        stream: "StreamMeter | None" = None,
    ) -> None:
        self.purgatories = tuple(purgatories)
        self.polls, self.relay, self.meter, self.key_of = polls, relay, meter, key_of
        self.address, self.host = address, gethostname()
        self.began_at = time.time()
        self.stream = stream
        self.refresh = refresh
        self.pages = pages
        self.versions: Versions[str] = Versions()
        self._begin(None)
        self._chain = SignalChain((SIGTERM, SIGINT), pages.stop)
        if relay is not None:
            relay.introduce(self._introduction)

    def _introduction(self) -> dict[str, Any]:
        return introduce(os.getpid(), self.host, self.began_at, self.purgatories, self.polls, self.address)

    def _begin(self, loop: AbstractEventLoop | None) -> None:
        """Begins on a loop, with no history."""
        self._loop = loop
        self._handle: TimerHandle | None = None
        self._beat_due = self._next_due = self._asked_at = 0.0
        self._lag = 0.0
        """How late the clock was at most since the last version."""
        self._history: deque[bytes] = deque(maxlen=KEPT)
        self._kinds: Sequence[KindMetrics] | None = None
        """What the meter has counted, for the version that is being made."""
        self._state = b""
        self._answers: dict[int, bytes] = {}
        """The bytes of this version, by how many points of the history they have."""
        self._first: Future[None] | None = None
        """Until there is a version."""

    async def ready(self) -> None:
        """Has the clock run, and returns when there is a version."""
        loop = get_running_loop()
        if loop is not self._loop:
            self._stop()
            self.versions = Versions()  # those who waited for the others are gone with their loop
            self._begin(loop)
        self._asked_at = loop.time()
        if self._handle is None:
            self._chain.install(loop)
            self._first = loop.create_future()
            self._next_due = self._beat_due = loop.time()
            self._beat()
        if self._first is not None and not self._first.done():
            await shield(self._first)  # several may wait for it

    def answer(self, seen: int | None) -> bytes:
        """The present version, for a page that has had `seen`."""
        now = self.versions.version(STATE)
        points = KEPT if seen is None or not 0 <= now - seen < KEPT else now - seen
        answer = self._answers.get(points)
        if answer is None:
            history = islice(self._history, max(len(self._history) - points, 0), None)
            answer = self._answers[points] = b'{"history":[' + b",".join(history) + b"]," + self._state[1:]
        return answer

    # -- the clock

    def _beat(self) -> None:
        loop = self._loop
        assert loop is not None
        now = loop.time()
        self._lag = max(self._lag, now - self._beat_due)
        if now - self._asked_at > PATIENCE:
            self._stop()
            return
        is_due = now >= self._next_due
        if is_due:
            self._next_due = now + self.refresh
        self._beat_due = min(now + self.refresh / BEATS, self._next_due)
        self._handle = loop.call_at(self._beat_due, self._beat)
        if is_due:
            self._kinds = None if self.meter is None else self.meter.snapshot()
            self._describe(iter(self.purgatories), [], [])

    def _stop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
        self._chain.remove()

    def _describe(self, left: Iterator[Watched], told: list[dict[str, Any]], points: list[Any]) -> None:
        """Describes the next purgatory, and has the others wait for the next turn."""
        for purgatory in left:
            about, point = describe(purgatory, self._kinds, self.key_of)
            told.append(about)
            points.append(point)
            assert self._loop is not None
            self._loop.call_soon(self._describe, left, told, points)
            return
        self._tell(told, points)

    def _tell(self, told: list[dict[str, Any]], points: list[Any]) -> None:
        """Makes a version of it, and answers the pages."""
        assert self._loop is not None
        now, wall = self._loop.time(), round(time.time(), 3)
        state: dict[str, Any] = {
            "worker": {"id": self.versions.epoch, "pid": os.getpid(), "host": self.host, "began": round(self.began_at, 3)},
            "at": wall,
            "refresh": self.refresh,
            "pages": self.pages.open,
            "purgatories": told,
            "polls": None if self.polls is None else describe_polls(self.polls),
            "relay": None if self.relay is None else describe_relay(self.relay, now),
            "others": None if self.relay is None else [describe_other(each, now) for each in self.relay.workers()],
            "stream": None if self.stream is None else describe_stream(self.stream, wall),
        }
        self._state = json.dumps(state, separators=(",", ":"), default=float).encode()
        self._history.append(json.dumps([wall, round(self._lag, 5), points], separators=(",", ":")).encode())
        self._lag = 0.0
        self._answers.clear()
        self.versions.bump(STATE)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
