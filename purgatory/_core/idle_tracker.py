"""Finds idle connections among a hundred thousand, at the cost of one assignment per activity.

Each id has one entry in a timing wheel. `touch` only assigns the entry's new deadline: no bucket
and no timer of the loop changes. When the entry's bucket is due, the wheel compares the deadline:
it has come, or the entry moves to the bucket of its current deadline. With a timeout of 30 s:

    touch at  0    in the bucket of 30
    touch at 12    deadline 42, still in the bucket of 30
    touch at 29    deadline 59, still in the bucket of 30
           at 30   moves to the bucket of 59
           at 59   idle for 30 s: on_idle

So the wheel visits an id about once per timeout, however often it was touched. A scan would visit
each id each time; a timer for each id would be created and cancelled at each touch.

By default a timeout has 8000 ticks, none shorter than 4 ms. So most ids that a tick visits are
idle, and the loop wakes at most 250 times a second, however many ids are tracked, and less often if
there are few.

A loop that was held up may call its timers before it reads its sockets. So ids that expired during
a stall are looked at in three more iterations: uvloop reads after its timers, and a task that
awaits a stream runs another iteration later. An id that was touched by then is still tracked.

Compare netty's `IdleStateHandler`, which has a timer for each connection and reschedules it after
activity.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from math import ceil, inf
from typing import Any, Final, Generic, TypeVar, final

from purgatory._core.arguments import describe, printable, seconds
from purgatory._core.dispatcher import dispatcher_of
from purgatory._core.loop import UNBOUND, OwnWheel, report, running_loop
from purgatory._core.observers import Cause, Ended, Notifier, Observer, observers_of
from purgatory._core.states import EXPIRED
from purgatory._core.wheel import TickClock, TimerEntry

Id = TypeVar("Id", bound=Hashable)

TICKS_PER_TIMEOUT: Final = 8000
MIN_TICK: Final = 0.004
MAX_TICK: Final = 1.0

STALL: Final = 0.004
"""Seconds by which the loop is late when it was held up; uvloop's clock has milliseconds."""

GRACE: Final = 3
"""How often an id that expired during a stall is looked at again, once in an iteration."""

MAX_WHEEL_SIZE: Final = 8192
"""If the finest level covered the whole timeout, no entry would cascade, but a few ids would each
have a bucket of their own, with a timer of the loop. With this maximum they share wider buckets."""


@final
class _TrackedId(TimerEntry):
    """The entry of an id.

    Attributes:
        grace: after a stall in which the id became idle: when that was, when it was last looked at,
            and how often that will be repeated.
    """

    __slots__ = ("grace", "key", "tracker")

    def __init__(self, tracker: "IdleTracker[Any]", key: Any) -> None:
        self.tracker = tracker
        self.key = key
        self.grace: tuple[float, float, int] = (0.0, -inf, 0)
        self._timer_bucket = None

    def _timer_expired(self) -> None:
        self.tracker._expire(self)


