"""Batches the calls of a process of one kind, such as its changes, so that many calls at once become
few requests to the store and few messages. One batch at a time: later calls form the next one.

    in one iteration of the loop    bump("a"), bump("a"), bump("b"), advance("a", 10)
    one write                       a: to at least 10, then by 2; b: by 1
    its result                      a: 12, b: 1      so the bumps return 11 and 12, and 1; the
                                                     advance 12
    the store is away               the same again, after a pause, and later calls behind them
    foreign data in the store       a alone, then b: halves, until the failing call is found

A request that was certainly not made is retried as long as its caller waits. A request that may have
been made is retried if that is harmless: a read or an advance is idempotent, and the store recognizes
a delivery by its token. A bump is not retried. Calls to keys locked by other transactions are retried
on their own, so that they delay no other keys.
"""

from asyncio import Future, Task, TimerHandle, get_running_loop, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import uniform
from typing import Any, Final, final

from purgatory import OperationCancelled, RelayUnavailable
from purgatory.relay._messages import Change, Delivery
from purgatory.relay._store import NotWritten, Refused

MIN_BACKOFF: Final = 0.02
MAX_BACKOFF: Final = 1.0
"""Bounds of the delay between two attempts to reach a store, in seconds."""

MAX_KEYS: Final = 100
MAX_CALLS: Final = 1_000
"""Limits of a batch: all its callers resume in one loop iteration."""

MAX_BYTES: Final = 1 << 20
"""A batch takes no further delivery once its values reach this size, in bytes."""

Request = Change | Delivery


def backoff(failures: int) -> float:
    """Seconds to wait after this number of failures, with jitter, so that processes do not all
    retry at once."""
    return min(MAX_BACKOFF, MIN_BACKOFF * 2.0 ** min(failures, 10)) * uniform(0.5, 1.0)


