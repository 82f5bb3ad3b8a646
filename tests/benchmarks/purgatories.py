"""The purgatories that `load` compares: *ours*, *pure* (the same in plain Python), *kafka* (Kafka's
design), *call-later* (a timer of the loop for each request), and *empty*, which keeps nothing: the
generator's own share.

Each is made on the running loop, and has Kafka's `new FakeOperation`, `tryCompleteElseWatch` and
`forceComplete` as attributes, so that none pays for an adapter. Where Kafka has a reaper thread, a
callback of the loop does its work here.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Any

from purgatory import DelayedOperation, Purgatory

PAYLOAD_BYTES = 100
NEVER_MS = 65_535
"""The latency of a request that is never completed."""


class RunState:
    """What the requests of one measurement share: the time, set by the code that completes them,
    and how many have ended, and have expired."""

    __slots__ = ("answered", "expired", "now_ms")

    def __init__(self) -> None:
        self.now_ms = self.answered = self.expired = 0


class Request:
    """A fake request: it has 100 bytes of payload, its condition holds from a certain time on, and
    its end is counted. This one is in no structure."""

    __slots__ = ("completes_at_ms", "done", "keys", "payload", "run_state", "timeout")

    keys: Sequence[Hashable]

    def __init__(self, run_state: RunState, timeout: float, latency_ms: int) -> None:
        self.run_state = run_state
        self.timeout = timeout
        self.completes_at_ms = run_state.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)
        self.done = False

    def try_complete(self) -> bool:
        return self.run_state.now_ms >= self.completes_at_ms and self.force_complete()

    def force_complete(self) -> bool:
        """Ends the request, and removes it from all structures. False if it had ended before."""
        if self.done:
            return False
        self.done = True
        self.on_complete()
        return True

    def on_complete(self) -> None:
        self.run_state.answered += 1

    def on_expiration(self) -> None:
        self.run_state.expired += 1


# -- ours


class FakeOperation(DelayedOperation[None]):
    """`Request`, as a user of the library writes it."""

    __slots__ = ("completes_at_ms", "payload", "run_state")

    def __init__(self, run_state: RunState, timeout: float, latency_ms: int) -> None:
        super().__init__(timeout)
        self.run_state = run_state
        self.completes_at_ms = run_state.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)

    def try_complete(self) -> bool:
        return self.run_state.now_ms >= self.completes_at_ms and self.force_complete()

    def on_complete(self) -> None:
        self.run_state.answered += 1

    def on_expiration(self) -> None:
        self.run_state.expired += 1


class Ours:
    """A `Purgatory`."""

    def __init__(self) -> None:
        self._purgatory = Purgatory[DelayedOperation[Any]]("benchmark")
        self.new_request = FakeOperation
        self.watch = self._purgatory.try_complete_else_watch
        self.complete = FakeOperation.force_complete

    def pending(self) -> int:
        return self._purgatory.pending


# -- timers of the loop


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
    """A timer of the loop for each request. It holds nothing longer than needed, but asyncio's loop
    keeps a cancelled handle until half of its heap is cancelled handles."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time, self._call_at = loop.time, loop.call_at
        self._by_key: dict[Hashable, set[Timed]] = {}
        self._pending = 0
        self.new_request = Timed
        self.complete = Timed.force_complete

    def watch(self, request: Timed, keys: Sequence[Hashable]) -> bool:
        # Its own `try_complete` would take it out of sets in which it is not yet.
        if request.run_state.now_ms >= request.completes_at_ms:
            return Request.force_complete(request)
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
        request.handle = self._call_at(self._time() + request.timeout, request.expire)
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

    def pending(self) -> int:
        return self._pending


# -- Kafka's
#
# A completed request leaves the wheel at once, but stays in its watch lists. Each new request adds
# one to an estimate of the number of requests in the lists. When the estimate exceeds the number of
# requests in the wheel by 1,000, all lists are scanned, and the estimate is reset to the size of the
# wheel. The wheel has levels of 20 buckets of 1, 20, 400 ... ms. A bucket that is not empty waits in
# a queue of buckets by time. The reaper sleeps until the first bucket of the queue is due; whenever
# it wakes up, it compares the estimate.
#
# Source: Kafka, `DelayedOperationPurgatory`, `util/timer/TimingWheel.java`, `TimerTaskList.java` and
# `SystemTimer.java`. Where Kafka has a doubly linked list, a bucket here is a dictionary, which does
# the same in C.

PURGE_THRESHOLD = 1_000
WHEEL_SIZE = 20


class Bucket(dict["Task", None]):
    """The requests that are due in a span of time. It is reused; `expires_ms` is its span."""

    __slots__ = ("expires_ms",)

    def __init__(self) -> None:
        self.expires_ms = -1


