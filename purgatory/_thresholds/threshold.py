"""`ThresholdPurgatory`: waiting until a key's value has reached a threshold: offsets, versions, watermarks.

Many conditions in servers have this form, and then no condition is tried: the waiters of a key are sorted by threshold, and an
advance removes them from the front. Thresholds above the new value are not visited.

    the value of "orders" is 41, and for it wait      42: A, D     45: B     60: C
    advance("orders", 47) -> 3                        A, D and B get 47, in this order; C goes on waiting
    wait("orders", 46)                                returns 47 at once

Sources: Kafka, `raft/internals/ThresholdPurgatory.java`, for one log; and the index of Consul's blocking queries: a client
passes the version it has seen, so nothing between two requests is lost. So the value of a key is stored until `forget` is
called.
"""

from asyncio import _get_running_loop as running_loop
from collections.abc import Hashable, Sequence
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, final

from purgatory._arguments import describe, seconds
from purgatory._errors import OperationCancelled, OperationTimeout, PurgatoryClosed
from purgatory._failure import Failure
from purgatory._loop.closing import check_drain, close, reopen
from purgatory._observers.observer import Cause, Observer, observers_of
from purgatory._state import CANCELLED, COMPLETED, EXPIRED
from purgatory._statistics import ThresholdStatistics
from purgatory._thresholds.engine import ThresholdEngine
from purgatory._thresholds.queue import UNKNOWN, describe_value, has_reached
from purgatory._wheel.loop_wheel import LoopTimingWheel
from purgatory._wheel.wheel import DEFAULT_WHEEL_SIZE


