"""The wheel on an event loop: one `loop.call_at` for each slot that is in use, and what `WheelTimer` is, but for observers.

A slot that opens arms one callback of the loop, whatever joins it later. The callback runs what is due, or begins to move
what will be, a portion per turn of the loop; what is left follows in the next turns, in order, so ten thousand timers of
one instant do not hold up a socket. A callback that comes early (uvloop rounds to milliseconds, deadlines beyond a day are
asked for in stages) arms the slot again. A slot whose last entry was removed stays armed, because the next entry will
often want it: at most one idle callback for each slot, and none once nothing waits at all, which is seen to at the end of
the turn. The slots that were used last are kept then, without their callbacks.

Callbacks run in an empty `contextvars.Context` of the slot, not in that of whoever happened to arm it, which would be kept
alive and shown to strangers.

This is the only module that calls the loop's clock and timers.
"""

import gc
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as running_loop
from collections.abc import Callable
from contextvars import Context
from functools import partial
from math import inf, nextafter
from threading import RLock, get_ident
from typing import Any, Final, cast, final

from purgatory._errors import WrongLoop
from purgatory._home import NO_HOME, home_of
from purgatory._slots import FULL, Bucket, Entry, Slot
from purgatory._wheel import DEFAULT_WHEEL_SIZE, Wheel

PORTION: Final = 512
"""How many entries are run, or moved, in one turn of the loop: about a millisecond of them."""

UNBOUND: Final[Any] = object()
"""In place of a loop, until there is one; never the running loop, which may be `None`."""

_binding: Final = RLock()

LOOK_OVER: Final = 32_768
"""After so many moves the young objects are looked over by the garbage collector.

It will do that anyway at some time, and then go through whatever new buckets hold by then: 40 ms, for a million entries.
"""

LONGEST_WAIT: Final = 86_400.0
"""Loops refuse or truncate very far deadlines (asyncio sleeps for a day at most), so they are approached in days."""


