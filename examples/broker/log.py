"""The log of a partition: whole batches one after the other, and an index of them in memory.

The bytes are in a store of one of two kinds: `Memory`, one bytearray, or `File`, one append-only file. The index has 32 bytes a
batch: its first offset, where it ends in the store, its latest time, the offset after it. It is not written down; a
file is read through when it is opened, and what is not a whole batch at its end is cut off.
"""

import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from .batches import BadBatch, Batch, first_since, placed, read_batch

logger: Final = logging.getLogger("broker")


class Store(Protocol):
    """Bytes by their position, counted from the first that was ever appended."""

    def append(self, data: bytes | bytearray) -> None:
        """Puts bytes at the end."""

    def read(self, position: int, size: int) -> bytes:
        """Some bytes that are there."""
        ...

    def forget(self, position: int) -> None:
        """What is before `position` will not be read any more."""

    def close(self) -> None:
        """The end."""


class Memory:
    """A store that lasts as long as the process."""

    def __init__(self) -> None:
        self.data, self.start = bytearray(), 0

    def append(self, data: bytes | bytearray) -> None:
        """Puts bytes at the end."""
        self.data += data

    def read(self, position: int, size: int) -> bytes:
        """Some bytes that are there."""
        return bytes(memoryview(self.data)[position - self.start : position - self.start + size])

    def forget(self, position: int) -> None:
        """Frees what is before `position`."""
        del self.data[: position - self.start]
        self.start = position

    def close(self) -> None:
        """Frees all."""
        self.data = bytearray()


class File:
    """A store that survives the process, and with `fsync` the machine.

    Without it the operating system writes when it likes, as under Kafka: what was answered survives the end of the process,
    however it ends, but not a power failure. With it each append is on the disk before it is answered, and holds up all others.
    """

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path, self.fsync = path, fsync
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = os.fstat(self.descriptor).st_size

    def append(self, data: bytes | bytearray) -> None:
        """Puts bytes at the end; all of them or, if the disk is full, none."""
        try:
            if os.write(self.descriptor, data) != len(data):
                raise OSError(f"{self.path}: no room for {len(data)} bytes")
            if self.fsync:
                os.fsync(self.descriptor)
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(data)

    def read(self, position: int, size: int) -> bytes:
        """Some bytes that are there."""
        return os.pread(self.descriptor, size, position)

    def forget(self, position: int) -> None:
        """They stay on the disk."""

    def close(self) -> None:
        """The file stays."""
        os.close(self.descriptor)

    def cut(self, size: int) -> None:
        """Keeps the first bytes alone."""
        os.ftruncate(self.descriptor, size)
        self.size = size


class Log:
    """The batches of one partition.

    Attributes:
        start: the first offset that is still there.
        end: the offset that the next record gets.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store: Store = store or Memory()
        self.start = self.end = 0
        self._firsts, self._ends, self._times, self._nexts = array("q"), array("q"), array("q"), array("q")

    def append(self, data: bytes, batch: Batch) -> int:
        """Gives a batch its place at the end.

        Returns:
            The offset of its first record.

        Raises:
            OSError: the store could not take it; nothing has changed.
        """
        offset = self.end
        self.store.append(placed(data, offset))
        self._add(batch._replace(base_offset=offset))
        return offset

    def _add(self, batch: Batch) -> None:
        self._firsts.append(batch.base_offset)
        self._ends.append((self._ends[-1] if self._ends else self._gone) + batch.size)
        self._times.append(batch.max_time)
        self._nexts.append(batch.next_offset)
        self.end = batch.next_offset

    _gone = 0  # bytes of what has been forgotten

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
        offset, found = first_since(self._read_one(index), time)
        return max(offset, self.start), found

    def latest(self, end: int) -> tuple[int, int] | None:
        """Offset and time of the record with the greatest time before `end`, or None."""
        count = bisect_left(self._firsts, end)
        return self.since(max(self._times[:count]), end) if count else None

    def _read_one(self, index: int) -> bytes:
        begin = self._begin(index)
        return self.store.read(begin, self._ends[index] - begin)

    def forget(self, offset: int) -> None:
        """Lets go of what is before `offset`; a batch stays as long as one of its records does."""
        self.start = max(self.start, offset)
        count = bisect_right(self._nexts, offset)
        self._gone = self._begin(count)
        for column in (self._firsts, self._ends, self._times, self._nexts):
            del column[:count]
        self.store.forget(self._gone)

    def load(self, file: File) -> Iterator[Batch]:
        """Reads a file through, and cuts off what is not a whole batch at its end. Yields the batches.

        Cost: reads all of it, a batch at a time.
        """
        self.store, position = file, 0
        while position < file.size:
            try:
                head = read_head(file, position)
                batch = read_batch(file.read(position, head))
            except BadBatch as error:
                logger.warning("%s: cut off after %d of %d bytes: %s", file.path, position, file.size, error)
                file.cut(position)
                return
            self._add(batch)
            position += batch.size
            yield batch


def read_head(file: File, position: int) -> int:
    """How large the batch at a position says that it is, no more than the file has."""
    length = int.from_bytes(file.read(position + 8, 4), "big", signed=True)
    return max(0, min(12 + length, file.size - position))
