"""`ThresholdPurgatory`: waiting until a key's value has reached a threshold: offsets, versions,
watermarks.

Many conditions in servers have this form, and then no condition is tried: the thresholds of a key
are in a heap, and an advance removes the lowest ones. Waiters with a threshold above the new value
are not visited.

    the value of "orders" is 41, with waiters for     42: A, D     45: B     60: C
    advance("orders", 47) -> 3                        A, D and B return 47, in this order; C keeps
                                                      waiting
    wait("orders", 46)                                returns 47 at once

A wait is an operation of a `Purgatory` of its own, which gives it its deadline, its owner, its end
and its observers; the queue of its key says when it ends. An advance removes all waiters that it
reaches from their queue and gives them the value, but answers a bounded number per iteration of the
loop. The rest are *unanswered* until the next iterations, but decided: neither a deadline nor a
`fail` changes their outcome.

    advance("orders", 47) reaches 2,000      pending -2,000; 512 are answered, 1,488 are unanswered
    the next three iterations                answer 512, 512 and 464

The waiter of a cancelled task is passed over: it ends as cancelled, and is not counted.

Sources: Kafka, `raft/internals/ThresholdPurgatory.java`, for one log; and the index of Consul's
blocking queries: a client passes the version it has seen, so it misses nothing between two
requests. Therefore a key keeps its value until `forget` is called.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, final

from purgatory._core.arguments import describe, printable, require_exception, require_limit
from purgatory._core.closing import open_again
from purgatory._core.conditions import NO_VALUE, Receiver
from purgatory._core.errors import OperationTimeout, PurgatoryFull
from purgatory._core.loop import (
    MAX_PER_ITERATION,
    UNBOUND,
    ThreadsafeInbox,
    call_on,
    report,
    running_loop,
)
from purgatory._core.observers import KEY, Observer
from purgatory._core.operation import claim, fail, owner_has_left
from purgatory._core.purgatory import Purgatory
from purgatory._core.states import COMPLETED, EXPIRED
from purgatory._core.statistics import ThresholdStatistics
from purgatory._core.threshold_queue import (
    UNKNOWN,
    ThresholdQueue,
    describe_value,
    require_advance,
)
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE


class Ordered(Protocol):
    """Values: all values of a key can be compared with each other, in a total order."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", bound=Hashable, default=Hashable)
    V = TypeVarWithDefault("V", bound=Ordered, default=Any)
else:
    K = TypeVar("K", bound=Hashable)
    V = TypeVar("V", bound=Ordered)


@final
class _Wait(Receiver):
    """A `wait`, which receives the value that has reached its threshold."""

    __slots__ = ("end", "home", "started_at", "threshold")

    def __init__(
        self,
        home: "ThresholdPurgatory[Any, Any]",
        key: Any,
        threshold: Any,
        timeout: float | None,
        kind: str | None,
    ) -> None:
        super().__init__(key, timeout, kind)
        self.home = home
        self.threshold = threshold
        self.started_at = home._waits._time()
        self.end: Callable[[_Wait], object] | None = None
        """How it ends, once that is decided."""

    def on_expiration(self) -> None:
        self.home._discard(self)

    def _timer_expired(self) -> int:
        return super()._timer_expired() if self.end is None else 1

    def __repr__(self) -> str:
        return f"<{_wait(self.key, self.threshold)}>"


_Wait.__name__ = "wait"  # as observers know it


