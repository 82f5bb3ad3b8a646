"""`ThresholdPurgatory`: waiting until a key's value has reached a threshold: offsets, versions,
watermarks.

Many conditions in servers have this form, and then no condition is tried: the thresholds of a key
are in a heap, and an advance removes the lowest ones. Waiters with a threshold above the new value
are not visited.

    the value of "orders" is 41, with waiters for     42: A, D     45: B     60: C
    advance("orders", 47) -> 3                        A, D and B return 47, in this order; C keeps
                                                      waiting
    wait("orders", 46)                                returns 47 at once

The code that removes a waiter from its queue decides its outcome. An advance removes all waiters
that it reaches at once, but wakes a bounded number per iteration of the loop. The others are
*unanswered* until the next iterations, but decided: neither a deadline nor a `fail` changes their
outcome.

    advance("orders", 47) removes 2,000      pending -2,000; 512 are woken, 1,488 are unanswered
    the next three iterations                wake 512, 512 and 464

A waiter whose task has been cancelled is passed over: it ends as cancelled, and is not counted.

Sources: Kafka, `raft/internals/ThresholdPurgatory.java`, for one log; and the index of Consul's
blocking queries: a client passes the version it has seen, so it misses nothing between two
requests. Therefore a key keeps its value until `forget` is called.
"""

from asyncio import Future
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, final

