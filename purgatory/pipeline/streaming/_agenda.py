"""What a shard still has to do, by instant: a timing wheel whose buckets are kept in a store, in chunks.

Events are tuples that begin with their instant, in microseconds. They lie in *slices* of time; the farther ahead, the wider the
slice. When the time of a slice has come, all of its events are taken out; those that are not yet due go to narrower slices.

    it is 10:00:00, and events come for     10:00:07     slices of 1 s      as the wheel's first level
                                            10:03:20     slices of 64 s
                                            14:00:00     slices of 4096 s   and so on

So there are never many slices, however far ahead deadlines lie. Each call of `save` adds a chunk to a slice and reads none.
Adding events therefore costs the store one write for each slice, whatever waits in the slice already.
"""

from collections.abc import Iterator
from typing import Any, Final, Protocol, TypeVar

Event = tuple[Any, ...]
Slice = tuple[int, int]
"""The width of a slice in microseconds, and its number. The slice begins at their product."""

NARROWEST: Final = 1_000_000
REACH: Final = 64
"""How many slices of each width are in use at most."""
LONGEST_CHUNK: Final = 10_000

K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")


class Store(Protocol[K_contra, V]):
    """What a shard remembers. A value that was changed must be set again. A `dict` is such a store."""

    def get(self, key: K_contra, /) -> V | None: ...
    def __setitem__(self, key: K_contra, value: V, /) -> None: ...
    def __delitem__(self, key: K_contra, /) -> None: ...


class Agenda:
    """Events in slices of time.

    Args:
        chunks: the store, by width, number and serial number.
        open_slices: for each slice in use, how many chunks it has, and the earliest instant in them.
    """

    __slots__ = ("_chunks", "_new", "open_slices")

    def __init__(
        self, chunks: Store[tuple[int, int, int], list[Event]], open_slices: dict[Slice, tuple[int, int]] | None = None
    ) -> None:
        self._chunks = chunks
        self.open_slices = {} if open_slices is None else open_slices
        self._new: dict[Slice, list[Event]] = {}
        """The events that `save` will write."""

    def add(self, event: Event, now: int) -> None:
        """Adds an event, which `take` will return when it is due. Cost: O(1), with one step for each width."""
        at = event[0]
        reach = (at - now) // REACH
        width = NARROWEST
        while reach >= width:
            width *= REACH
        self._new.setdefault((width, at // width), []).append(event)

    def take(self, now: int) -> list[Event]:
        """Takes out the events that are due at `now`, in no order. Cost: the events of the slices that have begun."""
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
        """Writes the added events to the store. Cost: one write for each slice that has new events, and each 10,000 of them."""
        for where, events in self._new.items():
            first = min(event[0] for event in events)
            serial, earlier = self.open_slices.get(where, (0, first))
            for start in range(0, len(events), LONGEST_CHUNK):
                self._chunks[(*where, serial)] = events[start : start + LONGEST_CHUNK]
                serial += 1
            self.open_slices[where] = (serial, min(first, earlier))
        self._new = {}

    def next(self) -> int | None:
        """The instant of the next event; `None` if there is none. Call `save` before. Cost: the slices in use."""
        return min((first for _, first in self.open_slices.values()), default=None)
