"""Record batches, the unit in which Kafka's clients send, brokers store, and clients read. They
stay the bytes that came.

    offset  8 bytes | length 4 | leader epoch 4 | 2 | CRC 4 | attributes 2 | ... | records, perhaps compressed

The offset of the first record and the epoch come before the checksum, so a broker may write them in
place. The rest of the header has all that a broker needs. Of the records themselves the lengths are
checked when they come; more of them is read to find an offset by its time, and where the
configuration of a topic asks for it.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from .codec import Malformed, read_varint
from .compression import MAX_SIZE, TooLarge, decompress
from .responses import ApiError, ErrorCode, raise_if

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
LENGTH_END: Final = 12  # `length` counts the bytes from here on
CRC_START: Final = 21  # the checksum covers the bytes from here on
NO_PRODUCER: Final = -1
ATTRIBUTES_START: Final = 21
MAX_TIME_START: Final = 35
COMPRESSION_MASK, APPEND_TIME_MASK, TRANSACTION_MASK, CONTROL_MASK = (
    7,
    8,
    0x10,
    0x20,
)  # bits of the attributes
ABORT, COMMIT = 0, 1  # types of markers
MIN_RECORD_SIZE: Final = 7  # bytes
RECORD_COST: Final = 32  # bytes of a `Budget` that a compressed record costs at least


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
        """The sequence number that follows its last record's; after 2**31 - 1 comes 0."""
        return (self.base_sequence + self.last_delta + 1) & 0x7FFFFFFF

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction, or the marker of one."""
        return bool(self.attributes & TRANSACTION_MASK)

    @property
    def is_control(self) -> bool:
        """Whether it is a marker, and not for consumers."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def identity(self) -> tuple[int, int, int]:
        """Differs between any two batches of one producer."""
        return self.producer_epoch, self.base_sequence, self.last_delta


def read_batch(data: bytes) -> Batch:
    """The header of the batch at the start of some bytes.

    Raises:
        ApiError: the batch is incomplete, or its checksum is wrong.
    """
    if len(data) < HEADER.size:
        raise ApiError(
            ErrorCode.corrupt_message, f"a batch has at least {HEADER.size} bytes, not {len(data)}"
        )
    batch = Batch(*HEADER.unpack_from(data))
    if batch.magic in (0, 1):
        raise ApiError(
            ErrorCode.unsupported_for_message_format,
            f"messages of format {batch.magic} are not supported here",
        )
    if batch.magic != 2 or not HEADER.size <= batch.size <= len(data):
        raise ApiError(ErrorCode.corrupt_message, f"a batch of {batch.size} bytes, in {len(data)}")
    if crc32c(memoryview(data)[CRC_START : batch.size]) != batch.crc:
        raise ApiError(ErrorCode.corrupt_message, "the checksum of a batch is wrong")
    return batch


def read_produced(data: bytes) -> Batch:
    """The header of the one batch that a producer sent for a partition. Its records are still to be
    checked.

    Raises:
        ApiError: the client sent something else, or a batch that this broker does not accept.
    """
    batch = read_batch(data)
    if batch.size != len(data):
        raise ApiError(
            ErrorCode.invalid_record,
            f"one batch of {batch.size} bytes, and {len(data) - batch.size} more",
        )
    if batch.record_count < 1 or batch.last_delta != batch.record_count - 1:
        raise ApiError(
            ErrorCode.invalid_record,
            f"{batch.record_count} records, the last of them at {batch.last_delta}",
        )
    if batch.is_control:
        raise ApiError(ErrorCode.invalid_record, "a client may not write markers of transactions")
    if batch.producer_id != NO_PRODUCER and (batch.base_sequence < 0 or batch.producer_epoch < 0):
        raise ApiError(ErrorCode.invalid_record, f"the sequence number {batch.base_sequence}")
    return batch


class Budget:
    """Limits the compressed batches of one request, in bytes. A small request could otherwise hold
    the broker up, by many batches or many small records."""

    def __init__(self) -> None:
        self.left = MAX_SIZE

    def spend(self, cost: int) -> None:
        """Raises `ApiError` if less than `cost` is left."""
        raise_if(
            cost > self.left,
            ErrorCode.message_too_large,
            f"the compressed batches of a request are larger than {MAX_SIZE} bytes",
        )
        self.left -= cost


def check_records(data: bytes, batch: Batch, budget: Budget | None = None) -> bytes:
    """The records of a batch, not compressed.

    Cost: some 0.3 µs for each record, of which only the length is read.

    Args:
        budget: the request's budget; None for a separate budget.

    Raises:
        ApiError: they cannot be decompressed, cost more than the budget has, or differ in number
            from the header.
    """
    if batch.attributes & COMPRESSION_MASK:
        budget = budget or Budget()
        least = batch.record_count * RECORD_COST
        budget.spend(least)
        records = read_payload(data, batch, budget.left + least)
        budget.spend(max(0, len(records) - least))
    else:
        records = read_payload(data, batch)
    at, count = 0, 0
    try:
        for count in range(batch.record_count):  # noqa: B007 - it is in the message
            length = records[at]
            at += 1
            if length >= 0x80:
                length, at = read_varint(records, at - 1)
            if length & 1:
                raise ApiError(ErrorCode.invalid_record, "a record with a length below zero")
            at += length >> 1
    except (IndexError, Malformed):
        at = -1
    if at != len(records):
        there = f"{count} are there" if at < 0 or at > len(records) else "there are more"
        raise ApiError(
            ErrorCode.invalid_record, f"{batch.record_count} records are announced, {there}"
        )
    return records


