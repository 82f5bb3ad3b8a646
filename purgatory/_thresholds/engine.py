"""The engine of a `ThresholdPurgatory`: its queues, its wheel, and waking waiters whose wait has ended.

An advance removes all waiters that it reaches from their queue at once. It wakes a bounded number per iteration of the loop; if
there are more, the next iterations wake the rest, in order. They are *unanswered* until then, but their outcome is decided, so
neither a deadline nor a `fail` changes it.

    advance("orders", 47) removes 2,000      pending -2,000; 512 are woken, 1,488 unanswered
    their deadline                           they are in no queue any more, so nothing happens
    the next three iterations                wake 512, 512 and 464; half as many in each if other threads advance keys
"""

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextvars import Context
from itertools import islice
from typing import Any, cast, final

from purgatory._arguments import describe
from purgatory._errors import PurgatoryFull
from purgatory._loop import MAX_PER_ITERATION
from purgatory._loop.binding import UNBOUND
from purgatory._loop.closing import notify_idle, wait_idle
from purgatory._loop.inbox import ThreadsafeInbox
from purgatory._observers.observer import Cause, Observer
from purgatory._state import CANCELLED, EXPIRED
from purgatory._thresholds.notifier import WaitNotifier
from purgatory._thresholds.queue import UNKNOWN, ThresholdQueue, Waiters, check_advance, has_reached
from purgatory._wheel.buckets import TimerEntry
from purgatory._wheel.loop_wheel import LoopTimingWheel


@final
class ThresholdWaiter(TimerEntry):
    """A `wait` in progress."""

    __slots__ = ("engine", "future", "queue", "threshold")

    def __init__(self, engine: "ThresholdEngine", queue: ThresholdQueue, threshold: Any) -> None:
        self.engine = engine
        self.queue = queue
        self.threshold = threshold
        self.future: Future[Any] = engine.loop.create_future()
        """Its result is the value, a `Failure`, or how else it ended: `EXPIRED` or `CANCELLED`."""
        self._timer_chunk = None

    def _timer_expired(self) -> None:
        self.engine.expire(self)

    def __repr__(self) -> str:
        return f"<wait for {describe(self.queue.key)} to reach {describe(self.threshold)}>"


