"""What people do today: `loop.call_later` for each request, and a dictionary from keys to sets of requests.

As far as it can, it holds nothing longer than needed. But a cancelled handle stays in the heap of asyncio's loop until half of
the heap is cancelled handles, and in uvloop until the next turn.
"""

import asyncio
from collections.abc import Hashable, Sequence

from purgatory.bench.rivals.designs._interface import Request
from purgatory.bench.rivals.designs._watch_sets import OnWatchSets


class Timed(Request):
    """A request that has its own timer of the loop."""

    __slots__ = ("design", "handle")

    design: "CallLater"
    handle: asyncio.TimerHandle

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        self.handle.cancel()
        self.design.watchers.remove(self, self.keys)
        self.on_complete()
        return True

    def expire(self) -> None:
        self.design.wake_ups += 1
        if self.force_complete():
            self.on_expiration()


class CallLater(OnWatchSets):
    """A timer of the loop for each request."""

    def __init__(self) -> None:
        super().__init__()
        self._call_at = self._loop.call_at
        self.new_request = Timed
        self.complete = Timed.force_complete

    def watch(self, request: Timed, keys: Sequence[Hashable]) -> bool:
        if request.world.now_ms >= request.completes_at_ms:  # try_complete, before there is anything to be taken out of
            request.done = True
            request.on_complete()
            return True
        request.design = self
        request.keys = keys
        self.watchers.add(request, keys)
        request.deadline = when = self._time() + request.timeout
        request.handle = self._call_at(when, request.expire)
        return False
