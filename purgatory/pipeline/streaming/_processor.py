"""Where the shards of a stream meet Spark: rows in, state in RocksDB, rows out. The decisions are made in `_decisions`.

Rows come packed, some ten thousand in one value, because each value that Spark hands to Python costs more than the decision
about it. State is kept in pages for the same reason. What a call reads of the state is remembered until the end of the call;
then each page that has changed is written once.

    shard        counts, the slices of the agenda, the instant for which Spark was asked to call
    operations   by id, in pages: those that wait, and the ids of those that have ended before their deadline
    lines        by key, in pages: its value, and who waits for it
    agenda       chunks of events, by slice

Spark calls once for each shard and micro-batch, with the rows for this shard, and once more if its timer has expired.
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from purgatory import _lines
from purgatory._lines import UNKNOWN
from purgatory.pipeline.streaming import _agenda, _decisions, _messages
from purgatory.pipeline.streaming._agenda import Agenda, Event
from purgatory.pipeline.streaming._decisions import (
    REGISTRATION,
    Counts,
    Decision,
    Operation,
    Pending,
    Shard,
    Watched,
    requirements_of,
)

PACKED: Final = "are_signals boolean, events binary, shard int"
"""Many rows in one pickled value: the columns of signals, or tuples of the fields of `Operation`."""
OUTPUT: Final = (
    "outcome string, operation_id string, decided_at bigint, satisfied_keys array<string>, reason string, key string, "
    "at bigint, topic string, partition int, offset bigint"
)
"""The rows that `Deciding` returns: the fields of `Decision`. Instants are in microseconds."""

SHARD: Final = (
    "shards int, registered bigint, completed bigint, expired bigint, late bigint, late_signals bigint, newest bigint, "
    "slices binary, timer bigint"
)
PAGE: Final = "waiting int, entries binary"
CHUNK: Final = "registrations int, events binary"

PAGES: Final = 16
"""How many pages a store has at first."""
FULL: Final = 64
"""How many entries a page has on average at most: reading these takes as long as asking Spark for them."""
GROWTH: Final = 8
"""How many times as many pages a store has after it was full."""
OLD_PAGES: Final = 4096
"""How many pages each store has in checkpoints that were written when their number was fixed."""

Size = tuple[int, int]
"""Of a store: how many pages it has, and how many entries."""
V = TypeVar("V")


class ShardsChanged(Exception):
    """A checkpoint was written with another number of shards. The message says with which."""


def ship() -> None:
    """Makes Spark send the code that decides to its workers, as it is here. They need not have this package installed."""
    for module in (_lines, _agenda, _decisions, _messages, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


# -- rows


def pack_operations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs rows by shard. Leaves out ticks: they are only there for the watermark, which has seen them by now."""
    for batch in batches:
        packed: dict[int, list[tuple[Any, ...]]] = {}
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        for is_tick, shard, operation_id, keys, thresholds, mode, registered_at, deadline, *rest in rows:
            if not is_tick:
                requirements = requirements_of(zip(keys or (), thresholds or (), strict=True), mode)
                operation = (operation_id, requirements, mode, registered_at, deadline, *_origin(rest))
                packed.setdefault(shard, []).append(operation)
        for shard, operations in packed.items():
            columns = {"are_signals": [False], "events": [pickle.dumps(operations)], "shard": pa.array([shard], pa.int32())}
            yield pa.RecordBatch.from_pydict(columns)


def _origin(columns: list[Any]) -> tuple[Any, ...]:
    """`origin` and `problem` of the rows of topics; others have no such columns."""
    return (tuple(columns[:3]), columns[3]) if columns else ()