class Task(Request):
    """A request in a bucket."""

    __slots__ = ("bucket", "due_ms", "purgatory")

    purgatory: "KafkaWheel"
    due_ms: int
    bucket: Bucket | None

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        if self.bucket is not None:
            del self.bucket[self]
            self.bucket = None
        self.purgatory.waiting -= 1
        self.on_complete()
        return True


class Level:
    """A level of the wheel. Each bucket of the next level, which is made when needed, is as wide as
    all of this one."""

    def __init__(self, tick_ms: int, now_ms: int) -> None:
        self.tick_ms = tick_ms
        self.span_ms = tick_ms * WHEEL_SIZE
        self.now_ms = now_ms - now_ms % tick_ms
        self.buckets = [Bucket() for _ in range(WHEEL_SIZE)]
        self.overflow: Level | None = None

    def bucket_for(self, due_ms: int, queue: list[tuple[int, int, Bucket]]) -> Bucket | None:
        """The bucket for a task, which is put into the queue if it was not there; `None` if the
        task is due."""
        level = self
        while due_ms >= level.now_ms + level.span_ms:
            if level.overflow is None:
                level.overflow = Level(level.span_ms, level.now_ms)
            level = level.overflow
        if due_ms < level.now_ms + level.tick_ms:
            return None
        number = due_ms // level.tick_ms
        bucket = level.buckets[number % WHEEL_SIZE]
        if bucket.expires_ms != number * level.tick_ms:
            bucket.expires_ms = number * level.tick_ms
            heappush(queue, (bucket.expires_ms, -level.tick_ms, bucket))
        return bucket

    def advance(self, now_ms: int) -> None:
        """Moves the clocks of this level and of those above."""
        level: Level | None = self
        while level is not None and now_ms >= level.now_ms + level.tick_ms:
            level.now_ms = now_ms - now_ms % level.tick_ms
            level = level.overflow


class KafkaWheel:
    """The wheel, its queue of buckets, and the lists."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._wheel = Level(1, int(self._time() * 1000.0))
        self._queue: list[tuple[int, int, Bucket]] = []
        self._by_key: dict[Hashable, list[Request]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1
        self._estimate = 0
        self.waiting = 0
        self.new_request = Task
        self.complete = Task.force_complete

    def watch(self, request: Task, keys: Sequence[Hashable]) -> bool:
        request.purgatory = self
        request.bucket = None
        self.waiting += 1
        if request.try_complete():
            return True
        for key in keys:
            waiting = self._by_key.get(key)
            if waiting is None:
                self._by_key[key] = [request]
            else:
                waiting.append(request)
        self._estimate += 1
        request.due_ms = ceil((self._time() + request.timeout) * 1000.0)
        bucket = request.bucket = self._wheel.bucket_for(request.due_ms, self._queue)
        if bucket is None:
            self._expire(request)
            return True
        bucket[request] = None
        if self._queue[0][0] != self._timer_ms:
            self._set_timer()
        return False

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_ms = -1
        if self._queue:
            self._timer_ms = self._queue[0][0]
            self._timer = self._loop.call_at(self._timer_ms / 1000.0, self._reap)

    def _reap(self) -> None:
        queue, now_ms = self._queue, int(self._time() * 1000.0 + 1e-3)
        while queue and queue[0][0] <= now_ms:
            expires_ms, _, bucket = heappop(queue)
            self._wheel.advance(expires_ms)
            bucket.expires_ms = -1
            tasks = list(bucket)
            bucket.clear()
            for task in tasks:
                task.bucket = None
            for task in tasks:
                if task.done:
                    continue
                again = self._wheel.bucket_for(task.due_ms, queue)
                if again is None:
                    self._expire(task)
                else:
                    task.bucket = again
                    again[task] = None
        if self._estimate - self.waiting > PURGE_THRESHOLD:
            self._estimate = self.waiting
            self._purge()
        self._set_timer()

    def _purge(self) -> None:
        """Drops all requests that have ended. Cost: all entries."""
        for key, waiting in list(self._by_key.items()):
            kept = [request for request in waiting if not request.done]
            if kept:
                self._by_key[key] = kept
            else:
                self._by_key.pop(key, None)

    def _expire(self, task: Task) -> None:
        if task.force_complete():
            task.on_expiration()

    def pending(self) -> int:
        return self.waiting


class EmptyPurgatory:
    """A purgatory without anything in it: a request is counted when it is completed, and never
    expires."""

    def __init__(self) -> None:
        self.new_request = Request
        self.complete = Request.force_complete

    def watch(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Keeps nothing."""

    def pending(self) -> int:
        return 0


BY_NAME: dict[str, Callable[[], Any]] = {
    "empty": EmptyPurgatory,
    "ours": Ours,
    "pure": Ours,
    "kafka": KafkaWheel,
    "call-later": CallLater,
}
