"""Reads and writes Kafka's messages by the schemas of the package `kio`, which has one class for each message and version.

A request in any version is read as the newest that is offered: where a field was not there yet, it has its default. Answers are
dictionaries; what the version of the request has no field for is left out. Times are seconds. Tagged fields, which are for
those who know them, are passed over and not written: none is needed here.

Why not by kio's own reader: it makes room for an array before it knows whether the array is there, so that five bytes which
promise two billion items end the process; and it refuses tagged fields that it does not know, which librdkafka sends.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

# What has one name in one message and another one in the next, has one name here.
NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("topic_data", "responses"), "topics"),
    **dict.fromkeys(("partition_data", "partition_responses", "partition_indexes"), "partitions"),
    **dict.fromkeys(("partition", "partition_index"), "index"),
    **dict.fromkeys(("topic", "resource_name"), "name"),
}

KINDS: Final = "bool=? int8=b int16=h error_code=h int32=i int64=q timedelta_i32=i timedelta_i64=q datetime_i64=q"
FORMATS: Final = dict(pair.split("=") for pair in KINDS.split())  # times are in milliseconds


class Malformed(ValueError):
    """The bytes are not what they should be."""


class Form(NamedTuple):
    """How values of one kind are read and written.

    Attributes:
        read: from bytes, beginning at an index; returns the value and where it ends. Raises Malformed, IndexError, struct.error
            or UnicodeDecodeError if it is not there.
        write: at the end of a bytearray.
    """

    read: Callable[[bytes, int], tuple[Any, int]]
    write: Callable[[bytearray, Any], None]


def _number(kind: str) -> Form:
    number, is_time = struct.Struct(">" + FORMATS[kind]), kind.startswith("timedelta")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = number.unpack_from(data, at)
        return (value * 0.001 if is_time else value), at + number.size

    def write(out: bytearray, value: Any) -> None:
        out += number.pack(-1 if value is None else round(value * 1000) if is_time else value)

    return Form(read, write)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to ten bytes, and where it ends."""
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


def pass_tags(data: bytes, at: int) -> int:
    """Where the tagged fields end that begin at `at`."""
    count, at = read_varint(data, at)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > len(data):
            raise Malformed(f"a tagged field of {size} bytes goes beyond the end")
    return at


NUMBERS: Final = {kind: _number(kind) for kind in FORMATS}
INT16, INT32, COMPACT = NUMBERS["int16"], NUMBERS["int32"], Form(_read_compact_length, _write_compact_length)


def _sequence(length: Form, is_text: bool) -> Form:
    """Text or bytes, after their length; None is -1 long."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        size, at = length.read(data, at)
        if size < 0:
            return None, at
        if size > len(data) - at:
            raise Malformed(f"{size} bytes are promised, {len(data) - at} are there")
        value = data[at : at + size]
        return (value.decode() if is_text else value), at + size

    def write(out: bytearray, value: Any) -> None:
        data = value.encode() if is_text and value is not None else value
        length.write(out, -1 if data is None else len(data))
        out += data or b""

    return Form(read, write)


def _array(length: Form, item: Form) -> Form:
    """Items after their number; None is -1 of them."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, at = length.read(data, at)
        if count > len(data) - at:
            raise Malformed(f"an array of {count} items is promised, in {len(data) - at} bytes")
        items = []
        for _ in range(count):
            value, at = item.read(data, at)
            items.append(value)
        return (tuple(items) if count >= 0 else None), at

    def write(out: bytearray, value: Any) -> None:
        length.write(out, -1 if value is None else len(value))
        for one in value or ():
            item.write(out, one)

    return Form(read, write)


TEXT: Final = _sequence(INT16, is_text=True)


class Shape(NamedTuple):
    """A field of one of kio's classes: what it nests if anything, and what it is if nothing is said."""

    name: str
    kind: str
    nested: Any
    is_array: bool
    is_nullable: bool
    default: Any


@cache
def shapes_of(cls: Any) -> Mapping[str, Shape]:
    """The fields of a class, by their names here, but for tagged ones."""
    return {NAMES.get(field.name, field.name): _shape_of(field) for field in fields(cls) if "tag" not in field.metadata}


def _shape_of(field: Any) -> Shape:
    inner, kind, default = field.type, field.metadata.get("kafka_type", ""), field.default
    is_nullable = get_origin(inner) is UnionType
    inner = get_args(inner)[0] if is_nullable else inner  # of `X | None`
    is_array = get_origin(inner) is tuple
    inner = get_args(inner)[0] if is_array else inner  # of `tuple[X, ...]`
    if isinstance(default, timedelta):
        default = default.total_seconds()
    elif default is MISSING:
        default = None if is_nullable else () if is_array else {"string": "", "bytes": b""}.get(kind, 0)
    return Shape(field.name, kind, inner if is_dataclass(inner) else None, is_array, is_nullable, default)


@cache
def form_of(cls: Any, newest: Any = None) -> Form:
    """How entities of one class are read and written.

    What is read is an entity of the class `newest`, if given, and has the fields of both. What is written is a dictionary.
    """
    shapes, is_flexible = shapes_of(cls), cls.__flexible__
    newer = shapes_of(newest or cls)
    missing = {name: shape.default for name, shape in newer.items() if name not in shapes}
    steps = [(name, shape, _form_of_field(shape, newer.get(name, shape), is_flexible)) for name, shape in shapes.items()]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = missing.copy()
        for name, shape, form in steps:
            value, at = form.read(data, at)
            if value is None and not shape.is_nullable:
                raise Malformed(f"{shape.name} may not be null")
            values[name] = value
        return SimpleNamespace(**values), pass_tags(data, at) if is_flexible else at

    def write(out: bytearray, answer: Mapping[str, Any]) -> None:
        for name, shape, form in steps:
            form.write(out, answer.get(name, shape.default))
        if is_flexible:
            out.append(0)  # tagged fields

    return Form(read, write)


def _form_of_field(shape: Shape, newer: Shape, is_flexible: bool) -> Form:
    if shape.nested is not None:
        form = form_of(shape.nested, newer.nested)
    elif shape.kind in NUMBERS:
        form = NUMBERS[shape.kind]
    else:
        is_text = shape.kind == "string"
        form = _sequence(COMPACT if is_flexible else INT16 if is_text else INT32, is_text)
    return _array(COMPACT if is_flexible else INT32, form) if shape.is_array else form
