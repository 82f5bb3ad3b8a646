"""`WheelTimer`: `loop.call_later` for a hundred thousand timers of which few ever fire."""

from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final, final

from purgatory._arguments import describe, seconds
from purgatory._observers.observer import Cause, Observer, observers_of
from purgatory._observers.observer_group import ObserverGroup
from purgatory._state import CANCELLED, EXPIRED, OperationState
from purgatory._wheel.buckets import TimerEntry
from purgatory._wheel.loop_wheel import LoopTimingWheel
from purgatory._wheel.wheel import DEFAULT_WHEEL_SIZE

KIND: Final = "timer"


@final
class TimerTask(TimerEntry):
    """A callback that waits in a `WheelTimer`; made by its `call_later` and `call_at`. Compare `asyncio.TimerHandle`."""

    __slots__ = ("__weakref__", "_callback", "_timer")

    _callback: Callable[[], object] | None
    _timer: "WheelTimer"

    def cancel(self) -> None:
        """Sees to it that the callback is not called; without effect once it was. Cost: O(1)."""
        self._callback = None
        chunk = self._timer_chunk
        if chunk is not None:
            chunk.wheel.remove(self)
            if self._timer._observers is not None:
                self._timer._notify_ended(self, CANCELLED, Cause.CANCELLED, None)

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._callback is None

    def when(self) -> float:
        """The time at which the callback is due, in seconds of the loop's time."""
        return float(self._timer_deadline)

    def reschedule(self, when: float) -> None:
        """Moves the callback to another time.

        Cost: O(1). Postponing is one assignment and does not touch the loop: at its old time, the task moves to the new one.

        Args:
            when: the new time, in seconds of the loop's time; a time in the past means the next iteration of the loop.

        Raises:
            ValueError, TypeError: `when` is NaN, or no number; the task stays where it is.
            RuntimeError: the task was cancelled, or its callback has been called.
            WrongLoop: called from another loop or thread than its timer's.
        """
        chunk = self._timer_chunk
        if chunk is None:
            state = "it was cancelled" if self._callback is None else "its callback has been called"
            raise RuntimeError(f"cannot reschedule {describe(self)} to {when!r}: {state}")
        loop_wheel = self._timer._loop_wheel
        if running_loop() is not loop_wheel.loop:
            loop_wheel.bind("reschedule {}", self)
        loop_wheel.wheel.reschedule(self, seconds("when", when), loop_wheel.time())

    def _timer_expired(self) -> None:
        try:
            if self._callback is not None:
                self._callback()
        except BaseException as error:
            if self._timer._observers is not None:
                self._timer._notify_ended(self, EXPIRED, Cause.DEADLINE, error)
            raise
        if self._timer._observers is not None:
            self._timer._notify_ended(self, EXPIRED, Cause.DEADLINE, None)

    def __repr__(self) -> str:
        if self._callback is None:
            return f"<TimerTask cancelled when={self._timer_deadline}>"
        state = "pending" if self._timer_chunk is not None else "called"
        return f"<TimerTask {state} when={self._timer_deadline} {self._callback!r}>"


@final
class WheelTimer:
    """Timers on a hierarchical timing wheel: `loop.call_later` for a hundred thousand timers of which few ever fire.

    Bound to the running event loop at first use. A callback is never called early by the loop's clock, and late by at most one
    tick plus the delay of the loop itself; in which order those of one tick are called is not promised. An exception of a
    callback goes to the loop's exception handler. Unlike those of `loop.call_later`, callbacks run in an empty context; to keep
    yours, schedule `contextvars.copy_context().run` with the callback as its argument.

    Args:
        tick: the grain of time in seconds, finite and at least a nanosecond.
        wheel_size: how many buckets of a level are as wide as one of the next, at least 2.
        name: for observers.
        observer: is notified of each timer that has ended, as of an operation of the kind "timer" without keys: expired, when
            its callback has returned, or cancelled; or a sequence of observers. Of starts, too, if it has `operation_started`.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ("__weakref__", "_loop_wheel", "_name", "_observers", "_starts")

    def __init__(
        self,
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        name: str = "timer",
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        self._loop_wheel = LoopTimingWheel(tick, wheel_size)
        self._name = name
        observers = observers_of(observer)
        self._observers = ObserverGroup(observers, self._report) if observers else None
        self._starts: dict[TimerTask, float] = {}
        """When each was scheduled, if there are observers."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        """Calls `callback(*args)` once `delay` seconds have passed. Cost: O(1); the loop is touched once for each bucket.

        Args:
            delay: seconds from now; zero and less mean the next iteration of the loop, `inf` means never.

        Raises:
            ValueError, TypeError: `delay` is NaN, or no number.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        loop_wheel = self._loop_wheel
        if running_loop() is not loop_wheel.loop:
            loop_wheel.bind("schedule a callback")
        if type(delay) is not float:
            delay = seconds("delay", delay)
        now = loop_wheel.time()
        return self._schedule(now + delay, now, callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        """As `call_later`, at an absolute time of the loop's clock."""
        loop_wheel = self._loop_wheel
        if running_loop() is not loop_wheel.loop:
            loop_wheel.bind("schedule a callback")
        return self._schedule(seconds("when", when), loop_wheel.time(), callback, args)

    def _schedule(self, when: float, now: float, callback: Callable[..., object], args: tuple[Any, ...]) -> TimerTask:
        task = TimerTask()
        task._timer = self
        task._callback = partial(callback, *args) if args else callback
        self._loop_wheel.wheel.add(task, when, now)
        if self._observers is not None:
            self._starts[task] = now
            self._observers.notify_in_order(self._observers.notify_started, task)
        return task

    @property
    def size(self) -> int:
        """How many callbacks wait. Cost: the number of armed buckets."""
        return self._loop_wheel.wheel.size

    def _notify_ended(self, task: TimerTask, state: OperationState, cause: Cause, error: BaseException | None) -> None:
        started_at = self._starts.pop(task)
        allowed = task.when() - started_at
        timeout = None if allowed == inf else max(allowed, 0.0)
        now, failed_tries = self._loop_wheel.time(), int(state is EXPIRED)
        fields = (self._name, KIND, (), started_at, now, timeout, state, cause, None, failed_tries, False, error, id(task))
        assert self._observers is not None
        self._observers.notify_in_order(self._observers.notify_ended, fields)

    def _report(self, message: str, error: BaseException | None) -> None:
        self._loop_wheel.loop.call_exception_handler({"message": f"{self._name}: {message}", "exception": error})

    def __repr__(self) -> str:
        return f"<WheelTimer tick={self._loop_wheel.wheel.clock.tick} size={self.size}>"

    def _check(self) -> None:
        """Asserts the whole invariant between iterations of the loop. For tests."""
        self._loop_wheel._check()
