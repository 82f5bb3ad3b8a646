"""The hierarchical timing wheel: which entries are due, in constant time for each, with no loop and no clock.

Time is divided into buckets. A bucket of the finest level holds one tick; one of the next level is as wide as `wheel_size` of
those, and so on. Each level reaches to the end of the next level's bucket after the one that has begun, so at any moment each
tick belongs to exactly one bucket. When the bucket before a wide one begins, the entries of the wide one
*cascade* into narrower ones; they have as long as it is wide. With a tick of 1 and a `wheel_size` of 10, at tick 0:

    due 9      level 0, bucket 9
    due 88     level 1, bucket [80, 90)       from 70 on into bucket 88
    due 521    level 2, bucket [500, 600)     from 400 on into bucket [520, 530); from 510 on into bucket 521

Entries go in with `add` and come out with `next_due(now)`. For each new bucket the wheel calls `arm(bucket)`: the owner has to
call `next_due` when `bucket.wake_tick` has come. A bucket accepts entries while it is in its level, and it is added to its
level only when the owner has armed it. So each entry waits in an armed bucket or in one whose time has come.

An iteration of work (`begin_iteration`, then `next_due` until it returns None) does a bounded number of steps. Up to half of
them cascade, the others expire what is due, so that neither starves after a stall; the remaining ones cascade again. In which
order the entries of a tick come out is not promised; those that were added to its own bucket come in the order of addition.

Most additions find their bucket by one multiplication and one look-up in one of the two finest levels. Rounding, or an outdated
clock reading, may give another bucket than the exact one. This is harmless: a bucket that accepts an entry is never too late
for it, and if it is too early, the entry moves to the next one.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (scheme 7); Kafka, `util/timer/TimingWheel.java`, where the
heap of buckets is a `DelayQueue`.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import floor, inf
from operator import index
from typing import Any, Final

from purgatory._wheel.buckets import CHUNK_CAPACITY, Bucket, Chunk, Drain, Level, TimerEntry
from purgatory._wheel.clock import MAX_TICK, TickClock

DEFAULT_WHEEL_SIZE: Final = 512
"""With a tick of 1 ms, a bucket of the second level is half a second wide, of the third 262 s, of the fourth 37 hours."""


ROUND_UP: Final = 0.999
"""Added to a number of ticks to round it up, unless it is an integer except for rounding errors. These are less than 0.001, up
to a loop time of 250 years with ticks of 1 ms."""


class TimingWheel:
    """A hierarchical timing wheel of `TimerEntry` objects.

    Args:
        tick: the length of a tick in seconds, finite and at least a nanosecond.
        wheel_size: how many buckets of a level are as wide as one of the next, at least 2.
        arm: called with each new bucket, before anything waits there. If it raises, the bucket is not added.
        on_empty: called when the last entry of a chunk was removed, if `notify_empty` is true. The owner should check soon
            whether the wheel `is_empty`.

    Raises:
        ValueError, TypeError: an argument is out of its bounds, or `wheel_size` is not an integer.
    """

    __slots__ = (
        "_arm",
        "_beyond_horizon",
        "_budget",
        "_cascades",
        "_cascading",
        "_due",
        "_generation",
        "_level0_buckets",
        "_level0_end",
        "_level1_buckets",
        "_level1_rate",
        "_next_tick_time",
        "_on_empty",
        "_rate",
        "_wide",
        "clock",
        "current_tick",
        "expiring",
        "levels",
        "moves",
        "notify_empty",
        "wheel_size",
    )

    def __init__(
        self, tick: float, wheel_size: int, arm: Callable[[Bucket], object], on_empty: Callable[[], object] = bool
    ) -> None:
        if index(wheel_size) < 2:
            raise ValueError(f"wheel_size must be at least 2, not {wheel_size!r}")
        self.clock = TickClock(tick)
        self.wheel_size = wheel_size
        self._arm = arm
        self._on_empty = on_empty
        self.notify_empty = True
        self.moves = 0
        """How often an entry was moved from one bucket to another."""
        self._rate = self.clock.rate
        self._level1_rate = self._rate / wheel_size
        """Buckets of the second level in a second."""
        self._generation = 0
        """How many iterations of work have begun."""
        self._budget = 0
        """How many steps this one has left."""
        self._due: list[tuple[int, Bucket]] = []
        """The buckets of the finest level, a heap by start."""
        self._wide: list[tuple[int, int, Bucket]] = []
        """Those of the other levels, a heap by the tick at which they cascade, and level."""
        self.expiring = Drain()
        """The due bucket whose entries are expiring; it is in no level any more."""
        self._cascading: list[tuple[int, int, Drain]] = []
        """Wide buckets that have begun to cascade, and are in no level any more: a heap by start, and by number in order."""
        self._cascades = 0
        """How many there were."""
        self.reset_clock()
        self._beyond_horizon = Bucket(self.levels[0], MAX_TICK, 0, Chunk(self))
        """Entries too far away ever to be due. It is in no level, and never armed."""

    def reset_clock(self) -> None:
        """Resets the time of an empty wheel without buckets, for another clock."""
        self.current_tick = -MAX_TICK
        """The last tick that has begun, as far as the wheel knows."""
        self._next_tick_time = -inf
        """When the tick after it begins, in seconds."""
        self.levels = [Level(depth, self.wheel_size**depth, self.wheel_size, self.current_tick) for depth in (0, 1)]
        self._level0_buckets, self._level1_buckets = [level.buckets for level in self.levels]
        self._level0_end = -inf
        """Entries that are due by this instant, in seconds, belong to the finest level."""

    def clear(self) -> None:
        """Removes all buckets of an empty wheel. The owner cancels their callbacks."""
        for level in self.levels:
            level.buckets.clear()
        self._due.clear()
        self._wide.clear()
        if not self._beyond_horizon:  # a dictionary does not shrink
            self._beyond_horizon.chunk = Chunk(self)

    # -- adding and removing

    def add(self, entry: TimerEntry, when: float, now: float) -> None:
        """Adds `entry`, which is in no wheel, with the deadline `when`. Cost: O(1), with one step for each level.

        Args:
            when: in seconds. If it has come, the entry is due in the next iteration of work.
            now: the time, in seconds.

        Raises:
            ValueError: `when` is NaN; nothing has changed.
        """
        try:
            if when > self._level0_end:
                chunk = self._level1_buckets[floor(when * self._level1_rate)].chunk
            else:
                chunk = self._level0_buckets[floor(when * self._rate + ROUND_UP)].chunk
        except (KeyError, ValueError, OverflowError):  # the last two for NaN and infinity
            chunk = None
        if chunk is None or len(chunk) >= CHUNK_CAPACITY:
            chunk = self._chunk_for(when, now)
        entry._timer_deadline = when
        entry._timer_chunk = chunk
        chunk[entry] = None

    def remove(self, entry: TimerEntry) -> None:
        """Removes `entry`, which waits here. Cost: O(1)."""
        chunk: Any = entry._timer_chunk
        del chunk[entry]
        entry._timer_chunk = None
        if not chunk and self.notify_empty:
            self._on_empty()

    def reschedule(self, entry: TimerEntry, when: float, now: float) -> None:
        """Moves `entry`, which waits here, to `when`. Cost: O(1); to postpone is one assignment.

        Raises:
            ValueError: `when` is NaN; nothing has changed.
        """
        if when >= entry._timer_deadline:
            entry._timer_deadline = when
            return
        self._move(entry, self._chunk_for(when, now))
        entry._timer_deadline = when

    def _chunk_for(self, when: float, now: float) -> Chunk:
        """The chunk for an entry that is due at `when`."""
        if now >= self._next_tick_time:
            self._advance_clock(now)
        return self._chunk_for_tick(when)

    def _chunk_for_tick(self, when: float) -> Chunk:
        """The same, by the current time of the wheel."""
        due_tick = self.clock.due_tick(when)
        if due_tick == MAX_TICK:
            return self._beyond_horizon.writable_chunk()
        return self._bucket_for_tick(max(due_tick, self.current_tick)).writable_chunk()

    def _bucket_for_tick(self, due_tick: int) -> Bucket:
        """The bucket of `due_tick`, created and armed if there is none."""
        levels, depth = self.levels, 0
        while due_tick >= levels[depth].end_tick:
            depth += 1
            if depth == len(levels):
                levels[depth:] = [Level(depth, levels[-1].interval, self.wheel_size, self.current_tick)]
        level = levels[depth]
        number = due_tick // level.tick
        bucket = level.buckets.get(number)
        if bucket is None:
            new = Bucket(level, number, self._generation, Chunk(self))
            self._arm(new)
            # A finalizer may run whenever something is allocated, and may have opened this bucket just now.
            bucket = level.buckets.setdefault(number, new)
            if bucket is new:
                if depth == 0:
                    heappush(self._due, (bucket.start_tick, bucket))
                else:
                    heappush(self._wide, (bucket.wake_tick, depth, bucket))
        return bucket

    @property
    def size(self) -> int:
        """How many entries wait. Cost: the number of buckets."""
        return sum(map(len, self.buckets())) + len(self._beyond_horizon) + sum(map(len, self._drains()))

    def is_empty(self) -> bool:
        """Whether nothing waits that will ever be due. Cost: the number of buckets that are empty."""
        return not any(self.buckets()) and not any(map(len, self._drains()))

    def takes(self, bucket: Bucket) -> bool:
        """Whether `bucket` accepts entries. If not, its time has come, or the wheel was cleared."""
        return bucket.level.buckets.get(bucket.number) is bucket

    def buckets(self) -> Iterator[Bucket]:
        """Every bucket that accepts entries, empty ones included."""
        return (bucket for level in self.levels for bucket in level.buckets.values())

    def _drains(self) -> list[Drain]:
        return [self.expiring, *(drain for _, _, drain in self._cascading)]

    def draining(self) -> list[Chunk]:
        """The chunks of buckets that are being emptied: first of those that are due, then of those that cascade."""
        return [chunk for drain in self._drains() for chunk in drain.chunks()]

    # -- what is due

    def begin_iteration(self, budget: int, now: float) -> None:
        """Begins an iteration of work, of so many steps. Buckets that are created from here on wait for the next one."""
        if now >= self._next_tick_time:
            self._advance_clock(now)
        while self._wide and self._wide[0][0] <= self.current_tick:
            bucket = heappop(self._wide)[2]
            drain = Drain()
            drain.extend(self._close(bucket))
            self._cascades += 1
            heappush(self._cascading, (bucket.start_tick, self._cascades, drain))
        self._generation += 1
        self._budget = budget - self._cascade(budget // 2)

    def next_due(self, now: float) -> TimerEntry | None:
        """Removes and returns the next entry that is due; None if there is none, or the iteration is over."""
        while self._budget > 0:
            entry = self.expiring.next_entry()
            if entry is None:
                if self._expire_next_bucket():
                    continue
                self._budget -= self._cascade(self._budget)
                break
            self._budget -= 1
            # An addition since may have advanced the wheel beyond `now`.
            if entry._timer_deadline <= now or self.clock.due_tick(entry._timer_deadline) <= self.current_tick:
                self.remove(entry)
                return entry
            self._move(entry, self._chunk_for_tick(entry._timer_deadline))
        return None

    def spend(self, steps: int) -> None:
        """Takes so many more steps off the budget, for an entry that has come out."""
        self._budget -= steps

    def rewind(self) -> None:
        """Restarts the iteration over the chunks that are being emptied, after an exception in the middle of it."""
        for drain in self._drains():
            drain.rewind()

    def has_overdue(self) -> bool:
        """Whether anything due is left."""
        return bool(self.expiring or self._cascading or (self._due and self._due[0][0] <= self.current_tick))

    def _expire_next_bucket(self) -> bool:
        """Continues with the next bucket that is due; false if there is none for this iteration."""
        heap = self._due
        if not heap or heap[0][0] > self.current_tick or heap[0][1].generation == self._generation:
            return False
        self.expiring.extend(self._close(heappop(heap)[1]))
        self._budget -= 1  # after a stall there may be thousands of empty ones
        return True

    def _cascade(self, most: int) -> int:
        """Moves so many entries of cascading buckets to narrower ones; returns how many."""
        moved = 0
        while moved < most and self._cascading:
            entry = self._cascading[0][2].next_entry()
            if entry is None:
                heappop(self._cascading)
                continue
            self._move(entry, self._chunk_for_tick(entry._timer_deadline))
            moved += 1
        return moved

    def _move(self, entry: TimerEntry, target: Chunk) -> None:
        chunk: Any = entry._timer_chunk
        del chunk[entry]
        entry._timer_chunk = target
        target[entry] = None
        self.moves += 1

    def _close(self, bucket: Bucket) -> list[Chunk]:
        """Removes `bucket` from its level, so that it accepts no more entries; returns its chunks."""
        del bucket.level.buckets[bucket.number]
        return bucket.chunks()

    # -- time

    def _advance_clock(self, now: float) -> None:
        current_tick = self.clock.tick_at(now)
        if current_tick <= self.current_tick:
            return
        self.current_tick = current_tick
        self._next_tick_time = self.clock.instant(current_tick + 1)
        for level in self.levels:
            if current_tick < level.end_tick - level.interval:
                break
            level.advance(current_tick)
        self._level0_end = self.clock.instant(self.levels[0].end_tick - 1)

    def _check(self) -> None:
        """Asserts the whole invariant. For tests. Cost: everything that waits."""
        for depth, level in enumerate(self.levels):
            assert level.depth == depth and level.tick == self.wheel_size**depth
            assert level.interval == level.tick * self.wheel_size
            assert level.end_tick == (self.current_tick // level.interval + 2) * level.interval
            for number, bucket in level.buckets.items():
                assert bucket.level is level and bucket.number == number
                is_overdue = bucket.wake_tick <= self.current_tick
                assert depth == 0 or is_overdue or bucket.start_tick >= self.levels[depth - 1].end_tick
        buckets = [*self.buckets()]
        assert {*buckets} == {bucket for _, bucket in self._due} | {bucket for _, _, bucket in self._wide}
        assert len(buckets) == len(self._due) + len(self._wide)
        assert all(start_tick == bucket.start_tick for start_tick, bucket in self._due)
        assert all(item[:2] == (item[2].wake_tick, item[2].level.depth) for item in self._wide)
        heaps: list[list[tuple[int, ...]]] = [[item[:-1] for item in heap] for heap in (self._due, self._wide)]
        assert all(heap[(i - 1) // 2] <= item for heap in heaps for i, item in enumerate(heap) if i)
        for bucket in buckets:
            for chunk in bucket.chunks():
                for entry in chunk:
                    # Never in a bucket that begins too late; in one that begins too early if overdue or postponed.
                    assert bucket.start_tick <= max(self.clock.due_tick(entry._timer_deadline), self.current_tick)
        chunks = [chunk for bucket in buckets for chunk in bucket.chunks()]
        chunks += self.draining() + self._beyond_horizon.chunks()
        for chunk in chunks:
            assert chunk.wheel is self and len(chunk) <= CHUNK_CAPACITY
            assert all(entry._timer_chunk is chunk for entry in chunk)
