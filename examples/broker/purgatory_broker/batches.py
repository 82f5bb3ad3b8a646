"""Record batches, the unit in which Kafka's clients send, brokers store, and clients read. They stay the bytes that came.

    offset  8 bytes | length 4 | leader epoch 4 | 2 | CRC 4 | attributes 2 | ... | records, perhaps compressed

The offset of the first record and the epoch come before the checksum, so a broker may write them in place. The rest of the
header has all that a broker needs. The records themselves are read only to find an offset by its time.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from .codec import read_varint
from .responses import ApiError, ErrorCode

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH_END: Final = 12  # `length` counts the bytes from here on
CRC_START: Final = 21  # the checksum covers the bytes from here on
NO_PRODUCER: Final = -1
COMPRESSION_MASK, TRANSACTION_MASK = 7, 0x30  # bits of the attributes
MIN_RECORD_SIZE: Final = 7  # bytes
MAX_UNCOMPRESSED_SIZE: Final = 100 * 1024 * 1024  # bytes


class Batch(NamedTuple):
    """The header of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    base_time: int
    max_time: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """In bytes, including the fields before `length`."""
        return LENGTH_END + self.length

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.last_delta + 1

    @property
    def next_sequence(self) -> int:
        """The sequence number after that of its last record; after 2**31 - 1 comes 0."""
        return (self.base_sequence + self.last_delta + 1) & 0x7FFFFFFF

    @property
    def identity(self) -> tuple[int, int, int]:
        """Differs between any two batches of one producer."""
        return self.producer_epoch, self.base_sequence, self.last_delta


def read_batch(data: bytes) -> Batch:
    """The header of the batch with which some bytes begin.

    Raises:
        ApiError: it is incomplete, or its checksum is wrong.
    """
    if len(data) < HEADER.size:
        raise ApiError(ErrorCode.corrupt_message, f"a batch has at least {HEADER.size} bytes, not {len(data)}")
    batch = Batch(*HEADER.unpack_from(data))
    if batch.magic in (0, 1):
        raise ApiError(ErrorCode.unsupported_for_message_format, f"messages of format {batch.magic} are not supported here")
    if batch.magic != 2 or not HEADER.size <= batch.size <= len(data):
        raise ApiError(ErrorCode.corrupt_message, f"a batch of {batch.size} bytes, in {len(data)}")
    if crc32c(memoryview(data)[CRC_START : batch.size]) != batch.crc:
        raise ApiError(ErrorCode.corrupt_message, "the checksum of a batch is wrong")
    return batch


def read_produced(data: bytes) -> Batch:
    """The header of the one batch that a producer sent for a partition.

    Raises:
        ApiError: it sent something else, or a batch that this broker does not take.
    """
    batch = read_batch(data)
    if batch.size != len(data):
        raise ApiError(ErrorCode.invalid_record, f"one batch of {batch.size} bytes, and {len(data) - batch.size} more")
    uncompressed = batch.size - HEADER.size if batch.attributes & COMPRESSION_MASK == 0 else MAX_UNCOMPRESSED_SIZE
    if not 1 <= batch.record_count <= uncompressed // MIN_RECORD_SIZE or batch.last_delta != batch.record_count - 1:
        raise ApiError(ErrorCode.invalid_record, f"{batch.record_count} records, the last of them at {batch.last_delta}")
    if batch.attributes & TRANSACTION_MASK:
        raise ApiError(ErrorCode.invalid_record, "transactions are not offered here")
    if batch.producer_id != NO_PRODUCER and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise ApiError(ErrorCode.invalid_record, f"the sequence number {batch.base_sequence}")
    return batch


def with_base_offset(data: bytes, base_offset: int) -> bytearray:
    """The batch with the offset that the log gives it; the leader's epoch is always 0."""
    batch = bytearray(data)
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, 0)
    return batch


def find_time(data: bytes, time: int) -> tuple[int, int]:
    """Offset and time of the first record of a batch that is of `time` (in ms) or later.

    Of a compressed batch it is the first record: a consumer that starts there misses nothing.
    """
    batch = Batch(*HEADER.unpack_from(data))
    if batch.attributes & COMPRESSION_MASK == 0 and batch.base_time < time:
        with suppress(IndexError, ValueError):  # the records were not checked before
            for offset_delta, time_delta in _deltas(data[HEADER.size : batch.size], batch.record_count):
                if batch.base_time + time_delta >= time:
                    return batch.base_offset + offset_delta, batch.base_time + time_delta
    return batch.base_offset, batch.base_time


def _deltas(records: bytes, count: int) -> Iterator[tuple[int, int]]:
    """The differences of each record's offset and time from those of the batch."""
    at = 0
    for _ in range(count):
        length, at = _varint(records, at)
        time_delta, delta_at = _varint(records, at + 1)  # after the attributes
        yield _varint(records, delta_at)[0], time_delta
        if length < MIN_RECORD_SIZE - 1:
            raise ValueError(f"a record of {length} bytes")
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed number (zigzag), and the index after it."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
