"""Kafka's old purgatory (0.8): one heap of all requests by deadline. Completed requests leave it only in a purge.

A completed request stays in the heap until its deadline, and in its watch lists until somebody checks the key. The reaper
wakes up for the first request of the heap, completed or not. Each time it looks whether there are more than 1,000 entries in
the watch lists, or in the heap, and if so it scans all of them for completed ones. With more than 1,000 pending requests this
is always so, and it scans every time: that was the fault of this design.

Source: Kafka 0.8.2, `DelayedOperationPurgatory` with `java.util.concurrent.DelayQueue`. Its reaper thread looks after each
request that it has taken from the queue; this one looks after all that were due together.
"""

import asyncio
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush

from benchmarks.baselines.implementations.interface import Request
from benchmarks.baselines.implementations.lingering_watch_lists import LingeringWatchLists

PURGE_THRESHOLD = 1_000


class Queued(Request):
    """A request in the heap."""

    __slots__ = ("purgatory",)

    purgatory: "OldKafka"

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        self.purgatory.waiting -= 1
        self.on_complete()
        return True

    def __lt__(self, other: "Queued") -> bool:
        return self.deadline < other.deadline


class OldKafka:
    """One heap, and a reaper."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._heap: list[Queued] = []
        self._watchers = LingeringWatchLists()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting = 0
        self._wake_ups = 0
        self._purges = 0
        self.new_request = Queued
        self.complete = Queued.force_complete

    def watch(self, request: Queued, keys: Sequence[Hashable]) -> bool:
        request.purgatory = self
        self.waiting += 1
        if request.try_complete():
            return True
        self._watchers.add(request, keys)
        request.deadline = self._time() + request.timeout
        heap = self._heap
        heappush(heap, request)
        if heap[0] is request:
            self._set_timer()
        return False

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0].deadline, self._reap) if self._heap else None

    def _reap(self) -> None:
        self._wake_ups += 1
        heap, now = self._heap, self._time()
        while heap and heap[0].deadline <= now:
            request = heappop(heap)
            if request.force_complete():
                request.on_expiration()
        if self._watchers.entries > PURGE_THRESHOLD:
            self._watchers.purge()
            self._purges += 1
        if len(heap) > PURGE_THRESHOLD:
            heap[:] = [request for request in heap if not request.done]
            heapify(heap)
            self._purges += 1
        self._set_timer()

    def check_and_complete(self, key: Hashable) -> int:
        return self._watchers.check(key)

    def pending(self) -> int:
        return self.waiting

    def counters(self) -> dict[str, int]:
        return {"wake_ups": self._wake_ups, "purges": self._purges}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