@final
class IdleTracker(OwnWheel, Generic[Id]):
    """Calls `on_idle(id)` for each id that has not been touched for `timeout` seconds.

    `on_idle` is called once, from the loop and in an empty context: never early by the loop's
    clock, late by at most one tick plus the delay of the loop itself. After a delay the loop reads
    its sockets first, so that connections with data are not idle. The id is no longer tracked by
    then; touching it again, also in `on_idle`, tracks it again. If many ids become idle at once,
    `on_idle` is called for 512 per iteration of the loop, in no particular order within one tick.
    An exception of `on_idle` goes to the loop's exception handler and does not affect other ids.

    Bound to the running event loop at the first touch. The loop has one timer for each tick in
    which ids are visited, and none when nothing is tracked. As a context manager it is closed on
    exit, and may be entered again.

        tracker = IdleTracker(30, lambda connection: connection.abort())
        tracker.touch(connection)       # connected, and at each packet
        tracker.remove(connection)      # closed

    Args:
        timeout: seconds without a touch after which an id is idle, positive; `inf` means never.
        on_idle: a plain function; its result is ignored.
        tick: the resolution in seconds, finite and at least a nanosecond; by default 1/8000 of the
            timeout, but not less than 4 ms and not more than 1 s.
        name: for observers and errors.
        observer: is notified of each id that became idle, as of an operation of the kind "id" that
            started at the last touch and has expired; or a sequence of observers. There are no
            starts and no checks.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

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
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if tick is None:
            tick = max(MIN_TICK, min(timeout / TICKS_PER_TIMEOUT, MAX_TICK))
        ticks_ahead = timeout * TickClock(tick).rate
        wheel_size = MAX_WHEEL_SIZE if ticks_ahead > MAX_WHEEL_SIZE else ceil(ticks_ahead) + 2
        super().__init__(f"the idle tracker {name!r}", tick, wheel_size)
        self._on_idle = on_idle
        self._timeout = timeout
        self._entries: dict[Id, _TrackedId] = {}
        self._name = name
        observers = observers_of(observer)
        self._notifier = Notifier(name, observers, self._report) if observers else None

    def touch(self, id: Id) -> None:  # noqa: A002 - there is no better word for it
        """Records activity of `id`; an unknown id is tracked from now on.

        Cost: one look-up, one assignment and one reading of the clock, however many ids are
            tracked. An unknown id also costs an entry in the wheel, and a timer of the loop if it
            is the first of its tick.

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
            now, entry = self._time(), _TrackedId(self, id)
            self._wheel.add(entry, now + self._timeout, now)
            self._entries[id] = entry

    def remove(self, id: Id) -> bool:  # noqa: A002
        """Stops tracking `id`; True if it was tracked. Cost: O(1).

        To remove an id that became idle or was never touched is no error, so a handler of closed
        connections need not know why they closed.

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
        self._wheel.remove(entry)
        return True

    def close(self) -> None:
        """Forgets all ids without calling `on_idle`; idempotent. Cost: one step for each id.

        Raises:
            WrongLoop: called from another loop or thread than the tracker's, while that loop is
                open.
        """
        self._close()
        self._entries.clear()

    def __iter__(self) -> Iterator[Id]:
        """The tracked ids in the order of their first touches. Ids may be touched and removed
        meanwhile.

        Cost: a list of the ids.
        """
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:  # noqa: A002
        return id in self._entries

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"tracked={len(self)}"
        return f"<IdleTracker timeout={self._timeout} tick={self._wheel.clock.tick} {state}>"

    def _expire(self, entry: _TrackedId) -> None:
        """Drops an id that became idle, or after a stall looks at it again later."""
        now, deadline, clock = self._time(), entry._timer_deadline, self._wheel.clock
        idle_at, look, looks = entry.grace
        if deadline != look:  # it has not been looked at since its last touch
            is_late = now - clock.instant(clock.due_tick(deadline)) > STALL
            idle_at, looks = deadline, GRACE if is_late else 0
        if looks:
            entry.grace = idle_at, now, looks - 1
            self._wheel.add(entry, now, now)  # which is due in the next iteration of the loop
        else:
            self._drop(entry, idle_at)

    def _drop(self, entry: _TrackedId, idle_at: float) -> None:
        """Forgets an id that became idle, and calls `on_idle`."""
        id_, loop = entry.key, self._loop_wheel.loop
        del self._entries[id_]
        try:
            self._on_idle(id_)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._report(f"on_idle({describe(id_)}) raised", error)
        if self._notifier is not None:
            dispatcher_of(loop).perform(partial(self._notify, self._notifier, entry, idle_at))

    def _notify(self, notifier: Notifier, entry: _TrackedId, idle_at: float, _: int) -> None:
        """Notifies of an id that became idle."""
        timeout = self._timeout
        notifier.ended(
            Ended(
                self._name, "id", (entry.key,), idle_at - timeout, self._time(),
                None if timeout == inf else timeout, EXPIRED, Cause.DEADLINE, None, 1, False, None,
                id(entry),
            )
        )  # fmt: skip

    def _report(self, message: str, error: BaseException | None) -> None:
        report(self._loop_wheel.loop, f"{printable(self._name)}: {message}", error)
