"""The event loop: the one that an object belongs to, its timers, and calls from other threads.

An object belongs to the loop in which it is used first. Each public method starts with the check
`running_loop() is binding.loop`, as in asyncio; if it fails, the method calls `bind`, which binds
the object at its first use and refuses the call otherwise.

A timing wheel has one `loop.call_at` for each bucket, however many entries wait there. A new bucket
is armed once, and stays armed until its time has come: an early callback (uvloop rounds to
milliseconds, asyncio calls early by the resolution of its clock, deadlines beyond a day are
scheduled in stages) arms it again, empty or not, and later by a share of a tick at least. So it
ends on a clock that does not move between two callbacks. A clock that leaps back takes the wheel
with it. The callback expires the entries that are due, or starts to cascade the bucket, a bounded
amount for each iteration of the loop; the rest follows in the next ones, so that ten thousand
timers of one instant do not block a socket.

An emptied bucket stays armed as well, because the next entry will often need
it: this costs at most one callback without work for each bucket. When nothing waits any more, all
callbacks are cancelled, at the end of the iteration in which the last entry was removed; or within
ten milliseconds, if that happens repeatedly.

Callbacks run in an empty `contextvars.Context` of the bucket. The context of the code that opened
the bucket would be kept alive, and visible to other tasks.

Other threads wake the loop once, however many calls come before it wakes:

    thread 1   put("a")  -> "a"              wakes the loop
    thread 2   put("b")  -> "a", "b"         a wake-up is scheduled
    thread 2   put("b")  -> "a", "b"         the same as the last one, which the loop has yet to
                                             receive
    the loop                                 receives "a", "b": 2,048 at most, the rest in the next
                                             iterations

A wake-up for each would be a system call for each, and would make the loop's self-pipe its hottest
file (dask/distributed #3223).

There is no lock: a signal handler, or a `__del__` that the garbage collector runs, may interrupt
`put` in its own thread and call it again, and would then deadlock. `put` appends to a deque, which
is atomic; then, if no wake-up is scheduled, it schedules one. The loop clears that flag *before* it
drains the deque, so an item that is too late to be drained schedules another. At worst the loop is
woken twice.
"""

import time
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop, events
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from math import inf, nextafter
from threading import RLock
from typing import Any, Final, Self, TypeVar, final

from purgatory._core import kernel
from purgatory._core.arguments import describe
from purgatory._core.errors import PurgatoryClosed, WrongLoop
from purgatory._core.kernel import constants, fields
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, Bucket, TimerEntry, TimingWheel

Report = Callable[[str, BaseException | None], object]
"""Called with a message, and the exception of user code or None. Does not raise: see `report`."""

UNBOUND: Final[Any] = object()
"""Stands for a loop until there is one. Not `None`, which `running_loop` returns outside any
loop."""

running_loop: Callable[[], AbstractEventLoop | None] = kernel.running_loop or _get_running_loop
"""The loop that runs in this thread, or None. If trio-asyncio has replaced asyncio's function since,
`bind` finds the right one."""
constants(running_loop=_get_running_loop, LOOP_TIME=BaseEventLoop.time, TIME=time)

MAX_PER_ITERATION: Final = 512
"""Limit of the work in one iteration of the loop before other callbacks can run: the number of
operations tried or ended, or of entries moved. It takes about a millisecond."""

REGISTRATIONS_PER_STEP: Final = 8
"""Watch lists from which an operation can be removed at the cost of trying one."""

_binding: Final = RLock()
"""Two threads, or a signal handler, may use an object for the first time at once; so rare that all
objects share a lock."""


