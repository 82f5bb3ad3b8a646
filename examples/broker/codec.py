"""Reads and writes Kafka's messages by the schemas of the package `kio`, which has one class for each message and version.

A request in any version is read as the newest that is offered: where a field was not there yet, it has its default. Answers are
dictionaries; what the version of the request has no field for is left out. Times are seconds. Tagged fields, which are for
those who know them, are passed over and not written: none is needed here.

Why not by kio's own reader: it makes room for an array before it knows whether the array is there, so that five bytes which
promise two billion items end the process; and it refuses tagged fields that it does not know, which librdkafka sends.
"""

import struct
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

Answer = dict[str, Any]
Read = Callable[[bytes, int], tuple[Any, int]]  # bytes and where to begin; the value and where it ends
Write = Callable[[bytearray, Any], None]

FORMATS: Final = {"bool": ">?", "int8": ">b", "int16": ">h", "error_code": ">h", "int32": ">i", "timedelta_i32": ">i"}
TEXT_AND_BYTES: Final = ("string", "bytes", "records")


class Malformed(Exception):
    """The bytes are not what they should be."""


class Shape(NamedTuple):
    """A field of one of kio's classes: what it nests if anything, and what it is if nothing is said."""

    name: str
    kind: str
    nested: Any
    is_array: bool
    is_nullable: bool
    default: Any


@cache
def shapes_of(cls: Any) -> tuple[Shape, ...]:
    """The fields of a class, but for tagged ones."""
    return tuple(_shape_of(field) for field in fields(cls) if "tag" not in field.metadata)


def _shape_of(field: Any) -> Shape:
    inner, kind = field.type, field.metadata.get("kafka_type", "")
    is_nullable = get_origin(inner) is UnionType
    if is_nullable:
        (inner,) = (argument for argument in get_args(inner) if argument is not NoneType)
    is_array = get_origin(inner) is tuple
    if is_array:
        (inner, _) = get_args(inner)
    nested = inner if is_dataclass(inner) else None
    default = field.default
    if default is MISSING:
        plain = "" if kind == "string" else b"" if kind in TEXT_AND_BYTES else 0
        default = None if is_nullable else () if is_array else plain
    elif isinstance(default, timedelta):
        default = default.total_seconds()
    return Shape(field.name, kind, nested, is_array, is_nullable, default)


# -- reading


@cache
def reader(cls: Any, newest: Any) -> Read:
    """Reads an entity of one version as one of the newest.

    Where a single thing has become many, such as who leaves a group, they are that one.

    Raises (the reader):
        Malformed, IndexError, struct.error, UnicodeDecodeError: it is not there.
    """
    new = {shape.name: shape for shape in shapes_of(newest)}
    steps = [(shape.name, _field_reader(shape, new.get(shape.name, shape), cls.__flexible__)) for shape in shapes_of(cls)]
    old = {shape.name for shape in shapes_of(cls)}
    missing = {name: shape.default for name, shape in new.items() if name not in old}
    many = {name: shape.nested for name, shape in new.items() if name in missing and shape.nested}
    many = {name: nested for name, nested in many.items() if shapes_of(nested)[0].name in old}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = missing.copy()
        for name, step in steps:
            values[name], at = step(data, at)
        for name, nested in many.items():
            one = {shape.name: values.get(shape.name, shape.default) for shape in shapes_of(nested)}
            values[name] = (SimpleNamespace(**one),)
        return SimpleNamespace(**values), pass_tags(data, at) if cls.__flexible__ else at

    return read


