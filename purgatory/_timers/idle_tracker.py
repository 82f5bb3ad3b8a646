"""Finds which of a hundred thousand connections are idle, at the cost of an assignment for each activity.

Each id has one entry in a timing wheel. `touch` assigns the entry's new deadline and does nothing else: no bucket and no
timer of the loop changes. When the bucket of the entry is due, the wheel compares the deadline: either it has come, or the
entry moves to the bucket of its current deadline. With a timeout of 30 s:

    touch at  0    waits in the bucket of 30
    touch at 12    deadline 42, still in the bucket of 30
    touch at 29    deadline 59, still in the bucket of 30
           at 30   moves to the bucket of 59
           at 59   idle for 30 s: on_idle

So an id is visited about once in a timeout, however often it was touched. A scan would visit every id each time; a timer
for each id would be made and cancelled at each touch.

By default there are 8000 ticks in a timeout, none shorter than 4 ms. So most ids that a tick visits are idle; and the loop
is woken 250 times a second at most, however many ids are tracked, and less often if there are few.

Compare netty's `IdleStateHandler`, which has a timer for each connection, and reschedules it after activity.
"""

from asyncio import _get_running_loop as running_loop
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import ceil
from typing import Final, Generic, Self, TypeVar, final

from purgatory._arguments import describe, seconds
from purgatory._errors import PurgatoryClosed
from purgatory._loop.binding import UNBOUND
from purgatory._observers.observer import Cause, Observer, observers_of
from purgatory._observers.observer_group import ObserverGroup
from purgatory._state import EXPIRED
from purgatory._wheel.buckets import TimerEntry
from purgatory._wheel.clock import TickClock
from purgatory._wheel.loop_wheel import LoopTimingWheel

Id = TypeVar("Id", bound=Hashable)

TICKS_PER_TIMEOUT: Final = 8000
MIN_TICK: Final = 0.004
MAX_TICK: Final = 1.0

MAX_WHEEL_SIZE: Final = 8192
"""If the finest level covered the timeout, no entry would cascade. But then few ids would have a bucket each, and the loop a
timer for each; with this maximum they share wider buckets."""


@final
class _TrackedId(TimerEntry, Generic[Id]):
    """The entry of an id."""

    __slots__ = ("id", "tracker")

    def __init__(self, tracker: "IdleTracker[Id]", id: Id) -> None:  # noqa: A002
        self.tracker = tracker
        self.id = id
        self._timer_chunk = None

    def _timer_expired(self) -> None:
        self.tracker._expire(self)