def read_payload(data: bytes, batch: Batch, limit: int = MAX_SIZE) -> bytes:
    """The bytes after the header, not compressed.

    Raises:
        ApiError: they do not decompress with the header's codec, or to more than `limit` bytes.
            The errors are Kafka's.
    """
    try:
        codec = batch.attributes & COMPRESSION_MASK
        return decompress(codec, data[HEADER.size : batch.size], limit)
    except TooLarge as error:
        raise ApiError(ErrorCode.message_too_large, f"a batch is refused: {error}") from error
    except ValueError as error:
        raise ApiError(
            ErrorCode.unknown_server_error, f"the records of a batch are unreadable: {error}"
        ) from error


class Record(NamedTuple):
    """The fields of a record that a broker needs.

    Attributes:
        time: milliseconds since 1970.
        is_tombstone: whether it has no value, so that it deletes its key in a compacted topic.
        data: the whole record.
    """

    offset: int
    time: int
    key: bytes | None
    is_tombstone: bool
    data: bytes


def iter_records(records: bytes, batch: Batch) -> Iterator[Record]:
    """Parses each record, but for its headers. Raises IndexError or ValueError where there is
    none."""
    at, is_append_time = 0, batch.attributes & APPEND_TIME_MASK
    for _ in range(batch.record_count):
        begin = at
        length, at = _varint(records, at)
        if length < MIN_RECORD_SIZE - 1:
            raise ValueError(f"a record of {length} bytes")
        time_delta, delta_at = _varint(records, at + 1)  # after the attributes
        offset_delta, key_at = _varint(records, delta_at)
        key_size, key_at = _varint(records, key_at)
        key = records[key_at : key_at + key_size] if key_size >= 0 else None
        value_size, _ = _varint(records, key_at + max(0, key_size))
        time = batch.max_time if is_append_time else batch.base_time + time_delta
        at += length
        yield Record(batch.base_offset + offset_delta, time, key, value_size < 0, records[begin:at])


def parse_records(records: bytes, batch: Batch) -> list[Record]:
    """All records. Raises `ApiError` if one of them is invalid."""
    try:
        return list(iter_records(records, batch))
    except (IndexError, ValueError) as error:
        raise ApiError(ErrorCode.invalid_record, f"a record is invalid: {error}") from error


def appended(data: bytes, base_offset: int, append_time: int | None = None) -> bytearray:
    """The batch as the log has it: with its offset, perhaps with the time of the append; the
    leader's epoch is always 0."""
    batch = bytearray(data)
    if append_time is not None:
        (attributes,) = struct.unpack_from(">h", batch, ATTRIBUTES_START)
        struct.pack_into(">h", batch, ATTRIBUTES_START, attributes | APPEND_TIME_MASK)
        struct.pack_into(">q", batch, MAX_TIME_START, append_time)
        struct.pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, 0)
    return batch


def make_marker(producer_id: int, epoch: int, time: int, committed: bool) -> bytes:
    """The control batch that ends a transaction in a partition; `time` is in milliseconds."""
    key, value = struct.pack(">hh", 0, COMMIT if committed else ABORT), struct.pack(">hi", 0, 0)
    record = (
        b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    )  # lengths in zigzag
    records = bytes([2 * len(record)]) + record
    attributes = TRANSACTION_MASK | CONTROL_MASK
    tail = struct.pack(">hiqqqhii", attributes, 0, time, time, producer_id, epoch, -1, 1) + records
    return struct.pack(">qiibI", 0, CRC_START - LENGTH_END + len(tail), 0, 2, crc32c(tail)) + tail


def read_marker(data: bytes, batch: Batch) -> bool | None:
    """Whether a marker commits its transaction; None if the batch is no marker."""
    if not batch.is_control:
        return None
    (record,) = iter_records(data[HEADER.size : batch.size], batch)
    return record.key is not None and struct.unpack(">hh", record.key)[1] == COMMIT


def with_records(data: bytes, records: Sequence[Record]) -> bytes:
    """The batch with some of its records alone, which keep their offsets; they are not compressed
    any more."""
    payload = b"".join(record.data for record in records)
    batch = bytearray(data[: HEADER.size]) + payload
    (attributes,) = struct.unpack_from(">h", batch, ATTRIBUTES_START)
    struct.pack_into(">h", batch, ATTRIBUTES_START, attributes & ~COMPRESSION_MASK)
    struct.pack_into(">i", batch, HEADER.size - 4, len(records))
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_END)
    struct.pack_into(">I", batch, CRC_START - 4, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def find_time(data: bytes, time: int) -> tuple[int, int]:
    """Offset and time of the first record of a batch that is of `time` (in ms) or later; of its
    first one, if there is none.

    Cost: decompresses the batch.
    """
    batch = Batch(*HEADER.unpack_from(data))
    with suppress(
        IndexError, ValueError, ApiError
    ):  # only the lengths of records were checked before
        for record in iter_records(read_payload(data, batch), batch):
            if record.time >= time:
                return record.offset, record.time
    return batch.base_offset, batch.base_time


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed number (zigzag), and the index after it."""
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
