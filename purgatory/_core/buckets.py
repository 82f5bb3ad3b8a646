"""The parts of a timing wheel: entries, the chunks and buckets that hold them, and levels of
buckets.

A level is a dictionary of the buckets that exist, by `due_tick // level.tick`. It is not a ring as
in Kafka: an overdue bucket and the bucket that would reuse its slot are two objects. The entries of
a bucket are in chunks, which are dictionaries of bounded size: to resize an unbounded one copies
it, which takes 100 ms with a million entries.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Final, NoReturn

from purgatory._core.kernel import PYPY, fields

CHUNK_CAPACITY: Final = 32_768
"""Entries of a chunk, at most; a power of two, as the kernel expects."""


@fields
class TimerEntry:
    """Something that waits in a wheel.

    Attributes:
        _timer_deadline: the deadline, in seconds. A later one may be assigned: when the bucket of
            the entry is due, the entry moves to the bucket of its deadline.
        _timer_chunk: the chunk that holds the entry; None if it is in no wheel.
    """

    __slots__ = ("_timer_chunk", "_timer_deadline", *(("_timer_number",) if PYPY else ()))

    _timer_chunk: "Chunk | None"
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
class Chunk(dict[TimerEntry, None]):
    """Entries of one bucket, in order of addition; a dictionary, so that removing one is O(1)."""

    __slots__ = ("wheel",)

    def __init__(self, wheel: Any) -> None:
        self.wheel = wheel
        """The `TimingWheel`."""


if PYPY:
    # A new object in a dictionary and out of it costs 330 ns there, because the garbage collector
    # moves objects and has to keep their hash; an integer costs 30 ns. So entries get numbers.
    _next_number = count().__next__

    class _NumberedChunk(dict[Any, Any]):
        """As `Chunk`, an ordered set of entries; stored by number."""

        __slots__ = ("wheel",)

        def __init__(self, wheel: Any) -> None:
            self.wheel = wheel

        def __setitem__(self, entry: Any, value: None) -> None:
            number = getattr(entry, "_timer_number", None)
            if type(number) is not int:  # a subclass may return any object
                entry._timer_number = number = _next_number()
            self.setdefault(number, entry)

        def __delitem__(self, entry: Any) -> None:
            self.pop(entry._timer_number)

        def __contains__(self, entry: object) -> bool:
            return self.get(getattr(entry, "_timer_number", None)) is entry

        def __iter__(self) -> Iterator[Any]:
            return iter(self.values())

    Chunk = _NumberedChunk  # type: ignore[assignment,misc]


@fields
class Bucket:
    """The interval `[start_tick, start_tick + level.tick)`, and the entries that are due in it."""

    __slots__ = (
        "chunk",
        "full_chunks",
        "generation",
        "handle",
        "level",
        "number",
        "scheduled_for",
        "start_tick",
        "wake_tick",
    )

    def __init__(self, level: "Level", number: int, generation: int, chunk: Chunk) -> None:
        self.level = level
        self.number = number
        self.start_tick = start_tick = number * level.tick
        self.wake_tick = start_tick if level.depth == 0 else start_tick - level.tick
        """When its entries are due, or have to cascade."""
        self.generation = generation
        """The iteration of work in which it was opened."""
        self.chunk = chunk
        """The chunk to which entries are added."""
        self.full_chunks: list[Chunk] = []
        """Full chunks, in the order in which they were filled."""
        self.handle: Any = None
        """The callback of the owner's event loop for `wake_tick`; None if none is scheduled."""
        self.scheduled_for = 0.0
        """The time of that callback, in seconds."""

    def __len__(self) -> int:
        return len(self.chunk) + sum(map(len, self.full_chunks))

    def __bool__(self) -> bool:
        return bool(self.chunk) or any(self.full_chunks)

    def __repr__(self) -> str:
        return f"<Bucket [{self.start_tick}, {self.start_tick + self.level.tick}) of {len(self)}>"

    def writable_chunk(self) -> Chunk:
        """The chunk to which entries are added: a new one if the last is full."""
        if len(self.chunk) >= CHUNK_CAPACITY:
            self.full_chunks = [*filter(None, self.full_chunks), self.chunk]
            self.chunk = Chunk(self.chunk.wheel)
        return self.chunk

    def chunks(self) -> list[Chunk]:
        """All chunks, in the order in which they were filled."""
        return [*self.full_chunks, self.chunk]


class Level:
    """The open buckets of one width.

    Attributes:
        buckets: the buckets, by number.
        tick: the width of a bucket, in ticks of the wheel.
        interval: the width of a bucket of the next level.
        end_tick: the first due tick that belongs to a wider level.
    """

    __slots__ = ("buckets", "depth", "end_tick", "interval", "tick")

    def __init__(self, depth: int, wheel_size: int, current_tick: int) -> None:
        self.buckets: dict[int, Bucket] = {}
        self.depth = depth
        self.tick = wheel_size**depth
        self.interval = self.tick * wheel_size
        self.advance(current_tick)

    def advance(self, current_tick: int) -> None:
        """Extends the level to the end of the next level's bucket after the current one."""
        self.end_tick = (current_tick // self.interval + 2) * self.interval


_NO_ENTRIES: Final[Iterator[TimerEntry]] = iter(())


@fields
class Drain:
    """Closed chunks that are emptied entry by entry, from the front."""

    __slots__ = ("_chunk", "_chunks", "_entries", "_first")

    def __init__(self) -> None:
        self._chunk: Chunk | None = None
        """The first chunk, once it is being emptied."""
        self._entries = _NO_ENTRIES
        """Iterates over the entries that it had at first."""
        self._first: TimerEntry | None = None
        """The entry that was returned last."""
        self._chunks: deque[Chunk] = deque()
        """The other chunks."""

    def __bool__(self) -> bool:
        """Whether entries may be left."""
        return bool(self._chunk or self._chunks)

    def __len__(self) -> int:
        return sum(map(len, self.chunks()))

    def chunks(self) -> list[Chunk]:
        """The chunks that are left, in order."""
        return [*self._chunks] if self._chunk is None else [self._chunk, *self._chunks]

    def extend(self, chunks: Iterable[Chunk]) -> None:
        """Appends closed chunks."""
        self._chunks.extend(chunks)

    def next_entry(self) -> TimerEntry | None:
        """The first entry; None if there is none. It stays the first until it leaves its chunk, so
        no exception can lose it."""
        entry, chunk = self._first, self._chunk
        if entry is not None and entry._timer_chunk is chunk:
            return entry
        while True:
            for entry in self._entries:
                if entry._timer_chunk is chunk:
                    self._first = entry
                    return entry
            self._chunk = self._first = None
            if not self._chunks:
                self._entries = _NO_ENTRIES
                return None
            self._entries = iter(list(self._chunks[0]))
            self._chunk = chunk = self._chunks.popleft()
