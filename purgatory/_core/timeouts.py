"""`timeout`, `timeout_at` and `wait_for` as in asyncio, on one wheel per event loop instead of one
timer each.

A `Timeout` is itself an entry of the wheel:

    async with timeout(30):     joins the bucket of its deadline
        ...                     due: the task is cancelled, and the timeout is EXPIRING
                                left before: it leaves the bucket, and no timer of the loop changes

             __aenter__          due              __aexit__
    CREATED ────────────> ENTERED ────> EXPIRING ───────────> EXPIRED
                             │   __aexit__
                             └──────────────────────────────> EXITED

The wheel is an attribute of its loop, so it is freed with the loop. A table of wheels by loop, weak
or not, would keep both alive, because a wheel refers to its loop.

A deadline that has passed when a timeout is entered does not use the wheel: the timeout expires in
the next iteration of the loop, before anything that the body starts, as in asyncio.

Sources: `asyncio/timeouts.py`, and `wait_for` of `asyncio/tasks.py` since Python 3.12. Differences:
deadlines are rounded up to the next millisecond, NaN is an error, and so is the use of one timeout
from two loops.
"""

import sys
from asyncio import CancelledError, Handle, Task, current_task, events, tasks
from collections.abc import Awaitable
from enum import Enum
from typing import Any, Final, TypeVar, final

from purgatory._core.arguments import describe, seconds
from purgatory._core.errors import WrongLoop
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import LoopTimingWheel, call_on, running_loop
from purgatory._core.wheel import TimerEntry

T = TypeVar("T")

TICK: Final = 0.001
"""The resolution of timeouts, in seconds."""


class TimeoutState(Enum):
    """The state of a timeout, in the words of asyncio."""

    CREATED = "created"
    ENTERED = "active"
    EXPIRING = "expiring"
    EXPIRED = "expired"
    EXITED = "finished"


CREATED, ENTERED, EXPIRING, EXPIRED, EXITED = TimeoutState

WHEEL_ATTRIBUTE: Final = f"_purgatory_timeouts_{id(LoopTimingWheel)}"
"""The attribute of a loop that is its wheel. Another copy of the package, vendored or imported
again, has another one."""

constants(CREATED=CREATED, WHEEL_ATTRIBUTE=WHEEL_ATTRIBUTE)


def running_wheel() -> LoopTimingWheel:
    """The wheel of the running loop's timeouts; it is created at first use."""
    loop = running_loop() or events.get_running_loop()
    try:
        wheel: LoopTimingWheel = getattr(loop, WHEEL_ATTRIBUTE)
    except AttributeError:
        wheel = LoopTimingWheel(TICK)
        wheel.bind("start a timeout")
        setattr(loop, WHEEL_ATTRIBUTE, wheel)
    return wheel


