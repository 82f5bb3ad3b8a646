"""The log of a partition: whole batches one after the other, and an index of them in memory.

The bytes are in memory or in one append-only file. The index has 24 bytes for each batch: the
offset after it, the position of its end, and its latest time. It is not written to disk; a file is
read when it is opened, and truncated after its last whole batch.
"""

import errno
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Final

from .batches import (
    APPEND_TIME_MASK,
    HEADER,
    LENGTH_END,
    Batch,
    appended,
    find_time,
    iter_records,
    read_batch,
    read_payload,
    with_records,
)
from .responses import ApiError

logger: Final = logging.getLogger("purgatory_broker")


class Store:
    """Bytes in memory or in a file. Positions count from the first byte that was ever appended.

    A file survives the end of the process, and with `fsync` a power failure. Without it the
    operating system writes when it likes, as under Kafka. With it each append is on the disk before
    the response, and holds up all other requests meanwhile.
    """

    def __init__(self, path: Path | None = None, fsync: bool = False) -> None:
        self.path, self.fsync, self.is_failing = path, fsync, False
        self.file: RawIOBase | BytesIO = (
            BytesIO() if path is None else path.open("a+b", buffering=0)
        )
        self.start, self.size = 0, self.file.seek(0, os.SEEK_END)

    def append(self, data: bytes | bytearray) -> None:
        """Appends all bytes, or none if the disk is full."""
        try:
            self.file.seek(0, os.SEEK_END)
            if self.file.write(data) != len(data):
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {len(data)} bytes")
            if self.fsync:
                os.fsync(self.file.fileno())
        except OSError as error:
            if not self.is_failing:  # once, until it succeeds again
                logger.error(
                    "%s cannot be written, requests that need it are refused: %s", self.path, error
                )
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

    def replace(self, data: bytes) -> None:
        """Replaces all bytes by `data`, at once; positions count from its first byte.

        Raises:
            OSError: they could not be written; nothing has changed.
        """
        if self.path is None:
            self.file = BytesIO(data)
        else:
            new = self.path.with_suffix(".new")
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            self.file.close()
            self.file = self.path.open("a+b", buffering=0)
        self.start, self.size = 0, len(data)

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
        self._next_offsets, self._end_positions, self._max_times = (
            array("q"),
            array("q"),
            array("q"),
        )

    def append(self, data: bytes, batch: Batch, append_time: int | None = None) -> Batch:
        """Appends a batch, and returns it as the log has it.

        Args:
            append_time: time of all its records, in milliseconds; None if they keep their own.

        Raises:
            OSError: the store could not take it; nothing has changed.
        """
        self.store.append(appended(data, self.end, append_time))
        batch = batch._replace(base_offset=self.end)
        if append_time is not None:
            batch = batch._replace(
                max_time=append_time, attributes=batch.attributes | APPEND_TIME_MASK
            )
        self._add(batch)
        return batch

    def _add(self, batch: Batch) -> None:
        self._end_positions.append(self._position(len(self._end_positions)) + batch.size)
        self._next_offsets.append(batch.next_offset)
        self._max_times.append(batch.max_time)
        self.end = batch.next_offset

    def _position(self, index: int) -> int:
        """Position of a batch in the store, or the position after the last one."""
        return self._end_positions[index - 1] if index else self._start_position

    def size(self, offset: int, end: int) -> int:
        """How many bytes the batches from the one with `offset` up to before `end` have. Cost: two
        bisections."""
        if offset >= end:
            return 0
        last, first = (
            bisect_right(self._next_offsets, end),
            bisect_right(self._next_offsets, offset),
        )
        return self._position(last) - self._position(first)

    def read(self, offset: int, end: int, size: int, *, at_least_one: bool) -> tuple[bytes, int]:
        """Reads whole batches, from the one with `offset` up to before `end`; returns them and the
        offset after them.

        Args:
            size: the most bytes to read.
            at_least_one: reads the first batch even if it is larger than that.
        """
        if offset >= end:
            return b"", offset
        first = bisect_right(self._next_offsets, offset)
        begin = self._position(first)
        last = min(
            bisect_right(self._end_positions, begin + size), bisect_right(self._next_offsets, end)
        )
        if last == first and at_least_one:
            last += 1
        if last <= first:
            return b"", offset
        return self.store.read(begin, self._position(last) - begin), self._next_offsets[last - 1]

    def find_time(self, time: int, end: int) -> tuple[int, int] | None:
        """Offset and time of the first record of `time` (in ms) or later and before the offset
        `end`, or None.

        Cost: iterates over the index up to there.
        """
        index = next(
            (index for index, latest in enumerate(self._max_times) if latest >= time), None
        )
        if index is None or self._next_offsets[index] > end:
            return None
        begin = self._position(index)
        offset, found = find_time(self.store.read(begin, self._end_positions[index] - begin), time)
        return max(offset, self.start), found

    def find_max_time(self, end: int) -> tuple[int, int] | None:
        """Offset and time of the record with the greatest time before `end`, or None."""
        count = bisect_right(self._next_offsets, end)
        return self.find_time(max(self._max_times[:count]), end) if count else None

    def delete_before(self, offset: int) -> None:
        """Deletes the records before `offset`; the batch that contains it stays."""
        self.start = max(self.start, offset)
        count = bisect_right(self._next_offsets, offset)
        self._start_position = self._position(count)
        for column in (self._next_offsets, self._end_positions, self._max_times):
            del column[:count]
        self.store.discard_before(self._start_position)

    def expired(self, before: int, size: int, end: int) -> int:
        """The offset up to which batches are too old or too many.

        Args:
            before: the time, in milliseconds, before which they are too old.
            size: bytes that must stay; -1 for all.
            end: the offset after the last batch that may go.
        """
        offset, last = self.start, self._end_positions[-1] if self._end_positions else 0
        for next_offset, position, latest in zip(
            self._next_offsets, self._end_positions, self._max_times, strict=True
        ):
            if next_offset > end or not (0 <= latest < before or 0 <= size <= last - position):
                break
            offset = max(offset, next_offset)
        return offset

    def compact(
        self, end: int, before: int, tombstones_before: int, is_aborted: Callable[[Batch], bool]
    ) -> bool:
        """Removes each record with a later one of its key; returns whether there was any. Offsets
        stay as they are.

        Cost: reads and parses everything.

        Args:
            end: the offset after the last batch that is looked at.
            before: the time, in milliseconds, before which a batch has to be for that.
            tombstones_before: records without a value that are older than this are removed, too.
            is_aborted: whether a batch is of a transaction that was aborted: its records are
                removed, and replace no earlier records.

        Raises:
            OSError: the store could not be written; nothing has changed.
        """
        batches = [
            (batch, data)
            for batch, data in self._batches()
            if batch.next_offset <= end and batch.max_time <= before and not batch.is_control
        ]
        try:
            parsed = [
                [] if is_aborted(batch) else list(iter_records(read_payload(data, batch), batch))
                for batch, data in batches
            ]
        except (ApiError, IndexError, ValueError) as error:
            logger.warning("a partition cannot be compacted: %s", error)
            return False
        latest = {record.key: record.offset for records in parsed for record in records}
        changed: dict[int, bytes] = {}
        for (batch, data), records in zip(batches, parsed, strict=True):
            kept = [
                record
                for record in records
                if latest[record.key] == record.offset
                and not (record.is_tombstone and record.time < tombstones_before)
            ]
            if len(kept) < batch.record_count:
                # The last batch stays, even if it is empty: it has the end of the log.
                changed[batch.base_offset] = (
                    with_records(data, kept) if kept or batch.next_offset == self.end else b""
                )
        if changed:
            self._replace(
                b"".join(changed.get(batch.base_offset, data) for batch, data in self._batches())
            )
        return bool(changed)

    def _batches(self) -> Iterator[tuple[Batch, bytes]]:
        """The header and the bytes of each batch."""
        begin = self._start_position
        for end in self._end_positions:
            data = self.store.read(begin, end - begin)
            yield Batch(*HEADER.unpack_from(data)), data
            begin = end

    def _replace(self, data: bytes) -> None:
        """From now on the log consists of these batches."""
        self.store.replace(data)
        self._start_position, position = 0, 0
        for column in (self._next_offsets, self._end_positions, self._max_times):
            del column[:]
        while position < len(data):
            batch = Batch(*HEADER.unpack_from(data, position))
            self._add(batch)
            position += batch.size

    def load(self) -> Iterator[tuple[Batch, bytes]]:
        """Reads the whole file, yields its batches with their bytes, and truncates the file after
        the last whole batch.

        Cost: reads all of it, a batch at a time.
        """
        file, position = self.store, 0
        while position < file.size:
            length = int.from_bytes(file.read(position + 8, 4), "big", signed=True)
            data = file.read(position, max(0, min(LENGTH_END + length, file.size - position)))
            try:
                batch = read_batch(data)
            except ApiError as error:
                logger.warning(
                    "%s: cut off after %d of %d bytes: %s", file.path, position, file.size, error
                )
                file.truncate(position)
                return
            self._add(batch)
            position += batch.size
            yield batch, data
