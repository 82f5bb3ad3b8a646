"""A dictionary from keys to sets of requests: the watch lists of the designs that are only about the timer."""

import asyncio
from collections.abc import Hashable, Sequence

from purgatory.bench.rivals.designs._interface import Request


class WatchSets:
    """The requests that watch each key. A request leaves all its sets when it ends, and an empty set leaves the dictionary."""

    def __init__(self) -> None:
        self.pending = 0
        """How many requests wait."""
        self._by_key: dict[Hashable, set[Request]] = {}

    def add(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Lets `request` watch `keys`, which must differ from each other."""
        by_key = self._by_key
        for key in keys:
            waiting = by_key.get(key)
            if waiting is None:
                by_key[key] = {request}
            else:
                waiting.add(request)
        self.pending += 1

    def remove(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Takes `request` out of the sets of its keys."""
        by_key = self._by_key
        for key in keys:
            waiting = by_key[key]
            waiting.remove(request)
            if not waiting:
                del by_key[key]
        self.pending -= 1

    def check(self, key: Hashable) -> int:
        """Tries all requests that watch `key`; returns how many completed."""
        return sum([request.try_complete() for request in list(self._by_key.get(key, ()))])


class OnWatchSets:
    """What these designs have in common: watch sets, one alarm of the loop if they need it, and a count of its calls."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._alarm: asyncio.TimerHandle | None = None
        self.watchers = WatchSets()
        self.wake_ups = 0

    def check_and_complete(self, key: Hashable) -> int:
        return self.watchers.check(key)

    def pending(self) -> int:
        return self.watchers.pending

    def counters(self) -> dict[str, int]:
        return {"wake_ups": self.wake_ups}

    def close(self) -> None:
        assert not self.watchers.pending
        if self._alarm is not None:
            self._alarm.cancel()
