"""`WheelTimer`: `loop.call_later` for a hundred thousand timers of which few ever fire."""

from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, cast, final

from purgatory._core.arguments import describe, seconds
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import OwnWheel, running_loop
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, TimerEntry


def CALLED() -> None:  # noqa: N802 - a constant
    """In place of the callback of a task, once it has been called."""


constants(partial=partial, CALLED=CALLED)


@final
@fields
class TimerTask(TimerEntry):
    """A callback that waits in a `WheelTimer`; made by its `call_later` and `call_at`. Compare
    `asyncio.TimerHandle`."""

    __slots__ = ("__weakref__", "_callback", "_context", "_timer")

    _callback: Callable[[], object] | None
    """None if cancelled."""
    _context: Context | None
    """Context in which the callback runs; None if cancelled."""
    _timer: "WheelTimer"

    @compiled
    def cancel(self) -> bool:
        """Prevents the call of the callback, and releases it. Cost: O(1).

        Returns:
            Whether that was in time: False if the callback has been called, or was cancelled.

        Raises:
            WrongLoop: called from another loop or thread than its timer's, while that loop is open.
        """
        timer = self._timer
        if running_loop() is not timer._loop:
            timer._require_loop("cancel {}", self)
        callback, self._callback = self._callback, None
        self._context = None
        bucket = self._timer_bucket
        if bucket is not None and bucket.remove(self):
            return True
        return not (callback is None or callback is CALLED)

    def cancelled(self) -> bool:
        """Whether `cancel` or the timer's `close` was called."""
        return self._callback is None

    def when(self) -> float:
        """The time at which the callback is due, in seconds of the loop's time."""
        return self._timer_deadline  # type: ignore[no-any-return]

    def reschedule(self, when: float) -> None:
        """Moves the callback to another time.

        Cost: O(1). Postponing is one assignment and does not touch the loop: at its old time, the
            task moves to the new one.

        Args:
            when: the new time, in seconds of the loop's time. A time that has passed means the next
                iteration of the loop.

        Raises:
            ValueError, TypeError: `when` is NaN, or no number; the task stays where it is.
            RuntimeError: the task was cancelled, or its callback has been called.
            WrongLoop: called from another loop or thread than its timer's.
        """
        timer, callback = self._timer, self._callback
        if callback is None or callback is CALLED:
            state = "it was cancelled" if callback is None else "its callback has been called"
            raise RuntimeError(f"cannot reschedule {describe(self)} to {describe(when)}: {state}")
        if running_loop() is not timer._loop:
            timer._bind("reschedule {}", self)
        timer._wheel.reschedule(self, when, timer._time())

    def _timer_expired(self) -> None:
        callback, context = self._callback, self._context
        if context is not None:  # else a finalizer has cancelled it, since it left the wheel
            self._callback = CALLED
            context.run(callback)  # type: ignore[arg-type]  # both are None, or neither is

    def __repr__(self) -> str:
        callback = self._callback
        if callback is not None and callback is not CALLED:
            return f"<TimerTask pending when={self._timer_deadline} {describe(callback)}>"
        state = "cancelled" if callback is None else "called"
        return f"<TimerTask {state} when={self._timer_deadline}>"


@final
@fields
class WheelTimer(OwnWheel):
    """Timers on a hierarchical timing wheel: `loop.call_later` for a hundred thousand timers of
    which few ever fire.

    Bound to the running event loop at first use. A callback is never called early by the loop's
    clock, and late by at most one tick plus the delay of the loop itself. A delay of zero or less,
    and a time that has passed, mean the next iteration of the loop, whatever the tick. The order of
    callbacks that are due in one tick is not promised. An exception of a callback goes to the
    loop's exception handler. As a context manager it is closed on exit, and may be entered again.

    Args:
        tick: the resolution in seconds, finite and at least a nanosecond.
        wheel_size: the number of buckets of a level that are as wide as one bucket of the next
            level, 2 to 2**62.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ()

    def __init__(self, *, tick: float = 0.001, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        super().__init__("the timer", tick, wheel_size)

    @compiled
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerTask:
        """Calls `callback(*args)` once `delay` seconds have passed. Cost: O(1); the loop is touched
        once for each bucket.

        Args:
            delay: seconds from now; zero and less mean the next iteration of the loop, `inf` means
                never.
            callback: a plain function; its result is ignored.
            args: arguments of the callback.
            context: context in which the callback runs; by default a copy of the current one.

        Raises:
            ValueError, TypeError: `delay` is NaN, or no number.
            PurgatoryClosed: the timer is closed.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        if running_loop() is not self._loop:
            self._bind("schedule a callback")
        now = self._time()
        if type(delay) is not float or delay != delay:
            delay = seconds("delay", delay)
        return self._schedule(now + delay, now, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerTask:
        """As `call_later`, at the time `when` of the loop's clock."""
        if running_loop() is not self._loop:
            self._bind("schedule a callback")
        return self._schedule(when, self._time(), callback, args, context)

    def _schedule(
        self,
        when: float,
        now: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> TimerTask:
        task = TimerTask()
        task._timer = self
        task._context = copy_context() if context is None else context
        task._callback = partial(callback, *args) if args else callback
        self._wheel.add(task, when, now)
        return task

    def close(self) -> list[TimerTask]:
        """Cancels all callbacks that wait, and refuses new ones. It may be called again, and after
        the timer's loop is closed.

        Cost: one step for each callback that waits, all at once, because the result names them:
            100,000 block the loop for 10 to 15 ms.

        Returns:
            The tasks it cancelled, in no particular order.

        Raises:
            WrongLoop: called from another loop or thread than the timer's, while that loop is open.
        """
        tasks = cast("list[TimerTask]", self._close())
        for task in tasks:
            task._callback = task._context = None
        return tasks

    @property
    def size(self) -> int:
        """The number of callbacks that wait. Cost: the number of buckets in use."""
        return self._wheel.size

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"size={self.size}"
        return f"<WheelTimer tick={self._wheel.clock.tick} {state}>"
