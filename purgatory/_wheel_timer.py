"""`WheelTimer`, and what it costs to be told of its timers, which those pay who have asked for it.

A timer with an observer is of another class, and so are its tasks: each knows when it began, and tells how it ended. One
without is what `_timer` makes, to the last instruction.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final, cast, final

from purgatory._ears import Ears
from purgatory._observer import Cause, Observer, observers_of
from purgatory._state import CANCELLED, EXPIRED, OperationState
from purgatory._timer import PlainTimer, TimerTask
from purgatory._wheel import DEFAULT_WHEEL_SIZE

KIND: Final = "timer"


@final
class WheelTimer(PlainTimer):
    """Timers on a hierarchical timing wheel: `loop.call_later` for a hundred thousand timers of which few ever fire.

    Bound to the running event loop at first use. Callbacks of one tick are called in the order in which they were
    scheduled, never early by the loop's clock, late by at most one tick beyond what the loop itself is held up. An
    exception of a callback goes to the loop's exception handler. Unlike those of `loop.call_later`, callbacks run in an
    empty context; to keep yours, schedule `contextvars.copy_context().run` with the callback as its argument.

    Args:
        tick: the grain of time in seconds, finite and at least a nanosecond.
        wheel_size: how many slots of a level are as wide as one of the next, at least 2.
        name: for observers.
        observer: is told of each timer that has ended, as of an operation of the kind "timer" without keys: expired, when its
            callback has returned, or cancelled; or a sequence of those who are. Starts are told, too, to who hears of them.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ("_ears", "_name")

    _ears: Ears
    _name: str

    def __init__(
        self,
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        name: str = "timer",
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        super().__init__(tick=tick, wheel_size=wheel_size)
        observers = observers_of(observer)
        if observers:
            self._name, self._ears = name, Ears(observers, self._report)
            self.__class__ = cast(Any, _ToldTimer)

    def _report(self, message: str, error: BaseException | None) -> None:
        self._wheel.loop.call_exception_handler({"message": f"{self._name}: {message}", "exception": error})


@final
class _ToldTask(TimerTask):  # type: ignore[misc]  # nobody else may
    """A callback that waits, and tells how it has ended."""

    __slots__ = ("_started_at", "_timer")

    _started_at: float
    _timer: "_ToldTimer"

    def cancel(self) -> None:
        waits = self._wheel_bucket is not None
        super().cancel()
        if waits:
            self._timer._tell(self, CANCELLED, Cause.CANCELLED, None)

    def _wheel_due(self) -> None:
        error: BaseException | None = None
        try:
            super()._wheel_due()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._timer._tell(self, EXPIRED, Cause.DEADLINE, error)


@final
class _ToldTimer(WheelTimer):  # type: ignore[misc]  # nobody else may
    """A timer with observers."""

    __slots__ = ()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        self._wheel.bind("schedule a callback")
        now = self._wheel.time()
        return self._begin(now, now + delay, callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        self._wheel.bind("schedule a callback")
        return self._begin(self._wheel.time(), when, callback, args)

    def _begin(self, now: float, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> TimerTask:
        task = _ToldTask()
        task._timer, task._started_at = self, now
        task._callback = partial(callback, *args) if args else callback
        self._wheel.bucket_at(when).join(task, when)
        self._ears.in_turn(self._ears.tell_start, task)
        return task

    def _tell(self, task: _ToldTask, state: OperationState, cause: Cause, error: BaseException | None) -> None:
        begun, allowed = task._started_at, task.when() - task._started_at
        timeout = None if allowed == inf else max(allowed, 0.0)
        now, failed_tries = self._wheel.time(), int(state is EXPIRED)
        fields = (self._name, KIND, (), begun, now, timeout, state, cause, None, failed_tries, False, error, id(task))
        self._ears.in_turn(self._ears.tell_end, fields)
