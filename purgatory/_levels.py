"""The levels of a timing wheel: in which bucket each deadline has to wait.

Time is cut into slots. A slot of the finest level holds one tick; a slot of the next level is as wide as `wheel_size` of
those, and so on. The finest level reaches to the end of the wide slot after the one that has begun, the next one to the
end of the still wider slot after the one that has begun, and so on: at any moment each tick has one slot in which what is
due then has to wait. With a tick of 1 and a `wheel_size` of 10, at tick 0:

    due 9    -> level 0, slot 9
    due 88   -> level 1, slot [80, 90)
    due 222  -> level 2, slot [200, 300)
    due 521  -> level 2, slot [500, 600)

A bucket knows its bounds in seconds. So a bucket that is at hand is checked by two comparisons, which are exact; how it was
found may be a guess, and need neither round nor reckon in ticks. Most additions find theirs as the one that was asked for
last; most of the others by one multiplication and one look-up in one of the two finest levels.

Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (scheme 7); Kafka, `util/timer/TimingWheel.java`,
where the heap of buckets is a `DelayQueue`.
"""

from heapq import heappop, heappush
from math import ceil, floor, inf
from operator import index
from typing import Final

from purgatory._clock import MAX_TICK, TickClock
from purgatory._slots import FULL, Bucket, Level, Slot

DEFAULT_WHEEL_SIZE: Final = 512
"""With a tick of 1 ms, a slot of the second level is half a second wide, of the third 262 s, of the fourth 37 hours."""

LARGE: Final = 2048
"""An empty bucket of more bytes is not kept: a dictionary keeps the size that it has once had."""