@fields
class LoopBinding:
    """The loop of an object.

    Attributes:
        loop: the event loop; `UNBOUND` until there is one.
        time: clock of the loop, in seconds.
    """

    __slots__ = ("loop", "time")

    def __init__(self) -> None:
        self.loop: AbstractEventLoop = UNBOUND
        self.time: Callable[[], float] = float

    @property
    def is_bound(self) -> bool:
        return self.loop is not UNBOUND

    def bind(
        self, action: str, value: object = UNBOUND, pending: int = 0, threadsafe: str = ""
    ) -> bool:
        """Binds the object to the running loop, or checks that it is bound to it. If its loop is
        closed and nothing is pending, it is bound to the running loop.

        Args:
            action: what could not be done, for the error.
            value: replaces `{}` in it. It is described only if there is an error.
            pending: how many operations wait in the object.
            threadsafe: the method that does the same from other threads, if there is one, for the
                error.

        Returns:
            Whether it is bound to another loop than before.

        Raises:
            WrongLoop: no loop is running here, or another one.
        """
        loop = events._get_running_loop()
        if loop is not None:
            with _binding:
                if self.loop is UNBOUND or (
                    self.loop is not loop and self.loop.is_closed() and not pending
                ):
                    self.time, self.loop = loop.time, loop  # what is compared is set last
                    return True
            if loop is self.loop:
                return False
        if value is not UNBOUND:
            action = action.replace("{}", describe(value), 1)
        raise WrongLoop(f"cannot {action}: {self._wrong_loop_reason(loop, pending, threadsafe)}")

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """Schedules `function(*args)` on the loop, in an empty context; from any thread,
        signal handler or finalizer.

        Returns:
            `False` if there is no loop yet, or it is closed.
        """
        return self.is_bound and call_threadsafe(self.loop, function, *args)

    def _wrong_loop_reason(
        self, running: AbstractEventLoop | None, pending: int, threadsafe: str
    ) -> str:
        if self.loop is UNBOUND:
            hint = f"; from a thread without one, call {threadsafe}" if threadsafe else ""
            return f"no event loop is running in this thread to be bound to{hint}"
        if self.loop.is_closed():
            waiting = f", and {pending} wait there for ever" if pending else ""
            why = (
                f"that loop is closed{waiting}; use one for each loop, or close it before its loop"
            )
        elif self.loop.is_running():
            allowed = (
                f"call {threadsafe}"
                if threadsafe
                else "only the *_threadsafe methods may be called"
            )
            why = f"this is another thread; from there {allowed}"
        elif running is None:
            why = "no event loop is running"
        else:
            why = (
                f"the running loop is {running!r}; use one for each loop (in tests: fixtures and "
                "tests of one loop_scope)"
            )
        return f"bound to {self.loop!r}, but {why}"


def call_threadsafe(loop: AbstractEventLoop, function: Callable[..., object], *args: Any) -> bool:
    """Schedules `function(*args)` on `loop`, in an empty context; from any thread, signal handler or
    finalizer. False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args, context=Context())
    except RuntimeError:
        if loop.is_closed():  # any other reason is unexpected
            return False
        raise
    return True


def call_on(loop: AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Calls `function(*args)` on the thread of `loop`: now, or soon if a garbage collector closes
    a coroutine in another one. Without effect when the loop is closed."""
    if running_loop() is loop or events._get_running_loop() is loop:
        function(*args)
    else:
        call_threadsafe(loop, function, *args)


def report(loop: AbstractEventLoop, message: str, error: BaseException | None) -> None:
    """Passes an error in user code to the exception handler of `loop`. Does not raise, because the
    caller may have work left: an exit of the handler is raised in the next iteration."""
    context: dict[str, Any] = {"message": message}
    if error is not None:
        context["exception"] = error
    try:
        loop.call_exception_handler(context)
    except BaseException as handler_error:
        raise_later(loop, handler_error)


def raise_later(loop: AbstractEventLoop, error: BaseException) -> None:
    """Raises an exit in the next iteration of the loop, out of `run_forever`."""
    loop.call_soon(_raise, error, context=Context())


def _raise(error: BaseException) -> None:
    raise error


MAX_TIMER_DELAY: Final = 86_400.0
"""Loops refuse or truncate very far deadlines (asyncio sleeps for a day at most), so they are
approached in days."""

MAX_MIN_DELAY: Final = 0.001
"""Seconds: with long ticks, a sixteenth of one would be late."""

BUSY_AFTER: Final = 128
BUSY_WINDOW: Final = 0.1
"""In seconds. A wheel is busy if it became empty `BUSY_AFTER` times, each time within this interval
of the previous one."""
BUSY_DELAY: Final = 0.01
"""The delay in seconds before a busy wheel is looked at. To cancel and to arm buckets in
each iteration of the loop would cost more than the entries themselves."""


