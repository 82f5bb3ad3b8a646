"""What a timing wheel is made of: levels, their buckets, the chunks of a bucket, and the entries that wait in them.

A level is a dictionary of the buckets that exist, numbered for ever (`due_tick // level.tick`), not a ring as in Kafka: a
bucket that is overdue after a stall and the one that would reuse its slot are two objects. The entries of a bucket are in
chunks, dictionaries of bounded size: one of unbounded size is copied as a whole when it is resized, which takes 100 ms with a
million entries.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

CHUNK_CAPACITY: Final = 32_768
"""The maximum number of entries, because to resize the dictionary would copy them all."""


class TimerEntry:
    """An entry of a wheel.

    Attributes:
        _timer_deadline: in seconds. To postpone the entry, set it: when its bucket is due, the entry moves to the bucket of its
            deadline.
        _timer_chunk: the chunk that holds it, or None.
    """

    __slots__ = ("_timer_chunk", "_timer_deadline")

    _timer_chunk: "Chunk | None"
    _timer_deadline: Any  # float; for a subclass also None, while it waits in no wheel

    def _timer_expired(self) -> int | None:
        """Called once when the deadline has come; the entry is out of the wheel.

        Returns:
            How much work that was, in operations, if it was more than one.
        """
        raise TypeError(f"{type(self).__name__} has nothing to do when it expires")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {self!r}: it is known by its identity, and a copy would be another one")


class Chunk(dict[TimerEntry, None]):
    """Some entries of one bucket.

    A dictionary, because to remove an entry is one operation in C, and keeps the order.
    """

    __slots__ = ("wheel",)

    def __init__(self, wheel: Any) -> None:
        self.wheel = wheel
        """The `TimingWheel`."""


class Bucket:
    """The stretch of time `[start_tick, start_tick + level.tick)`, and the entries that are due in it."""

    __slots__ = ("chunk", "full_chunks", "generation", "handle", "level", "number", "scheduled_for", "start_tick", "wake_tick")

    def __init__(self, level: "Level", number: int, generation: int, chunk: Chunk) -> None:
        self.level = level
        self.number = number
        self.start_tick = start_tick = number * level.tick
        self.wake_tick = start_tick if level.depth == 0 else start_tick - level.tick
        """When there is something to do: its entries are due, or are to be moved to narrower buckets."""
        self.generation = generation
        """The iteration of work in which it was opened."""
        self.chunk = chunk
        """The chunk that takes entries, ..."""
        self.full_chunks: list[Chunk] = []
        """... and those that are full, in the order in which they were filled."""
        self.handle: Any = None
        """For the owner of the wheel: what will wake it at `wake_tick`, ..."""
        self.scheduled_for = 0.0
        """... and the time for which it is scheduled, in seconds."""

    def __len__(self) -> int:
        return len(self.chunk) + sum(map(len, self.full_chunks))

    def __bool__(self) -> bool:
        return bool(self.chunk) or any(self.full_chunks)

    def __repr__(self) -> str:
        return f"<Bucket [{self.start_tick}, {self.start_tick + self.level.tick}) of {len(self)}>"

    def writable_chunk(self) -> Chunk:
        """The chunk that takes entries, a new one if it was full."""
        if len(self.chunk) >= CHUNK_CAPACITY:
            new = Chunk(self.chunk.wheel)
            # A finalizer may run whenever something is allocated, and may have come here just now.
            if len(self.chunk) >= CHUNK_CAPACITY:
                self.full_chunks = [*filter(None, self.full_chunks), self.chunk]
                self.chunk = new
        return self.chunk

    def chunks(self) -> list[Chunk]:
        """All its chunks, in the order in which they were filled."""
        return [*self.full_chunks, self.chunk]


class Level:
    """The buckets of one width that take entries.

    Attributes:
        buckets: by number.
        tick: how wide a bucket is, in ticks of the wheel.
        interval: how wide a bucket of the next level is.
        end_tick: entries that are due from here on belong to a wider level.
    """

    __slots__ = ("buckets", "depth", "end_tick", "interval", "tick")

    def __init__(self, depth: int, tick: int, wheel_size: int, current_tick: int) -> None:
        self.buckets: dict[int, Bucket] = {}
        self.depth = depth
        self.tick = tick
        self.interval = tick * wheel_size
        self.advance(current_tick)

    def advance(self, current_tick: int) -> None:
        """Reaches further, to the end of the next level's bucket after the one that has begun."""
        self.end_tick = (current_tick // self.interval + 2) * self.interval


_NO_ENTRIES: Final[Iterator[TimerEntry]] = iter(())


class Drain:
    """Chunks that are being emptied, entry by entry. They take no more entries."""

    __slots__ = ("_chunk", "_chunks", "_entries")

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._chunk: Chunk | None = None
        self._entries = _NO_ENTRIES

    def __bool__(self) -> bool:
        """Whether there may be more to come."""
        return bool(self._chunk or self._chunks)

    def __len__(self) -> int:
        return sum(map(len, self.chunks()))

    def chunks(self) -> list[Chunk]:
        """What is left, the current one first."""
        return [*self._chunks] if self._chunk is None else [self._chunk, *self._chunks]

    def extend(self, chunks: Iterable[Chunk]) -> None:
        """Takes these as well, behind those that are there."""
        self._chunks.extend(chunks)

    def next_entry(self) -> TimerEntry | None:
        """The next entry, which is still in its chunk; None if there is none. Those that have left are passed over."""
        while True:
            for entry in self._entries:
                if entry._timer_chunk is self._chunk:
                    return entry
            if not self._chunks:
                self._chunk, self._entries = None, _NO_ENTRIES
                return None
            self._chunk = self._chunks.popleft()
            self._entries = iter(list(self._chunk))

    def rewind(self) -> None:
        """Begins again at the front of the current chunk, with those that are still there."""
        self._entries = iter(list(self._chunk or ()))
