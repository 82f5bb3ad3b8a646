"""The hierarchical timing wheel, which finds due entries in constant time each. It has no loop and
no clock.

Time is divided into buckets. A bucket of the finest level is one tick wide; a bucket of the next
level is as wide as `wheel_size` of these, and so on. Each level reaches to the end of the next
level's bucket after the current one, so at any moment each tick belongs to exactly one bucket. A
wide bucket *cascades* one width before it begins: its entries move to narrower buckets. With a tick
of 1 and a `wheel_size` of 10, at tick 0:

    due 9      level 0, bucket 9
    due 88     level 1, bucket [80, 90)       from 70 on into bucket 88
    due 521    level 2, bucket [500, 600)     from 400 on into bucket [520, 530); from 510 on into
                                              bucket 521

Entries go in with `add` and come out with `next_due(now)`. For each new bucket the wheel calls
`arm(bucket)`: the owner has to call `next_due` at `bucket.wake_tick`. A bucket accepts entries
while it is in its level, and joins its level only after the owner has armed it. So each entry waits
in an armed bucket or in an overdue one.

A deadline is rounded up to a tick if it lies ahead. A deadline that has passed is due in the next
iteration of work, whatever the tick.

An iteration of work (`begin_iteration`, then `next_due` until it returns None) does a bounded
number of steps. Up to half of them cascade, and the rest expire due entries in the order of their
ticks, after a stall too: an overdue entry keeps its own tick, and a tick waits while a wider bucket
that may have earlier entries cascades. The order of entries that are due in one tick is not
promised; entries that were added to its own bucket come in the order of addition.

Most additions find their bucket by one multiplication and one look-up in each level up to its own.
Rounding, or an outdated clock reading, may give another bucket than the exact one. This is harmless:
a bucket that accepts an entry is never too late for it, and if it is too early, the entry moves to
the next one.

Deadlines are checked where they enter: `add` and `reschedule` refuse NaN and store a float. So no
deadline can make `begin_iteration` or `next_due` raise, which would block all other entries.

Allocating may run a finalizer (from CPython 3.12 on a call may, too), which may remove entries.

A level is a dictionary of the buckets that exist, by `due_tick // level.tick`. It is not a ring as
in Kafka: an overdue bucket and the bucket that would reuse its slot are two objects.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (scheme 7); Kafka,
`util/timer/TimingWheel.java`, where the heap of buckets is a `DelayQueue`.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from math import ceil, floor, inf, nextafter
from operator import index
from typing import Any, Final, NoReturn, final

from purgatory._core.arguments import describe, seconds
from purgatory._core.kernel import compiled, fields

MIN_TICK: Final = 1e-9
"""The finest tick, in seconds; no loop's clock has a finer resolution."""

MAX_TICK: Final = 2**62
"""Ticks beyond this count as never: 146 years of nanoseconds, 146 million years of milliseconds.

Beyond 2**53, which ticks of 1 ns reach at a loop time of 104 days, a float skips some ticks. Then a
deadline is met by the next representable tick, a few units in the last place of the loop's time
later.
"""


