"""A timing wheel on an event loop: one `loop.call_at` for each bucket, however many entries wait
there.

A new bucket is armed once, and stays armed until its time has come: an early callback (uvloop
rounds to milliseconds, asyncio calls early by the resolution of its clock, deadlines beyond a day
are scheduled in stages) arms it again, empty or not, and later by a share of a tick at least. So it
ends on a clock that does not move between two callbacks. A clock that leaps back takes the wheel with
it.
The callback expires the entries that are due, or begins to cascade the bucket, a bounded amount for
each iteration of the loop; the rest follows in the next ones, so that ten thousand timers of one
instant do not block a socket.

A bucket whose last entry was removed stays armed as well, because the next entry will often need
it: this costs at most one callback without work for each bucket. When nothing waits any more, all
callbacks are cancelled, at the end of the iteration in which the last entry was removed; or within
ten milliseconds, if that happens repeatedly.

Callbacks run in an empty `contextvars.Context` of the bucket. The context of the code that opened
the bucket would be kept alive, and visible to others.

This is the only module that calls the loop's timers.
"""

from collections.abc import Callable
from contextvars import Context
from math import inf, nextafter
from typing import Final

from purgatory._core.arguments import describe
from purgatory._core.buckets import Bucket, TimerEntry
from purgatory._core.kernel import fields
from purgatory._core.loop import MAX_PER_ITERATION, UNBOUND, LoopBinding, report, running_loop
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, TimingWheel

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
"""The delay in seconds before a busy wheel is checked for entries. To cancel and to arm buckets in
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
        "_idle_checks",
        "_is_working",
        "_last_idle_check",
        "_min_delay",
        "on_idle",
        "wake_ups",
        "wheel",
    )

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        super().__init__()
        self.wheel = TimingWheel(
            tick, wheel_size, self._arm, self.check_idle_later, self._check_clock
        )
        self._min_delay = min(tick, MAX_MIN_DELAY) / 16
        """Seconds by which a bucket is armed later than before, at least."""
        self.on_idle: Callable[[], object] = bool
        self.wake_ups = 0
        self._continuation_scheduled = self._is_working = False
        """Whether the next iteration of the loop continues the work; whether this one works."""
        self._idle_checks = 0
        """How often in succession the wheel became empty within `BUSY_WINDOW`."""
        self._last_idle_check = -inf
        """The time of the last idle check."""

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
            self._last_idle_check = -inf
        return is_new

    # -- arming buckets

    def _arm(self, bucket: Bucket) -> None:
        # An overdue bucket that is opened by an iteration of work is work for the next one.
        if not (self._is_working and bucket.wake_tick <= self.wheel.current_tick):
            self._call_at(self.wheel.clock.instant(bucket.wake_tick), bucket)

    def _call_at(self, when: float, bucket: Bucket) -> None:
        bucket.scheduled_for = when = min(when, self.time() + MAX_TIMER_DELAY)
        bucket.handle = self.loop.call_at(when, self._on_timer, bucket, context=Context())

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
        """Arms a bucket whose callback came early, even if its time has come since: `_expire_due`
        read the clock before."""
        # Add the shortfall, so that a loop that always calls early converges. A stage of a far
        # deadline may also be late.
        now = self.time()
        asked = max(bucket.scheduled_for, now)
        shortfall = self.wheel.clock.instant(bucket.wake_tick) - now
        self._call_at(
            max(asked + max(shortfall, self._min_delay), nextafter(asked, inf)),
            bucket,
        )

    def _check_clock(self) -> None:
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

    def check_idle_later(self) -> None:
        """Looks soon whether anything waits. To be called when that may not be so, and
        `wheel.notify_empty` is true."""
        if running_loop() is not self.loop:
            return  # an unfinished coroutine is being closed; its loop may be closed already
        if self._idle_checks < BUSY_AFTER:
            self.loop.call_soon(self._check_idle, context=Context())
        else:
            self.loop.call_at(self.time() + BUSY_DELAY, self._check_idle, context=Context())
        self.wheel.notify_empty = False  # last: if scheduling raises, the next end schedules again

    def _check_idle(self) -> None:
        wheel, now = self.wheel, self.time()
        wheel.notify_empty = True
        self._idle_checks = (
            self._idle_checks + 1 if now < self._last_idle_check + BUSY_WINDOW else 0
        )
        self._last_idle_check = now
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

    def _check(self) -> None:
        """Asserts the whole invariant between iterations of the loop. For tests."""
        self.wheel._check()
        for bucket in self.wheel.buckets():
            is_armed = bucket.handle is not None and not bucket.handle.cancelled()
            assert is_armed or (
                bucket.wake_tick <= self.wheel.current_tick and self._continuation_scheduled
            )
        assert self._continuation_scheduled >= any(self.wheel.draining())