class Ordered(Protocol):
    """What values are: all those of a key can be compared with each other, and are in one order."""

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
class ThresholdPurgatory(Generic[K, V]):
    """Holds waits for a key's value to reach a threshold. Each ends exactly once: when it does, or at its deadline.

    The values of a key never fall, and are remembered, so a client that names its threshold misses nothing between two waits.
    They are anything that can be put in one order and does not change: numbers, strings, tuples of them.

    Bound to the running event loop at first use; every method but `advance_threadsafe` belongs on its thread. As an async
    context manager it is closed on exit, and may be entered again.

    Args:
        name: for errors, logs and statistics.
        tick: the resolution of deadlines in seconds, positive and finite: a wait expires at most this much late.
        wheel_size: how many buckets a level of the timing wheel has in reach, at least 2.
        max_pending: how many may wait at once; `None` for no limit.
        max_keys: how many keys may have a value or be waited for at once; `None` for no limit. One more is refused,
            because to delete another one silently could lose an update. `forget` deletes one.
        observer: is notified of each wait that has ended, as of an operation of the kind "wait"; or a sequence of
            observers. There are no checks.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ("__weakref__", "_engine", "name")

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
        for limit, number in (("max_pending", max_pending), ("max_keys", max_keys)):
            if number is not None and index(number) < 1:
                raise ValueError(f"{limit} must be at least 1, or None for no limit, not {number!r}")
        self.name = name
        observers = observers_of(observer)
        self._engine = ThresholdEngine(name, LoopTimingWheel(tick, wheel_size), max_pending, max_keys, observers)

    async def wait(self, key: K, threshold: V, timeout: float | None = None) -> V:
        """Waits until the value of `key` is at least `threshold`.

        Waits for equal thresholds of a key are answered in the order in which they came.

        Args:
            key: need not have a value yet.
            threshold: of the same type as the key's values.
            timeout: in seconds; `None` and `inf` for no limit; with zero and less the value is compared once.

        Returns:
            The value that reached it: the value of the key, at once, or else the one to which it is advanced.

        Cost: O(log n) comparisons with the thresholds that others wait for on this key, when it begins to wait and when
        it ends early.

        Raises:
            OperationTimeout: a `TimeoutError`; the threshold was not reached in time.
            OperationCancelled: `aclose` ended the wait.
            BaseException: what `fail` was given.
            PurgatoryClosed: `aclose` was called before.
            PurgatoryFull: it would have to wait, and `max_pending` waits or `max_keys` keys are here already.
            ValueError, TypeError: the threshold is NaN, or cannot be compared with the key's value or with other
                thresholds; `timeout` is NaN; `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("wait for {}", key)
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        if engine.closed:
            raise PurgatoryClosed(f"cannot wait for {describe(key)} to reach {describe(threshold)}: {self.name} is closed")
        value = self._known(key)
        if has_reached(key, value, threshold):
            engine.completed += 1
            if engine.notifier is not None:
                engine.notifier.on_immediate(key, timeout, COMPLETED)
            return cast(V, value)
        now = engine.time()
        when = None if timeout is None else now + timeout
        if when is not None and when <= now:
            engine.expired += 1
            if engine.notifier is not None:
                engine.notifier.on_immediate(key, timeout, EXPIRED)
            raise OperationTimeout(f"{describe(key)} has not reached {describe(threshold)}: {describe_value(value)}")
        waiter = engine.add(key, threshold, when, now)
        try:
            outcome = await waiter.future
        except BaseException:
            # If this is a coroutine that is closed after its loop, there is nothing to clean up.
            if running_loop() is engine.loop:
                engine.cancel(waiter)
            raise
        if outcome is EXPIRED:
            late = f"{describe(key)} did not reach {describe(threshold)} within {timeout} s"
            raise OperationTimeout(f"{late}: {describe_value(self._known(key))}")
        if outcome is CANCELLED:
            raise OperationCancelled(f"{describe(key)} did not reach {describe(threshold)}: {self.name} was closed")
        if type(outcome) is Failure:
            try:
                raise outcome.exception.with_traceback(outcome.traceback)
            finally:
                del outcome, waiter  # which would make a cycle with the exception's traceback
        return cast(V, outcome)

    def advance(self, key: K, value: V) -> int:
        """Sets the value of `key`, and completes all waits for a threshold of at most that, in the order of threshold and
        arrival.

        Returns:
            How many it completed. All of them have ended when it returns, and none can expire or fail any more; of very
            many, 512 are woken at once and the rest in the next iterations of the loop, as many in each.

        Cost: proportional to what it completes; if it completes none, one comparison, however many wait for more.

        Raises:
            ValueError: `value` is below the one that the key has, or NaN.
            TypeError: it cannot be compared with that, or with what is waited for; or `key` is not hashable.
            PurgatoryFull: `max_keys` keys have a value or are waited for, and this is not one of them.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.

        In each of these cases nothing has changed.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("advance {}", key, "advance_threadsafe")
        return engine.advance(key, value)

    def advance_threadsafe(self, key: K, value: V) -> None:
        """Calls `advance(key, value)` on the loop soon; may be called from any thread.

        However many calls come before the loop wakes up, it is woken once and advances each key once, to the greatest
        of these values. A value that is too low by then is ignored, since threads race; other exceptions of `advance` go to the
        loop's exception handler. Before the purgatory is bound to a loop, values wait for that. As safe in a signal handler or
        a finalizer as `loop.call_soon_threadsafe`.

        Raises:
            ValueError: `value` is NaN.
            TypeError: `key` is not hashable.
        """
        self._engine.advance_soon(key, value)

    def value(self, key: K) -> V | None:
        """The value of `key`, or `None` if it has none. Cost: O(1)."""
        value = self._known(key)
        return None if value is UNKNOWN else cast(V, value)

    def _known(self, key: K) -> Any:
        queue = self._engine.queues.get(key)
        return UNKNOWN if queue is None else queue.value

    def fail(self, key: K, exception: BaseException) -> int:
        """Ends every wait for `key` with `exception`; the key keeps its value, and new waits may begin.

        Returns:
            How many it ended. As with `advance`, of very many the rest is woken in the next iterations of the loop.

        Raises:
            TypeError: `exception` is not an exception (a class, for instance); or `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        if not isinstance(exception, BaseException):
            raise TypeError(f"cannot fail {describe(key)} with {describe(exception)}: it is not an instance of an exception")
        engine = self._engine
        engine.bind("fail {}", key)
        queue = engine.queues.get(key)
        count = 0 if queue is None else engine.end_key(queue, Failure(exception), Cause.FAILED)
        engine.failed += count
        return count

    def forget(self, key: K) -> bool:
        """Forgets the value of `key`; it may begin again, at a lower one.

        Those that wait for the key go on waiting for later values; to end their waits, call `fail` as well.

        Returns:
            Whether it had a value.

        Raises:
            TypeError: `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        self._engine.bind("forget {}", key)
        queue = self._engine.queues.get(key)
        if queue is None or queue.value is UNKNOWN:
            return False
        queue.value = UNKNOWN
        self._engine.discard_if_empty(queue)
        return True

    async def aclose(self, drain: float = 0.0) -> int:
        """Refuses new waits, lets those that are pending end by themselves for a while, then ends the rest with
        `OperationCancelled`.

        When it returns, nothing is pending and every wait has been answered. If its own task is cancelled, it ends the
        rest at once before it raises. Calling it again is allowed, also while it drains. Values are kept.

        Args:
            drain: how long pending waits may take, in seconds; zero and more.

        Returns:
            How many waits this call ended.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        drain = check_drain(drain)
        self._engine.bind(f"close {self.name}")
        return len(await close(self._engine, drain))

    async def __aenter__(self) -> "ThresholdPurgatory[K, V]":
        reopen(self._engine)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def pending(self) -> int:
        """How many waits have not ended yet. Exact. Cost: O(1)."""
        return self._engine.pending

    def statistics(self) -> ThresholdStatistics:
        """A snapshot. Cost: O(1)."""
        engine = self._engine
        return ThresholdStatistics(
            name=self.name,
            pending=engine.pending,
            unanswered=engine.unanswered,
            keys=len(engine.queues),
            completed=engine.completed,
            failed=engine.failed,
            expired=engine.expired,
            cancelled=engine.cancelled,
            wake_ups=engine.loop_wheel.wake_ups,
            moves=engine.wheel.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else "open"
        return f"<ThresholdPurgatory {self.name!r} {state} pending={self._engine.pending} keys={len(self._engine.queues)}>"

    def _check(self) -> None:
        """Asserts the whole invariant between iterations of the loop. For tests. Cost: everything that waits."""
        self._engine._check()