@fields
class LoopTimingWheel(LoopBinding):
    """A `TimingWheel` that is woken by the event loop to which it is bound. For the arguments see
    there.

    Attributes:
        wheel: where entries are added and removed.
        on_idle: set by the owner; called when nothing waits any more, see above.
        wake_ups: how many callbacks the loop has made.
    """

    __slots__ = (
        "_continuation_scheduled",
        "_idle_looks",
        "_is_working",
        "_last_idle_look",
        "_min_delay",
        "on_idle",
        "wake_ups",
        "wheel",
    )

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        super().__init__()
        self.wheel = TimingWheel(
            tick, wheel_size, self._arm, self.look_if_idle_later, self._follow_clock
        )
        self._min_delay = min(tick, MAX_MIN_DELAY) / 16
        """Seconds by which a bucket is armed later than before, at least."""
        self.on_idle: Callable[[], object] = bool
        self.wake_ups = 0
        self._continuation_scheduled = self._is_working = False
        """Whether the next iteration of the loop continues the work; whether this one works."""
        self._idle_looks = 0
        """How often in succession the wheel became empty within `BUSY_WINDOW`."""
        self._last_idle_look = -inf
        """When the wheel was last looked at, in seconds."""

    def bind(
        self, action: str, value: object = UNBOUND, pending: int | None = None, threadsafe: str = ""
    ) -> bool:
        """See `LoopBinding.bind`. By default it is the entries that are pending."""
        was_bound = self.is_bound
        is_new = super().bind(
            action, value, self.wheel.size if pending is None else pending, threadsafe
        )
        if is_new and was_bound:
            self.wheel.clear()
            self.wheel.reset_clock()
            self.wheel.notify_empty = True
            self._continuation_scheduled = False
            self._last_idle_look = -inf
        return is_new

    # -- arming buckets

    def _arm(self, bucket: Bucket) -> None:
        # An overdue bucket that is opened by an iteration of work is work for the next one.
        if not (self._is_working and bucket.wake_tick <= self.wheel.current_tick):
            self._call_at(self.wheel.clock.instant(bucket.wake_tick), bucket)

    def _call_at(self, when: float, bucket: Bucket) -> None:
        bucket.scheduled_for = when = min(when, self.time() + MAX_TIMER_DELAY)
        try:
            bucket.handle = self.loop.call_at(when, self._on_timer, bucket, context=Context())
        except ValueError:
            if when > self.time():
                raise
            # a loop that refuses the past, such as Pyodide's
            bucket.handle = self.loop.call_soon(self._on_timer, bucket, context=Context())

    def _on_timer(self, bucket: Bucket) -> None:
        self.wake_ups += 1
        bucket.handle = None
        try:
            if not self._continuation_scheduled and self.wheel.takes(bucket):
                self._expire_due()
        finally:
            if bucket.wake_tick > self.wheel.current_tick and self.wheel.takes(bucket):
                self._arm_again(bucket)

    def _arm_again(self, bucket: Bucket) -> None:
        """Arms a bucket again after an early callback, even if its time has come since:
        `_expire_due` read the clock before."""
        # Add the shortfall, so that a loop that always calls early converges. A stage of a far
        # deadline may also be late.
        now = self.time()
        asked = max(bucket.scheduled_for, now)
        shortfall = self.wheel.clock.instant(bucket.wake_tick) - now
        self._call_at(
            max(asked + max(shortfall, self._min_delay), nextafter(asked, inf)),
            bucket,
        )

    def _follow_clock(self) -> None:
        """Takes the wheel back with a clock that has leapt back."""
        now = self.time()
        if now < self.wheel.clock.instant(self.wheel.current_tick):
            self._cancel_callbacks()
            self.wheel.rewind(now)

    def _expire_due(self) -> None:
        """Does an iteration of work, and schedules the rest for the next iteration of the loop."""
        self._continuation_scheduled, self._is_working = False, True
        wheel, now = self.wheel, self.time()
        try:
            wheel.begin_iteration(MAX_PER_ITERATION, now)
            while (entry := wheel.next_due(now)) is not None:
                try:
                    steps = entry._timer_expired()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    report(self.loop, f"exception when {describe(entry)} was due", error)
                else:
                    if steps is not None:
                        wheel.spend(steps - 1)
        finally:
            self._is_working = False
            if wheel.has_overdue() and not self.loop.is_closed():
                self._continuation_scheduled = True
                self.loop.call_soon(self._expire_due, context=Context())

    # -- when nothing waits any more

    def look_if_idle_later(self) -> None:
        """Looks soon whether anything waits. To be called when that may not be so, and
        `wheel.notify_empty` is true."""
        if running_loop() is not self.loop:
            return  # an unfinished coroutine is being closed; its loop may be closed already
        if self._idle_looks < BUSY_AFTER:
            self.loop.call_soon(self._look_if_idle, context=Context())
        else:
            self.loop.call_later(BUSY_DELAY, self._look_if_idle, context=Context())
        self.wheel.notify_empty = False  # last: if scheduling raises, the next end schedules again

    def _look_if_idle(self) -> None:
        wheel, now = self.wheel, self.time()
        wheel.notify_empty = True
        self._idle_looks = self._idle_looks + 1 if now < self._last_idle_look + BUSY_WINDOW else 0
        self._last_idle_look = now
        if wheel.is_empty():
            self._cancel_callbacks()
            wheel.forget_buckets()
            self.on_idle()

    def clear(self) -> list[TimerEntry]:
        """Removes all entries, and returns them. Cost: one step for each."""
        if self.is_bound and not self.loop.is_closed():
            self._cancel_callbacks()
        return self.wheel.clear()

    def _cancel_callbacks(self) -> None:
        for bucket in self.wheel.buckets():
            if bucket.handle is not None:  # None if it is overdue
                bucket.handle.cancel()


