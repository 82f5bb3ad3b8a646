"""Record batches, the unit in which Kafka's clients send, brokers keep, and clients read. Here they stay the bytes that came.

    offset  8 bytes | length 4 | leader epoch 4 | 2 | CRC 4 | attributes 2 | ... | records, perhaps compressed

The offset of the first record and the epoch stand before the checksum, so a broker may write them in place. The rest of the
header says all that a broker wants to know. Only who asks for an offset by its time looks at the records themselves.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from .answers import ErrorCode, Refused
from .codec import read_varint

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH_ENDS: Final = 12  # what `length` counts begins here
CRC_STARTS: Final = 21  # what the checksum covers begins here
NO_PRODUCER: Final = -1
CODECS, TRANSACTIONS = 7, 0x30  # bits of the attributes
SMALLEST_RECORD: Final = 7  # bytes
LARGEST_UNPACKED: Final = 100 * 1024 * 1024  # bytes


class Batch(NamedTuple):
    """The header of a batch, as it stands there."""

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
    records: int

    @property
    def size(self) -> int:
        """In bytes, all in all."""
        return LENGTH_ENDS + self.length

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.last_delta + 1

    @property
    def next_sequence(self) -> int:
        """The sequence number after that of its last record; after 2**31 - 1 comes 0."""
        return (self.base_sequence + self.last_delta + 1) & 0x7FFFFFFF

    @property
    def numbers(self) -> tuple[int, int, int]:
        """What a producer gives to no other batch."""
        return self.producer_epoch, self.base_sequence, self.last_delta


def read_batch(data: bytes) -> Batch:
    """The header of the batch with which some bytes begin, when all of it is there and its checksum is right.

    Raises:
        Refused: it is not.
    """
    if len(data) < HEADER.size:
        raise Refused(ErrorCode.corrupt_message, f"a batch has at least {HEADER.size} bytes, not {len(data)}")
    batch = Batch(*HEADER.unpack_from(data))
    if batch.magic in (0, 1):
        raise Refused(ErrorCode.unsupported_for_message_format, f"messages of format {batch.magic} are not kept here")
    if batch.magic != 2 or not HEADER.size <= batch.size <= len(data):
        raise Refused(ErrorCode.corrupt_message, f"a batch of {batch.size} bytes, in {len(data)}")
    if crc32c(memoryview(data)[CRC_STARTS : batch.size]) != batch.crc:
        raise Refused(ErrorCode.corrupt_message, "the checksum of a batch is wrong")
    return batch


def read_produced(data: bytes) -> Batch:
    """The header of the one batch that a producer sent for a partition.

    Raises:
        Refused: it sent something else, or what is not kept here.
    """
    batch = read_batch(data)
    if batch.size != len(data):
        raise Refused(ErrorCode.invalid_record, f"one batch of {batch.size} bytes, and {len(data) - batch.size} more")
    unpacked = batch.size - HEADER.size if batch.attributes & CODECS == 0 else LARGEST_UNPACKED
    if not 1 <= batch.records <= unpacked // SMALLEST_RECORD or batch.last_delta != batch.records - 1:
        raise Refused(ErrorCode.invalid_record, f"{batch.records} records, the last of them at {batch.last_delta}")
    if batch.attributes & TRANSACTIONS:
        raise Refused(ErrorCode.invalid_record, "transactions are not offered here")
    if batch.producer_id != NO_PRODUCER and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise Refused(ErrorCode.invalid_record, f"the sequence number {batch.base_sequence}")
    return batch


def placed(data: bytes, base_offset: int) -> bytearray:
    """The batch with its place in the log written in; the leader's epoch is always 0."""
    batch = bytearray(data)
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, 0)
    return batch


def first_since(data: bytes, time: int) -> tuple[int, int]:
    """Offset and time of the first record of a batch that is of `time` (in ms) or later.

    Of a batch that is compressed it is the first record: whoever reads on from there misses nothing.
    """
    batch = Batch(*HEADER.unpack_from(data))
    if batch.attributes & CODECS == 0 and batch.base_time < time:
        with suppress(IndexError, ValueError):  # nobody has looked at the records until now
            for offset_delta, time_delta in _deltas(data[HEADER.size : batch.size], batch.records):
                if batch.base_time + time_delta >= time:
                    return batch.base_offset + offset_delta, batch.base_time + time_delta
    return batch.base_offset, batch.base_time


def _deltas(records: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Of each record how much its offset and its time are more than those of the batch."""
    at = 0
    for _ in range(count):
        length, at = _varint(records, at)
        time_delta, delta_at = _varint(records, at + 1)  # after the attributes
        yield _varint(records, delta_at)[0], time_delta
        if length < SMALLEST_RECORD - 1:
            raise ValueError(f"a record of {length} bytes")
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed number (zigzag), and where it ends."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
