"""The state of a shard: chunks of rows and pages of entries, in a store that has a value for each
number. A `dict` is a store. Changes stay in memory until `save`."""

import json
from collections.abc import Callable
from typing import Any, Final, Protocol
from zlib import crc32

import numpy as np
import pyarrow as pa

from purgatory.pipeline.streaming._rows import MAX_ROWS, cut, from_bytes, joined, to_bytes, where

INITIAL_PAGES: Final = 16
MAX_ENTRIES_PER_PAGE: Final = 64
"""The limit of the average. Reading these takes as long as asking Spark for them."""
GROWTH_FACTOR: Final = 8
"""Factor by which the number of pages grows when they are full."""


class Store(Protocol):
    """Values, each with the number of its rows."""

    def get(self, number: int, /) -> tuple[int, bytes] | None: ...
    def __setitem__(self, number: int, value: tuple[int, bytes], /) -> None: ...
    def __delitem__(self, number: int, /) -> None: ...


class Chunks:
    """Rows in the order of one of their columns, some thousand in each chunk.

    New rows become chunks of their own, and a chunk is read when its first row is due. So chunks
    with rows far ahead cost nothing, however many there are.

        at 10:00    chunk 0   10:00:07 to 10:03:20
                    chunk 1   10:03:20 to 14:00:00
        at 10:01    chunk 0 is taken out; its remaining rows and new ones become chunk 2

    Args:
        order: the column, of instants.
        firsts: for each chunk its first instant.
    """

    __slots__ = ("_new", "_order", "_schema", "_store", "firsts")

    def __init__(
        self, store: Store, schema: pa.Schema, order: str, firsts: dict[int, int] | None = None
    ) -> None:
        self._store, self._schema, self._order = store, schema, order
        self.firsts = {} if firsts is None else firsts
        self._new: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows."""
        if rows.num_rows:
            self._new.append(rows)

    def take(self, until: int) -> pa.RecordBatch:
        """Takes out the rows up to an instant, unordered."""
        begun = [number for number, first in self.firsts.items() if first <= until]
        rows = joined(self._new + [self._pop(number) for number in begun], self._schema)
        is_due = rows.column(self._order).to_numpy() <= until
        self._new = []
        self.add(where(rows, ~is_due))
        return where(rows, is_due)

    def all(self) -> pa.RecordBatch:
        """All rows, which stay."""
        return joined(self._new + [self._read(number) for number in self.firsts], self._schema)

    def revise(self, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        """Replaces the rows of each chunk by what a function makes of them. A chunk for which it
        returns its argument is not written again, unless it is small and other chunks are."""
        small = []
        for number in list(self.firsts):
            rows = self._read(number)
            if (left := change(rows)) is not rows:
                self._pop(number)
                self.add(left)
            elif rows.num_rows < MAX_ROWS // 2:
                small.append((number, rows))
        for number, rows in small if self._new or len(small) > 1 else ():
            self._pop(number)
            self.add(rows)

    def _read(self, number: int) -> pa.RecordBatch:
        stored = self._store.get(number)
        assert stored is not None
        return from_bytes(stored[1], self._schema)

    def _pop(self, number: int) -> pa.RecordBatch:
        rows = self._read(number)
        del self._store[number]
        del self.firsts[number]
        return rows

    def save(self) -> None:
        """Writes the new rows."""
        rows, self._new = joined(self._new, self._schema), []
        if rows.num_rows > MAX_ROWS:
            rows = rows.take(pa.array(np.argsort(rows.column(self._order).to_numpy())))
        for chunk in cut(rows):
            number = max(self.firsts, default=-1) + 1
            self._store[number] = chunk.num_rows, to_bytes(chunk)
            self.firsts[number] = int(chunk.column(self._order).to_numpy().min())

    def next_at(self) -> int | None:
        """The first instant; None without rows. Call `save` before."""
        return min(self.firsts.values(), default=None)


class Pages:
    """Entries by name, in pages of JSON by a hash of the name.

    A page that is asked of Spark costs some 50 µs, and each entry in it less than one. So there are
    few pages at first; when they are full, the entries are rehashed into more, which costs
    amortised O(1) for each.

    Args:
        is_over: whether an entry is no longer needed. Such an entry is dropped when its page is
            written or all are full, so there are never more of them than there were entries at once.
        size: `size` when it was last saved: the numbers of pages and of entries.
    """

    __slots__ = ("_changed", "_is_over", "_pages", "_store", "_stored", "size")

    def __init__(
        self, store: Store, is_over: Callable[[Any], bool], size: tuple[int, int] | None = None
    ) -> None:
        self._store, self._is_over, self.size = store, is_over, size or (INITIAL_PAGES, 0)
        self._pages: dict[int, dict[str, Any]] = {}
        self._stored: dict[int, int] = {}
        """Number of entries in the store, of each page that was read or written."""
        self._changed: set[int] = set()

    def get(self, name: str) -> Any:
        """The entry of a name, or None."""
        return self._page(crc32(name.encode()) % self.size[0]).get(name)

    def __setitem__(self, name: str, entry: Any) -> None:
        number = crc32(name.encode()) % self.size[0]
        self._page(number)[name] = entry
        self._changed.add(number)

    def _page(self, number: int) -> dict[str, Any]:
        page = self._pages.get(number)
        if page is None:
            stored = self._store.get(number)
            page = self._pages[number] = {} if stored is None else json.loads(stored[1])
            self._stored[number] = len(page)
        return page

    def save(self) -> None:
        """Writes the pages in which an entry has changed."""
        pages, entries = self.size
        entries += sum(map(self._write, self._changed))
        is_full = entries > MAX_ENTRIES_PER_PAGE * pages
        if is_full:  # perhaps of entries that are over
            entries += sum(map(self._write, range(pages)))
        if is_full and entries > MAX_ENTRIES_PER_PAGE * pages // 2:
            before = [self._page(number) for number in range(pages)]
            pages *= GROWTH_FACTOR
            self._pages = {number: {} for number in range(pages)}
            for page in before:
                for name, entry in page.items():
                    self._page(crc32(name.encode()) % pages)[name] = entry
            for number in range(pages):
                self._write(number)
        self._changed, self.size = set(), (pages, entries)

    def _write(self, number: int) -> int:
        """Writes a page without the entries that are over; returns by how many it has more."""
        page = {name: each for name, each in self._page(number).items() if not self._is_over(each)}
        more = len(page) - self._stored.get(number, 0)
        if page:
            self._store[number] = len(page), json.dumps(page, separators=(",", ":")).encode()
        elif self._stored.get(number):
            del self._store[number]
        self._pages[number], self._stored[number] = page, len(page)
        return more