class LoopWheel(Wheel):
    """A wheel that wakes itself up on an event loop, to which it is bound at first use."""

    __slots__ = ("_continuing", "_looked_over", "_running", "home", "is_bound", "loop", "time", "wake_ups", "when_cleared")

    loop: AbstractEventLoop

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        super().__init__(tick, wheel_size)
        self.loop = UNBOUND
        self.home = NO_HOME
        """Where its loop runs, if that is known: see `_home`."""
        self.is_bound = False
        self.time: Callable[[], float] = float
        self.wake_ups = 0
        """How many callbacks of the loop a slot has had."""
        self.when_cleared: Callable[[], object] = bool
        """For the owner: called when nothing waits any more, at the end of the turn in which the last entry left."""
        self._running = False
        self._continuing = False
        """Whether work is left for the next turn of the loop."""
        self._looked_over = 0
        """How many moves there had been when the garbage collector was asked last."""

    def bind(self, doing: str, pending: int | None = None) -> bool:
        """Binds the wheel to the running loop, or checks that it is the one that it is bound to.

        The hot paths look at `home`, and come here when it does not say that the loop runs here. A wheel in which nothing waits
        any more, and whose loop is closed, is bound anew.

        Args:
            doing: what could not be done, for the error.
            pending: how many wait, if the owner knows better than the wheel.

        Returns:
            Whether it is bound to another loop than before.

        Raises:
            WrongLoop: no loop is running here, or it is not the one.
        """
        if get_ident() == self.home.thread_id:
            return False
        loop = running_loop()
        if loop is self.loop:
            self.home = home_of(self.loop)
            return False
        if loop is not None:
            # Two threads may come here at the same time, or a signal handler of one of them.
            with _binding:
                if not self.is_bound or (self.loop.is_closed() and not self._pending(pending)):
                    self._settle_on(loop)
                    return True
            if loop is self.loop:
                self.home = home_of(loop)
                return False
        raise WrongLoop(f"cannot {doing}: {self._why_not(loop, pending)}")

    def _pending(self, pending: int | None) -> int:
        return len(self) if pending is None else pending

    def _settle_on(self, loop: AbstractEventLoop) -> None:
        """Belongs to `loop` from now on, and forgets what it had asked of another one, which is closed."""
        if self.is_bound:
            for slot in self.slots():
                slot.handle = None
            self._continuing = self._running = self.resting = False
            self.clear()
            self.forget_time()
        self.time = loop.time
        self.loop = loop
        self.home = home_of(loop)
        self.is_bound = True

    def _why_not(self, loop: AbstractEventLoop | None, pending: int | None) -> str:
        if not self.is_bound:
            return "no event loop is running in this thread to be bound to"
        if self.loop.is_closed():
            waiting = f"{self._pending(pending)} wait there for ever"
            why = f"that loop is closed, and {waiting}; use one for each loop, or close it before its loop"
        elif self.loop.is_running():
            why = "this is another thread; from there only the *_threadsafe methods may be called"
        elif loop is None:
            why = "no event loop is running"
        else:
            why = f"the running loop is {loop!r}"
        return f"bound to {self.loop!r}, but {why}"

    def bucket_at(self, when: float) -> Bucket:
        """`bucket_for`, by the loop's clock."""
        return self.bucket_for(when, self.time())

    # -- when nothing waits any more

    def emptied(self) -> None:
        self.resting = True
        # A loop that was closed with timers pending will not call anything, and has nothing to be told.
        if not self.loop.is_closed():
            self.loop.call_soon(self._rest, context=Context())

    def _rest(self) -> None:
        self.resting = False
        used = len(self._open)
        if self.is_empty():
            self._fall_idle(used)

    def _fall_idle(self, used: int) -> None:
        """Takes every callback off the loop. Keeps no more slots than twice those that were `used` since the last time."""
        if self._draining is not None or self._moving or len(self._due) + len(self._ahead) > 2 * used:
            self.clear()
        else:
            for slot in self.slots():
                self.closed(slot)
        self.when_cleared()

    # -- being woken

    def opened(self, slot: Slot) -> None:
        if not (self._running and slot.wake_tick <= self.tick_now):
            self._arm(slot, self.clock.instant(slot.wake_tick))

    def closed(self, slot: Slot) -> None:
        if slot.handle is not None:
            slot.handle.cancel()
            slot.handle = None

    def _arm(self, slot: Slot, when: float) -> None:
        """Has the loop call at `when` for `slot`."""
        slot.armed_for = when = min(when, self.time() + LONGEST_WAIT)
        slot.handle = self.loop.call_at(when, self._wake, slot, context=Context())

    def _wake(self, slot: Slot) -> None:
        self.wake_ups += 1
        slot.handle = None
        if not self._continuing:
            self._run()
        if slot.wake_tick > self.tick_now:
            self._wake_again(slot)

    def _wake_again(self, slot: Slot) -> None:
        """Arms a slot whose callback came before its time, if anything waits there.

        Also if its time has come by now: `_run` went by an earlier reading of the clock, and nobody else will look.
        """
        if slot and slot in self and slot.handle is None:
            # What it was short of is added to what was asked for, and be it one unit in the last place: a loop that
            # always calls early is asked for later and later until it is right.
            short = self.clock.instant(slot.wake_tick) - self.time()
            self._arm(slot, max(slot.armed_for + short, nextafter(slot.armed_for, inf)))

    def _run(self) -> None:
        """Expires a portion of what is due, and comes back in the next turn for the rest."""
        self._continuing = False
        self._running = True
        self.begin_turn(PORTION)
        try:
            while batch := self.due(now := self.time()):
                self._expire(batch, now)
        finally:
            self._running = False
            if self.moves >= self._looked_over + LOOK_OVER:
                self._looked_over = self.moves
                if gc.isenabled():
                    gc.collect(1)
            used = len(self._open)
            if self.is_behind():
                self._continuing = True
                self.loop.call_soon(self._run, context=Context())
            elif self.is_empty():
                self._fall_idle(used)

    def _expire(self, batch: list[Entry], now: float) -> None:
        """Deals with what `due` has returned."""
        bucket = cast(Bucket, self._current)
        for entry in batch:
            if entry._wheel_bucket is not bucket:
                continue
            if entry._wheel_when > now:
                self.put_back(entry)
                continue
            del bucket[entry]
            entry._wheel_bucket = None
            try:
                entry._wheel_due()
            except (SystemExit, KeyboardInterrupt):
                self.rewind()
                raise
            except BaseException as error:
                self.loop.call_exception_handler({"message": f"exception when {entry!r} was due", "exception": error})