from purgatory._core import closing
from purgatory._core.arguments import (
    check_drain,
    check_limit,
    describe,
    printable,
    require_exception,
    seconds,
)
from purgatory._core.dispatcher import Dispatcher, dispatcher_of
from purgatory._core.errors import (
    OperationCancelled,
    OperationTimeout,
    PurgatoryClosed,
    PurgatoryFull,
)
from purgatory._core.failure import Failure
from purgatory._core.loop import (
    MAX_PER_ITERATION,
    UNBOUND,
    LoopTimingWheel,
    ThreadsafeInbox,
    report,
    running_loop,
)
from purgatory._core.observers import Cause, Observer, wait_notifier
from purgatory._core.states import CANCELLED, EXPIRED
from purgatory._core.statistics import ThresholdStatistics
from purgatory._core.threshold_queue import (
    UNKNOWN,
    ThresholdQueue,
    check_advance,
    describe_value,
)
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, TimerEntry


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
class _Waiter(TimerEntry):
    """A `wait`. The result of `future` is the value, a `Failure`, `EXPIRED` or `CANCELLED`; None if
    the wait has ended at once."""

    __slots__ = ("future", "key", "purgatory", "started_at", "threshold", "timeout")

    def __init__(self, purgatory: Any, key: Any, threshold: Any, timeout: float | None) -> None:
        self.purgatory = purgatory
        self.key = key
        self.threshold = threshold
        self.timeout = timeout
        self.started_at = purgatory._time()
        self.future: Any = None
        self._timer_bucket = None

    def _timer_expired(self) -> None:
        self.purgatory._end_one(self, EXPIRED, Cause.DEADLINE)


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
        check_limit("max_pending", max_pending)
        check_limit("max_keys", max_keys)
        self.name = name
        self._loop_wheel = LoopTimingWheel(tick, wheel_size)
        self._wheel = self._loop_wheel.wheel
        self._loop: Any = UNBOUND
        self._time = self._loop_wheel.time
        self._max_pending = max_pending
        self._max_keys = max_keys
        self._observers = wait_notifier(observer, self._loop_wheel, name, "wait")
        self._queues: dict[Hashable, ThresholdQueue] = {}
        """Keys with a value or waiters -> their queues."""
        self._pending = 0
        self._ended = dict.fromkeys(Cause, 0)
        """The number of waits that have ended, by cause."""
        self._dispatcher: Dispatcher = UNBOUND
        self._unanswered = 0
        """Waiters that have left their queue, and are woken by the dispatcher."""
        self._closed = False
        self._idle_waiter: Future[None] | None = None
        """Done when no wait is pending; created when `aclose` waits for that."""
        self._inbox: ThreadsafeInbox[tuple[Any, Any]] = ThreadsafeInbox(
            self._loop_wheel, self._advance_from_threads
        )

    async def wait(self, key: K, threshold: V, timeout: float | None = None) -> V:
        """Waits until the value of `key` is at least `threshold`.

        Waits for equal thresholds of a key are answered in the order in which they began.

        Args:
            key: a key, with or without a value.
            threshold: of the type of the key's values.
            timeout: in seconds; `None` and `inf` for no limit. At zero or below, the value is
                compared once.

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
        if running_loop() is not self._loop:
            self._bind("wait for {}", key)
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        if threshold != threshold:
            raise ValueError(f"cannot {_wait(key, threshold)}: NaN is never reached")
        if self._closed:
            raise PurgatoryClosed(
                f"cannot {_wait(key, threshold)}: {printable(self.name)} is closed"
            )
        queue = self._queues.get(key)
        outcome: Any = EXPIRED
        waiter: _Waiter | None = None
        if queue is not None and queue.has_reached(threshold):
            outcome = queue.value
            self._end_at_once(key, threshold, timeout, Cause.FIRST_TRY)
        elif timeout is not None and timeout <= 0.0:
            self._end_at_once(key, threshold, 0.0, Cause.DEADLINE)
        else:
            waiter = self._add(key, threshold, timeout)
            try:
                outcome = await waiter.future
            except BaseException:
                # A coroutine closed after its loop needs no cleanup.
                if running_loop() is self._loop:
                    self._end_one(waiter, CANCELLED, Cause.CANCELLED)
                raise
        if outcome is EXPIRED or outcome is CANCELLED:
            late = f"{describe(key)} did not reach {describe(threshold)}"
            if outcome is CANCELLED:
                raise OperationCancelled(f"{late}: {printable(self.name)} was closed")
            value = self._queues[key].value if key in self._queues else UNKNOWN
            raise OperationTimeout(f"{late} within {timeout} s: {describe_value(value)}")
        if type(outcome) is Failure:
            try:
                raise outcome.exception.with_traceback(outcome.traceback)
            finally:
                del outcome, waiter  # break a cycle with the exception's traceback
        return cast(V, outcome)

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
            WrongLoop: called on another loop or thread than the first time, or outside any loop.

        A call that raises changes nothing.
        """
        if running_loop() is not self._loop:
            self._bind("advance {}", key, "advance_threadsafe")
        queue = self._queue_of(key, "advance {} to {}", value)
        waiters = queue.advance(value)
        self._queues[key] = queue
        return len(self._end(waiters, value, Cause.KEY)) if waiters else 0

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
        check_advance(key, value)
        self._inbox.put((key, value))

    def value(self, key: K) -> V | None:
        """The value of `key`, or `None` if it has none. Cost: O(1)."""
        queue = self._queues.get(key)
        return None if queue is None or queue.value is UNKNOWN else cast(V, queue.value)

    def fail(self, key: K, exception: BaseException, *, above: V | None = None) -> int:
        """Ends all waits for `key` with `exception`. The key keeps its value, and new waits may
        begin.

        Args:
            key: a key, with or without waits.
            exception: an instance; each wait raises it.
            above: end only the waits for a higher threshold than this; `None` for all.

        Returns:
            The number of ended waits. As with `advance`, waits above 512 are woken in the next
            iterations of the loop.

        Raises:
            TypeError: `exception` is not an exception (a class, for instance); `key` is not
                hashable; or `above` cannot be compared with the thresholds.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        require_exception(f"fail {describe(key)}", exception)
        self._bind("fail {}", key)
        queue = self._queues.get(key)
        if queue is None:
            return 0
        waiters = queue.take(UNKNOWN if above is None else above)
        self._discard_if_empty(queue)
        return len(self._end(waiters, Failure(exception), Cause.FAILED))

    def forget(self, key: K) -> bool:
        """Deletes the value of `key`, which may then have a lower one.

        Waiters of the key keep waiting for later values; to end their waits, call `fail` as well.

        Returns:
            Whether it had a value.

        Raises:
            TypeError: `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
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
            drain: in seconds, zero or more.

        Returns:
            The number of waits ended by this call.

        Raises:
            ValueError, TypeError: `drain` is negative, NaN, or not a number; nothing has changed.
            WrongLoop: called on another loop or thread than the first time.
        """
        drain = check_drain(drain)
        self._bind(f"close {printable(self.name)}")
        return len(await closing.end_all(self, drain, self._end_all))

    async def __aenter__(self) -> "ThresholdPurgatory[K, V]":
        closing.open_again(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def _is_idle(self) -> bool:
        return not self._pending

    @property
    def pending(self) -> int:
        """The number of waits that have not ended. Exact. Cost: O(1)."""
        return self._pending

    def statistics(self) -> ThresholdStatistics:
        """A snapshot. Cost: O(1)."""
        ended = self._ended
        return ThresholdStatistics(
            name=self.name,
            pending=self._pending,
            unanswered=self._unanswered,
            keys=len(self._queues),
            completed=ended[Cause.FIRST_TRY] + ended[Cause.KEY],
            failed=ended[Cause.FAILED],
            expired=ended[Cause.DEADLINE],
            cancelled=ended[Cause.CANCELLED] + ended[Cause.CLOSED],
            wake_ups=self._loop_wheel.wake_ups,
            moves=self._wheel.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"<ThresholdPurgatory {self.name!r} {state} pending={self._pending} "
            f"keys={len(self._queues)}>"
        )

    # -- starting to wait

    def _bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another
        loop."""
        pending = self._pending + self._unanswered
        if self._loop_wheel.bind(action, value, pending, threadsafe):
            self._loop, self._time = self._loop_wheel.loop, self._loop_wheel.time
            self._dispatcher = dispatcher_of(self._loop)
            self._inbox.rebind()

    def _add(self, key: Any, threshold: Any, timeout: float | None) -> _Waiter:
        """Adds a new waiter for `key`.

        Raises:
            PurgatoryFull, TypeError: see `wait`; nothing has changed.
        """
        if self._max_pending is not None and self._pending >= self._max_pending:
            raise PurgatoryFull(
                f"cannot {_wait(key, threshold)}: max_pending ({self._max_pending}) waits are "
                f"pending in {printable(self.name)}"
            )
        queue = self._queue_of(key, "wait for {} to reach {}", threshold)
        waiter = _Waiter(self, key, threshold, timeout)
        waiter.future = self._loop.create_future()
        queue.add(waiter)
        self._queues[key] = queue
        self._pending += 1
        if timeout is not None:
            self._wheel.add(waiter, waiter.started_at + timeout, waiter.started_at)
        if self._observers is not None:
            observers = self._observers
            self._dispatcher.perform(lambda _: observers.started(waiter))
        return waiter

    def _queue_of(self, key: Any, action: str, value: Any) -> ThresholdQueue:
        """The queue of `key`. The caller stores it, since it may be a new one.

        Raises:
            PurgatoryFull: it is, and there are `max_keys` others.
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

    # -- ending

    def _end_one(self, waiter: _Waiter, outcome: Any, cause: Cause) -> None:
        """Ends one wait, unless it has ended."""
        queue = self._queues.get(waiter.key)
        if queue is not None and queue.discard(waiter):
            self._discard_if_empty(queue)
            self._end([waiter], outcome, cause)

    def _end_all(self) -> closing.Batches[_Waiter]:
        """Ends all waits because of `aclose`, one key at each step."""
        for queue in list(self._queues.values()) if self._pending else ():
            waiters = queue.take()
            self._discard_if_empty(queue)
            yield self._end(waiters, CANCELLED, Cause.CLOSED), 1 + len(waiters)

    def _end(self, waiters: list[_Waiter], outcome: Any, cause: Cause) -> list[_Waiter]:
        """Ends waits that were removed from their queue. Returns those that end with `outcome`: the
        tasks of the others were cancelled."""
        self._pending -= len(waiters)
        cancelled = [each for each in waiters if each.future.cancelled()]
        if cancelled:
            waiters = [each for each in waiters if not each.future.cancelled()]
            self._wake_soon(cancelled, CANCELLED, Cause.CANCELLED)
        if waiters:
            self._wake_soon(waiters, outcome, cause)
        if self._idle_waiter is not None:
            closing.notify_idle(self)
        return waiters

    def _wake_soon(self, waiters: list[_Waiter], outcome: Any, cause: Cause) -> None:
        """Wakes ended waiters, a bounded number now and the rest in the next iterations of the
        loop; after all waiters that ended earlier."""
        self._ended[cause] += len(waiters)
        self._unanswered += len(waiters)
        work, dispatcher = partial(self._wake, iter(waiters), outcome, cause), self._dispatcher
        if dispatcher.queue:
            dispatcher.defer(work)
        else:
            dispatcher.perform(work)

    def _wake(self, waiters: Iterator[_Waiter], outcome: Any, cause: Cause, budget: int) -> int:
        """Wakes the next `budget` of `waiters`; returns their number."""
        number = 0
        for waiter in islice(waiters, budget):
            number += 1
            self._unanswered -= 1
            self._wheel.remove(waiter)
            if not waiter.future.done():  # done if the waiting task was cancelled
                waiter.future.set_result(outcome)
            if self._observers is not None:
                self._notify(waiter, outcome, cause)
        if length_hint(waiters):
            rest = partial(self._wake, waiters, outcome, cause)
            self._dispatcher.queue.appendleft((rest, copy_context()))  # before later waits
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
                    self._loop,
                    f"{printable(self.name)}: {message}, as another thread requested",
                    error,
                )
            budget -= 1
            if budget <= 0:
                return

    # -- observers

    def _end_at_once(self, key: Any, threshold: Any, timeout: float | None, cause: Cause) -> None:
        """Counts a wait that ended at its first comparison, and notifies of it."""
        self._ended[cause] += 1
        if self._observers is not None:
            waiter = _Waiter(self, key, threshold, timeout)
            self._dispatcher.perform(partial(self._notify, waiter, None, cause))

    def _notify(self, waiter: _Waiter, outcome: Any, cause: Cause, _: int = 0) -> None:
        """Notifies of the end of a wait."""
        assert self._observers is not None
        if waiter.future is None:
            self._observers.started(waiter)
        failed_tries = 0 if cause is Cause.FIRST_TRY else 1
        if cause is Cause.DEADLINE and waiter.timeout:  # else it was tried once
            failed_tries = 2
        error = outcome.exception if cause is Cause.FAILED else None
        began, now, timeout = waiter.started_at, self._time(), waiter.timeout
        self._observers.ended(
            waiter, (waiter.key,), began, now, timeout, cause, failed_tries, error
        )


def _wait(key: object, threshold: object) -> str:
    """A wait, for errors."""
    return f"wait for {describe(key)} to reach {describe(threshold)}"
