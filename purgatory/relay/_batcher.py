"""Sends calls in batches, one batch at a time. Calls that come meanwhile form the next one.

    in one iteration of the loop    add a, b, c
    one `send`                      a, b, c
    the store is away               a, b, c again, after a pause, and later calls behind them
    foreign data in the store       a alone, then b and c: halves, until the failing call is found

A call without a waiting caller is dropped.
"""

from asyncio import Task, get_running_loop, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import uniform
from typing import Final, Generic, TypeVar, final

from purgatory import RelayUnavailable
from purgatory.relay._store import Refused

MIN_BACKOFF: Final = 0.02
MAX_BACKOFF: Final = 1.0
"""Bounds of the delay between two attempts to reach a store, in seconds."""

MAX_KEYS_PER_BATCH: Final = 100

C = TypeVar("C")


def backoff(failures: int) -> float:
    """Seconds to wait after this number of failures, with jitter, so that processes do not all
    retry at once."""
    return min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures, 10)) * uniform(0.5, 1.0)


@final
class Batcher(Generic[C]):
    """Batches and retries calls. Each one is queued once, however often it is added.

    Args:
        name: of its task.
        send: sends calls. Returns those that are to be sent next, since they did not fit.
        fail: ends a call with an error.
        key: the key of a call; a batch has at most `MAX_KEYS_PER_BATCH`.
        is_awaited: whether a call has a waiting caller.
        kind: a batch consists of calls of one kind.
        max_calls: limit of calls in a batch.
        max_failures: number of failures after which the pauses grow no longer.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[list[C]], Awaitable[Sequence[C]]],
        fail: Callable[[C, Exception], object],
        key: Callable[[C], str],
        is_awaited: Callable[[C], bool],
        kind: Callable[[C], bool] = lambda _: False,
        max_calls: int = 100,
        max_failures: int = 10,
    ) -> None:
        self._name, self._send, self._fail = name, send, fail
        self._key, self._is_awaited, self._kind = key, is_awaited, kind
        self._max_calls, self._max_failures = max_calls, max_failures
        self._queue: deque[C] = deque()
        self._queued: set[C] = set()
        self._batch: list[C] = []
        self.task: Task[None] | None = None
        self.last_error: Exception | None = None
        """Error of the last batch; None if it succeeded."""

    def add(self, calls: Iterable[C]) -> None:
        """Queues calls."""
        for call in calls:
            if call not in self._queued and self._is_awaited(call):
                self._queued.add(call)
                self._queue.append(call)
        self._start()

    def add_first(self, calls: Sequence[C]) -> None:
        """Queues calls before all others."""
        for call in reversed(calls):
            if call not in self._queued:
                self._queued.add(call)
                self._queue.appendleft(call)
        self._start()

    def _start(self) -> None:
        if self._queue and self.task is None:
            self.task = get_running_loop().create_task(
                self._run(), name=f"purgatory.relay: {self._name}"
            )

    def close(self) -> list[C]:
        """Ends the task. Returns the calls without an answer."""
        calls = [*self._batch, *self._queue]
        self._batch = []
        self._queue.clear()
        self._queued.clear()
        if self.task is not None:
            self.task.cancel()
        return calls

    def _take(self, limit: int) -> list[C]:
        """Removes the next awaited calls of one kind from the queue."""
        calls: list[C] = []
        keys: set[str] = set()
        queue = self._queue
        while queue and len(calls) < limit:
            call = queue[0]
            if self._is_awaited(call):
                keys.add(self._key(call))
                is_other = calls and self._kind(calls[0]) is not self._kind(call)
                if is_other or len(keys) > MAX_KEYS_PER_BATCH:
                    break
                calls.append(call)
            self._queued.discard(queue.popleft())
        return calls

    async def _run(self) -> None:
        failures, limit = 0, self._max_calls
        try:
            await sleep(0.0)  # gather all calls of one loop iteration
            while batch := self._take(limit):
                self._batch = batch
                try:
                    rest = await self._send(batch)
                except Exception as error:
                    is_unavailable = isinstance(error, RelayUnavailable)
                    if isinstance(error, Refused) or (len(batch) == 1 and not is_unavailable):
                        for call in batch:
                            self._fail(call, error)
                        continue
                    self.add_first(batch)
                    if is_unavailable:
                        self.last_error = error
                        await sleep(backoff(min(failures, self._max_failures)))
                        failures += 1
                    else:
                        limit = len(batch) // 2
                else:
                    failures, limit = 0, min(limit * 2, self._max_calls)
                    self.last_error = None
                    self.add_first(rest)
        finally:
            self._batch = []
            self.task = None
