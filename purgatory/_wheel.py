"""The hierarchical timing wheel: which entries are due, in constant time for each, with no loop and no thread.

Time is cut into slots. A slot of the finest level holds one tick; a slot of the next level is as wide as `wheel_size` of
those, and so on. The finest level reaches to the end of the wide slot after the one that has begun, the next one to the
end of the still wider slot after the one that has begun, and so on: at any moment each tick has one slot in which what is
due then has to wait. With a tick of 1 and a `wheel_size` of 10, at tick 0:

    due 9    -> level 0, slot 9
    due 88   -> level 1, slot [80, 90)      from 70 on into level 0, slot 88
    due 222  -> level 2, slot [200, 300)    from 100 on into level 1, slot [220, 230); from 210 on into level 0, slot 222
    due 521  -> level 2, slot [500, 600)    from 400 on into level 1, slot [520, 530); from 510 on into level 0, slot 521

So the entries of a wide slot *cascade* while the slot before it passes: they have as long as it is wide. A turn of work
(`begin_turn`, `due`) handles a portion of entries at most. What is due goes first, and moving gets what is left: a quarter
of a portion in each turn, and all of it once half of the time has passed. Only if a slot begins with entries left to move,
because the owner was held up for longer than that, does moving come first: for `PATIENCE` turns with all of the portion, so
that few are caught up with in order, and from then on with half of it, so that neither starves.

Entries of one tick fire in the order in which they came. A wide slot takes no more entries once it is being moved; what
comes then goes to the narrower slot at once. So a slot keeps apart what was moved to it and what was added to it: the
former is older and goes first. Slots are moved one after the other, by their beginning and the wider first. Only what is
left to move when its tick has come already fires behind others.

Time is an argument. A subclass is told when a slot opens or closes, and sees to being woken in time.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (scheme 7); Kafka, `util/timer/TimingWheel.java`,
where the heap of buckets is a `DelayQueue`.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from operator import index
from typing import Final

from purgatory._clock import MAX_TICK, TickClock
from purgatory._slots import FULL, SNAPSHOT, Bucket, Entry, Level, Slot

__all__ = ["DEFAULT_WHEEL_SIZE", "SNAPSHOT", "Bucket", "Entry", "Wheel"]

PATIENCE: Final = 8
"""For so many turns after a stall what is due waits for what has to be moved."""

DEFAULT_WHEEL_SIZE: Final = 512
"""With a tick of 1 ms, a slot of the second level is half a second wide, of the third 262 s, of the fourth 37 hours."""


class Wheel:
    """A hierarchical timing wheel of `Entry` objects.

    Args:
        tick: the length of a tick in seconds, finite and at least a nanosecond.
        wheel_size: how many slots of a level are as wide as one of the next, at least 2.

    Raises:
        ValueError, TypeError: an argument is out of its bounds, or `wheel_size` is not an integer.
    """

    __slots__ = (
        "_ahead",
        "_current",
        "_draining",
        "_due",
        "_has_caught_up",
        "_is_whole",
        "_moving",
        "_next_tick",
        "_open",
        "_patience",
        "_portion",
        "_whole_portion",
        "after",
        "clock",
        "last",
        "levels",
        "moves",
        "never",
        "rate",
        "recent",
        "resting",
        "tick_now",
        "turn",
        "until",
        "wheel_size",
    )

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        if index(wheel_size) < 2:
            raise ValueError(f"wheel_size must be at least 2, not {wheel_size!r}")
        self.clock = TickClock(tick)
        self.rate = self.clock.rate
        self._is_whole = self.clock.is_whole
        self.wheel_size = wheel_size
        self.tick_now = -MAX_TICK
        """The last tick that has begun, as far as the wheel has been told."""
        self.resting = False
        """Whether the owner knows that a bucket was emptied and has yet to look whether anything waits."""
        self._next_tick = -inf
        """When the tick after it begins, in seconds."""
        self.turn = 0
        """How many turns of work have begun."""
        self._portion = self._whole_portion = 0
        """How many entries may still be returned or moved in this turn, and how many when it began."""
        self._has_caught_up = False
        """Whether what was overdue has been moved in this turn, or so much of it as may be."""
        self._patience = PATIENCE
        """In how many more turns what is due waits for what is overdue to be moved."""
        self.moves = 0
        """How often an entry was moved from one slot to another."""
        self.levels = [Level(0, 1, wheel_size, self.tick_now)]
        self.never = Bucket(self)
        """Entries too far away to fire; no slot lists it."""
        self.recent: dict[int, Bucket] = {}
        """Due tick -> bucket, for what was asked since `tick_now` last changed: most additions need no more than this."""
        self.after, self.until, self.last = inf, -inf, self.never
        """The bucket that was asked for last, which also takes what is due between `after` and `until`: two comparisons, and no
        look-up, find it again. Known for as long as `recent` knows it. What is due at a bound exactly is looked up."""
        self._due: list[tuple[int, Slot]] = []
        """The slots of the finest level, a heap by start."""
        self._draining: Slot | None = None
        """The due slot that is being emptied; it is in no level any more, ..."""
        self._current: Bucket | None = None
        """... and its bucket whose entries were returned last."""
        self._ahead: list[tuple[int, int, Slot]] = []
        """The slots of the other levels, a heap by when they are to be moved and level."""
        self._moving: list[tuple[int, int, Slot]] = []
        """Those whose time to be moved has come, a heap by start, the wider first; they are in no level any more."""
        self._open: dict[Slot, None] = {}
        """Every slot that may hold an entry; where it was empty when `is_empty` looked, `recent` does not know it."""

    def __len__(self) -> int:
        """How many entries wait. Cost: the number of slots."""
        return len(self.never) + sum(map(len, self.slots()))

    def __contains__(self, slot: Slot) -> bool:
        """Whether `slot` takes entries."""
        return slot.level.get(slot.number) is slot

    def slots(self) -> Iterator[Slot]:
        """Every slot, empty ones included."""
        yield from (slot for level in self.levels for slot in level.values())
        yield from (slot for _, _, slot in self._moving)
        if self._draining is not None:
            yield self._draining

    # -- for the owner to be told

    def opened(self, slot: Slot) -> None:
        """`slot` exists now, and `due` is to be called when its `wake_tick` has come."""

    def closed(self, slot: Slot) -> None:
        """`slot` does not need to be waited for any more."""

    def emptied(self) -> None:
        """The last entry of some bucket was removed, and the wheel is not `resting`.

        Its slot stays open: the next entry will often want it.
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
        """The bucket in which an entry due at `when` is to wait.

        Raises:
            ValueError: `when` is NaN.
        """
        due_tick = self.clock.due_tick(when)
        if due_tick == MAX_TICK:
            return self.never
        if now >= self._next_tick:
            self._move_to(now)
        slot = self._slot(due_tick if due_tick > self.tick_now else self.tick_now, self.turn)
        self.recent[due_tick] = self.last = bucket = self._last(slot.added)
        self.after, self.until = (due_tick - 1) / self.rate, due_tick / self.rate
        if not self._is_whole:
            self.until = self.after  # the division may be off, so nothing is between them
        return bucket

    def _forget_recent(self) -> None:
        """Has every deadline looked up anew."""
        self.recent.clear()
        self.after, self.last = inf, self.never

    def _slot(self, due_tick: int, turn: int) -> Slot:
        """The slot of `due_tick`, new if need be, and then one of `turn`."""
        level = self.levels[0]
        for level in self.levels:
            if due_tick < level.end_tick:
                break
        while due_tick >= level.end_tick:
            level = Level(level.depth + 1, level.reach_ticks, self.wheel_size, self.tick_now)
            self.levels.append(level)
        number = due_tick // level.span_ticks
        slot = level.get(number)
        if slot is None:
            slot = level[number] = Slot(level, number, turn)
            if level.depth == 0:
                heappush(self._due, (slot.start_tick, slot))
            else:
                heappush(self._ahead, (slot.wake_tick, level.depth, slot))
            self.opened(slot)
        self._open[slot] = None
        return slot

    def _last(self, buckets: list[Bucket]) -> Bucket:
        """The last of the buckets, which takes entries."""
        if not buckets or len(buckets[-1]) >= FULL:
            buckets.append(Bucket(self))
        return buckets[-1]

    # -- what is due

    def begin_turn(self, portion: int) -> None:
        """Allows `due` to return or move `portion` entries. Slots that open from here on wait for the next turn."""
        self.turn += 1
        self._portion = self._whole_portion = portion
        self._has_caught_up = False

    def due(self, now: float) -> list[Entry]:
        """The next entries whose tick has come, in order of tick and arrival; none if none is due, or the turn is over.

        They stay in their bucket, so that one of them can still remove another: the caller skips those that are not in
        `draining()` any more when their moment comes, and removes, or puts back, each of the others.
        """
        if now >= self._next_tick:
            self._move_to(now)
        if not self._moving or self._moving[0][0] > self.tick_now:
            self._patience = PATIENCE
        elif not self._has_caught_up:
            self._move_some(self._portion if self._patience > 0 else (self._whole_portion + 1) // 2, self.tick_now)
            self._patience -= 1
            self._has_caught_up = True
        if self._portion > 0:
            bucket = self._current = self._current or self._next_due()
            if bucket is not None:
                batch = bucket.batch(self._portion)
                self._portion -= len(batch)
                return batch
        if self._moving and self._portion > 0:
            _, _, slot = self._moving[0]
            is_hurried = self.tick_now >= slot.start_tick - slot.level.span_ticks // 2
            self._move_some(self._portion if is_hurried else min(self._portion, (self._whole_portion + 3) // 4), MAX_TICK)
        return []

    def draining(self) -> Bucket | None:
        """The bucket whose entries `due` returned last."""
        return self._current

    def put_back(self, entry: Entry) -> None:
        """Moves an entry that `due` returned to a later tick, because its `_wheel_when` has not come after all."""
        due_tick = self.clock.due_tick(entry._wheel_when)
        if due_tick == MAX_TICK:
            self._move(entry, self.never)
        else:
            self._move(entry, self._last(self._slot(max(due_tick, self.tick_now + 1), self.turn).added))

    def rewind(self) -> None:
        """Has `due` return again what it returned last and the caller did not come to."""
        if self._current is not None:
            self._current.rewind()

    def is_behind(self) -> bool:
        """Whether work is left whose time has come."""
        return self._draining is not None or bool(self._moving) or bool(self._due and self._due[0][0] <= self.tick_now)

    def is_empty(self) -> bool:
        """Whether nothing waits that will ever be due. Cost: O(1), as each slot that was found empty is paid for once."""
        slots = self._open
        while slots:
            slot, _ = slots.popitem()
            if slot:
                slots[slot] = None
                return False
            slot.moved.clear()
            slot.added.clear()
            self._forget_recent()
        return True

    def clear(self) -> None:
        """Closes every slot of an empty wheel."""
        for slot in self.slots():
            self.closed(slot)
        for level in self.levels:
            level.clear()
        self._forget_recent()
        for some in (self._due, self._ahead, self._moving, self._open):
            some.clear()
        self._draining = self._current = None

    def forget_time(self) -> None:
        """Begins anew with a clock that may have another zero, when it is empty."""
        self.tick_now, self._next_tick = -MAX_TICK, -inf
        for level in self.levels:
            level.advance(self.tick_now)

    def _move_to(self, now: float) -> None:
        tick_now = self.clock.tick_at(now)
        if tick_now <= self.tick_now:
            return
        self.tick_now = tick_now
        self._next_tick = self.clock.instant(tick_now + 1)
        self._forget_recent()
        for level in self.levels:
            if tick_now < level.end_tick - level.reach_ticks:
                break
            level.advance(tick_now)
        while self._ahead and self._ahead[0][0] <= tick_now:
            _, depth, slot = heappop(self._ahead)
            del slot.level[slot.number]
            if slot:
                heappush(self._moving, (slot.start_tick, -depth, slot))
            else:
                self._close(slot)

    def _next_due(self) -> Bucket | None:
        """The first bucket of what is due."""
        while True:
            if self._draining is not None:
                bucket = self._draining.first()
                if bucket is not None:
                    return bucket
                self._open.pop(self._draining, None)
                self._draining = None
            heap = self._due
            if self._portion <= 0 or not heap or heap[0][0] > self.tick_now or heap[0][1].turn == self.turn:
                return None
            # Out of its level at once: what is added for this tick from now on gets a slot, and a turn, of its own.
            self._draining = slot = heappop(heap)[1]
            del slot.level[slot.number]
            self._forget_recent()
            self.closed(slot)
            bucket = slot.first()
            if bucket is not None:
                return bucket
            self._portion -= 1  # thousands of empty ones, after a stall, are a burst as well

    def _move_some(self, most: int, last_tick: int) -> None:
        """Moves so many entries of the wide slots that begin until `last_tick` to narrower ones."""
        left = most
        while left > 0 and self._moving and self._moving[0][0] <= last_tick:
            _, _, slot = self._moving[0]
            bucket = slot.first()
            if bucket is None:
                heappop(self._moving)
                self._close(slot)
                continue
            batch = bucket.batch(left)
            left -= len(batch)
            for entry in batch:
                if entry._wheel_bucket is bucket:
                    self._move_down(entry, slot.level.depth)
        self._portion -= most - left

    def _move_down(self, entry: Entry, depth: int) -> None:
        due_tick = self.clock.due_tick(entry._wheel_when)
        if due_tick == MAX_TICK:
            self._move(entry, self.never)
        else:
            slot = self._slot(due_tick, self.turn - 1)
            # What was postponed may go further up again, where it is new.
            self._move(entry, self._last(slot.moved if slot.level.depth < depth else slot.added))

    def _move(self, entry: Entry, target: Bucket) -> None:
        bucket = entry._wheel_bucket
        assert bucket is not None
        del bucket[entry]
        entry._wheel_bucket = target
        target[entry] = None
        self.moves += 1

    def _close(self, slot: Slot) -> None:
        self._open.pop(slot, None)
        self.closed(slot)

    def _check(self) -> None:
        """Asserts the whole invariant. For tests. Cost: everything that waits."""
        for depth, level in enumerate(self.levels):
            assert level.depth == depth and level.span_ticks == self.wheel_size**depth
            assert level.reach_ticks == level.span_ticks * self.wheel_size
            assert level.end_tick == (self.tick_now // level.reach_ticks + 2) * level.reach_ticks
            for number, slot in level.items():
                assert slot.level is level and slot.number == number
                assert depth == 0 or slot.start_tick >= self.levels[depth - 1].end_tick
        taking = [slot for level in self.levels for slot in level.values()]
        assert {*taking} == {slot for _, slot in self._due} | {slot for _, _, slot in self._ahead}
        assert len(taking) == len(self._due) + len(self._ahead)
        assert all(start_tick == slot.start_tick for start_tick, slot in self._due)
        assert all(item[:2] == (item[2].wake_tick, item[2].level.depth) for item in self._ahead)
        assert all(item[:2] == (item[2].start_tick, -item[2].level.depth) for item in self._moving)
        heaps: list[list[tuple[int, ...]]] = [[item[:-1] for item in heap] for heap in (self._due, self._ahead, self._moving)]
        assert all(heap[(i - 1) // 2] <= item for heap in heaps for i, item in enumerate(heap) if i)
        slots = [*self.slots()]
        assert {*self._open} <= {*slots} and all(slot in self._open for slot in slots if slot)
        known = [bucket for slot in taking for bucket in slot.added if slot in self._open]
        assert all(any(bucket is each for each in known) for bucket in self.recent.values())
        assert not self.after < self.until or self.recent[round(self.until * self.rate)] is self.last
        for slot in slots:
            for bucket in slot.moved + slot.added:
                assert bucket.wheel is self
                for entry in bucket:
                    assert entry._wheel_bucket is bucket
                    # Never in a slot that begins too late; in one that begins too early if overdue or postponed.
                    assert slot.start_tick <= max(self.clock.due_tick(entry._wheel_when), self.tick_now)
        assert all(entry._wheel_bucket is self.never for entry in self.never)
