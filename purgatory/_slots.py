"""What a timing wheel is made of: levels, their slots, the buckets of a slot, and the entries that wait in them.

A level is a dictionary of the slots that exist, numbered for ever (`due_tick // span_ticks`), not a ring as in Kafka: a
slot that is overdue after a stall and the one that would take its place are simply two. The entries of a slot lie in
buckets, dictionaries of bounded size, one behind the other: one that grows for ever is copied as a whole now and then, which
takes 100 ms where a million wait.
"""

from collections.abc import Iterator
from itertools import islice
from math import inf
from typing import Any, Final

FULL: Final = 32_768
"""A bucket of so many entries takes no more; to make it larger would copy them all."""

SNAPSHOT: Final = 8192
"""A large bucket is walked in snapshots of so many entries, as walking restarts behind what has left at its front."""

_WALKED: Final[Iterator["Entry"]] = iter(())


class Entry:
    """What waits in a wheel. `_wheel_when` is its deadline in seconds, `_wheel_bucket` the bucket that holds it, if one does.

    `_wheel_when` may be moved to later in place: the entry is looked at when its slot is due, and put back.
    """

    __slots__ = ("_wheel_bucket", "_wheel_when")

    _wheel_bucket: "Bucket | None"
    _wheel_when: Any  # float; for a subclass also None, while it waits in no wheel

    def _wheel_due(self) -> None:
        """Called once when the deadline has come; the entry is out of the wheel."""
        raise TypeError(f"{type(self).__name__} has nothing to do when it expires")


class Bucket(dict[Entry, None]):
    """Entries of one slot, in the order in which they came.

    A dictionary, because removal from anywhere is then one operation in C that keeps the order and leaves no trace.
    """

    __slots__ = ("_walk", "after", "until", "wheel")

    def __init__(self, wheel: Any, after: float = inf, until: float = -inf) -> None:
        self.wheel = wheel
        """The `Wheel`, which is to be told when the last entry leaves."""
        self.after = after
        """What is due later than this, ..."""
        self.until = until
        """... and not later than this, in seconds, has its place here. By default nothing has."""
        self._walk = _WALKED

    def join(self, entry: Entry, when: float) -> None:
        """Lets `entry`, which is in no bucket, wait here until `when`."""
        entry._wheel_when = when
        entry._wheel_bucket = self
        self[entry] = None

    def leave(self, entry: Entry) -> None:
        """Takes out `entry`, which is here; the wheel is told if it was the last one."""
        del self[entry]
        entry._wheel_bucket = None
        if not self and not self.wheel.resting:
            self.wheel.emptied()

    def hand_over(self, entry: Entry, target: "Bucket") -> None:
        """Moves `entry`, which is here, to another bucket of the wheel."""
        del self[entry]
        entry._wheel_bucket = target
        target[entry] = None

    def batch(self, most: int) -> list[Entry]:
        """The next entries from the front, at least one unless the bucket is empty; some may have left meanwhile.

        Those that are still here when all have been returned are returned again.
        """
        if len(self) <= most:  # the whole of it: nothing to keep
            self._walk = _WALKED
            return list(self)
        batch = list(islice(self._walk, most))
        if not batch:
            self._walk = iter(list(islice(self, SNAPSHOT)))
            batch = list(islice(self._walk, most))
        return batch

    def rewind(self) -> None:
        """Has `batch` begin again at the front."""
        self._walk = _WALKED


class Slot:
    """The stretch of time `[start_tick, start_tick + level.span_ticks)`, and the entries that are due in it."""

    __slots__ = ("added", "armed_for", "handle", "level", "moved", "number", "start_tick", "turn", "wake_tick")

    def __init__(self, level: "Level", number: int, turn: int) -> None:
        self.level = level
        self.number = number
        self.start_tick = start_tick = number * level.span_ticks
        self.wake_tick = start_tick if level.depth == 0 else start_tick - level.span_ticks
        """When there is something to do: its entries are due, or are to be moved."""
        self.turn = turn
        self.moved: list[Bucket] = []
        """What came from a wider slot, ..."""
        self.added: list[Bucket] = []
        """... and what came since that was sealed."""
        self.handle: Any = None
        """For the owner: what will wake it at `wake_tick`, ..."""
        self.armed_for = 0.0
        """... and when."""

    def __len__(self) -> int:
        return sum(map(len, self.moved)) + sum(map(len, self.added))

    def __bool__(self) -> bool:
        return any(self.moved) or any(self.added)

    def __repr__(self) -> str:
        return f"<Slot [{self.start_tick}, {self.start_tick + self.level.span_ticks}) of {len(self)}>"

    def first(self) -> Bucket | None:
        """The bucket whose entries go first; `None` if the slot is empty. Lets go of the empty ones before it."""
        for buckets in (self.moved, self.added):
            while buckets:
                if buckets[0]:
                    return buckets[0]
                del buckets[0]
        return None


class Level(dict[int, Slot]):
    """The slots of one width that take entries, by `due_tick // span_ticks`."""

    __slots__ = ("depth", "end_tick", "reach_ticks", "span_ticks")

    def __init__(self, depth: int, span_ticks: int, wheel_size: int, tick_now: int) -> None:
        self.depth = depth
        self.span_ticks = span_ticks
        self.reach_ticks = span_ticks * wheel_size
        """As wide as a slot of the next level."""
        self.advance(tick_now)

    def advance(self, tick_now: int) -> None:
        """Reaches further, to the end of the next level's slot after the one that has begun."""
        self.end_tick = (tick_now // self.reach_ticks + 2) * self.reach_ticks