@final
class ThresholdEngine:
    """A threshold purgatory without the object that users hold: see there for the arguments."""

    __slots__ = (
        "_continuation_scheduled",
        "_inbox",
        "_max_keys",
        "_max_pending",
        "_threadsafe_values",
        "_wake_queue",
        "cancelled",
        "closed",
        "completed",
        "expired",
        "failed",
        "idle_waiter",
        "loop",
        "loop_wheel",
        "name",
        "notifier",
        "pending",
        "queues",
        "time",
        "unanswered",
        "wheel",
    )

    def __init__(
        self,
        name: str,
        loop_wheel: LoopTimingWheel,
        max_pending: int | None,
        max_keys: int | None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.name = name
        self.loop_wheel = loop_wheel
        self.wheel = loop_wheel.wheel
        self.loop: AbstractEventLoop = UNBOUND
        self.time = loop_wheel.time
        self.notifier = WaitNotifier(name, observers, self._report) if observers else None
        """Notifies the observers, if there are any."""
        self._max_pending = max_pending
        self._max_keys = max_keys
        self.queues: dict[Hashable, ThresholdQueue] = {}
        """Of the keys that have a value or waiters."""
        self.pending = self.completed = self.failed = self.expired = self.cancelled = 0
        self._wake_queue: deque[tuple[Iterator[ThresholdWaiter], Any, Cause]] = deque()
        """Waiters that were removed from their queue, with their outcome and its cause. What observers trigger is
        appended."""
        self.unanswered = 0
        """How many are not woken yet."""
        self._continuation_scheduled = False
        self.closed = False
        self.idle_waiter: Future[None] | None = None
        """For `_loop.closing`."""
        self._threadsafe_values: dict[Any, Any] = {}
        """The values that other threads have named, to be applied."""
        self._inbox: ThreadsafeInbox[tuple[Any, Any]] = ThreadsafeInbox(loop_wheel, self._receive, _max_per_key)

    def bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        if self.loop_wheel.bind(action, value, self.pending, threadsafe):
            self.loop, self.time = self.loop_wheel.loop, self.loop_wheel.time
            if self.notifier is not None:
                self.notifier.bind(self.time)
            self._wake_queue.clear()
            self.idle_waiter = None
            self.unanswered = 0
            self._continuation_scheduled = False
            self._inbox.rebind()

    # -- beginning to wait

    def add(self, key: Any, threshold: Any, when: float | None, now: float) -> ThresholdWaiter:
        """Has a new waiter wait for `key`, until the loop's time is `when`; it is `now`.

        Raises:
            PurgatoryFull, TypeError: see `ThresholdPurgatory.wait`; nothing has changed.
        """
        if self._max_pending is not None and self.pending >= self._max_pending:
            what = f"wait for {describe(key)} to reach {describe(threshold)}"
            raise PurgatoryFull(f"cannot {what}: {self._max_pending} waits are pending in {self.name}")
        queue = self._queue_of(key, "wait for {} to reach {}", threshold)
        waiter = ThresholdWaiter(self, queue, threshold)
        try:
            queue.add(waiter)
        except BaseException:
            self.discard_if_empty(queue)
            raise
        self.pending += 1
        if when is not None:
            self.wheel.add(waiter, when, now)
        # A finalizer may run whenever something is allocated, and may have advanced the key just now.
        if waiter.future.done():
            if waiter._timer_chunk is not None:
                self.wheel.remove(waiter)
            return waiter
        if self.notifier is not None:
            self.notifier.on_wait(waiter, when)
        if queue.value is not UNKNOWN and threshold <= queue.value:
            self.completed += self._finish_one(waiter, queue.value, Cause.KEY)
        return waiter

    def _queue_of(self, key: Any, action: str, value: Any) -> ThresholdQueue:
        """The queue of `key`, a new one if it has none."""
        queue = self.queues.get(key)
        if queue is None:
            if self._max_keys is not None and len(self.queues) >= self._max_keys:
                action = action.format(describe(key), describe(value))
                raise PurgatoryFull(f"cannot {action}: {self._max_keys} other keys are in {self.name}")
            queue = self.queues.setdefault(key, ThresholdQueue(key))
        return queue

    # -- ending

    def advance(self, key: Any, value: Any) -> int:
        """`ThresholdPurgatory.advance`, on its loop."""
        queue = self.queues.get(key)
        if queue is None:
            check_advance(key, value, UNKNOWN)
            queue = self._queue_of(key, "advance {} to {}", value)
        count, waiters = queue.advance(value)
        if count:
            self.completed += count
            self._finish(count, waiters, value, Cause.KEY)
        return count

    def end_key(self, queue: ThresholdQueue, outcome: Any, cause: Cause) -> int:
        """Ends every wait in `queue`; how many there were."""
        count, waiters = queue.clear()
        if count:
            self.discard_if_empty(queue)
            self._finish(count, waiters, outcome, cause)
        return count

    def expire(self, waiter: ThresholdWaiter) -> None:
        """Ends a wait whose deadline has come, unless it has ended and is only not woken yet."""
        self.expired += self._finish_one(waiter, EXPIRED, Cause.DEADLINE)

    def cancel(self, waiter: ThresholdWaiter) -> None:
        """Ends a wait whose task was cancelled, unless it has ended."""
        self.cancelled += self._finish_one(waiter, CANCELLED, Cause.CANCELLED)

    def discard_if_empty(self, queue: ThresholdQueue) -> None:
        """Forgets a queue that has neither a value nor waiters."""
        if queue.value is UNKNOWN and not queue.segments:
            try:
                found = self.queues.pop(queue.key, None)
            except BaseException as error:
                self._report_changed_key(queue, error)
            else:
                if found is not queue:
                    if found is not None:
                        self.queues[found.key] = found
                    self._report_changed_key(queue, None)

    def _report_changed_key(self, queue: ThresholdQueue, error: BaseException | None) -> None:
        """Reports a queue that cannot be found by its key any more; it stays, empty."""
        self._report(
            f"cannot find a {type(queue.key).__name__} again that was a key: its hash, or what it equals, has changed", error
        )

    def _finish_one(self, waiter: ThresholdWaiter, outcome: Any, cause: Cause) -> bool:
        """Ends a wait alone; false if another came first."""
        if not waiter.queue.discard(waiter):
            return False
        self.discard_if_empty(waiter.queue)
        self._finish(1, [waiter], outcome, cause)
        return True

    def _finish(self, count: int, waiters: list[Waiters], outcome: Any, cause: Cause) -> None:
        """Wakes `count` waiters that were taken out of their queue: a bounded amount now, and behind those that ended
        before."""
        self.pending -= count
        self.unanswered += count
        self._wake_queue.append((_flatten(waiters), outcome, cause))
        if len(self._wake_queue) == 1:
            self._wake(MAX_PER_ITERATION)
        self._continue_later()

    def _wake(self, budget: int) -> None:
        """Wakes the next `budget` of those that have ended."""
        while self._wake_queue and budget > 0:
            waiters, outcome, cause = self._wake_queue[0]
            for waiter in islice(waiters, budget):
                budget -= 1
                self.unanswered -= 1
                self._answer(waiter, outcome, cause)
            if budget > 0:
                self._wake_queue.popleft()
        if self.is_idle and self.idle_waiter is not None:
            notify_idle(self)

    def _answer(self, waiter: ThresholdWaiter, outcome: Any, cause: Cause) -> None:
        """Lets `wait` return, or raise."""
        if waiter._timer_chunk is not None:
            self.wheel.remove(waiter)
        if not waiter.future.done():  # as it is if the task that waits was cancelled
            waiter.future.set_result(outcome)
        if self.notifier is not None:
            self.notifier.on_end(waiter, outcome, cause)

    # -- closing: the methods of `_loop.closing.Closable`

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.unanswered)

    def stop_accepting(self) -> None:
        self.closed = True

    def accept_again(self) -> None:
        self.closed = False

    def iter_cancel(self) -> Iterator[tuple[None, int]]:
        for queue in list(self.queues.values()) if self.pending else ():
            count = self.end_key(queue, CANCELLED, Cause.CLOSED)
            self.cancelled += count
            for _ in range(count):
                yield None, 1

    async def wait_answered(self) -> None:
        await wait_idle(self)

    def answer_now(self) -> None:
        self._wake(self.unanswered)

    # -- in the next iterations of the loop

    def _continue_later(self) -> None:
        if (self._wake_queue or self._threadsafe_values) and not self._continuation_scheduled:
            self._continuation_scheduled = True
            self.loop.call_soon(self._continue, context=Context())

    def _continue(self) -> None:
        """Does a bounded amount of the deferred work: up to half of it wakes waiters, the rest is for the values of other
        threads."""
        self._continuation_scheduled = False
        budget = MAX_PER_ITERATION
        if self._wake_queue:
            budget = budget // 2 if self._threadsafe_values else budget
            self._wake(budget)
        while self._threadsafe_values and budget > 0:
            key = next(iter(self._threadsafe_values))
            budget -= self._advance_from_threads(key, self._threadsafe_values.pop(key)) or 1
        self._continue_later()

    # -- from other threads

    def advance_soon(self, key: Any, value: Any) -> None:
        """`ThresholdPurgatory.advance_threadsafe`."""
        hash(key)
        check_advance(key, value, UNKNOWN)
        self._inbox.put((key, value))

    def _receive(self, named: Iterable[tuple[Any, Any]]) -> None:
        """Takes over what other threads have named."""
        for key, value in named:
            try:
                if not has_reached(key, self._threadsafe_values.get(key, UNKNOWN), value):
                    self._threadsafe_values[key] = value
            except Exception:
                self._advance_from_threads(
                    key, value
                )  # it cannot be compared with the other one; perhaps this is the right one
        if not self._continuation_scheduled:
            self._continue()

    def _advance_from_threads(self, key: Any, value: Any) -> int:
        try:
            queue = self.queues.get(key)
            return 0 if queue is not None and has_reached(key, queue.value, value) else self.advance(key, value)
        except Exception as error:
            self._report(f"cannot advance {describe(key)} to {describe(value)}, as another thread asked for", error)
            return 0

    def _report(self, message: str, error: BaseException | None) -> None:
        context: dict[str, Any] = {"message": f"{self.name}: {message}"}
        if error is not None:
            context["exception"] = error
        self.loop.call_exception_handler(context)

    def _check(self) -> None:
        """Asserts the whole invariant between iterations of the loop. For tests. Cost: everything that waits."""
        waiters: list[ThresholdWaiter] = []
        for key, queue in self.queues.items():
            assert queue.key is key
            queue._check(waiters)
        assert self.pending == len(waiters)
        assert all(waiter._timer_chunk is None or waiter in waiter._timer_chunk for waiter in waiters)
        in_wheel = sum(waiter._timer_chunk is not None for waiter in waiters)
        assert in_wheel <= self.wheel.size <= in_wheel + self.unanswered
        assert bool(self._wake_queue) >= bool(self.unanswered)
        assert self._continuation_scheduled >= bool(self._wake_queue or self._threadsafe_values)
        self.loop_wheel._check()


def _flatten(waiters: list[Waiters]) -> Iterator[ThresholdWaiter]:
    for waiting in waiters:
        yield from cast("Iterable[ThresholdWaiter]", waiting if type(waiting) is dict else (waiting,))


def _max_per_key(named: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """The greatest value of each key, and values that cannot be compared: that error appears when they are applied."""
    greatest: dict[Any, Any] = {}
    others = []
    for key, value in named:
        try:
            if not has_reached(key, greatest.get(key, UNKNOWN), value):
                greatest[key] = value
        except Exception:
            others.append((key, value))
    return [*greatest.items(), *others]