@final
class TickClock:
    """Converts between the loop's seconds, which are floats, and a wheel's ticks, which are integers.

    A deadline is rounded up to the next tick and the present is rounded down to the last one, so
    that the deadlines of a tick are due when it has begun:

        tick = 0.001    deadline 7.0423 s -> due tick 7043    now 7.0429 s -> tick 7042
                        tick 7043 -> 7.043 s

    uvloop's clock shows whole milliseconds, n / 1000, and 0.001 * n is often another float:
    `int(now * 1000)` misses some 1 of 200 exact wake-ups. So if a second has a whole number of
    ticks, an instant is computed by one division, which is correctly rounded and equals the loop's
    own value, and rounding down is checked against it.

    Args:
        tick: the length of one tick in seconds, finite and at least a nanosecond.

    Raises:
        ValueError, TypeError: `tick` is shorter, not finite, or no number.
    """

    __slots__ = ("is_whole", "rate", "tick")

    def __init__(self, tick: float) -> None:
        given, tick = tick, seconds("tick", tick)
        if not MIN_TICK <= tick < inf:
            raise ValueError(
                f"tick must be a finite number of seconds, at least {MIN_TICK}, got "
                f"{describe(given)}"
            )
        rate = 1.0 / tick
        self.is_whole = rate >= 1.0 and abs(rate - round(rate)) <= 1e-9 * rate
        """Whether `rate` is an integer. Then a tick begins exactly at its number divided by the
        rate."""
        self.tick = tick
        self.rate = float(round(rate)) if self.is_whole else rate
        """Ticks per second."""

    def instant(self, tick_number: float) -> float:
        """When a tick begins, in seconds of the loop's time."""
        return tick_number / self.rate if self.is_whole else tick_number * self.tick

    def due_tick(self, when: float) -> int:
        """The first tick that does not begin before `when`, which is not NaN; within `MAX_TICK`
        either way.

        The product may have been rounded past an integer, by one unit in the last place, so the
        result is checked both ways.
        """
        ticks = when * self.rate
        if not -MAX_TICK < ticks < MAX_TICK:
            return MAX_TICK if ticks > 0 else -MAX_TICK
        due_tick = ceil(ticks)
        if self.instant(due_tick) < when:
            return due_tick + 1
        return due_tick - 1 if self.instant(due_tick - 1) >= when else due_tick

    def tick_at(self, now: float) -> int:
        """The last tick that has begun by `now`."""
        tick_number = int(now * self.rate)
        if self.instant(tick_number) > now:
            return tick_number - 1
        if self.instant(tick_number + 1) <= now:
            return tick_number + 1
        return tick_number


@fields
class TimerEntry:
    """Something that waits in a wheel.

    Attributes:
        _timer_bucket: the bucket that holds the entry; None if it is in no wheel.
        _timer_deadline: the deadline, in seconds. A later one may be assigned: when the bucket of
            the entry is due, the entry moves to the bucket of its deadline.
    """

    __slots__ = ("_timer_bucket", "_timer_deadline")

    _timer_bucket: "EntryList | None"
    _timer_deadline: Any  # a float, never NaN; in no wheel, some subclasses have None

    def _timer_expired(self) -> int | None:
        """Called when the deadline has come and the entry has left the wheel.

        A callback of the garbage collector may run between the two, so the entry may have ended or
        have been scheduled again.

        Returns:
            The work this was, in steps of the budget; None for one step.
        """
        raise TypeError(f"{type(self).__name__} defines no _timer_expired")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {self!r}: it is known by its identity")


@fields
class EntryList:
    """Entries in order of addition, any of which leaves in O(1). The kernel links them."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[TimerEntry, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: TimerEntry) -> None:
        """Adds `entry`, which is in no list, at the end."""
        self._entries[entry] = None
        entry._timer_bucket = self

    def remove(self, entry: TimerEntry) -> bool:
        """Removes `entry`; False if it is not here."""
        if entry._timer_bucket is not self:
            return False
        entry._timer_bucket = None
        del self._entries[entry]
        if not self._entries:
            self.emptied()
        return True

    def emptied(self) -> None:
        """Called when the last entry has left."""

    def entries(self, most: int | None = None) -> list[TimerEntry]:
        """The first entries, in order; all without `most`."""
        return list(islice(self._entries, most))


@fields
class Bucket(EntryList):
    """The interval `[start_tick, start_tick + level.tick)`, and the entries that are due in it."""

    __slots__ = (
        "generation",
        "handle",
        "level",
        "number",
        "scheduled_for",
        "start_tick",
        "wake_tick",
        "wheel",
    )

    def __init__(self, wheel: Any, level: "Level", number: int, generation: int) -> None:
        super().__init__()
        self.wheel = wheel
        """The `TimingWheel`."""
        self.level = level
        self.number = number
        self.start_tick = start_tick = number * level.tick
        self.wake_tick = start_tick if level.depth == 0 else start_tick - level.tick
        """When its entries are due, or have to cascade."""
        self.generation = generation
        """The iteration of work in which it was opened."""
        self.handle: Any = None
        """The callback of the owner's event loop for `wake_tick`; None if none is scheduled."""
        self.scheduled_for = 0.0
        """The time of that callback, in seconds."""

    def emptied(self) -> None:
        wheel = self.wheel
        if wheel.notify_empty:
            wheel._on_empty()

    def __repr__(self) -> str:
        return f"<Bucket [{self.start_tick}, {self.start_tick + self.level.tick}) of {len(self)}>"


