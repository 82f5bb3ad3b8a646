"""A shard's events, by event time: a hierarchical timing wheel whose buckets are in a store, as
chunks.

There are four kinds of events. Signals and registrations are Arrow batches. Deadlines of
operations, and checks whether keys are to be forgotten, are tuples of an instant in microseconds
and an id or a key. They are in *slices* of time; the farther ahead, the wider the slice. When a
slice starts, all of its events are taken out, and the events that are not yet due move to narrower
slices.

    it is 10:00:00, and events come for     10:00:07     slices of 1 s      as the wheel's first level
                                            10:03:20     slices of 64 s
                                            14:00:00     slices of 4096 s   and so on

So there are few slices, however far ahead deadlines are. Each call of `save` adds a chunk to a
slice and reads none: adding events costs the store one write for each slice, of any
size.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

Deadline = tuple[int, str]
"""An instant, and an id or a key."""
Slice = tuple[int, int]
"""The width of a slice in microseconds, and its number. The slice starts at their product."""

MIN_WIDTH: Final = 1_000_000
SLICES_PER_WIDTH: Final = 64
"""Maximum number of slices of each width in use."""
MAX_EVENTS_PER_CHUNK: Final = 10_000
"""Of each kind."""

K_contra = TypeVar("K_contra", contravariant=True)
V = TypeVar("V")


class Store(Protocol[K_contra, V]):
    """A part of the state of a shard. Changed values must be set again. A `dict` is a store."""

    def get(self, key: K_contra, /) -> V | None: ...
    def __setitem__(self, key: K_contra, value: V, /) -> None: ...
    def __delitem__(self, key: K_contra, /) -> None: ...


@dataclass(slots=True)
class Events:
    """Events of the four kinds. Both kinds of batches have a column `at`."""

    signals: list[pa.RecordBatch] = field(default_factory=list)
    registrations: list[pa.RecordBatch] = field(default_factory=list)
    deadlines: list[Deadline] = field(default_factory=list)
    checks: list[Deadline] = field(default_factory=list)

    def extend(self, others: "Events") -> None:
        self.signals += others.signals
        self.registrations += others.registrations
        self.deadlines += others.deadlines
        self.checks += others.checks

    def first_at(self) -> int:
        """The earliest instant. There is at least one event."""
        firsts = [
            batch.column("at").to_numpy().min() for batch in (*self.signals, *self.registrations)
        ]
        firsts += [min(each)[0] for each in (self.deadlines, self.checks) if each]
        return int(min(firsts))

    def chunks(self) -> Iterator["Events"]:
        """The same in chunks, in each of which a kind has one batch at most."""
        parts = _cut(self.signals), _cut(self.registrations)
        most = max(len(self.deadlines), len(self.checks))
        starts = range(0, most, MAX_EVENTS_PER_CHUNK)
        for number in range(max(len(parts[0]), len(parts[1]), len(starts))):
            signals, registrations = (part[number : number + 1] for part in parts)
            some = slice(number * MAX_EVENTS_PER_CHUNK, (number + 1) * MAX_EVENTS_PER_CHUNK)
            yield Events(signals, registrations, self.deadlines[some], self.checks[some])


def _cut(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if not batches:
        return []
    whole = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    return [
        whole.slice(start, MAX_EVENTS_PER_CHUNK)
        for start in range(0, whole.num_rows, MAX_EVENTS_PER_CHUNK)
    ]


class EventQueue:
    """Events in slices of time.

    Args:
        chunks: the store, by width, number and serial number.
        open_slices: for each slice in use, how many chunks it has, and the earliest instant in
            them.
    """

    __slots__ = ("_chunks", "_new", "open_slices")

    def __init__(
        self,
        chunks: Store[tuple[int, int, int], Events],
        open_slices: dict[Slice, tuple[int, int]] | None = None,
    ) -> None:
        self._chunks = chunks
        self.open_slices = {} if open_slices is None else open_slices
        self._new: defaultdict[Slice, Events] = defaultdict(Events)
        """The events that `save` will write."""

    def add_deadline(self, deadline: Deadline, now: int) -> None:
        """Adds a deadline. Cost: O(1), with one step for each width."""
        self._new[_slice_of(deadline[0], now)].deadlines.append(deadline)

    def add_check(self, check: Deadline, now: int) -> None:
        """Adds a check of a key. Cost: the same."""
        self._new[_slice_of(check[0], now)].checks.append(check)

    def add_signals(self, signals: pa.RecordBatch, now: int) -> None:
        """Adds signals. Cost: O(n log n) in numpy, and one step for each slice."""
        for where, part in _by_slice(signals, now):
            self._new[where].signals.append(part)

    def add_registrations(self, registrations: pa.RecordBatch, now: int) -> None:
        """Adds registrations. Cost: the same."""
        for where, part in _by_slice(registrations, now):
            self._new[where].registrations.append(part)

    def pop_due(self, now: int) -> Events:
        """Takes out the events that are due at `now`, unordered. Cost: the events of the slices
        that have begun."""
        due = Events()
        for begun in [each for each in {*self.open_slices, *self._new} if each[0] * each[1] <= now]:
            events = self._pop_slice(begun)
            for batches, due_batches, add in (
                (events.signals, due.signals, self.add_signals),
                (events.registrations, due.registrations, self.add_registrations),
            ):
                for batch in batches:
                    is_due = batch.column("at").to_numpy() <= now
                    if is_due.any():
                        due_batches.append(
                            batch if is_due.all() else batch.filter(pa.array(is_due))
                        )
                    if not is_due.all():
                        add(batch.filter(pa.array(~is_due)), now)
            for each, due_of_kind, add_one in (
                (events.deadlines, due.deadlines, self.add_deadline),
                (events.checks, due.checks, self.add_check),
            ):
                for deadline in each:
                    if deadline[0] <= now:
                        due_of_kind.append(deadline)
                    else:
                        add_one(deadline, now)
        return due

    def _pop_slice(self, begun: Slice) -> Events:
        events = Events()
        for serial in range(self.open_slices.pop(begun, (0, 0))[0]):
            key = (*begun, serial)
            events.extend(self._chunks.get(key) or Events())
            del self._chunks[key]
        events.extend(self._new.pop(begun, Events()))
        return events

    def save(self) -> None:
        """Writes the added events to the store. Cost: one write for each slice that has new events,
        and each 10,000 of them."""
        for where, events in self._new.items():
            first = events.first_at()
            serial, earlier = self.open_slices.get(where, (0, first))
            for chunk in events.chunks():
                self._chunks[(*where, serial)] = chunk
                serial += 1
            self.open_slices[where] = (serial, min(first, earlier))
        self._new.clear()

    def next_at(self) -> int | None:
        """The instant of the next event; `None` if there is none. Call `save` before. Cost: the
        number of slices."""
        return min((first for _, first in self.open_slices.values()), default=None)


def _slice_of(at: int, now: int) -> Slice:
    min_width = (at - now) // SLICES_PER_WIDTH
    width = MIN_WIDTH
    while min_width >= width:
        width *= SLICES_PER_WIDTH
    return width, at // width


def _by_slice(batch: pa.RecordBatch, now: int) -> Iterable[tuple[Slice, pa.RecordBatch]]:
    """Divides a batch by the slices that its rows belong to."""
    if not batch.num_rows:
        return
    at = batch.column("at").to_numpy()
    min_widths, widths, width = (
        (at - now) // SLICES_PER_WIDTH,
        np.full(len(at), MIN_WIDTH),
        MIN_WIDTH,
    )
    while (is_wider := min_widths >= width).any():
        width *= SLICES_PER_WIDTH
        widths[is_wider] = width
    numbers = at // widths
    order = np.lexsort((numbers, widths))
    widths, numbers = widths[order], numbers[order]
    starts = np.flatnonzero(
        np.diff(numbers, prepend=numbers[0] - 1) | np.diff(widths, prepend=widths[0])
    )
    if len(starts) > 1:
        batch = batch.take(pa.array(order))
    for start, end in zip(starts, (*starts[1:], len(at)), strict=True):
        yield (int(widths[start]), int(numbers[start])), batch.slice(start, end - start)