@final
class IdleTracker(Generic[Id]):
    """Calls `on_idle(id)` for each id that has not been touched for `timeout` seconds.

    `on_idle` is called once, from the loop and in an empty context, at or after the timeout since the last touch: never
    early by the loop's clock, late by at most one tick plus the delay of the loop itself. The id is not tracked any more
    by then; to touch it again, also in `on_idle`, tracks it again. If many ids become idle at once, `on_idle` is called for
    512 per iteration of the loop, tick by tick, those of one tick in no particular order. An exception of `on_idle` goes to
    the loop's exception handler and does not affect other ids.

    Bound to the running event loop at the first touch. The loop has one timer for each tick in which ids are visited, and
    none when nothing is tracked.

        tracker = IdleTracker(30, lambda connection: connection.abort())
        tracker.touch(connection)       # connected, and at each packet
        tracker.remove(connection)      # closed

    Args:
        timeout: seconds without a touch after which an id is idle, positive; `inf` means never.
        on_idle: a plain function; what it returns is ignored.
        tick: the resolution in seconds, positive and finite; by default 1/8000 of the timeout, but not less than 4 ms
            and not more than 1 s.
        name: for observers.
        observer: is notified of each id that became idle, as of an operation of the kind "id" that has expired, and began at
            the last touch; or a sequence of observers. There are no starts and no checks.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_entries",
        "_loop",
        "_loop_wheel",
        "_name",
        "_observers",
        "_on_idle",
        "_time",
        "_timeout",
    )

    def __init__(
        self,
        timeout: float,
        on_idle: Callable[[Id], object],
        *,
        tick: float | None = None,
        name: str = "idle",
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        timeout = seconds("timeout", timeout)
        if not timeout > 0.0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        if tick is None:
            tick = max(MIN_TICK, min(timeout / TICKS_PER_TIMEOUT, MAX_TICK))
        ticks_ahead = timeout * TickClock(tick).rate
        wheel_size = MAX_WHEEL_SIZE if ticks_ahead > MAX_WHEEL_SIZE else ceil(ticks_ahead) + 2
        self._loop_wheel = LoopTimingWheel(tick, wheel_size)
        self._on_idle = on_idle
        self._timeout = timeout
        self._entries: dict[Id, _TrackedId[Id]] = {}
        self._closed = False
        self._name = name
        observers = observers_of(observer)
        self._observers = ObserverGroup(observers, self._report) if observers else None
        self._loop = self._loop_wheel.loop
        self._time = self._loop_wheel.time

    def touch(self, id: Id) -> None:  # noqa: A002 - there is no better word for it
        """Records activity of `id`; an unknown id is tracked from now on.

        Cost: one look-up, one assignment and a reading of the clock, whatever is tracked. An unknown id also costs an entry in
        the wheel, and a timer of the loop if it is the first of its tick.

        Raises:
            TypeError: `id` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            PurgatoryClosed: the tracker is closed.
        """
        if running_loop() is not self._loop:
            self._bind("touch {}", id)
        try:
            self._entries[id]._timer_deadline = self._time() + self._timeout
        except KeyError:
            self._track(id)

    def remove(self, id: Id) -> bool:  # noqa: A002
        """Stops tracking `id`; true if it was tracked. Cost: O(1).

        To remove an id that became idle, or that was never touched, is no error: so a handler of closed connections need not
        know why they closed.

        Raises:
            WrongLoop: called from another loop or thread than the tracker's.
        """
        if self._loop is UNBOUND:
            return False
        if running_loop() is not self._loop:
            self._bind("remove {}", id)
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self._loop_wheel.wheel.remove(entry)
        return True

    def close(self) -> None:
        """Forgets every id without calling `on_idle`, which is not called any more; idempotent. Cost: what is tracked.

        Raises:
            WrongLoop: called from another loop or thread than the tracker's, while that loop is open.
        """
        loop_wheel = self._loop_wheel
        if loop_wheel.is_bound and not loop_wheel.loop.is_closed():
            loop_wheel.bind("close an idle tracker")
            for entry in self._entries.values():
                if entry._timer_chunk is not None:  # else its id has changed, so that it could not be found any more
                    loop_wheel.wheel.remove(entry)
        self._entries.clear()
        self._closed = True
        self._loop = UNBOUND  # so that the next touch calls `_bind`

    def __enter__(self) -> Self:
        self._closed = False  # it may be entered again
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Id]:
        """What is tracked now, in the order of the first touches; to touch or remove ids meanwhile does not disturb it.

        Cost: a list of what is tracked.
        """
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:  # noqa: A002
        return id in self._entries

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"tracked={len(self)}"
        return f"<IdleTracker timeout={self._timeout} tick={self._loop_wheel.wheel.clock.tick} {state}>"

    def _bind(self, action: str, id: Id) -> None:  # noqa: A002
        """Binds the tracker to the running loop, or raises what forbids it."""
        if self._closed:
            raise PurgatoryClosed(f"cannot {action.format(describe(id))}: the idle tracker is closed")
        self._loop_wheel.bind(action, id, len(self._entries))
        self._loop, self._time = self._loop_wheel.loop, self._loop_wheel.time

    def _track(self, id: Id) -> None:  # noqa: A002
        now = self._time()
        when = now + self._timeout
        new: _TrackedId[Id] = _TrackedId(self, id)
        # A finalizer may run whenever something is allocated, and may have touched the id just now.
        entry = self._entries.setdefault(id, new)
        if entry is new:
            self._loop_wheel.wheel.add(entry, when, now)

    def _expire(self, entry: _TrackedId[Id]) -> None:
        """Removes an id that became idle, and calls `on_idle`."""
        id_ = entry.id
        try:
            del self._entries[id_]
        except BaseException as error:
            kind = type(id_).__name__
            self._report_error(f"cannot find a {kind} again that was tracked: its hash, or what it equals, has changed", error)
        try:
            self._on_idle(id_)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._report_error(f"exception in on_idle({describe(id_)}) of an idle tracker", error)
        if self._observers is not None:
            last_seen = entry._timer_deadline - self._timeout
            fields = (
                self._name, "id", (id_,), last_seen, self._time(), self._timeout, EXPIRED, Cause.DEADLINE, None, 1, False, None,
                id(entry),
            )  # fmt: skip
            self._observers.notify_ended(fields)

    def _report(self, message: str, error: BaseException | None) -> None:
        self._report_error(f"{self._name}: {message}", error)

    def _report_error(self, message: str, error: BaseException | None) -> None:
        self._loop_wheel.loop.call_exception_handler({"message": message, "exception": error})

    def _check(self) -> None:
        """Asserts the whole invariant. For tests. Cost: what is tracked."""
        self._loop_wheel._check()
        assert self._loop_wheel.wheel.size == len(self._entries)
        for id_, entry in self._entries.items():
            assert entry.id == id_ and entry._timer_chunk is not None and entry in entry._timer_chunk