@fields
class Level:
    """The open buckets of one width.

    Attributes:
        buckets: the buckets, by number.
        tick: the width of a bucket, in ticks of the wheel.
        rate: buckets per second.
        recent: the bucket that the kernel has found last; None if that has closed.
        interval: the width of a bucket of the next level.
        end_tick: the first due tick that belongs to a wider level.
    """

    __slots__ = ("buckets", "depth", "end_tick", "interval", "rate", "recent", "tick")

    def __init__(self, depth: int, wheel_size: int, rate: float, current_tick: int) -> None:
        self.buckets: dict[int, Bucket] = {}
        self.depth = depth
        self.tick = wheel_size**depth
        self.rate = rate / self.tick
        self.recent: Bucket | None = None
        self.interval = self.tick * wheel_size
        self.advance(current_tick)

    def advance(self, current_tick: int) -> None:
        """Extends the level to the end of the next level's bucket after the current one."""
        self.end_tick = (current_tick // self.interval + 2) * self.interval


DEFAULT_WHEEL_SIZE: Final = 512
"""With a tick of 1 ms, buckets of the second level are half a second wide, of the third 262 s, of
the fourth 37 hours."""

ROUND_UP: Final = 0.999
"""Added before `floor`, to round a number of ticks up unless it is an integer but for rounding
errors, which are below 0.001 up to a loop time of 250 years with ticks of 1 ms."""

CLOSE: Final = 0.998
"""Above this fraction the number of ticks was an integer, or little more, which is the next tick."""


NO_ENTRIES: Final[Iterator[TimerEntry]] = iter(())


@fields
class TimingWheel:
    """A hierarchical timing wheel of `TimerEntry` objects.

    Args:
        tick: the length of a tick in seconds, finite and at least a nanosecond.
        wheel_size: the width of a level's buckets, in buckets of the level below; 2 to 2**62.
        arm: called with each new bucket, before it has entries. If it raises, the bucket is not
            added.
        on_empty: called when the last entry of a bucket was removed, if `notify_empty` is true. The
            owner should check soon whether the wheel `is_empty`.
        on_behind: called with a time before the current tick: an old reading, or of a clock that
            has leapt back. In the latter case the owner calls `rewind`.

    Attributes:
        clock: converts seconds to ticks.
        current_tick: the last tick that the wheel knows to have begun.
        levels: the finest first.
        moves: the number of moves of entries between buckets.

    Raises:
        ValueError, TypeError: an argument is out of its bounds, or `wheel_size` is not an integer.
    """

    __slots__ = (
        "_arm",
        "_batch",
        "_beyond_horizon",
        "_budget",
        "_cascades",
        "_cascading",
        "_due",
        "_expiring",
        "_expiring_tick",
        "_generation",
        "_level0_buckets",
        "_level0_end",
        "_level1_buckets",
        "_level1_rate",
        "_next_tick_time",
        "_on_behind",
        "_on_empty",
        "_rate",
        "_tick_time",
        "_until",
        "_wide",
        "clock",
        "current_tick",
        "levels",
        "moves",
        "notify_empty",
        "wheel_size",
    )

    def __init__(
        self,
        tick: float,
        wheel_size: int,
        arm: Callable[[Bucket], object],
        on_empty: Callable[[], object] = bool,
        on_behind: Callable[[], object] = bool,
    ) -> None:
        if not 2 <= index(wheel_size) <= MAX_TICK:
            raise ValueError(
                f"wheel_size must be between 2 and {MAX_TICK}, got {describe(wheel_size)}"
            )
        self.clock = TickClock(tick)
        self.wheel_size = wheel_size
        self._arm = arm
        self._on_empty = on_empty
        self._on_behind = on_behind
        self.notify_empty = True
        self.moves = 0
        self._rate = self.clock.rate
        self._generation = 0
        """The number of the current iteration of work."""
        self._budget = 0
        """Steps left in the current iteration of work."""
        self._due: list[tuple[int, Bucket]] = []
        """The open buckets of the finest level, a heap by start."""
        self._wide: list[tuple[int, int, Bucket]] = []
        """The open buckets of the other levels, a heap by the tick at which they cascade, and
        level."""
        self._expiring = EntryList()
        """The closed bucket that is due."""
        self._batch = NO_ENTRIES
        """The next ones of its entries; some may have left."""
        self._expiring_tick, self._until = -MAX_TICK, -inf
        """Its tick, and its last deadline in seconds; entries with later ones were postponed."""
        self._cascading: list[tuple[int, int, Bucket]] = []
        """The closed wide buckets, which cascade: a heap by start and serial number."""
        self._cascades = 0
        """The last serial number."""
        self.reset_clock()
        self._beyond_horizon = Bucket(self, self.levels[0], MAX_TICK, 0)
        """Entries that are too far away ever to be due. It is in no level, and never armed."""

    def reset_clock(self) -> None:
        """Resets the time of a wheel without buckets, for another clock."""
        self.current_tick = -MAX_TICK
        self._tick_time = self._next_tick_time = -inf
        """When the current tick begins, and the tick after it, in seconds."""
        self.levels = [self._new_level(depth) for depth in (0, 1)]
        self._level0_buckets, self._level1_buckets = [level.buckets for level in self.levels]
        self._level1_rate = self.levels[1].rate
        self._level0_end = -inf
        """Entries that are due by this instant, in seconds, belong to the finest level."""

    def _new_level(self, depth: int) -> Level:
        return Level(depth, self.wheel_size, self._rate, self.current_tick)

    def forget_buckets(self) -> None:
        """Removes all open buckets, which are empty. The owner cancels their callbacks."""
        for level in self.levels:
            level.recent = None
            level.buckets.clear()
        self._due.clear()
        self._wide.clear()
        if not self._beyond_horizon:
            self._beyond_horizon = Bucket(self, self.levels[0], MAX_TICK, 0)  # frees memory

    def clear(self) -> list[TimerEntry]:
        """Removes all entries and buckets, and returns the entries. The owner cancels the buckets'
        callbacks. Cost: one step for each entry."""
        lists, notify, self.notify_empty = self._lists(), self.notify_empty, False
        self._expiring, self._cascading = EntryList(), []
        self.forget_buckets()
        entries = [entry for each in lists for entry in each.entries() if each.remove(entry)]
        self.notify_empty = notify
        return entries

    def rewind(self, now: float) -> None:
        """Goes back to `now`, for a clock that has leapt back: adds all entries again. The owner
        cancels the buckets' callbacks. Cost: one addition for each entry."""
        entries = self.clear()
        self.reset_clock()
        for entry in entries:
            self.add(entry, entry._timer_deadline, now)

    # -- adding and removing

    @compiled
    def add(self, entry: TimerEntry, when: float, now: float) -> None:
        """Adds `entry`, which is in no wheel, with the deadline `when`. Cost: O(1), with one step
        for each level.

        Args:
            when: deadline, in seconds. If it has passed, the entry is due in the next iteration of work.
            now: the time, in seconds.

        Raises:
            ValueError, TypeError: `when` is NaN, or no number; nothing has changed.
        """
        if type(when) is not float:
            when = seconds("when", when)
        try:
            if when > self._level0_end:
                bucket = self._level1_buckets[floor(when * self._level1_rate)]
            elif when > now:
                ticks = when * self._rate + ROUND_UP
                number = floor(ticks)
                if ticks - number > CLOSE and self.clock.instant(number) < when:
                    number += 1
                bucket = self._level0_buckets[number]
            else:
                bucket = self._bucket_for(seconds("when", when), now)  # which refuses NaN
        except (KeyError, OverflowError):  # the latter for infinity
            open_bucket = self._open_bucket(when)
            bucket = self._bucket_for(when, now) if open_bucket is None else open_bucket
        entry._timer_deadline = when
        bucket.append(entry)

    def remove(self, entry: TimerEntry) -> bool:
        """Removes `entry`; False if it is in no wheel. Cost: O(1)."""
        bucket = entry._timer_bucket
        return bucket is not None and bucket.remove(entry)

    def reschedule(self, entry: TimerEntry, when: float, now: float) -> None:
        """Moves `entry`, which waits here, to `when`. Cost: O(1); to postpone is one assignment.

        Raises:
            ValueError, TypeError: `when` is NaN, or no number; nothing has changed.
        """
        if type(when) is not float:
            when = seconds("when", when)
        if when < entry._timer_deadline or not when > now:
            self._move(entry, self._bucket_for(seconds("when", when), now))
        entry._timer_deadline = when

    def _open_bucket(self, when: float) -> Bucket | None:
        """The bucket for `when` in the finest level in which it is open; None if it is in none."""
        if not when > self._level0_end:
            return self._level0_buckets.get(self.clock.due_tick(when))
        for level in self.levels[1:] if when * self._rate < MAX_TICK else ():
            bucket = level.buckets.get(floor(when * level.rate))
            if bucket is not None:
                return bucket
        return None

    def _bucket_for(self, when: float, now: float) -> Bucket:
        """The bucket for a new entry that is due at `when`."""
        self._advance_clock(now)
        due_tick = self.clock.due_tick(when)
        # Rounded up only if it lies ahead: with a long tick, it would be up to a tick late.
        if when <= now and self.clock.instant(due_tick) > when:
            due_tick -= 1
        return self._bucket_for_tick(due_tick)

    def _bucket_for_tick(self, due_tick: int) -> Bucket:
        """The bucket of `due_tick`, a new one if there is none."""
        if due_tick == MAX_TICK:
            return self._beyond_horizon
        levels, depth = self.levels, 0
        while due_tick >= levels[depth].end_tick:
            depth += 1
            if depth == len(levels):
                levels.append(self._new_level(depth))
        level = levels[depth]
        number = due_tick // level.tick
        bucket = level.buckets.get(number)
        if bucket is None:
            bucket = Bucket(self, level, number, self._generation)
            self._arm(bucket)
            level.buckets[number] = bucket
            if depth == 0:
                heappush(self._due, (bucket.start_tick, bucket))
            else:
                heappush(self._wide, (bucket.wake_tick, depth, bucket))
        return bucket

    @property
    def size(self) -> int:
        """The number of entries. Cost: the number of buckets."""
        return sum(map(len, self._lists()))

    def is_empty(self) -> bool:
        """Whether no entry will ever be due. Cost: the number of empty buckets."""
        return not any(self.buckets()) and not any(self.draining())

    def takes(self, bucket: Bucket) -> bool:
        """Whether `bucket` accepts entries. If not, it was due, or the wheel was cleared."""
        return bucket.level.buckets.get(bucket.number) is bucket

    def buckets(self) -> Iterator[Bucket]:
        """The open buckets, including empty ones."""
        return (bucket for level in self.levels for bucket in level.buckets.values())

    def draining(self) -> list[EntryList]:
        """The closed buckets: first the due one, then the cascading ones."""
        return [self._expiring, *(bucket for _, _, bucket in self._cascading)]

    def _lists(self) -> list[EntryList]:
        return [*self.buckets(), *self.draining(), self._beyond_horizon]

    # -- due entries

    def begin_iteration(self, budget: int, now: float) -> None:
        """Begins an iteration of work, of `budget` steps. Buckets that are opened from here on wait
        for the next iteration."""
        self._advance_clock(now)
        while self._wide and self._wide[0][0] <= self.current_tick:
            bucket = heappop(self._wide)[2]
            self._close(bucket)
            self._cascades += 1
            heappush(self._cascading, (bucket.start_tick, self._cascades, bucket))
        self._generation += 1
        self._budget = budget - self._cascade(budget // 2)

    @compiled
    def next_due(self, now: float) -> TimerEntry | None:
        """Removes and returns the next due entry; None if there is none, or the iteration is
        over."""
        while self._budget > 0:
            for entry in self._batch:
                if entry._timer_bucket is self._expiring:
                    break
            else:
                if self._expiring or self._expire_next_bucket(now):
                    self._batch = iter(self._expiring.entries(self._budget))
                    continue
                self._budget -= self._cascade(self._budget)
                break
            self._budget -= 1
            # With ticks finer than its float, a deadline may be past its tick.
            when = entry._timer_deadline
            if when <= self._until or self.clock.due_tick(when) <= self._expiring_tick:
                self._expiring.remove(entry)
                return entry
            self._move_on(entry)
        self._batch = NO_ENTRIES
        return None

    def spend(self, steps: int) -> None:
        """Takes `steps` more off the budget, for an entry that was due."""
        self._budget -= steps

    def has_overdue(self) -> bool:
        """Whether work is left for the next iteration."""
        return bool(
            self._expiring
            or self._cascading
            or (self._due and self._due[0][0] <= self.current_tick)
            or self._has_overdue_wide()
        )

    def _has_overdue_wide(self) -> bool:
        """Whether a wide bucket has to cascade, and has not begun."""
        return bool(self._wide) and self._wide[0][0] <= self.current_tick

    def _expire_next_bucket(self, now: float) -> bool:
        """Closes the next due bucket; False if there is none for this iteration, or if earlier
        entries may still be in wider buckets."""
        heap = self._due
        if not heap or heap[0][0] > self.current_tick or heap[0][1].generation == self._generation:
            return False
        if self._has_overdue_wide() or (self._cascading and self._cascading[0][0] <= heap[0][0]):
            return False
        due_tick, bucket = heappop(heap)
        self._expiring_tick = due_tick
        # Entries that were overdue when they were added lie between the tick and the next one.
        last = nextafter(self.clock.instant(due_tick + 1), -inf)
        self._until = max(self.clock.instant(due_tick), min(last, now))
        self._close(bucket)
        self._expiring = bucket
        self._budget -= 1  # after a stall there may be thousands of empty ones
        return True

    def _cascade(self, limit: int) -> int:
        """Moves up to `limit` entries of cascading buckets to narrower ones; returns their
        number."""
        moved = 0
        while moved < limit and self._cascading:
            entries = self._cascading[0][2].entries(limit - moved)
            if not entries:
                heappop(self._cascading)
            for entry in entries:
                self._move_on(entry)
            moved += len(entries)
        return moved

    @compiled
    def _move_on(self, entry: TimerEntry) -> None:
        """Moves an entry of a closed bucket to a narrower one."""
        bucket = self._open_bucket(entry._timer_deadline)
        if bucket is None:
            bucket = self._bucket_for_tick(self.clock.due_tick(entry._timer_deadline))
        self._move(entry, bucket)

    def _move(self, entry: TimerEntry, target: Bucket) -> None:
        bucket = entry._timer_bucket
        if bucket is not None and bucket.remove(entry):  # else a finalizer has removed it
            target.append(entry)
            self.moves += 1

    def _close(self, bucket: Bucket) -> None:
        """Removes `bucket` from its level, so that it accepts no more entries."""
        bucket.level.recent = None
        del bucket.level.buckets[bucket.number]

    # -- time

    def _advance_clock(self, now: float) -> None:
        if now < self._tick_time:
            self._on_behind()
        if now < self._next_tick_time:
            return
        current_tick = self.clock.tick_at(now)
        if current_tick <= self.current_tick:
            return
        self.current_tick = current_tick
        self._tick_time = self.clock.instant(current_tick)
        self._next_tick_time = self.clock.instant(current_tick + 1)
        for level in self.levels:
            if current_tick < level.end_tick - level.interval:
                break
            level.advance(current_tick)
        self._level0_end = self.clock.instant(self.levels[0].end_tick - 1)
