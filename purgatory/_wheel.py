"""The hierarchical timing wheel: which entries are due, in constant time for each, with no loop and no thread.

`_levels` tells in which slot an entry waits. Its slot may be wide, and then has to be moved into narrower ones in time; with
a tick of 1 and a `wheel_size` of 10:

    due 88   -> slot [80, 90)      from 70 on into slot 88
    due 222  -> slot [200, 300)    from 100 on into slot [220, 230); from 210 on into slot 222
    due 521  -> slot [500, 600)    from 400 on into slot [520, 530); from 510 on into slot 521

So the entries of a wide slot *cascade* while the slot before it passes: they have as long as it is wide. A turn of work
(`begin_turn`, `due`) handles a portion of entries at most. What is due goes first, and moving gets what is left: a quarter
of a portion in each turn, and all of it once half of the time has passed. Only if a slot begins with entries left to move,
because the owner was held up for longer than that, does moving come first: for `PATIENCE` turns with all of the portion, so
that few are caught up with in order, and from then on with half of it, so that neither starves.

Entries of one tick fire in the order in which they came. A wide slot takes no more entries once it is being moved; what
comes then goes to the narrower slot at once. So a slot keeps apart what was moved to it and what was added to it: the
former is older and goes first. Slots are moved one after the other, by their beginning and the wider first; if a stall finds
a wide slot half moved into a narrower one, the half that has arrived there is older and goes before. Only what is left to
move when its tick has come already fires behind others.

Time is an argument. A subclass is told for which slots it has to be woken.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from purgatory._clock import MAX_TICK
from purgatory._levels import DEFAULT_WHEEL_SIZE, Levels
from purgatory._slots import SNAPSHOT, Bucket, Entry, Level, Slot

__all__ = ["DEFAULT_WHEEL_SIZE", "SNAPSHOT", "Bucket", "Entry", "Wheel"]

PATIENCE: Final = 8
"""For so many turns after a stall what is due waits for what has to be moved."""

OLDER: Final = 1000
"""What is to be moved before the wide slot that it has come from; no wheel has so many levels."""


class Wheel(Levels):
    """A hierarchical timing wheel of `Entry` objects. Arguments and errors: see `Levels`."""

    __slots__ = (
        "_begun",
        "_current",
        "_draining",
        "_has_caught_up",
        "_moving",
        "_patience",
        "_portion",
        "_whole_portion",
        "moves",
        "resting",
    )

    def __init__(self, tick: float, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        super().__init__(tick, wheel_size)
        self.resting = False
        """Whether the owner knows that a bucket was emptied and has yet to look whether anything waits."""
        self._portion = self._whole_portion = 0
        """How many entries may still be returned or moved in this turn, and how many when it began."""
        self._has_caught_up = False
        """Whether what was overdue has been moved in this turn, or so much of it as may be."""
        self._patience = PATIENCE
        """In how many more turns what is due waits for what is overdue to be moved."""
        self.moves = 0
        """How often an entry was moved from one slot to another."""
        self._draining: Slot | None = None
        """The due slot that is being emptied; it is in no level any more, ..."""
        self._current: Bucket | None = None
        """... and its bucket whose entries were returned last."""
        self._moving: list[tuple[int, int, Slot]] = []
        """Wide slots whose time to be moved has come, a heap by start, the wider first; they are in no level any more."""
        self._begun: dict[tuple[int, int], Slot] = {}
        """The same, by depth and number."""

    def __len__(self) -> int:
        """How many entries wait. Cost: the number of slots."""
        return len(self.never) + sum(map(len, self.slots()))

    def slots(self) -> Iterator[Slot]:
        """Every slot, empty ones included."""
        yield from (slot for level in self.levels for slot in level.values())
        yield from (slot for _, _, slot in self._moving)
        if self._draining is not None:
            yield self._draining

    # -- for the owner to be told

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
        self.bucket_for(when, now).join(entry, when)

    def remove(self, entry: Entry) -> None:
        """Takes `entry` out, wherever it waits. Cost: O(1)."""
        bucket = entry._wheel_bucket
        assert bucket is not None
        bucket.leave(entry)

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
            slot = self._slot(max(due_tick, self.tick_now + 1), self.turn)
            self._move(entry, self._taking(slot, slot.added))

    def rewind(self) -> None:
        """Has `due` return again what it returned last and the caller did not come to."""
        if self._current is not None:
            self._current.rewind()

    def is_behind(self) -> bool:
        """Whether work is left whose time has come."""
        return self._draining is not None or bool(self._moving) or bool(self._due and self._due[0][0] <= self.tick_now)

    def clear(self) -> None:
        """Lets go of every slot of an empty wheel."""
        for slot in self.slots():
            self.closed(slot)
        super().clear()
        self._moving.clear()
        self._begun.clear()
        self._draining = self._current = None

    def _has_begun(self, slot: Slot) -> None:
        depth = slot.level.depth
        self._begun[depth, slot.number] = slot
        if slot.moved:
            outer = next(filter(None, (self._begun_around(slot, level) for level in self.levels[:depth:-1])), None)
            if outer is not None:
                # It has come from there, before what is still there; the narrower, the earlier.
                older = Slot(slot.level, slot.number, slot.turn)
                older.moved, slot.moved = slot.moved, older.moved
                self._open[older] = None
                heappush(self._moving, (outer.start_tick, depth - OLDER, older))
        heappush(self._moving, (slot.start_tick, -depth, slot))

    def _begun_around(self, slot: Slot, level: Level) -> Slot | None:
        """The slot of a wider level that `slot` is a part of, if it is being moved."""
        return self._begun.get((level.depth, slot.start_tick // level.span_ticks))

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
            self._forget_last()
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
                self._open.pop(slot, None)
                self.closed(slot)
                if self._begun.get((slot.level.depth, slot.number)) is slot:
                    del self._begun[slot.level.depth, slot.number]
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
            self._move(entry, self._taking(slot, slot.moved if slot.level.depth < depth else slot.added))

    def _move(self, entry: Entry, target: Bucket) -> None:
        bucket = entry._wheel_bucket
        assert bucket is not None
        bucket.hand_over(entry, target)
        self.moves += 1

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
        for start_tick, rank, slot in self._moving:
            if rank < -len(self.levels):
                assert rank == slot.level.depth - OLDER and start_tick <= slot.start_tick and not slot.added
            else:
                assert (start_tick, rank) == (slot.start_tick, -slot.level.depth)
                assert self._begun[slot.level.depth, slot.number] is slot
        heaps: list[list[tuple[int, ...]]] = [[item[:-1] for item in heap] for heap in (self._due, self._ahead, self._moving)]
        assert all(heap[(i - 1) // 2] <= item for heap in heaps for i, item in enumerate(heap) if i)
        slots = [*self.slots()]
        assert {*self._open} <= {*slots} and all(slot in self._open for slot in slots if slot)
        last = [slot.added[-1] for slot in taking if slot in self._open and slot.added] + [self.never]
        assert any(bucket is self.last for bucket in last)
        assert self._near_until == self.clock.instant(self.levels[0].end_tick - 1)
        for slot in slots:
            for bucket in slot.moved + slot.added:
                assert bucket.wheel is self
                for entry in bucket:
                    assert entry._wheel_bucket is bucket
                    # Never in a slot that begins too late; in one that begins too early if overdue or postponed.
                    assert slot.start_tick <= max(self.clock.due_tick(entry._wheel_when), self.tick_now)
        assert all(entry._wheel_bucket is self.never for entry in self.never)
