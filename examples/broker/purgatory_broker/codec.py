"""Reads and writes Kafka's messages by the schemas of the package `kio`, which has one class for
each message and version.

A request in any version is read as the newest that is offered: a field that its version does not
have yet gets its default. Responses are dictionaries; entries without a field in the request's
version are left out. Times are in seconds. Tagged fields are optional in the protocol: they are
skipped, and not written.

kio's own reader is not used, for two reasons: it allocates an array before it knows whether the
array is there, so that five bytes that announce two billion items end the process; and it rejects
tagged fields that it does not know, which librdkafka sends.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin
from uuid import UUID

# Fields that mean the same but are named differently in different messages, and their one name
# here.
COMMON_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("topic_data", "responses"), "topics"),
    **dict.fromkeys(("partition_data", "partition_responses", "partition_indexes"), "partitions"),
    **dict.fromkeys(("partition", "partition_index"), "index"),
    **dict.fromkeys(("topic", "resource_name"), "name"),
}

FORMATS: Final = {  # of the module struct; times are in milliseconds
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "error_code": "h",
    "int32": "i",
    "int64": "q",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}


UUID_SIZE: Final = 16  # bytes
MAX_ITEMS: Final = 100_000  # of all arrays and tagged fields of a request together


class Malformed(ValueError):
    """The bytes are not a message."""


class Frame(bytes):
    """A request. An item of an array takes some 500 bytes as an object, and a few on the wire, so
    the number of items is limited.

    Attributes:
        items_left: how many more items its arrays and lists of tagged fields may have.
    """

    items_left = MAX_ITEMS


class Serde(NamedTuple):
    """How values of one kind are read and written (Kafka's serializer and deserializer).

    Attributes:
        read: takes bytes and an index; returns the value at that index, and the index after it.
            Raises Malformed, IndexError, struct.error or UnicodeDecodeError for other bytes.
        write: appends a value to a bytearray.
    """

    read: Callable[[Frame, int], tuple[Any, int]]
    write: Callable[[bytearray, Any], None]


def _number(kind: str) -> Serde:
    number, is_time = struct.Struct(">" + FORMATS[kind]), kind.startswith("timedelta")

    def read(data: Frame, at: int) -> tuple[Any, int]:
        (value,) = number.unpack_from(data, at)
        return (value * 0.001 if is_time else value), at + number.size

    def write(out: bytearray, value: Any) -> None:
        out += number.pack(-1 if value is None else round(value * 1000) if is_time else value)

    return Serde(read, write)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to ten bytes, and the index after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("a number has more than ten bytes")


def _read_compact_length(data: bytes, at: int) -> tuple[int, int]:
    length, at = read_varint(data, at)
    return length - 1, at


def _write_compact_length(out: bytearray, length: int) -> None:
    value = length + 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _count(data: Frame, items: int) -> None:
    """Counts items of a request. Raises `Malformed` if there are too many."""
    data.items_left -= items
    if data.items_left < 0:
        raise Malformed(f"it has more than {MAX_ITEMS} items")


def skip_tagged_fields(data: Frame, at: int) -> int:
    """The index after the tagged fields at `at`."""
    count, at = read_varint(data, at)
    _count(data, count)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > len(data):
            raise Malformed(f"a tagged field of {size} bytes goes beyond the end")
    return at


NUMBERS: Final = {kind: _number(kind) for kind in FORMATS}
INT16, INT32, COMPACT = (
    NUMBERS["int16"],
    NUMBERS["int32"],
    Serde(_read_compact_length, _write_compact_length),
)


def _sequence(length: Serde, is_text: bool) -> Serde:
    """Text or bytes, after their length, which is -1 for None."""

    def read(data: Frame, at: int) -> tuple[Any, int]:
        size, at = length.read(data, at)
        if size < 0:
            return None, at
        if size > len(data) - at:
            raise Malformed(f"{size} bytes are announced, {len(data) - at} are there")
        value = data[at : at + size]
        return (value.decode() if is_text else value), at + size

    def write(out: bytearray, value: Any) -> None:
        data = value.encode() if is_text and value is not None else value
        length.write(out, -1 if data is None else len(data))
        out += data or b""

    return Serde(read, write)


def _array(length: Serde, item: Serde) -> Serde:
    """Items, after their number, which is -1 for None."""

    def read(data: Frame, at: int) -> tuple[Any, int]:
        count, at = length.read(data, at)
        if count > len(data) - at:
            raise Malformed(f"an array of {count} items is announced, in {len(data) - at} bytes")
        _count(data, max(count, 0))
        items = []
        for _ in range(count):
            value, at = item.read(data, at)
            items.append(value)
        return (tuple(items) if count >= 0 else None), at

    def write(out: bytearray, value: Any) -> None:
        length.write(out, -1 if value is None else len(value))
        for one in value or ():
            item.write(out, one)

    return Serde(read, write)


STRING: Final = _sequence(INT16, is_text=True)


def _read_uuid(data: bytes, at: int) -> tuple[UUID | None, int]:
    if len(data) - at < UUID_SIZE:
        raise Malformed(f"an id has {UUID_SIZE} bytes, {len(data) - at} are there")
    value = data[at : at + UUID_SIZE]
    return (UUID(bytes=value) if any(value) else None), at + UUID_SIZE


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += bytes(UUID_SIZE) if value is None else value.bytes


UUID_SERDE: Final = Serde(_read_uuid, _write_uuid)  # None is all zeros


def _optional(serde: Serde) -> Serde:
    """A structure after the byte 1, or -1 for None."""

    def read(data: Frame, at: int) -> tuple[Any, int]:
        (is_there,) = struct.unpack_from(">b", data, at)
        return serde.read(data, at + 1) if is_there >= 0 else (None, at + 1)

    def write(out: bytearray, value: Any) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            serde.write(out, value)

    return Serde(read, write)


class Field(NamedTuple):
    """A field of a kio class; `nested` is the class of its value, if the value is a structure."""

    name: str
    kind: str
    nested: Any
    is_array: bool
    is_nullable: bool
    default: Any


@cache
def fields_of(cls: Any) -> Mapping[str, Field]:
    """The fields of a class that are not tagged, by their common names."""
    return {
        COMMON_NAMES.get(field.name, field.name): _field_of(field)
        for field in fields(cls)
        if "tag" not in field.metadata
    }


def _field_of(field: Any) -> Field:
    inner, kind, default = field.type, field.metadata.get("kafka_type", ""), field.default
    is_nullable = get_origin(inner) is UnionType
    inner = get_args(inner)[0] if is_nullable else inner  # of `X | None`
    is_array = get_origin(inner) is tuple
    inner = get_args(inner)[0] if is_array else inner  # of `tuple[X, ...]`
    if isinstance(default, timedelta):
        default = default.total_seconds()
    elif default is MISSING:
        default = (
            None if is_nullable else () if is_array else {"string": "", "bytes": b""}.get(kind, 0)
        )
    return Field(
        field.name, kind, inner if is_dataclass(inner) else None, is_array, is_nullable, default
    )


@cache
def serde_of(cls: Any, newest: Any = None) -> Serde:
    """How entities of one class are read and written.

    With `newest`, an entity is read into that class, and has the fields of both classes. A response
    is written from a dictionary.
    """
    own_fields, is_flexible = fields_of(cls), cls.__flexible__
    newer = fields_of(newest or cls)
    missing = {name: field.default for name, field in newer.items() if name not in own_fields}
    steps = [
        (name, field, _serde_of_field(field, newer.get(name, field), is_flexible))
        for name, field in own_fields.items()
    ]

    def read(data: Frame, at: int) -> tuple[Any, int]:
        values = missing.copy()
        for name, field, serde in steps:
            value, at = serde.read(data, at)
            if value is None and not field.is_nullable:
                raise Malformed(f"{field.name} may not be null")
            values[name] = value
        return SimpleNamespace(**values), skip_tagged_fields(data, at) if is_flexible else at

    def write(out: bytearray, response: Mapping[str, Any]) -> None:
        for name, field, serde in steps:
            serde.write(out, response.get(name, field.default))
        if is_flexible:
            out.append(0)  # tagged fields

    return Serde(read, write)


def _serde_of_field(field: Field, newer: Field, is_flexible: bool) -> Serde:
    if field.nested is not None:
        serde = serde_of(field.nested, newer.nested)
        if field.is_nullable and not field.is_array:
            return _optional(serde)
    elif field.kind == "uuid":
        serde = UUID_SERDE
    elif field.kind in NUMBERS:
        serde = NUMBERS[field.kind]
    else:
        is_text = field.kind == "string"
        serde = _sequence(COMPACT if is_flexible else INT16 if is_text else INT32, is_text)
    return _array(COMPACT if is_flexible else INT32, serde) if field.is_array else serde