def pack_signals(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs rows for all shards. Leaves out ticks."""
    for batch in batches:
        is_tick, *columns = (column.to_pylist() for column in batch.columns)
        if any(is_tick):
            columns = [[value for value, tick in zip(column, is_tick, strict=True) if not tick] for column in columns]
        yield pa.RecordBatch.from_pydict({"are_signals": [True], "events": [pickle.dumps(columns)]})


class Deciding(StatefulProcessor):
    """What Spark runs: for each shard it makes a `Shard` of the state, and lets it decide.

    Args:
        shards: how many there are. State that was written with another number is refused.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the variables of the state."""
        self._handle = handle
        self._shard = handle.getValueState("shard", SHARD)
        self._operations = handle.getMapState("operations", "page int", PAGE)
        self._lines = handle.getMapState("lines", "page int", PAGE)
        self._agenda = handle.getMapState("agenda", "width bigint, number bigint, serial int", CHUNK)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Takes in the rows of a shard, and decides what they and the watermark allow."""
        return self._run(key[0], rows, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803, ARG002
    ) -> Iterator[Row]:
        """Decides what the watermark allows, if the batch had no rows of the shard."""
        return self._run(key[0], iter(()), timerValues)

    def close(self) -> None:
        """Does nothing: nothing is held open."""

    def _run(self, label: int, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:
        now = max(times.getCurrentWatermarkInMs(), 0) * 1000
        counts, slices, timer, sizes = self._load()
        operations = Paged(self._operations, load_operation, dump_operation, sizes[0])
        lines = Paged(self._lines, load_line, dump_line, sizes[1])
        shard = Shard(operations, lines, Agenda(Chunks(self._agenda), slices), counts)
        for _, are_signals, events in rows:
            _tell(shard, label, are_signals, pickle.loads(events), now)
        shard.advance_to(now)
        shard.agenda.save()
        decisions = shard.take()
        operations.save()
        lines.save()
        due = shard.agenda.next()
        expiry = None if due is None else -(-due // 1000)
        if expiry is not None and expiry != timer:
            self._handle.registerTimer(expiry)
        sizes = (operations.size, lines.size)
        self._shard.update((self.shards, *astuple(counts), pickle.dumps((slices, sizes)), expiry))
        return (_row(*decision) for decision in decisions)

    def _load(self) -> tuple[Counts, dict[tuple[int, int], tuple[int, int]], int | None, tuple[Size, Size]]:
        stored = self._shard.get()
        if stored is None:
            return Counts(), {}, None, ((PAGES, 0), (PAGES, 0))
        shards, *counts, slices, timer = stored
        if shards != self.shards:
            raise ShardsChanged(f"cannot go on with {self.shards} shards: the checkpoint was written with {shards}")
        kept = pickle.loads(slices)
        if isinstance(kept, dict):
            kept = kept, ((OLD_PAGES, 0), (OLD_PAGES, 0))
        return Counts(*counts), kept[0], timer, kept[1]


def _tell(shard: Shard, label: int, are_signals: bool, events: Any, now: int) -> None:
    if are_signals:
        for key, value, at, home, *rest in zip(*events, strict=True):
            shard.signal(key, value, at, now, home == label, *_origin(rest))
    else:
        for operation in events:
            shard.register(Operation(*operation), now)


_row = Row(*Decision._fields)


# -- state


class Paged(Generic[V]):
    """A store in pages, which are dictionaries in a `MapState`.

    Args:
        state: of this shard.
        load: makes a value from a key and the key's entry in the page.
        dump: makes the entry of a value. Its first element says whether the value counts as `waiting`, for readers of the
            state.
        size: what `size` was when it was last saved.

    Each page that Spark is asked for costs some 50 µs, and each entry in it one. So a store begins with few pages; when they
    are full, their entries are divided among more. Cost of that: O(1) for each entry that was ever added.
    """

    __slots__ = ("_changed", "_dump", "_load", "_pages", "_state", "_values", "size")

    def __init__(
        self,
        state: MapState,
        load: Callable[[str, Any], V],
        dump: Callable[[V], tuple[bool, *tuple[Any, ...]]],
        size: Size = (PAGES, 0),
    ) -> None:
        self.size = size
        self._state = state
        self._load = load
        self._dump = dump
        self._pages: dict[int, dict[str, Any]] = {}
        self._values: dict[str, V | None] = {}
        self._changed: set[str] = set()

    def get(self, key: str, /) -> V | None:
        """The value of `key`, or `None`."""
        try:
            return self._values[key]
        except KeyError:
            entry = self._page(_page_of(key, self.size[0])).get(key)
            value = self._values[key] = None if entry is None else self._load(key, entry)
            return value

    def __setitem__(self, key: str, value: V, /) -> None:
        self._values[key] = value
        self._changed.add(key)

    def __delitem__(self, key: str, /) -> None:
        self._values[key] = None
        self._changed.add(key)

    def _page(self, number: int) -> dict[str, Any]:
        page = self._pages.get(number)
        if page is None:
            stored = self._state.getValue((number,))
            page = self._pages[number] = {} if stored is None else pickle.loads(stored[1])
        return page

    def save(self) -> None:
        """Writes the pages in which a value has changed."""
        pages, entries = self.size
        changed: set[int] = set()
        for key in self._changed:
            number = _page_of(key, pages)
            page, value = self._page(number), self._values[key]
            if value is not None:
                entries += key not in page
                page[key] = self._dump(value)
                changed.add(number)
            elif page.pop(key, None) is not None:
                entries -= 1
                changed.add(number)
        self._changed = set()
        if entries > FULL * pages:
            changed.update(self._divide(pages, pages * GROWTH))
            pages *= GROWTH
        self.size = (pages, entries)
        for number in changed:
            if page := self._pages.get(number, {}):
                waiting = sum(entry[0] for entry in page.values())
                self._state.updateValue((number,), (waiting, pickle.dumps(page)))
            else:
                self._state.removeKey((number,))

    def _divide(self, pages: int, more: int) -> Iterable[int]:
        """Divides all entries among more pages; returns the numbers of those that have changed."""
        everything = [self._page(number) for number in range(pages)]
        self._pages = {}
        for page in everything:
            for key, entry in page.items():
                self._pages.setdefault(_page_of(key, more), {})[key] = entry
        return {*range(pages), *self._pages}


def _page_of(key: str, pages: int) -> int:
    return crc32(key.encode()) % pages


class Chunks:
    """The store of an agenda. Each chunk is written once and read once."""

    __slots__ = ("_state",)

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, key: tuple[int, int, int], /) -> list[Event] | None:
        """A chunk, or `None`."""
        stored = self._state.getValue(key)
        return None if stored is None else pickle.loads(stored[1])

    def __setitem__(self, key: tuple[int, int, int], events: list[Event], /) -> None:
        registrations = sum(event[1] == REGISTRATION for event in events)
        self._state.updateValue(key, (registrations, pickle.dumps(events)))

    def __delitem__(self, key: tuple[int, int, int], /) -> None:
        self._state.removeKey(key)


def load_operation(_: str, entry: Any) -> Pending:
    """From what `dump_operation` made."""
    _, deadline, mode, requirements, satisfied = entry
    return Pending(deadline, mode, requirements, set(satisfied))


def dump_operation(operation: Pending) -> tuple[bool, int, str, tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Plain values."""
    return (not operation.has_ended, operation.deadline, operation.mode, operation.requirements, tuple(operation.satisfied))


def load_line(key: str, entry: Any) -> Watched:
    """From what `dump_line` made."""
    _, value, waiting = entry
    line = Watched(key)
    line.value = UNKNOWN if value is None else value
    for operation_id, threshold in waiting:
        line.watch(operation_id, threshold)
    return line


def dump_line(line: Watched) -> tuple[bool, int | None, tuple[tuple[str, int], ...]]:
    """Plain values."""
    waiting = tuple((operation_id, waiter.threshold) for operation_id, waiter in line.waiters.items())
    return (bool(waiting), None if line.value is UNKNOWN else line.value, waiting)