def _field_reader(shape: Shape, newest: Shape, is_flexible: bool) -> Read:
    if shape.nested is not None:
        read = reader(shape.nested, newest.nested or shape.nested)
    elif shape.kind in TEXT_AND_BYTES:
        read = _text_reader(shape.kind, is_flexible)
    else:
        read = _number_reader(shape.kind)
    if shape.is_array:
        read = _array_reader(read, is_flexible)
    if shape.is_nullable or not (shape.is_array or shape.kind in TEXT_AND_BYTES):
        return read

    def read_required(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        if value is None:
            raise Malformed(f"{shape.name} may not be null")
        return value, at

    return read_required


def _number_reader(kind: str) -> Read:
    number, unit = struct.Struct(FORMATS.get(kind, ">q")), 0.001 if kind.startswith("timedelta") else None

    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = number.unpack_from(data, at)
        return (value if unit is None else value * unit), at + number.size

    return read


def _text_reader(kind: str, is_flexible: bool) -> Read:
    is_text = kind == "string"
    read_length = _read_compact_length if is_flexible else _number_reader("int16" if is_text else "int32")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = read_length(data, at)
        if length < 0:
            return None, at
        end = at + length
        if end > len(data):
            raise Malformed(f"{length} bytes are promised, {len(data) - at} are there")
        return (data[at:end].decode() if is_text else data[at:end]), end

    return read


def _array_reader(read_item: Read, is_flexible: bool) -> Read:
    read_length = _read_compact_length if is_flexible else _number_reader("int32")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        count, at = read_length(data, at)
        if count > len(data) - at:
            raise Malformed(f"an array of {count} items is promised, in {len(data) - at} bytes")
        items = []
        for _ in range(count):
            value, at = read_item(data, at)
            items.append(value)
        return (tuple(items) if count >= 0 else None), at

    return read


read_text: Final = _text_reader("string", is_flexible=False)


def pass_tags(data: bytes, at: int) -> int:
    """Where the tagged fields end that begin at `at`."""
    count, at = _read_varint(data, at)
    for _ in range(count):
        _, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        at += size
        if at > len(data):
            raise Malformed(f"a tagged field of {size} bytes goes beyond the end")
    return at


def _read_compact_length(data: bytes, at: int) -> tuple[int, int]:
    """Of what may be null, and then is -1 long."""
    length, at = _read_varint(data, at)
    return length - 1, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to five bytes."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("a number has more than five bytes")


# -- writing


@cache
def writer(cls: Any) -> Write:
    """Writes a dictionary as an entity of one version. What is not in it has its default."""
    steps = [(shape.name, shape.default, _field_writer(shape, cls.__flexible__)) for shape in shapes_of(cls)]

    def write(out: bytearray, answer: Answer) -> None:
        for name, default, step in steps:
            step(out, answer.get(name, default))
        if cls.__flexible__:
            out.append(0)  # tagged fields

    return write


def _field_writer(shape: Shape, is_flexible: bool) -> Write:
    if shape.nested is not None:
        write = writer(shape.nested)
    elif shape.kind in TEXT_AND_BYTES:
        write = _text_writer(shape.kind, is_flexible)
    else:
        write = _number_writer(shape.kind)
    return _array_writer(write, is_flexible) if shape.is_array else write


def _number_writer(kind: str) -> Write:
    pack, is_time = struct.Struct(FORMATS.get(kind, ">q")).pack, kind.startswith("timedelta")

    def write(out: bytearray, value: Any) -> None:
        out += pack(round(value * 1000) if is_time else -1 if value is None else value)

    return write


def _text_writer(kind: str, is_flexible: bool) -> Write:
    write_length = _write_compact_length if is_flexible else _number_writer("int16" if kind == "string" else "int32")

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            write_length(out, -1)
            return
        data = value.encode() if kind == "string" else value
        write_length(out, len(data))
        out += data

    return write


def _array_writer(write_item: Write, is_flexible: bool) -> Write:
    write_length = _write_compact_length if is_flexible else _number_writer("int32")

    def write(out: bytearray, value: Any) -> None:
        write_length(out, -1 if value is None else len(value))
        for item in value or ():
            write_item(out, item)

    return write


def _write_compact_length(out: bytearray, length: int) -> None:
    value = length + 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