@final
class Call:
    """A request; its caller waits for the answer."""

    __slots__ = ("answer", "is_bump", "is_locked", "is_perhaps_made", "request")

    def __init__(self, request: Request, answer: "Future[Any]") -> None:
        self.request, self.answer = request, answer
        self.is_bump = isinstance(request, Change) and request.increment == 1
        """Whether it must not be sent twice."""
        self.is_locked = False
        """Whether the store left it out, such as for a transaction that holds the key locked."""
        self.is_perhaps_made = False
        """Whether an answer was lost."""

    def fail(self, error: Exception) -> None:
        """Sets `error` as the answer, if its caller still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


Groups = dict[str, list[Call]]
"""Calls by key."""


@final
class Calls:
    """Batches and retries calls of one kind.

    Args:
        name: name of its task.
        send: makes one request for each key. Returns the answers; keys that the store left out are
            missing.
        max_failures: number of failures after which the pauses grow no longer.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[Any]], Awaitable[Mapping[str, Any]]],
        max_failures: int = 2,
    ) -> None:
        self._name, self._send_requests, self._max_failures = name, send, max_failures
        self._queue: deque[Call] = deque()
        self._in_flight: list[Call] = []
        self._locked: Groups = {}
        """Calls to locked keys, which wait for the next attempt."""
        self._lock_failures = 0
        self._lock_timer: TimerHandle | None = None
        self.task: Task[None] | None = None
        self.last_error: Exception | None = None
        """Error of the last batch; None if it succeeded."""

    def submit(self, request: Request) -> Call:
        """Queues a request."""
        call = Call(request, get_running_loop().create_future())
        self._queue.append(call)
        self._start()
        return call

    def is_perhaps_made(self, call: Call) -> bool:
        """Whether the store may have a request: it is in flight, or an answer was lost."""
        return call.is_perhaps_made or call in self._in_flight

    def close(self) -> None:
        """Cancels the calls without an answer."""
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        for calls in (self._in_flight, self._queue, *self._locked.values()):
            for call in calls:
                error = f"the call for {call.request.key!r} has no answer: the relay was closed"
                call.fail(OperationCancelled(error))
        if self.task is not None:
            self.task.cancel()

    def _start(self) -> None:
        if self._queue and self.task is None:
            self.task = get_running_loop().create_task(
                self._run(), name=f"purgatory.relay: {self._name}"
            )

    async def _run(self) -> None:
        failures, limit = 0, MAX_CALLS
        try:
            await sleep(0.0)  # gather all calls of one loop iteration
            while groups := self._take(limit):
                batch = [call for group in groups.values() for call in group]
                try:
                    await self._send(groups, batch)
                except Exception as error:
                    is_unavailable = isinstance(error, RelayUnavailable)
                    if isinstance(error, Refused) or (len(batch) == 1 and not is_unavailable):
                        for call in batch:
                            call.fail(error)
                        continue
                    self._queue.extendleft(reversed(batch))
                    if is_unavailable:
                        self.last_error = error
                        await sleep(backoff(min(failures, self._max_failures)))
                        failures += 1
                    else:
                        limit = len(batch) // 2
                else:
                    failures, limit = 0, min(limit * 2, MAX_CALLS)
                    self.last_error = None
        finally:
            self.task = None

    def _take(self, limit: int) -> Groups:
        """Removes the next calls from the queue, up to the size of one request. Changes of one key
        are one change; a second delivery to a key waits for the next batch."""
        groups: Groups = {}
        count = size = 0
        is_retry = False
        while self._queue and count < limit:
            call = self._queue[0]
            key, value = call.request.key, getattr(call.request, "value", None)
            if not call.answer.done():
                is_full = len(groups) >= MAX_KEYS if key not in groups else value is not None
                if groups and (is_full or size >= MAX_BYTES or call.is_locked is not is_retry):
                    break
                if key in self._locked and not call.is_locked:
                    self._lock(key, [call])
                else:
                    is_retry = call.is_locked
                    groups.setdefault(key, []).append(call)
                    count, size = count + 1, size + len(value or b"")
            self._queue.popleft()
        return groups

    async def _send(self, groups: Groups, batch: list[Call]) -> None:
        is_retry = batch[0].is_locked
        self._in_flight = batch
        try:
            answers = await self._send_requests([combined(group) for group in groups.values()])
        except NotWritten:
            raise
        except Exception as error:
            for call in batch:
                call.is_perhaps_made = True
                if call.is_bump:
                    call.fail(error)
            raise
        finally:
            self._in_flight = []
        for key, group in groups.items():
            if key in answers:
                finish(group, answers[key])
            else:
                self._lock(key, group)
        if is_retry:
            self._lock_failures = self._lock_failures + 1 if self._locked else 0

    def _lock(self, key: str, calls: list[Call]) -> None:
        """Keeps calls for the next attempt to write locked keys."""
        for call in calls:
            call.is_locked = True
        self._locked.setdefault(key, []).extend(calls)
        if self._lock_timer is None:
            delay = backoff(self._lock_failures + 1)
            self._lock_timer = get_running_loop().call_later(delay, self._retry_locked)

    def _retry_locked(self) -> None:
        self._lock_timer = None
        calls = [call for group in self._locked.values() for call in group]
        self._queue.extendleft(reversed(calls))
        self._locked.clear()
        self._start()


def combined(calls: list[Call]) -> Request:
    """The calls to one key as one request."""
    if len(calls) == 1:
        return calls[0].request
    changes = [call.request for call in calls if isinstance(call.request, Change)]
    floors = [change.floor for change in changes]
    return Change(changes[0].key, max(floors), sum(change.increment for change in changes))


def finish(calls: list[Call], answer: Any) -> None:
    """Sets the answers of the calls to one key. Each bump gets a number of its own."""
    bumps = sum(call.is_bump for call in calls)
    number = answer - bumps if bumps else answer
    for call in calls:
        if call.is_bump:
            number += 1
        if not call.answer.done():
            call.answer.set_result(number if call.is_bump else answer)
