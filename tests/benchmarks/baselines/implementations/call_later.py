"""What people do today: `loop.call_later` for each request, and a dictionary from keys to sets of
requests.

As far as it can, it holds nothing longer than needed. But a cancelled handle stays in the heap of
asyncio's loop until half of the heap is cancelled handles, and in uvloop until the next iteration.
"""

import asyncio
from collections.abc import Hashable, Sequence

from benchmarks.baselines.implementations.interface import Request


class Timed(Request):
    """A request that has its own timer of the loop."""

    __slots__ = ("handle", "purgatory")

    purgatory: "CallLater"
    handle: asyncio.TimerHandle

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        self.handle.cancel()
        self.purgatory.remove(self)
        self.on_complete()
        return True

    def expire(self) -> None:
        if self.force_complete():
            self.on_expiration()


class CallLater:
    """A timer of the loop for each request. An empty set leaves the dictionary."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._call_at = loop.time, loop.call_at
        self._by_key: dict[Hashable, set[Timed]] = {}
        self._pending = 0
        self.new_request = Timed
        self.complete = Timed.force_complete

    def watch(self, request: Timed, keys: Sequence[Hashable]) -> bool:
        if (
            request.run_state.now_ms >= request.completes_at_ms
        ):  # try_complete, before there is anything to be taken out of
            request.done = True
            request.on_complete()
            return True
        request.purgatory = self
        request.keys = keys
        by_key = self._by_key
        for key in keys:
            waiting = by_key.get(key)
            if waiting is None:
                by_key[key] = {request}
            else:
                waiting.add(request)
        self._pending += 1
        request.deadline = when = self._time() + request.timeout
        request.handle = self._call_at(when, request.expire)
        return False

    def remove(self, request: Timed) -> None:
        """Takes `request` out of the sets of its keys."""
        by_key = self._by_key
        for key in request.keys:
            waiting = by_key[key]
            waiting.remove(request)
            if not waiting:
                del by_key[key]
        self._pending -= 1

    def check_and_complete(self, key: Hashable) -> int:
        return sum([request.try_complete() for request in list(self._by_key.get(key, ()))])

    def pending(self) -> int:
        return self._pending

    def close(self) -> None:
        assert not self._by_key
