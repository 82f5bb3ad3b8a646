"""How a shard is kept in Spark's state: operations and queues in pages, the event queue in
chunks."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import MapState

from purgatory._core.threshold_queue import UNKNOWN
from purgatory.pipeline.streaming._event_queue import Events
from purgatory.pipeline.streaming._events import (
    REGISTRATIONS,
    SIGNALS,
    from_bytes,
    to_bytes,
)
from purgatory.pipeline.streaming._pending import Pending, StreamQueue

INITIAL_PAGES: Final = 16
"""Of a new store."""
MAX_ENTRIES_PER_PAGE: Final = 64
"""On average. Reading these takes as long as asking Spark for them."""
GROWTH_FACTOR: Final = 8
"""By which the number of pages grows when a store is full."""

Size = tuple[int, int]
"""The numbers of pages and of entries of a store."""
V = TypeVar("V")


class PagedStore(Generic[V]):
    """A store in pages, which are dictionaries in a `MapState`.

    Args:
        state: of this shard.
        load: makes a value of a key and its entry in the page.
        dump: makes the entry of a value. Its first element is whether the value counts as
            `waiting`, for readers of the state.
        size: `size` when it was last saved.

    A page that is asked of Spark costs some 50 µs, and each entry in it one. So a store starts with
    few pages; when they are full, the entries are rehashed into more, which costs amortised O(1)
    for each entry.
    """

    __slots__ = ("_changed", "_dump", "_load", "_pages", "_state", "_values", "size")

    def __init__(
        self,
        state: MapState,
        load: Callable[[str, Any], V],
        dump: Callable[[V], tuple[bool, *tuple[Any, ...]]],
        size: Size = (INITIAL_PAGES, 0),
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
        if entries > MAX_ENTRIES_PER_PAGE * pages:
            changed.update(self._rehash(pages, pages * GROWTH_FACTOR))
            pages *= GROWTH_FACTOR
        self.size = (pages, entries)
        for number in changed:
            if page := self._pages.get(number, {}):
                waiting = sum(entry[0] for entry in page.values())
                self._state.updateValue((number,), (waiting, pickle.dumps(page)))
            else:
                self._state.removeKey((number,))

    def _rehash(self, pages: int, more: int) -> Iterable[int]:
        """Rehashes all entries into more pages; returns the numbers of the pages that have
        changed."""
        before = [self._page(number) for number in range(pages)]
        self._pages = {}
        for page in before:
            for key, entry in page.items():
                self._pages.setdefault(_page_of(key, more), {})[key] = entry
        return {*range(pages), *self._pages}


def _page_of(key: str, pages: int) -> int:
    return crc32(key.encode()) % pages


class ChunkStore:
    """The store of an event queue. Each chunk is written once and read once."""

    __slots__ = ("_state",)

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, key: tuple[int, int, int], /) -> Events | None:
        """A chunk, or `None`."""
        stored = self._state.getValue(key)
        return None if stored is None else load_events(stored[1])

    def __setitem__(self, key: tuple[int, int, int], events: Events, /) -> None:
        registrations = sum(batch.num_rows for batch in events.registrations)
        self._state.updateValue(key, (registrations, dump_events(events)))

    def __delitem__(self, key: tuple[int, int, int], /) -> None:
        self._state.removeKey(key)


def load_events(data: bytes | pa.Buffer) -> Events:
    """The inverse of `dump_events`."""
    signals, registrations, *others = pickle.loads(data)
    return Events(
        [from_bytes(each, SIGNALS) for each in signals],
        [from_bytes(each, REGISTRATIONS) for each in registrations],
        *others,
    )


def dump_events(events: Events) -> bytes:
    """Batches in Arrow's format, deadlines, and checks if there are any, pickled."""
    signals, registrations = (
        [to_bytes(each) for each in batches] for batches in (events.signals, events.registrations)
    )
    checks = (events.checks,) if events.checks else ()
    return pickle.dumps((signals, registrations, events.deadlines, *checks))


PENDING: Final = pa.schema(
    {
        "operation_id": pa.string(),
        "key": pa.list_(pa.string()),
        "threshold": pa.list_(pa.int64()),
        "mode": pa.string(),
        "deadline": pa.int64(),
        "satisfied_keys": pa.list_(pa.string()),
    }
)
"""The columns of `pending_operations`. `deadline` is in microseconds."""


def pending_operations(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The operations in pages and chunks that have not ended, with the columns of `PENDING`.

    Args:
        batches: with the columns `page` and `chunk`, one of which is null in each row.
    """
    for batch in batches:
        rows = []
        for page in batch.column("page").drop_null():
            for operation_id, entry in pickle.loads(page.as_buffer()).items():
                operation = load_operation(operation_id, entry)
                if not operation.has_ended:
                    keys, thresholds = zip(*operation.requirements, strict=True)
                    satisfied = [key for key in keys if key in operation.satisfied]
                    times = (operation.mode, operation.deadline, satisfied)
                    rows.append((operation_id, keys, thresholds, *times))
        if rows:
            pairs = zip(zip(*rows, strict=True), PENDING, strict=True)
            arrays = [pa.array(values, field.type) for values, field in pairs]
            yield pa.RecordBatch.from_arrays(arrays, schema=PENDING)
        for chunk in batch.column("chunk").drop_null():
            for registrations in load_events(chunk.as_buffer()).registrations:
                names = ("operation_id", "keys", "thresholds", "mode", "deadline")
                nothing = pa.array([[]] * registrations.num_rows, pa.list_(pa.string()))
                columns = [*(registrations.column(name) for name in names), nothing]
                yield pa.RecordBatch.from_arrays(columns, schema=PENDING)


def load_operation(_: str, entry: Any) -> Pending:
    """The inverse of `dump_operation`."""
    _, deadline, mode, requirements, satisfied = entry
    return Pending(deadline, mode, requirements, set(satisfied))


def dump_operation(
    operation: Pending,
) -> tuple[bool, int, str, tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Its page entry."""
    return (
        not operation.has_ended,
        operation.deadline,
        operation.mode,
        operation.requirements,
        tuple(operation.satisfied),
    )


def load_queue(key: str, entry: Any) -> StreamQueue:
    """The inverse of `dump_queue`."""
    _, value, waiting, *last_at = entry
    queue = StreamQueue(key)
    queue.last_at = last_at[0] if last_at else None
    queue.value = UNKNOWN if value is None else value
    for operation_id, threshold in waiting:
        queue.watch(operation_id, threshold)
    return queue


def dump_queue(
    queue: StreamQueue,
) -> tuple[bool, int | None, tuple[tuple[str, int], ...], *tuple[int, ...]]:
    """Its page entry."""
    waiting = tuple(
        (operation_id, waiter.threshold) for operation_id, waiter in queue.waiters.items()
    )
    last_at = () if queue.last_at is None else (queue.last_at,)
    return (bool(waiting), queue.known, waiting, *last_at)