class Levels:
    """The slots that take entries, and who is to be woken for them.

    Args:
        tick: the length of a tick in seconds, finite and at least a nanosecond.
        wheel_size: how many slots of a level are as wide as one of the next, at least 2.

    Raises:
        ValueError, TypeError: an argument is out of its bounds, or `wheel_size` is not an integer.
    """

    __slots__ = (
        "_ahead",
        "_due",
        "_far",
        "_far_rate",
        "_near",
        "_near_until",
        "_next_tick",
        "_open",
        "clock",
        "last",
        "levels",
        "never",
        "rate",
        "tick_now",
        "turn",
        "wheel_size",
    )

    def __init__(self, tick: float, wheel_size: int) -> None:
        if index(wheel_size) < 2:
            raise ValueError(f"wheel_size must be at least 2, not {wheel_size!r}")
        self.clock = TickClock(tick)
        self.rate = self.clock.rate
        self.wheel_size = wheel_size
        self.tick_now = -MAX_TICK
        """The last tick that has begun, as far as the wheel has been told."""
        self._next_tick = -inf
        """When the tick after it begins, in seconds."""
        self.turn = 0
        """How many turns of work have begun."""
        self.levels = [Level(0, 1, wheel_size, self.tick_now), Level(1, wheel_size, wheel_size, self.tick_now)]
        self._near, self._far = self.levels
        self._far_rate = self.rate / wheel_size
        """Slots of the second level in a second."""
        self._near_until = self._end_of_near()
        """What is due by then, in seconds, has its place in the finest level."""
        self.never = Bucket(self)
        """Entries too far away to fire; no slot lists it."""
        self.last = self.never
        """The bucket that was asked for last, if it takes what is due within its bounds; else one that takes nothing."""
        self._due: list[tuple[int, Slot]] = []
        """The slots of the finest level, a heap by start."""
        self._ahead: list[tuple[int, int, Slot]] = []
        """The slots of the other levels, a heap by when they are to be moved and level."""
        self._open: dict[Slot, None] = {}
        """Every slot that may hold an entry, that of `last` among them."""

    def __contains__(self, slot: Slot) -> bool:
        """Whether `slot` takes entries."""
        return slot.level.get(slot.number) is slot

    # -- for the owner to be told

    def opened(self, slot: Slot) -> None:
        """`slot` has no `handle`, and an entry is about to join it: work is to be done when its `wake_tick` has come."""

    def closed(self, slot: Slot) -> None:
        """`slot` does not need to be waited for any more."""

    # -- the bucket of a deadline

    def bucket_for(self, when: float, now: float) -> Bucket:
        """The bucket in which an entry due at `when` is to wait. Cost: O(1), with one step for each level.

        Raises:
            ValueError: `when` is NaN.
        """
        if now >= self._next_tick:
            self._move_to(now)
        try:
            if when <= self._near_until:
                slot = self._near.get(ceil(when * self.rate))
            else:
                slot = self._far.get(floor(when * self._far_rate))
        except (ValueError, OverflowError):  # NaN and infinity
            slot = None
        if slot is not None and (buckets := slot.added):
            bucket = buckets[-1]
            if bucket.after < when <= bucket.until and len(bucket) < FULL:
                if not bucket:
                    # `_await`, written out.
                    self._open[slot] = None
                    if slot.handle is None:
                        self.opened(slot)
                self.last = bucket
                return bucket
        due_tick = self.clock.due_tick(when)
        if due_tick == MAX_TICK:
            return self.never
        slot = self._slot(max(due_tick, self.tick_now), self.turn)
        self.last = bucket = self._taking(slot, slot.added)
        return bucket

    def _taking(self, slot: Slot, buckets: list[Bucket]) -> Bucket:
        """The last of these buckets of `slot`, which takes entries."""
        if not buckets or len(buckets[-1]) >= FULL:
            instant = self.clock.instant
            buckets.append(Bucket(self, instant(slot.start_tick - 1), instant(slot.start_tick + slot.level.span_ticks - 1)))
        return buckets[-1]

    def _slot(self, due_tick: int, turn: int) -> Slot:
        """The slot of `due_tick`, new if need be, and then one of `turn`."""
        level = self._near
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
        self._await(slot)
        return slot

    def _await(self, slot: Slot) -> None:
        """An entry is about to join `slot`, which may have been empty."""
        self._open[slot] = None
        if slot.handle is None:
            self.opened(slot)

    def _forget_last(self) -> None:
        """The bucket that was asked for last may not take entries any more."""
        self.last = self.never

    # -- what has become of the slots

    def _let_go(self, slot: Slot) -> None:
        """`slot`, which is in neither heap any more, takes no more entries; forgets it if it is empty."""
        del slot.level[slot.number]
        self._forget_last()
        if not slot:
            self._open.pop(slot, None)
            self.closed(slot)

    def is_empty(self) -> bool:
        """Whether nothing waits that will ever be due. Cost: O(1), as each slot that was found empty is paid for once."""
        slots = self._open
        while slots:
            slot, _ = slots.popitem()
            if slot:
                slots[slot] = None
                return False
            slot.moved.clear()
            if slot.added and (len(slot.added) > 1 or slot.added[0].__sizeof__() > LARGE):
                slot.added.clear()
            self._forget_last()
        return True

    def clear(self) -> None:
        """Lets go of every slot of an empty wheel."""
        for level in self.levels:
            level.clear()
        self._forget_last()
        self._due.clear()
        self._ahead.clear()
        self._open.clear()

    # -- time

    def forget_time(self) -> None:
        """Begins anew with a clock that may have another zero, when it is empty."""
        self.tick_now, self._next_tick = -MAX_TICK, -inf
        for level in self.levels:
            level.advance(self.tick_now)
        self._near_until = self._end_of_near()

    def _move_to(self, now: float) -> None:
        tick_now = self.clock.tick_at(now)
        if tick_now <= self.tick_now:
            return
        self.tick_now = tick_now
        self._next_tick = self.clock.instant(tick_now + 1)
        if tick_now >= self._near.end_tick - self._near.reach_ticks:
            for level in self.levels:
                if tick_now < level.end_tick - level.reach_ticks:
                    break
                level.advance(tick_now)
            self._near_until = self._end_of_near()
        while self._ahead and self._ahead[0][0] <= tick_now:
            slot = heappop(self._ahead)[2]
            self._let_go(slot)
            if slot:
                self._has_begun(slot)

    def _has_begun(self, slot: Slot) -> None:
        """The time has come in which the entries of a wide slot are to be moved."""
        raise NotImplementedError

    def _end_of_near(self) -> float:
        return self.clock.instant(self._near.end_tick - 1)
