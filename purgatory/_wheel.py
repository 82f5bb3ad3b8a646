"""The hierarchical timing wheel: which entries are due, in constant time for each, with no loop and no thread.

Entries wait in buckets. A bucket of the finest level holds one tick; a level has `wheel_size` buckets in reach, and one
bucket of the next level, made when it is first needed, is as wide as the whole level below. When the wide bucket begins,
its entries *cascade* into narrower ones, until they lie in the bucket of their own tick, which fires. With a tick of 1
and a `wheel_size` of 10, at tick 0:

    due 9    -> level 0, bucket 9
    due 88   -> level 1, bucket [80, 90)      at 80 into level 0, bucket 88
    due 222  -> level 2, bucket [200, 300)    at 200 into level 1, bucket [220, 230); at 220 into level 0, bucket 222
    due 521  -> level 2, bucket [500, 600)    at 500 into level 1, bucket [520, 530); at 520 into level 0, bucket 521

Three things differ from Kafka's `TimingWheel`. An entry fires when its tick has *come*, not when it is the current one,
so never early. A level is a dictionary of the buckets that exist, numbered for ever (`due_tick // span_ticks`), not a
ring: a bucket that is overdue after a stall and the one that would take its slot are simply two. And an entry joins the
bucket in which entries of its tick already wait, even if a narrower one is in reach by now, so entries of one tick fire
in the order in which they came.

Time is an argument. Whoever owns the wheel asks for due work in portions (`due`), so neither a burst nor a cascade is
ever longer than the portion; a subclass is told when a bucket opens or closes, and sees to being woken in time.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (scheme 7); Kafka, `util/timer/TimingWheel.java`,
where the heap of buckets is a `DelayQueue`.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice
from math import inf
from operator import index
from typing import Any, Final

from purgatory._clock import MAX_TICK, TickClock

DEFAULT_WHEEL_SIZE: Final = 512
"""With a tick of 1 ms: half a second in the first level, 262 s in the second, 37 hours in the third."""

SNAPSHOT: Final = 8192
"""A large bucket is walked in snapshots of so many entries, as walking restarts behind what has left at its front."""


class Entry:
    """What waits in a wheel. `_wheel_when` is its deadline in seconds, `_wheel_bucket` the bucket that holds it, if one does.

    `_wheel_when` may be moved to later in place: the entry is looked at when its bucket is due, and put back.
    """

    __slots__ = ("_wheel_bucket", "_wheel_when")

    _wheel_bucket: "Bucket | None"
    _wheel_when: Any  # float; for a subclass also None, while it waits in no wheel

    def _wheel_due(self) -> None:
        """Called once when the deadline has come; the entry is out of the wheel."""
        raise TypeError(f"{type(self).__name__} has nothing to do when it expires")


class Bucket(dict[Entry, None]):
    """The entries that are due in `[start_tick, start_tick + span_ticks)`, in the order in which they came.

    A dictionary, because removal from anywhere is then one operation in C that keeps the order and leaves no trace.
    """

    __slots__ = ("armed_for", "handle", "level", "start_tick", "turn", "wheel")

    def __init__(self, wheel: "Wheel", level: "Level", start_tick: int) -> None:
        self.wheel = wheel
        self.level = level
        self.start_tick = start_tick
        self.turn = wheel.turn
        self.handle: Any = None
        """For the owner: what will wake it at `start_tick`, ..."""
        self.armed_for = 0.0
        """... and when."""

    def __repr__(self) -> str:
        end_tick = self.start_tick + self.level.span_ticks
        return f"<Bucket [{self.start_tick}, {end_tick}) of {len(self)}>"


class Level(dict[int, Bucket]):
    """The open buckets of one width, by `due_tick // span_ticks`."""

    __slots__ = ("depth", "reach_ticks", "span_ticks")

    def __init__(self, depth: int, span_ticks: int, wheel_size: int) -> None:
        self.depth = depth
        self.span_ticks = span_ticks
        self.reach_ticks = span_ticks * wheel_size


class Wheel:
    """A hierarchical timing wheel of `Entry` objects.

    Args:
        tick: the length of a tick in seconds, positive and finite.
        wheel_size: how many buckets of a level are in reach, at least 2.

    Raises:
        ValueError, TypeError: an argument is out of its bounds, or `wheel_size` is not an integer.
    """

    __slots__ = (
        "_batch",
        "_coarse_first",
        "_current",
        "_heap",
        "_next_tick",
        "_portion",
        "clock",
        "levels",
        "moves",
        "never",
        "rate",
        "recent",
        "resting",
        "tick_now",
        "turn",
        "wheel_size",
    )

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        if index(wheel_size) < 2:
            raise ValueError(f"wheel_size must be at least 2, not {wheel_size!r}")
        self.clock = TickClock(tick)
        self.rate = self.clock.rate
        self.wheel_size = wheel_size
        self.tick_now = -MAX_TICK
        """The last tick that has begun, as far as the wheel has been told."""
        self.resting = False
        """Whether the owner knows that a bucket was emptied and has yet to look whether anything waits."""
        self._next_tick = -inf
        """When the tick after it begins, in seconds."""
        self.turn = 0
        """How many turns of work have begun."""
        self._portion = 0
        """How many entries may still be returned or moved in this turn."""
        self.moves = 0
        """How often an entry was moved from one bucket to another."""
        self.levels = [Level(0, 1, wheel_size)]
        self._coarse_first = self.levels[:]
        self.never = Bucket(self, self.levels[0], MAX_TICK)
        """Entries too far away to fire; no level lists it."""
        self.recent: dict[int, Bucket] = {}
        """Due tick -> bucket, for what was asked since `tick_now` last changed: most additions need no more than this."""
        self._heap: list[tuple[int, int, Bucket]] = []
        """The open buckets by start, the wider first, but for the one that is being emptied."""
        self._current: Bucket | None = None
        """The due bucket that is being emptied."""
        self._batch: Iterator[Entry] = iter(())

    def __len__(self) -> int:
        """How many entries wait. Cost: the number of open buckets."""
        waiting = len(self.never) + sum(map(len, self.buckets()))
        current = self._current
        return waiting + len(current) if current is not None and current.level.depth == 0 else waiting

    def __contains__(self, bucket: Bucket) -> bool:
        """Whether `bucket` is open."""
        return bucket.level.get(bucket.start_tick // bucket.level.span_ticks) is bucket

    def buckets(self) -> Iterator[Bucket]:
        """Every open bucket, empty ones included."""
        return (bucket for level in self.levels for bucket in level.values())

    # -- for the owner to be told

    def opened(self, bucket: Bucket) -> None:
        """`bucket` exists now, and `due` is to be called when its `start_tick` has come."""

    def closed(self, bucket: Bucket) -> None:
        """`bucket` does not need to be waited for any more."""

    def emptied(self) -> None:
        """The last entry of some bucket was removed, and the wheel is not `resting`.

        The bucket stays open: the next entry will often want it.
        """

    # -- adding and removing

    def add(self, entry: Entry, when: float, now: float) -> None:
        """Lets `entry` wait until `when`. Cost: O(1), with one step for each level.

        Raises:
            ValueError: `when` is NaN; nothing has changed.
        """
        bucket = self.bucket_for(when, now)
        entry._wheel_when = when
        entry._wheel_bucket = bucket
        bucket[entry] = None

    def remove(self, entry: Entry) -> None:
        """Takes `entry` out, wherever it waits. Cost: O(1)."""
        bucket = entry._wheel_bucket
        assert bucket is not None
        del bucket[entry]
        entry._wheel_bucket = None
        if not bucket and not self.resting:
            self.emptied()

    def bucket_for(self, when: float, now: float) -> Bucket:
        """The open bucket in which an entry due at `when` is to wait.

        Raises:
            ValueError: `when` is NaN.
        """
        due_tick = self.clock.due_tick(when)
        if due_tick == MAX_TICK:
            return self.never
        if now >= self._next_tick:
            self._move_to(now)
        first_tick = due_tick if due_tick > self.tick_now else self.tick_now
        for level in self._coarse_first:
            bucket = level.get(first_tick // level.span_ticks)
            if bucket:
                break
        else:
            bucket = self._open(first_tick)
        self.recent[due_tick] = bucket
        return bucket

    def _open(self, due_tick: int) -> Bucket:
        """The narrowest bucket in reach for `due_tick`, new if need be."""
        ahead_ticks = due_tick - self.tick_now
        level = self.levels[0]
        for level in self.levels:
            if ahead_ticks < level.reach_ticks:
                break
        while ahead_ticks >= level.reach_ticks:
            level = Level(level.depth + 1, level.reach_ticks, self.wheel_size)
            self.levels.append(level)
            self._coarse_first.insert(0, level)
        number = due_tick // level.span_ticks
        bucket = level.get(number)
        if bucket is None:
            bucket = level[number] = Bucket(self, level, number * level.span_ticks)
            heappush(self._heap, (bucket.start_tick, -level.depth, bucket))
            self.opened(bucket)
        return bucket

    # -- what is due

    def begin_turn(self, portion: int) -> None:
        """Allows `due` to return or move `portion` entries. Buckets that open from here on wait for the next turn."""
        self.turn += 1
        self._portion = portion

    def due(self, now: float) -> list[Entry]:
        """The next entries whose tick has come, in order of tick and arrival; none if none is due, or the turn is over.

        They stay in their bucket, so that one of them can still remove another: the caller skips those that are not in
        `draining()` any more when their moment comes, and removes, or puts back, each of the others.
        """
        if now >= self._next_tick:
            self._move_to(now)
        while self._portion > 0:
            bucket = self._current
            if bucket is None:
                bucket = self._current = self._pop_due()
                if bucket is None:
                    break
            batch = list(islice(self._batch, self._portion))
            self._portion -= len(batch)
            if not batch:
                if bucket:
                    self._batch = iter(list(islice(bucket, SNAPSHOT)))
                else:
                    self._finish(bucket)
            elif bucket.level.depth == 0:
                return batch
            else:
                for entry in batch:
                    if entry._wheel_bucket is bucket:
                        self._move(entry, bucket, bucket.start_tick)
        return []

    def draining(self) -> Bucket | None:
        """The bucket whose entries `due` returned last."""
        return self._current

    def put_back(self, entry: Entry) -> None:
        """Moves an entry that `due` returned to a later tick, because its `_wheel_when` has not come after all."""
        assert self._current is not None
        self._move(entry, self._current, self.tick_now + 1)

    def rewind(self) -> None:
        """Has `due` return again what it returned last and the caller did not come to."""
        self._batch = iter(())

    def is_behind(self) -> bool:
        """Whether work is left whose time has come."""
        return self._current is not None or bool(self._heap and self._heap[0][0] <= self.tick_now)

    def is_empty(self) -> bool:
        """Whether nothing waits that will ever be due. Cost: the empty buckets that are newer than the newest full one."""
        return not self._current and not any(bucket for level in self.levels for bucket in reversed(level.values()))

    def clear(self) -> None:
        """Closes every bucket of an empty wheel."""
        for bucket in self.buckets():
            self.closed(bucket)
        for level in self.levels:
            level.clear()
        self.recent.clear()
        self._heap.clear()
        self._current = None
        self._batch = iter(())

    def _move_to(self, now: float) -> None:
        tick_now = self.clock.tick_at(now)
        if tick_now > self.tick_now:
            self.tick_now = tick_now
            self._next_tick = self.clock.instant(tick_now + 1)
            self.recent.clear()

    def _pop_due(self) -> Bucket | None:
        heap = self._heap
        if not heap or heap[0][0] > self.tick_now or heap[0][2].turn == self.turn:
            return None
        bucket = heappop(heap)[2]
        if bucket.level.depth == 0:
            # Out of its level at once: what is added for this tick from now on gets a bucket, and a turn, of its own.
            del bucket.level[bucket.start_tick]
            self.recent.clear()
        self.closed(bucket)
        return bucket

    def _finish(self, bucket: Bucket) -> None:
        if bucket.level.depth:
            del bucket.level[bucket.start_tick // bucket.level.span_ticks]
            self.recent.clear()
        self._current = None

    def _move(self, entry: Entry, bucket: Bucket, first_tick: int) -> None:
        """Moves `entry` out of `bucket`, which is being emptied, to where it waits from `first_tick` on."""
        due_tick = self.clock.due_tick(entry._wheel_when)
        if due_tick == MAX_TICK:
            target = self.never
        else:
            due_tick = max(due_tick, first_tick)
            for level in self._coarse_first:
                elder = level.get(due_tick // level.span_ticks)
                if elder and elder is not bucket:
                    target = elder
                    break
            else:
                target = self._open(due_tick)
        del bucket[entry]
        entry._wheel_bucket = target
        target[entry] = None
        self.moves += 1

    def _check(self) -> None:
        """Asserts the whole invariant. For tests. Cost: everything that waits."""
        for depth, level in enumerate(self.levels):
            assert level.depth == depth and level.span_ticks == self.wheel_size**depth
            assert level.reach_ticks == level.span_ticks * self.wheel_size
            assert level is self._coarse_first[-1 - depth]
            for number, bucket in level.items():
                assert bucket.wheel is self and bucket.level is level and bucket.start_tick == number * level.span_ticks
        queued = {id(bucket) for _, _, bucket in self._heap}
        current = set() if self._current is None else {id(self._current)}
        detached = current - {id(bucket) for bucket in self.buckets()}
        assert len(queued) == len(self._heap) and not queued & current
        assert {id(bucket) for bucket in self.buckets()} == (queued | current) - detached
        assert all(item[:2] == (item[2].start_tick, -item[2].level.depth) for item in self._heap)
        assert all(self._heap[(i - 1) // 2] <= item for i, item in enumerate(self._heap) if i)
        open_ids = queued | (current - detached)
        assert all(id(bucket) in open_ids for bucket in self.recent.values())
        holders = [*self.buckets(), self.never]
        if self._current is not None and detached:
            holders.append(self._current)
        for bucket in holders:
            for entry in bucket:
                assert entry._wheel_bucket is bucket
                # Never in a bucket that begins too late; in one that begins too early if overdue or postponed.
                assert bucket is self.never or bucket.start_tick <= max(self.clock.due_tick(entry._wheel_when), self.tick_now)
        assert len(self) == sum(map(len, holders))