@fields
class OwnWheel(ABC):
    """An object with a timing wheel of its own. It is bound to the running loop at first use. Once
    closed it refuses new entries, until it is entered again.

    Args:
        what: description of the object, for errors.
        tick, wheel_size: see `TimingWheel`.
    """

    __slots__ = ("__weakref__", "_closed", "_loop", "_loop_wheel", "_time", "_what", "_wheel")

    def __init__(self, what: str, tick: float, wheel_size: int) -> None:
        self._what = what
        self._loop_wheel = LoopTimingWheel(tick, wheel_size)
        self._wheel = self._loop_wheel.wheel
        self._loop = self._loop_wheel.loop
        self._time = self._loop_wheel.time
        self._closed = False

    def _bind(self, action: str, value: object = UNBOUND) -> None:
        """Binds it to the running loop, or raises the error that forbids it."""
        if self._closed:
            action = action.replace("{}", describe(value), 1)
            raise PurgatoryClosed(f"cannot {action}: {self._what} is closed")
        self._loop_wheel.bind(action, value)
        self._time, self._loop = self._loop_wheel.time, self._loop_wheel.loop

    def _require_loop(self, action: str, value: object) -> None:
        """Raises `WrongLoop` if this is not its loop, while that is open."""
        if self._loop_wheel.is_bound and not self._loop_wheel.loop.is_closed():
            self._loop_wheel.bind(action, value)

    def _close(self) -> list[TimerEntry]:
        self._require_loop("close {}", self)
        self._closed = True
        self._loop = UNBOUND  # so that the next use calls `_bind`
        return self._loop_wheel.clear()

    def __enter__(self) -> Self:
        self._closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> object:
        """Removes all entries."""


T = TypeVar("T")

MAX_ITEMS: Final = 4 * MAX_PER_ITERATION
"""Items received in one iteration. Most of a burst are repetitions, which cost little."""


@final
class ThreadsafeInbox(deque[T]):
    """Items for the loop of `binding`.

    Args:
        binding: knows the loop, once there is one.
        receive: called on the loop with what `take` returns.
    """

    __slots__ = ("_binding", "_is_waking", "_receive")

    def __init__(self, binding: LoopBinding, receive: Callable[[Iterable[T]], object]) -> None:
        self._binding = binding
        self._receive = receive
        self._is_waking = False
        """Whether the loop will drain the deque, without another wake-up."""

    def put(self, item: T) -> None:
        """Lets the loop receive `item` soon. From any thread, signal handler or finalizer.

        If the object is not bound yet, the item waits for that; when the loop is closed, it is
        lost.
        """
        binding = self._binding
        if binding.is_bound and binding.loop.is_closed():
            return
        try:
            is_repeated = self[-1] is item
        except IndexError:
            is_repeated = False
        if not is_repeated:
            self.append(item)
        if binding.is_bound and not self._is_waking:
            self._wake()

    def rebind(self) -> None:
        """Continues on another loop, on which this is called."""
        self._is_waking = False
        if self:
            self._drain()

    def _wake(self) -> None:
        self._is_waking = True
        was_called = False
        try:
            was_called = self._binding.call_threadsafe(self._drain)
        finally:
            if not was_called:
                self._is_waking = False

    def _drain(self) -> None:
        self._is_waking = False
        try:
            self._receive(self.take())
        finally:
            if self and not self._is_waking:
                self._is_waking = True
                self._binding.loop.call_soon(self._drain, context=Context())

    def take(self) -> Iterator[T]:
        """The items that have come until now, up to `MAX_ITEMS`. Items that are left in the iterator
        stay here."""
        for _ in range(min(len(self), MAX_ITEMS)):
            yield self.popleft()
