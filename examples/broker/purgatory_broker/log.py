"""The log of a partition: whole batches one after the other, and an index of them in memory.

The bytes are in memory or in one append-only file. The index has 24 bytes for each batch: its first offset, the position of its
end, and its latest time. It is not written to disk; a file is read when it is opened, and truncated after its last whole batch.
"""

import errno
import logging
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Final

from .batches import LENGTH_END, Batch, appended, find_time, read_batch
from .responses import ApiError

logger: Final = logging.getLogger("purgatory_broker")


class Store:
    """Bytes in memory or in a file. Positions count from the first byte that was ever appended.

    A file survives the end of the process, and with `fsync` a power failure. Without it the operating system writes when it
    likes, as under Kafka. With it each append is on the disk before the response, and holds up all other requests meanwhile.
    """

    def __init__(self, path: Path | None = None, fsync: bool = False) -> None:
        self.path, self.fsync, self.is_failing = path, fsync, False
        self.file: RawIOBase | BytesIO = BytesIO() if path is None else path.open("a+b", buffering=0)
        self.start, self.size = 0, self.file.seek(0, os.SEEK_END)

    def append(self, data: bytes | bytearray) -> None:
        """Appends all of the bytes or, if the disk is full, none."""
        try:
            self.file.seek(0, os.SEEK_END)
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {len(data)} bytes")
            if self.fsync:
                os.fsync(self.file.fileno())
        except OSError as error:
            if not self.is_failing:  # once, until it succeeds again
                logger.error("%s cannot be written, requests that need it are refused: %s", self.path, error)
            self.is_failing = True
            self.truncate(self.size)
            raise
        self.is_failing = False
        self.size += len(data)

    def read(self, position: int, size: int) -> bytes:
        """Reads bytes that are there."""
        self.file.seek(position - self.start)
        return self.file.read(size) or b""

    def discard_before(self, position: int) -> None:
        """Frees the memory of bytes that will not be read any more. A file stays as it is."""
        if self.path is None:
            self.file, self.start = BytesIO(self.read(position, self.size)), position

    def truncate(self, size: int) -> None:
        """Removes everything after the first `size` bytes."""
        self.file.truncate(size)
        self.size = size


class Log:
    """The batches of one partition.

    Attributes:
        start: the first offset that was not deleted.
        end: the offset that the next record gets.
    """

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        self.start = self.end = self._start_position = 0
        self._base_offsets, self._end_positions, self._max_times = array("q"), array("q"), array("q")

    def append(self, data: bytes, batch: Batch) -> Batch:
        """Appends a batch, and returns it with its offset.

        Raises:
            OSError: the store could not take it; nothing has changed.
        """
        self.store.append(appended(data, self.end))
        batch = batch._replace(base_offset=self.end)
        self._add(batch)
        return batch

    def _add(self, batch: Batch) -> None:
        self._end_positions.append(self._position(len(self._end_positions)) + batch.size)
        self._base_offsets.append(batch.base_offset)
        self._max_times.append(batch.max_time)
        self.end = batch.next_offset

    def _position(self, index: int) -> int:
        """Where in the store a batch begins, or would begin after the last one."""
        return self._end_positions[index - 1] if index else self._start_position

    def size(self, offset: int, end: int) -> int:
        """How many bytes the batches from the one with `offset` up to before `end` have. Cost: two bisections."""
        if offset >= end:
            return 0
        last, first = bisect_left(self._base_offsets, end), bisect_right(self._base_offsets, offset) - 1
        return self._position(last) - self._position(first)

    def read(self, offset: int, end: int, size: int, *, at_least_one: bool) -> bytes:
        """Reads whole batches, from the one with `offset` up to before `end`.

        Args:
            size: the most bytes to read.
            at_least_one: reads the first batch even if it is larger than that.
        """
        if offset >= end:
            return b""
        first = bisect_right(self._base_offsets, offset) - 1
        begin = self._position(first)
        last = min(bisect_right(self._end_positions, begin + size), bisect_left(self._base_offsets, end))
        if last == first and at_least_one:
            last += 1
        return self.store.read(begin, self._position(last) - begin) if last > first else b""

    def find_time(self, time: int, end: int) -> tuple[int, int] | None:
        """Offset and time of the first record of `time` (in ms) or later and before the offset `end`, or None.

        Cost: iterates over the index up to there.
        """
        index = next((index for index, latest in enumerate(self._max_times) if latest >= time), None)
        if index is None or self._base_offsets[index] >= end:
            return None
        begin = self._position(index)
        offset, found = find_time(self.store.read(begin, self._end_positions[index] - begin), time)
        return max(offset, self.start), found

    def find_max_time(self, end: int) -> tuple[int, int] | None:
        """Offset and time of the record with the greatest time before `end`, or None."""
        count = bisect_left(self._base_offsets, end)
        return self.find_time(max(self._max_times[:count]), end) if count else None

    def delete_before(self, offset: int) -> None:
        """Deletes the records before `offset`; the batch that contains it stays."""
        self.start = max(self.start, offset)
        count = len(self._base_offsets) if offset >= self.end else max(0, bisect_right(self._base_offsets, offset) - 1)
        self._start_position = self._position(count)
        for column in (self._base_offsets, self._end_positions, self._max_times):
            del column[:count]
        self.store.discard_before(self._start_position)

    def load(self) -> Iterator[Batch]:
        """Reads the whole file, yields its batches, and truncates what follows the last whole one.

        Cost: reads all of it, a batch at a time.
        """
        file, position = self.store, 0
        while position < file.size:
            length = int.from_bytes(file.read(position + 8, 4), "big", signed=True)
            try:
                batch = read_batch(file.read(position, max(0, min(LENGTH_END + length, file.size - position))))
            except ApiError as error:
                logger.warning("%s: cut off after %d of %d bytes: %s", file.path, position, file.size, error)
                file.truncate(position)
                return
            self._add(batch)
            position += batch.size
            yield batch
