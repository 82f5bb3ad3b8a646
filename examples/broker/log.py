"""The log of a partition: whole batches one after the other, and an index of them in memory.

The bytes are in memory, or in one append-only file. The index has 24 bytes a batch: its first offset, where it ends, its latest
time. It is not written down; a file is read through when it is opened, and what is not a whole batch at its end is cut off.
"""

import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Final

from .answers import Refused
from .batches import LENGTH_ENDS, Batch, first_since, placed, read_batch

logger: Final = logging.getLogger("broker")


class Store:
    """Bytes by their position, counted from the first that was ever appended: in memory, or in a file.

    A file survives the process, and with `fsync` the machine. Without it the operating system writes when it likes, as under
    Kafka: what was answered survives the end of the process, however it ends, but not a power failure. With it each append is
    on the disk before it is answered, and holds up all others.
    """

    def __init__(self, path: Path | None = None, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self.file: RawIOBase | BytesIO = BytesIO() if path is None else path.open("a+b", buffering=0)
        self.start, self.size = 0, self.file.seek(0, os.SEEK_END)

    def append(self, data: bytes | bytearray) -> None:
        """Puts bytes at the end; all of them or, if the disk is full, none."""
        try:
            self.file.seek(0, os.SEEK_END)
            if self.file.write(data) != len(data):
                raise OSError(f"{self.path}: no room for {len(data)} bytes")
            if self.fsync:
                os.fsync(self.file.fileno())
        except OSError:
            self.cut(self.size)
            raise
        self.size += len(data)

    def read(self, position: int, size: int) -> bytes:
        """Some bytes that are there."""
        self.file.seek(position - self.start)
        return self.file.read(size) or b""

    def forget(self, position: int) -> None:
        """What is before `position` will not be read any more. Frees memory; a file stays as it is."""
        if self.path is None:
            self.file, self.start = BytesIO(self.read(position, self.size)), position

    def cut(self, size: int) -> None:
        """Keeps the first bytes alone."""
        self.file.truncate(size)
        self.size = size


class Log:
    """The batches of one partition.

    Attributes:
        start: the first offset that is still there.
        end: the offset that the next record gets.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self.start = self.end = self._gone = 0  # of what has been forgotten so many bytes are gone
        self._firsts, self._ends, self._times = array("q"), array("q"), array("q")

    def append(self, data: bytes, batch: Batch) -> Batch:
        """Gives a batch its place at the end, and returns it as it stands there.

        Raises:
            OSError: the store could not take it; nothing has changed.
        """
        self.store.append(placed(data, self.end))
        batch = batch._replace(base_offset=self.end)
        self._add(batch)
        return batch

    def _add(self, batch: Batch) -> None:
        self._ends.append(self._begin(len(self._ends)) + batch.size)
        self._firsts.append(batch.base_offset)
        self._times.append(batch.max_time)
        self.end = batch.next_offset

    def _begin(self, index: int) -> int:
        """Where in the store a batch begins; also of the one after the last."""
        return self._ends[index - 1] if index else self._gone

    def size(self, offset: int, end: int) -> int:
        """How many bytes the batches from the one with `offset` up to before `end` have. Cost: two bisections."""
        if offset >= end:
            return 0
        return self._begin(bisect_left(self._firsts, end)) - self._begin(bisect_right(self._firsts, offset) - 1)

    def read(self, offset: int, end: int, size: int, *, at_least_one: bool) -> bytes:
        """Whole batches, beginning with the one in which `offset` is, up to before `end`.

        Args:
            size: no more than so many bytes.
            at_least_one: one batch is read all the same if the first is larger than that.
        """
        if offset >= end:
            return b""
        first = bisect_right(self._firsts, offset) - 1
        begin = self._begin(first)
        last = min(bisect_right(self._ends, begin + size), bisect_left(self._firsts, end))
        if last == first and at_least_one:
            last += 1
        return self.store.read(begin, self._begin(last) - begin) if last > first else b""

    def since(self, time: int, end: int) -> tuple[int, int] | None:
        """Offset and time of the first record that is of `time` (in ms) or later and before the offset `end`, or None.

        Cost: goes through the index up to there.
        """
        index = next((index for index, latest in enumerate(self._times) if latest >= time), None)
        if index is None or self._firsts[index] >= end:
            return None
        begin = self._begin(index)
        offset, found = first_since(self.store.read(begin, self._ends[index] - begin), time)
        return max(offset, self.start), found

    def latest(self, end: int) -> tuple[int, int] | None:
        """Offset and time of the record with the greatest time before `end`, or None."""
        count = bisect_left(self._firsts, end)
        return self.since(max(self._times[:count]), end) if count else None

    def forget(self, offset: int) -> None:
        """Lets go of what is before `offset`; a batch stays as long as one of its records does."""
        self.start = max(self.start, offset)
        count = len(self._firsts) if offset >= self.end else max(0, bisect_right(self._firsts, offset) - 1)
        self._gone = self._begin(count)
        for column in (self._firsts, self._ends, self._times):
            del column[:count]
        self.store.forget(self._gone)

    def load(self) -> Iterator[Batch]:
        """Reads its file through, and cuts off what is not a whole batch at its end. Yields the batches.

        Cost: reads all of it, a batch at a time.
        """
        file, position = self.store, 0
        while position < file.size:
            length = int.from_bytes(file.read(position + 8, 4), "big", signed=True)
            try:
                batch = read_batch(file.read(position, max(0, min(LENGTH_ENDS + length, file.size - position))))
            except Refused as error:
                logger.warning("%s: cut off after %d of %d bytes: %s", file.path, position, file.size, error)
                file.cut(position)
                return
            self._add(batch)
            position += batch.size
            yield batch