@final
class TimerTask(Entry):
    """A callback that waits in a `WheelTimer`; made by its `call_later` and `call_at`. Compare `asyncio.TimerHandle`."""

    __slots__ = ("__weakref__", "_callback")

    _callback: Callable[[], object] | None

    def cancel(self) -> None:
        """Sees to it that the callback is not called; without effect once it was. Cost: O(1)."""
        self._callback = None
        bucket = self._wheel_bucket
        if bucket is not None:
            # `Bucket.leave`, written out.
            del bucket[self]
            self._wheel_bucket = None
            if not bucket and not bucket.wheel.resting:
                bucket.wheel.emptied()

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._callback is None

    def when(self) -> float:
        """The time at which the callback is due, in seconds of the loop's time."""
        return float(self._wheel_when)

    def reschedule(self, when: float) -> None:
        """Moves the callback to another time.

        Cost: O(1). Postponing is one assignment and does not touch the loop: the task is looked at when its old time
        has come. A task that is postponed takes its turn among those of its new time from then on.

        Args:
            when: the new time, in seconds of the loop's time; a time in the past means the next turn of the loop.

        Raises:
            ValueError: `when` is NaN; the task stays where it is.
            RuntimeError: the task was cancelled, or its callback has been called.
            WrongLoop: called from another loop or thread than its timer's.
        """
        bucket = self._wheel_bucket
        if bucket is None:
            state = "it was cancelled" if self._callback is None else "its callback has been called"
            raise RuntimeError(f"cannot reschedule {self!r} to {when!r}: {state}")
        wheel: Any = bucket.wheel
        if get_ident() != wheel.home.thread_id and running_loop() is not wheel.home.stranger:
            wheel.bind(f"reschedule {self!r}")
        if when >= self._wheel_when:
            self._wheel_when = when
            return
        target = wheel.bucket_at(when)
        bucket.leave(self)
        target.join(self, when)

    def _wheel_due(self) -> None:
        if self._callback is not None:
            self._callback()

    def __repr__(self) -> str:
        if self._callback is None:
            return f"<TimerTask cancelled when={self._wheel_when}>"
        state = "pending" if self._wheel_bucket is not None else "called"
        return f"<TimerTask {state} when={self._wheel_when} {self._callback!r}>"


class PlainTimer:
    """`WheelTimer`, as far as nobody observes it."""

    __slots__ = ("__weakref__", "_wheel")

    def __init__(self, *, tick: float = 0.001, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        self._wheel = LoopWheel(tick, wheel_size)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        """Calls `callback(*args)` once `delay` seconds have passed. Cost: O(1); the loop is touched once for each slot.

        Args:
            delay: seconds from now; zero and less mean the next turn of the loop, `inf` means never.

        Raises:
            ValueError: `delay` is NaN.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        wheel = self._wheel
        if get_ident() != wheel.home.thread_id and running_loop() is not wheel.home.stranger:
            wheel.bind("schedule a callback")
        # Calling an attribute that holds a function is dear in CPython 3.11; calling a local is not.
        time = wheel.time
        now = time()
        task = TimerTask()
        task._wheel_when = when = now + delay
        bucket = wheel.last
        if not (bucket.after < when <= bucket.until and len(bucket) < FULL):
            bucket = wheel.bucket_for(when, now)
        task._callback = partial(callback, *args) if args else callback
        # `Bucket.join`, written out.
        task._wheel_bucket = bucket
        bucket[task] = None
        return task

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> TimerTask:
        """As `call_later`, at an absolute time of the loop's clock."""
        wheel = self._wheel
        wheel.bind("schedule a callback")
        task = TimerTask()
        task._callback = partial(callback, *args) if args else callback
        wheel.bucket_at(when).join(task, when)
        return task

    @property
    def size(self) -> int:
        """How many callbacks wait. Cost: the number of open slots."""
        return len(self._wheel)

    def __repr__(self) -> str:
        return f"<WheelTimer tick={self._wheel.clock.tick} size={self.size}>"