@final
@fields
class Timeout(TimerEntry):
    """An asynchronous context manager that limits the time its body may take. It serves once. See
    `asyncio.Timeout`.

    At the deadline the task that runs the body is cancelled. The `CancelledError` that leaves the
    body becomes a `TimeoutError`, unless other code has cancelled the task as well.

    Args:
        when: the deadline, in seconds of the loop's time; `None` for none. If it has passed when
            the timeout is entered, the timeout expires in the next iteration of the loop.

    Cost: to enter and to leave are O(1); the loop is touched once for each bucket.

    Raises:
        TimeoutError: on leaving, if the deadline came first.
        RuntimeError: on entering, outside a task or for a second time.
        ValueError, TypeError: on entering, if `when` is NaN, or no number.
    """

    __slots__ = ("__weakref__", "_cancelling", "_handle", "_state", "_task", "_when")

    _cancelling: int
    _task: Task[Any]
    """Set only while it is entered: an exception of the task refers to the frame, which refers to
    the timeout, so this would make a cycle."""

    def __init__(self, when: float | None) -> None:
        self._timer_bucket = None
        self._state = CREATED
        self._when = when
        """The deadline, as it was given until it is entered."""
        self._handle: Handle | None = None
        """The callback that lets it expire in the next iteration, if the deadline has passed."""

    def when(self) -> float | None:
        """The deadline, in seconds of the loop's time; `None` if there is none."""
        return self._when

    def reschedule(self, when: float | None) -> None:
        """Moves the deadline.

        Cost: O(1). Postponing reads the clock and assigns one attribute; the loop's timers are not
            touched.

        Args:
            when: the new deadline, in seconds of the loop's time; `None` for none. A time that has
                passed means the next iteration of the loop.

        Raises:
            RuntimeError: the timeout is not active.
            ValueError, TypeError: `when` is NaN, or no number; nothing has changed.
            WrongLoop: called on another loop or thread than the body's; nothing has changed.
        """
        if self._state is not ENTERED:
            if self._state is CREATED:
                raise RuntimeError("Timeout has not been entered")
            raise RuntimeError(f"Cannot change state of {self._state.value} Timeout")
        loop = self._task.get_loop()
        if running_loop() is not loop and events._get_running_loop() is not loop:
            raise WrongLoop(f"cannot reschedule {describe(self)}: its body runs on another loop")
        if when is None:
            self._unschedule()
            self._when = None
        else:
            self._schedule(seconds("when", when))

    def expired(self) -> bool:
        """Whether the deadline came before the end of the body; True once the task was
        cancelled."""
        return self._state is EXPIRING or self._state is EXPIRED

    async def __aenter__(self) -> "Timeout":
        if self._state is not CREATED:
            raise RuntimeError("Timeout has already been entered")
        task = current_task(running_loop() or events.get_running_loop())
        if task is None:
            raise RuntimeError("Timeout should be used inside a task")
        when = self._when
        if when is not None:
            if type(when) is not float:
                self._when = when = seconds("when", when)
            loop_wheel = running_wheel()
            now = loop_wheel.time()
            if when > now:
                loop_wheel.wheel.add(self, when, now)
            else:
                self._schedule(seconds("when", when))
        self._task = task
        self._cancelling = task.cancelling()
        self._state = ENTERED
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._state is ENTERED:
            if kind is GeneratorExit:  # perhaps in another thread
                call_on(self._task.get_loop(), self._unschedule)
            else:
                self._unschedule()
            del self._task
            self._state = EXITED
        elif self._state is EXPIRING:
            is_ours = self._task.uncancel() <= self._cancelling
            del self._task
            self._state = EXPIRED
            if is_ours and error is not None:
                _raise_timeout(error)
        else:
            raise RuntimeError(f"Cannot leave {self._state.value} Timeout")

    def _schedule(self, when: float) -> None:
        """Lets it expire at `when` instead of its previous deadline."""
        loop_wheel = running_wheel()
        now = loop_wheel.time()
        if when <= now:
            self._unschedule()
            self._handle = loop_wheel.loop.call_soon(self._timer_expired)
        elif self._timer_bucket is not None:
            loop_wheel.wheel.reschedule(self, when, now)
        else:
            loop_wheel.wheel.add(self, when, now)
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None
        self._when = when

    @compiled
    def _unschedule(self) -> None:
        """Prevents its expiry."""
        bucket = self._timer_bucket
        if bucket is not None:
            bucket.remove(self)
        elif self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _timer_expired(self) -> None:
        if self._state is not ENTERED:
            return  # a finalizer has left it, since it left the wheel
        self._handle = None
        self._state = EXPIRING
        self._task.cancel()

    def __repr__(self) -> str:
        if self._state is not ENTERED:
            return f"<Timeout [{self._state.value}]>"
        when = self._when
        return f"<Timeout [active] when={None if when is None else round(when, 3)}>"


def _raise_timeout(error: BaseException) -> None:
    """Converts the cancellation that leaves the body of an expired timeout to a `TimeoutError`.

    From Python 3.13 on it also converts the context of another exception, which was raised while
    the cancellation was being handled.
    """
    if isinstance(error, CancelledError):
        raise TimeoutError from error
    if sys.version_info >= (3, 13):
        members = error.exceptions if isinstance(error, ExceptionGroup) else ()
        for each in (error, *members):
            while each.__context__ is not None and not isinstance(each.__context__, CancelledError):
                each = each.__context__  # noqa: PLW2901
            if each.__context__ is not None:
                explanation = TimeoutError()
                explanation.__context__ = explanation.__cause__ = each.__context__
                each.__context__ = explanation


@compiled
def timeout(delay: float | None) -> Timeout:
    """Limits the time that the body of an `async with` may take. See `asyncio.timeout`.

        async with purgatory.timeout(10):
            await long_running()                 # cancelled after ten seconds: TimeoutError

    Args:
        delay: seconds from now; zero and less mean the next iteration of the loop, `None` and `inf`
            no limit.

    Raises:
        RuntimeError: no event loop is running.
        TypeError: `delay` is no number. (NaN is a `ValueError` on entering.)
    """
    loop = events.get_running_loop()
    if delay is None:
        return Timeout(None)
    try:
        return Timeout(loop.time() + delay)
    except (TypeError, OverflowError):
        return Timeout(loop.time() + seconds("delay", delay))


def timeout_at(when: float | None) -> Timeout:
    """As `timeout`, with a deadline in seconds of the loop's time. See `asyncio.timeout_at`."""
    return Timeout(when)


async def wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:
    """Awaits an awaitable for a limited time. See `asyncio.wait_for`.

    As in Python 3.12 and newer, the calling task itself awaits a coroutine. A result of the
    coroutine is returned even if its cancellation had been requested.

    Args:
        awaitable: a coroutine, a future, or any other awaitable.
        timeout: in seconds; `None` and `inf` for no limit. With zero and less, a future that is
            done returns its result, any other is cancelled, and a coroutine is not started.

    Raises:
        TimeoutError: the limit was reached, and the awaitable was cancelled.
        BaseException: an exception of the awaitable.
        ValueError, TypeError: `timeout` is NaN, or no number.
        RuntimeError: called outside a task.
    """
    if timeout is not None:
        timeout = seconds("timeout", timeout)
        if timeout <= 0.0:
            return await tasks.wait_for(awaitable, timeout)
        timeout += events.get_running_loop().time()
    async with Timeout(timeout):
        return await awaitable
