"""Batches the calls of a process of one kind, such as its changes, so that many calls at once become
few requests to the store and few messages.

    in one iteration of the loop    bump("a"), bump("a"), bump("b"), advance("a", 10)
    one write                       a: to at least 10, then by 2; b: by 1
    its result                      a: 12, b: 1      so the bumps return 11 and 12, and 1; the
                                                     advance 12

A request that was certainly not made is retried as long as its caller waits. A request that may have
been made is retried if that is harmless: a read or an advance is idempotent, and the store recognizes
a delivery by its token. A bump is not retried. Calls to keys locked by other transactions are retried
on their own, so that they delay no other keys.
"""

from asyncio import Future, TimerHandle, get_running_loop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, final

from purgatory import OperationCancelled, RelayUnavailable
from purgatory.relay._batcher import Batcher, backoff
from purgatory.relay._messages import Change, Delivery
from purgatory.relay._store import NotWritten

MAX_CALLS_PER_WRITE: Final = 1_000
"""Limit of calls per write: all their callers resume in one loop iteration."""

MAX_BYTES_PER_WRITE: Final = 1 << 20
"""A write takes no further delivery once its values reach this size, in bytes."""

Request = Change | Delivery


@final
class Call:
    """A request, whose caller waits for the answer."""

    __slots__ = ("answer", "is_bump", "is_locked", "is_perhaps_made", "request")

    def __init__(self, request: Request, answer: "Future[Any]") -> None:
        self.request, self.answer = request, answer
        self.is_bump = isinstance(request, Change) and request.increment == 1
        """Whether it must not be sent twice."""
        self.is_locked = False
        """Whether another transaction holds the key locked."""
        self.is_perhaps_made = False
        """Whether an answer was lost."""

    @property
    def is_awaited(self) -> bool:
        """Whether its caller still waits."""
        return not self.answer.done()

    def fail(self, error: Exception) -> None:
        """Sets `error` as the answer."""
        if self.is_awaited:
            self.answer.set_exception(error)


Groups = dict[str, list[Call]]
"""Calls by key."""


@final
class Calls:
    """Batches and retries calls of one kind.

    Args:
        name: of its task.
        send: makes one request for each key. Returns the answers; locked keys are missing.
    """

    def __init__(
        self, name: str, send: Callable[[Sequence[Any]], Awaitable[Mapping[str, Any]]]
    ) -> None:
        self._send_requests = send
        self.batcher: Batcher[Call] = Batcher(
            name,
            self._send,
            fail=Call.fail,
            key=lambda call: call.request[0],
            is_awaited=lambda call: not call.answer.done(),
            kind=lambda call: call.is_locked,
            max_calls=MAX_CALLS_PER_WRITE,
            max_failures=2,
        )
        self._in_flight: list[Call] = []
        self._locked: Groups = {}
        """Calls to locked keys, which wait for the next attempt."""
        self._lock_failures = 0
        self._lock_timer: TimerHandle | None = None

    def submit(self, request: Request) -> Call:
        """Queues a request."""
        call = Call(request, get_running_loop().create_future())
        self.batcher.add([call])
        return call

    def is_perhaps_made(self, call: Call) -> bool:
        """Whether the store may have a request: it is in flight, or an answer was lost."""
        return call.is_perhaps_made or call in self._in_flight

    def is_locked(self, key: str) -> bool:
        """Whether calls wait for another transaction that holds `key` locked."""
        return any(call.is_awaited for call in self._locked.get(key, ()))

    def close(self) -> None:
        """Cancels the calls without an answer."""
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        locked = [call for calls in self._locked.values() for call in calls]
        for call in (*self.batcher.close(), *locked):
            error = f"the call for {call.request.key!r} has no answer: the relay was closed"
            call.fail(OperationCancelled(error))

    async def _send(self, calls: list[Call]) -> Sequence[Call]:
        is_retry = calls[0].is_locked
        groups, rest = grouped(calls)
        for key in [] if is_retry else self._locked.keys() & groups.keys():
            self._lock(key, groups.pop(key))
        if not groups:
            return rest
        sent = self._in_flight = [call for group in groups.values() for call in group]
        try:
            answers = await self._send_requests([combined(group) for group in groups.values()])
        except NotWritten:
            raise
        except Exception as error:
            is_unavailable = isinstance(error, RelayUnavailable)
            for call in sent:
                call.is_perhaps_made = True
                if call.is_bump if is_unavailable else isinstance(call.request, Change):
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
        return rest

    def _lock(self, key: str, calls: list[Call]) -> None:
        """Keeps calls for the next attempt to write locked keys."""
        for call in calls:
            call.is_locked = True
        self._locked.setdefault(key, []).extend(calls)
        if self._lock_timer is None:
            delay = backoff(self._lock_failures + 1)
            self._lock_timer = get_running_loop().call_later(delay, self._retry_locked)

    def _retry_locked(self) -> None:
        calls = [call for group in self._locked.values() for call in group]
        self._lock_timer = None
        self._locked.clear()
        self.batcher.add_first(calls)


def grouped(calls: list[Call]) -> tuple[Groups, list[Call]]:
    """Calls by key, as many as one write takes, and the other ones. Changes of one key are one
    change; a second delivery to a key waits for the next write."""
    groups: Groups = {}
    size = 0
    for number, call in enumerate(calls):
        request = call.request
        if isinstance(request, Delivery):
            if request.key in groups or size >= MAX_BYTES_PER_WRITE:
                return groups, calls[number:]
            size += len(request.value)
        groups.setdefault(request.key, []).append(call)
    return groups, []


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
        if call.is_awaited:
            call.answer.set_result(number if call.is_bump else answer)
