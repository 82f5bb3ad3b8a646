"""Kafka's purgatory as it is today: a hierarchical timing wheel, and watch lists that are purged by
an estimate.

A completed request leaves the wheel at once, but stays in its watch lists. Each new request adds
one to an estimate of the number of requests in the lists. When the estimate exceeds the number of
requests in the wheel by 1,000, all lists are scanned, and the estimate is reset to the size of the
wheel.

The wheel has levels of 20 buckets of 1, 20, 400 ... ms. A bucket that is not empty waits in a queue
of buckets by time, and stays there if it becomes empty. The reaper sleeps until the first bucket of
the queue is due. Whenever it wakes up, it compares the estimate.

Source: Kafka, `DelayedOperationPurgatory`, `util/timer/TimingWheel.java`, `TimerTaskList.java` and
`SystemTimer.java`. Where Kafka has a doubly linked list, a bucket here is a dictionary, which does
the same in C.
"""

import asyncio
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from math import ceil

from benchmarks.baselines.implementations.interface import Request

PURGE_THRESHOLD = 1_000
WHEEL_SIZE = 20


class LingeringWatchLists:
    """The requests that watch each key. Completed ones stay until the key is checked or all lists
    are purged."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, list[Request]] = {}

    def add(self, request: Request, keys: Sequence[Hashable]) -> None:
        """Lets `request` watch `keys`."""
        by_key = self._by_key
        for key in keys:
            waiting = by_key.get(key)
            if waiting is None:
                by_key[key] = [request]
            else:
                waiting.append(request)

    def check(self, key: Hashable) -> int:
        """Tries all requests that watch `key`, drops ended requests, and returns the number of
        completed requests."""
        waiting = self._by_key.get(key, [])
        completed = sum([not request.done and request.try_complete() for request in waiting])
        self._keep(key, waiting)
        return completed

    def purge(self) -> None:
        """Drops all requests that have ended. Cost: all entries."""
        for key, waiting in list(self._by_key.items()):
            self._keep(key, waiting)

    def _keep(self, key: Hashable, waiting: list[Request]) -> None:
        kept = [request for request in waiting if not request.done]
        if kept:
            self._by_key[key] = kept
        else:
            self._by_key.pop(key, None)


class Bucket(dict["Task", None]):
    """The requests that are due in a span of time. It is reused; `expires_ms` is
    its span."""

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
        self._watchers = LingeringWatchLists()
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
        self._watchers.add(request, keys)
        self._estimate += 1
        request.deadline = self._time() + request.timeout
        request.due_ms = ceil(request.deadline * 1000.0)
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
            self._watchers.purge()
        self._set_timer()

    def _expire(self, task: Task) -> None:
        if task.force_complete():
            task.on_expiration()

    def check_and_complete(self, key: Hashable) -> int:
        return self._watchers.check(key)

    def pending(self) -> int:
        return self.waiting

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
