"""What a shard has yet to do, by instant: a timing wheel whose buckets lie in a store, in chunks.

Events are tuples that begin with their instant, in microseconds. They lie in *slices* of time, wider ones the farther they
are ahead, and a slice whose time has come is taken whole; of what is in it and not yet due, each goes to a narrower slice.

    it is 10:00:00, and events come for     10:00:07     slices of 1 s      as the wheel's first level
                                            10:03:20     slices of 64 s
                                            14:00:00     slices of 4096 s   and so on

So there are never many slices, however far ahead deadlines lie. Each call of `save` adds a chunk to a slice and reads none,
so that putting off costs the store one write for each slice in use, and nothing for what waits there already.
"""

from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

Event = tuple[Any, ...]
Slice = tuple[int, int]
"""How wide it is, in microseconds, and its number: it begins at their product."""

NARROWEST: Final = 1_000_000
REACH: Final = 64
"""How many slices of each width are in use at most."""
LONGEST_CHUNK: Final = 10_000

K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")


class Store(Protocol[K_contra, V]):
    """What a shard remembers. A value that has changed is to be set again. A `dict` is one."""

    def get(self, key: K_contra, /) -> V | None: ...
    def __setitem__(self, key: K_contra, value: V, /) -> None: ...
    def __delitem__(self, key: K_contra, /) -> None: ...


class Agenda:
    """Events, and the slices in which they lie.

    Args:
        chunks: by width, number and serial number.
        open_slices: of each slice, how many chunks there are, and the earliest instant in them.
    """

    __slots__ = ("_chunks", "_new", "open_slices")

    def __init__(
        self, chunks: Store[tuple[int, int, int], list[Event]], open_slices: dict[Slice, tuple[int, int]] | None = None
    ) -> None:
        self._chunks = chunks
        self.open_slices = {} if open_slices is None else open_slices
        self._new: dict[Slice, list[Event]] = {}
        """What `save` is to write."""

    def add(self, event: Event, now: int) -> None:
        """Puts `event` off. Cost: O(1), with one step for each width."""
        at = event[0]
        reach = (at - now) // REACH
        width = NARROWEST
        while reach >= width:
            width *= REACH
        self._new.setdefault((width, at // width), []).append(event)

    def take(self, now: int) -> list[Event]:
        """The events that are due by `now`, in no order. Cost: the events of the slices that have begun."""
        due: list[Event] = []
        for begun in [each for each in {*self.open_slices, *self._new} if each[0] * each[1] <= now]:
            for event in self._pop(begun):
                if event[0] <= now:
                    due.append(event)
                else:
                    self.add(event, now)
        return due

    def _pop(self, begun: Slice) -> Iterator[Event]:
        new = self._new.pop(begun, [])
        for serial in range(self.open_slices.pop(begun, (0, 0))[0]):
            key = (*begun, serial)
            yield from self._chunks.get(key) or ()
            del self._chunks[key]
        yield from new

    def save(self) -> None:
        """Writes to the store what was added. Cost: one write for each slice that it is for, or for each 10,000 events."""
        for where, events in self._new.items():
            first = min(event[0] for event in events)
            serial, earlier = self.open_slices.get(where, (0, first))
            for start in range(0, len(events), LONGEST_CHUNK):
                self._chunks[(*where, serial)] = events[start : start + LONGEST_CHUNK]
                serial += 1
            self.open_slices[where] = (serial, min(first, earlier))
        self._new = {}

    def next(self) -> int | None:
        """The instant of the next event, after `save`; `None` if there is none. Cost: the slices in use."""
        return min((first for _, first in self.open_slices.values()), default=None)