@final
class ThresholdPurgatory(Generic[K, V]):
    """Holds waits for a key's value to reach a threshold. Each wait ends exactly once: when the
    value reaches its threshold, or at its deadline.

    The values of a key never decrease, and are stored, so a client that passes its threshold misses
    no value between two waits. Values are of any immutable, hashable type with a total order:
    numbers, strings, tuples. As in `sorted`, exceptions of comparisons are raised to the caller.

    Bound to the running event loop at first use; all methods but `advance_threadsafe` belong to its
    thread. As an async context manager it is closed on exit, and may be entered again.

    Args:
        name: for errors, logs and statistics.
        tick: the resolution of deadlines in seconds, finite and at least a nanosecond: a wait
            expires at most this much late.
        wheel_size: the number of buckets of a level of the timing wheel that are as wide as one
            bucket of the next level, 2 to 2**62.
        max_pending: the maximum number of pending waits; `None` for no limit.
        max_keys: the maximum number of keys with a value or a waiter; `None` for no limit. A
            further key is refused, because deleting another key silently could lose an update.
            `forget` deletes a key.
        observer: an observer or a sequence of observers, notified of each ended wait as an
            operation of kind "wait". No checks are reported.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of a wrong type.
    """

    def __init__(
        self,
        name: str = "thresholds",
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        max_pending: int | None = None,
        max_keys: int | None = None,
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        require_limit("max_keys", max_keys)
        self.name = name
        self._waits: Purgatory[_Wait] = Purgatory(
            name, tick=tick, wheel_size=wheel_size, max_pending=max_pending, observer=observer
        )
        self._max_keys = max_keys
        self._queues: dict[Hashable, ThresholdQueue] = {}
        """Keys with a value or waiters -> their queues."""
        self._pending = 0
        """The number of waiters in queues."""
        self._failed = 0
        self._inbox: ThreadsafeInbox[tuple[Any, Any]] = ThreadsafeInbox(
            self._waits._loop_wheel, self._advance_from_threads
        )

    async def wait(
        self, key: K, threshold: V, timeout: float | None = None, *, kind: str | None = None
    ) -> V:
        """Waits until the value of `key` is at least `threshold`.

        Waits for equal thresholds of a key are answered in the order of arrival.

        Args:
            key: a key, with or without a value.
            threshold: a value of the same type as the key's values.
            timeout: seconds to wait; `None` and `inf` for no limit. At zero or below, the value is
                compared once.
            kind: name of the wait for observers and metrics; by default "wait".

        Returns:
            The value of the key, if it has reached the threshold already; else the first value that
            reaches it.

        Cost: O(log n) comparisons with other thresholds of the key, amortized, when the wait
            starts; none when it ends early.

        Raises:
            OperationTimeout: a `TimeoutError`; the threshold was not reached in time.
            OperationCancelled: `aclose` ended the wait.
            BaseException: the exception passed to `fail`.
            PurgatoryClosed: `aclose` was called before.
            PurgatoryFull: the call would have to wait, and `max_pending` waits are pending, or
                `max_keys` keys have a value or a waiter.
            ValueError, TypeError: the threshold is NaN, or cannot be compared with the key's value
                or with other thresholds, or the call would have to wait, and the threshold is not
                hashable (a list); `timeout` is NaN, or not a number; `key` is not hashable.
            WrongLoop: called on another loop or thread than the first time.
        """
        if running_loop() is not self._waits._loop:
            self._bind("wait for {}", key)
        if threshold != threshold:
            raise ValueError(f"cannot {_wait(key, threshold)}: NaN is never reached")
        waiter = _Wait(self, key, threshold, timeout, kind)
        queue = self._queues.get(key)
        if queue is not None and queue.has_reached(threshold):
            waiter.value = queue.value
        elif timeout is None or waiter._op_timeout is not None:
            queue = self._queue_of(key, "wait for {} to reach {}", threshold)
            queue.add(waiter)
            self._queues[key] = queue
            self._pending += 1
        try:
            value = await self._waits.wait(waiter, (key,))
        finally:
            call_on(self._waits._loop, self._discard, waiter)
            has_expired = waiter.state is EXPIRED
            del waiter, queue  # which would make a cycle with the traceback of its failure
        if has_expired:
            known = self._queues[key].value if key in self._queues else UNKNOWN
            raise OperationTimeout(
                f"{describe(key)} did not reach {describe(threshold)} within {timeout} s: "
                f"{describe_value(known)}"
            )
        return cast(V, value)

    def advance(self, key: K, value: V) -> int:
        """Sets the value of `key`, and completes all waits for this value or a lower threshold, in
        the order of threshold and arrival.

        Returns:
            The number of completed waits. All of them have ended when the call returns, and none
            can expire or fail any more. Above 512, the first 512 are woken at once, and the rest in
            the next iterations of the loop, 512 in each.

        Cost: proportional to the completed waits; without any, one comparison, independent of the
            number of other waiters.

        Raises:
            ValueError: `value` is below the current value of the key, or NaN.
            TypeError: `value` cannot be compared with the current value or with a threshold; or
                `key` is not hashable.
            PurgatoryFull: `max_keys` other keys have a value or a waiter.
            WrongLoop: called on another loop or thread than the first time. Until the first wait, no
                loop is needed.

        A call that raises changes nothing.
        """
        if running_loop() is not self._waits._loop and self._is_bound:
            self._bind("advance {}", key, "advance_threadsafe")
        queue = self._queue_of(key, "advance {} to {}", value)
        waiters = queue.advance(value)
        self._queues[key] = queue
        return self._decide(waiters, value, _complete) if waiters else 0

    def advance_threadsafe(self, key: K, value: V) -> None:
        """Calls `advance(key, value)` on the loop soon; may be called from any thread.

        Calls made before the loop wakes share one wake-up. The loop applies them in order, a
        bounded number per iteration. A value that is too low by then is ignored, since threads
        race; other exceptions of `advance` go to the loop's exception handler. If the purgatory is
        not bound to a loop yet, values are kept until then. As safe in a signal handler or a
        finalizer as `loop.call_soon_threadsafe`.

        Raises:
            ValueError: `value` is NaN.
            TypeError: `key` is not hashable.
        """
        hash(key)
        require_advance(key, value)
        self._inbox.put((key, value))

    def value(self, key: K) -> V | None:
        """The value of `key`, or `None` if it has none. Cost: O(1)."""
        queue = self._queues.get(key)
        return None if queue is None or queue.value is UNKNOWN else cast(V, queue.value)

    def fail(self, key: K, exception: BaseException, *, above: V | None = None) -> int:
        """Ends all waits for `key` with `exception`. The key keeps its value, and new waits may
        start.

        Args:
            key: a key, with or without waits.
            exception: an instance; each wait raises it.
            above: end only the waits for a higher threshold than this; `None` for all.

        Returns:
            The number of ended waits. As with `advance`, waits above 512 are answered in the next
            iterations of the loop.

        Raises:
            TypeError: `exception` is not an exception (a class, for instance); `key` is not
                hashable; or `above` cannot be compared with the thresholds.
            WrongLoop: called from another loop or thread than the first time.
        """
        require_exception(f"fail {describe(key)}", exception)
        if self._is_bound:
            self._bind("fail {}", key)
        queue = self._queues.get(key)
        if queue is None or not queue.size:
            return 0
        waiters = queue.take(UNKNOWN if above is None else above)
        self._discard_if_empty(queue)
        failed = self._decide(waiters, NO_VALUE, partial(fail, exception=exception))
        self._failed += failed
        return failed

    def forget(self, key: K) -> bool:
        """Deletes the value of `key`, which may then have a lower one.

        Waiters of the key keep waiting for later values; to end their waits, call `fail` as well.

        Returns:
            Whether it had a value.

        Raises:
            TypeError: `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time.
        """
        if self._is_bound:
            self._bind("forget {}", key)
        queue = self._queues.get(key)
        if queue is None or queue.value is UNKNOWN:
            return False
        queue.value = UNKNOWN
        self._discard_if_empty(queue)
        return True

    async def aclose(self, drain: float = 0.0) -> int:
        """Refuses new waits, lets pending waits end by themselves for up to `drain` seconds, then
        ends the rest with `OperationCancelled`.

        When it returns, no wait is pending and all waits are answered. If its task is cancelled, it
        ends the rest at once before it raises. It may be called again, even during a drain. Values
        are kept.

        Args:
            drain: seconds, zero or more.

        Returns:
            The number of waits ended by this call.

        Raises:
            ValueError, TypeError: `drain` is negative, NaN, or not a number; nothing has changed.
            WrongLoop: called on another loop or thread than the first time.
        """
        ended = await self._waits.aclose(drain)
        for waiter in ended:
            self._discard(waiter)
        return len(ended)

    async def __aenter__(self) -> "ThresholdPurgatory[K, V]":
        open_again(self._waits)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def pending(self) -> int:
        """The number of waits that have not ended. Exact. Cost: O(1)."""
        return self._pending

    def statistics(self) -> ThresholdStatistics:
        """A snapshot. Cost: O(1)."""
        waits = self._waits.statistics()
        return ThresholdStatistics(
            name=self.name,
            pending=self._pending,
            unanswered=max(waits.pending - self._pending, 0),
            keys=len(self._queues),
            completed=waits.completed,
            failed=self._failed,
            expired=waits.expired,
            cancelled=waits.cancelled - self._failed,
            wake_ups=waits.wake_ups,
            moves=waits.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._waits._closed else "open"
        return (
            f"<ThresholdPurgatory {self.name!r} {state} pending={self._pending} "
            f"keys={len(self._queues)}>"
        )

    # -- queues

    @property
    def _is_bound(self) -> bool:
        """Whether it was used on a loop. Before, there are values alone, and no wait."""
        return self._waits._loop is not UNBOUND

    def _bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another
        loop."""
        loop = self._waits._loop
        self._waits._bind(action, value, threadsafe)
        if self._waits._loop is not loop:
            self._inbox.rebind()

    def _queue_of(self, key: Any, action: str, value: Any) -> ThresholdQueue:
        """The queue of `key`. The caller stores it, since it may be a new one.

        Raises:
            PurgatoryFull: the key is new, and `max_keys` other keys have a value or a waiter.
        """
        queue = self._queues.get(key)
        if queue is None:
            if self._max_keys is not None and len(self._queues) >= self._max_keys:
                raise PurgatoryFull(
                    f"cannot {action.format(describe(key), describe(value))}: max_keys "
                    f"({self._max_keys}) other keys are in {printable(self.name)}"
                )
            queue = ThresholdQueue(key)
        return queue

    def _discard_if_empty(self, queue: ThresholdQueue) -> None:
        """Forgets a queue that has neither a value nor waiters."""
        if queue.value is UNKNOWN and not queue.size:
            self._queues.pop(queue.key, None)

    def _discard(self, waiter: _Wait) -> None:
        """Removes a waiter that has ended from its queue, if it is there."""
        queue = self._queues.get(waiter.key)
        if queue is not None and queue.discard(waiter):
            self._pending -= 1
            self._discard_if_empty(queue)

    # -- answering

    def _decide(self, waiters: list[_Wait], value: Any, end: Callable[[_Wait], object]) -> int:
        """Answers waiters that were removed from their queue: a bounded number now and the rest in
        the next iterations of the loop, after all waiters that were decided earlier. Returns their
        number, without the waiters of cancelled tasks.

        Args:
            value: the value that they receive; `NO_VALUE` if they fail.
            end: ends one of them.
        """
        self._pending -= len(waiters)
        decided = deque([each for each in waiters if not owner_has_left(each)])
        for waiter in decided:
            waiter.value, waiter.end = value, end
        number, dispatcher = len(decided), self._waits._dispatcher
        if dispatcher.queue:
            dispatcher.defer(partial(self._answer, decided))
        else:
            dispatcher.perform(partial(self._answer, decided))
        return number

    def _answer(self, decided: deque[_Wait], budget: int) -> int:
        """Ends the next `budget` of decided waiters; returns their number."""
        dispatcher, number = self._waits._dispatcher, min(len(decided), budget)
        for _ in range(number):
            waiter = decided.popleft()
            assert waiter.end is not None
            waiter.end(waiter)
        if decided:
            rest = partial(self._answer, decided)
            dispatcher.queue.appendleft((rest, copy_context()))  # before later waits
        return number

    def _advance_from_threads(self, named: Iterable[tuple[Any, Any]]) -> None:
        """Applies a bounded number of calls of `advance_threadsafe`; the rest stays in the
        iterator."""
        budget = MAX_PER_ITERATION
        for key, value in named:
            try:
                queue = self._queues.get(key)
                if queue is None or not queue.has_reached(value):
                    budget -= self.advance(key, value)
            except Exception as error:
                message = f"cannot advance {describe(key)} to {describe(value)}"
                report(
                    self._waits._loop,
                    f"{printable(self.name)}: {message}, as another thread requested",
                    error,
                )
            budget -= 1
            if budget <= 0:
                return


def _complete(waiter: _Wait) -> None:
    claim(waiter, waiter._op_home, COMPLETED, KEY, waiter.key)
    waiter._op_finish()


def _wait(key: object, threshold: object) -> str:
    """A wait, for errors."""
    return f"wait for {describe(key)} to reach {describe(threshold)}"
