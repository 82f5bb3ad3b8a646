"""Kafka's messages: bytes to requests, answers to bytes, by the schemas of the package `kio`.

kio has one class for each message and version. Handlers know a single version of each, the newest that is offered: a request in
an older one is read as that, where a field that was not there has its default. Answers are plain dictionaries; what the version
of the request has no field for is left out of them.

kio writes the answers. Requests are read here: kio's reader makes room for an array before it knows whether the array is there,
so that five bytes which promise two billion items end the process, and it refuses tagged fields that it does not know.
"""

import io
import struct
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

Answer = dict[str, Any]
Address = tuple[str, int]
Reader = Callable[[bytes, int], tuple[Any, int]]  # bytes and where to read; the value and where it ends

LARGEST = 100 * 1024 * 1024  # bytes; Kafka's socket.request.max.bytes


class Api(NamedTuple):
    """A kind of request, and the versions of it that are offered."""

    name: str
    key: int
    lowest: int
    highest: int


# Versions without topic ids (so Fetch up to 12), and none of the many that came after flexible ones and ask for more than this
# broker has. Produce is told to clients from 0 on, as Kafka 4 does: librdkafka takes that as leave to compress.
APIS: Final = {
    api.key: api
    for api in (
        Api("produce", 0, 3, 9),
        Api("fetch", 1, 4, 12),
        Api("list_offsets", 2, 1, 7),
        Api("metadata", 3, 0, 9),
        Api("offset_commit", 8, 2, 8),
        Api("offset_fetch", 9, 1, 7),
        Api("find_coordinator", 10, 0, 3),
        Api("join_group", 11, 0, 7),
        Api("heartbeat", 12, 0, 4),
        Api("leave_group", 13, 0, 5),
        Api("sync_group", 14, 0, 5),
        Api("describe_groups", 15, 0, 5),
        Api("list_groups", 16, 0, 4),
        Api("api_versions", 18, 0, 3),
        Api("create_topics", 19, 2, 6),
        Api("delete_topics", 20, 1, 5),
        Api("delete_records", 21, 0, 2),
        Api("init_producer_id", 22, 0, 4),
        Api("describe_configs", 32, 1, 4),
        Api("create_partitions", 37, 0, 3),
        Api("delete_groups", 42, 0, 2),
    )
}


class BadRequest(Exception):
    """The bytes are not a request that can be answered; says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is handled.

    Attributes:
        version: of the request as it came; `body` is of the newest version all the same.
        client_id: the client's name for itself.
        here, peer: the two addresses of the connection, ours and the client's.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Any
    here: Address
    peer: Address


def read_request(frame: bytes, here: Address, peer: Address) -> Request:
    """The request in a frame (without its length), which came to the address `here` from `peer`.

    Raises:
        BadRequest: it is not one.
    """
    try:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        api = APIS.get(key)
        if api is None:
            raise BadRequest(f"API key {key} is not known here")
        if not api.lowest <= version <= api.highest:
            if api.name == "api_versions":  # answered all the same, so that the client can choose another version
                return Request(api, -1, correlation_id, "", None, here, peer)
            raise BadRequest(f"version {version} of {api.name} is not offered ({api.lowest} to {api.highest} are)")
        cls: Any = load_request_schema(key, version)
        client_id, at = _string(frame, 8)
        if cls.__header_schema__.__flexible__:
            _, at = _tags(frame, at)
        body, _ = _entity(cls, load_request_schema(key, api.highest))(frame, at)
    except BadRequest:
        raise
    except Exception as error:  # what struct and Unicode have to say of bytes that mean nothing
        raise BadRequest(f"{frame[:16].hex(' ')}... is not a request: {error!r}") from error
    return Request(api, version, correlation_id, client_id or "", body, here, peer)


def write_answer(request: Request, answer: Answer) -> bytes:
    """The frame that answers `request`, with its length."""
    cls: Any = load_response_schema(request.api.key, max(request.version, 0))
    buffer = io.BytesIO()
    buffer.write(struct.pack(">ii", 0, request.correlation_id))
    if cls.__header_schema__.__flexible__:
        buffer.write(b"\0")
    _writer(cls)(buffer, _made(cls, answer))
    struct.pack_into(">i", buffer.getbuffer(), 0, buffer.tell() - 4)
    return buffer.getvalue()


_writer = cache(entity_writer)


# -- shapes: what the fields of kio's classes are


class Shape(NamedTuple):
    """A field: the class it nests, if any, whether it is an array, whether it may be null, what it is if nothing is said."""

    name: str
    nested: Any
    is_array: bool
    is_nullable: bool
    kind: str
    tag: int | None
    default: Any


_PLAIN: Final = {"string": "", "bytes": b"", "records": b"", "bool": False, "error_code": ErrorCode.none, "float64": 0.0}


@cache
def _shapes(cls: Any) -> tuple[Shape, ...]:
    return tuple(_shape(field) for field in fields(cls))


def _shape(field: Any) -> Shape:
    inner, is_nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = get_args(inner)[0]
    kind = field.metadata.get("kafka_type", "")
    if field.default is not MISSING:
        default = field.default
    elif is_nullable or is_array:
        default = None if is_nullable else ()
    else:
        default = timedelta(0) if kind.startswith("timedelta") else _PLAIN.get(kind, 0)
    nested = inner if is_dataclass(inner) else None
    return Shape(field.name, nested, is_array, is_nullable, kind, field.metadata.get("tag"), default)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) is not UnionType:
        return hint, False
    (inner,) = (argument for argument in get_args(hint) if argument is not NoneType)
    return inner, True


def _made(cls: Any, answer: Answer) -> Any:
    """The entity that a dictionary describes. Keys that the class has no field for are left out."""
    values = {}
    for name, nested, is_array, _, _, _, default in _shapes(cls):
        value = answer.get(name, default)
        if nested is not None and value is not default:
            value = [_made(nested, item) for item in value] if is_array else _made(nested, value)
        values[name] = value
    return cls(**values)


# -- reading


@cache
def _entity(cls: Any, newest: Any) -> Reader:
    """Reads an entity of one version as one of the newest.

    Where a single thing has become many, such as who leaves a group, they are that one.
    """
    shapes = {shape.name: shape for shape in _shapes(newest)}
    untagged = [
        (shape.name, _field(shape, shapes.get(shape.name, shape), cls.__flexible__))
        for shape in _shapes(cls)
        if shape.tag is None
    ]
    rest = {name: shape.default for name, shape in shapes.items() if name not in dict(untagged)}
    many = [name for name in rest if (nested := shapes[name].nested) and _shapes(nested)[0].name in dict(untagged)]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = rest.copy()
        for name, step in untagged:
            values[name], at = step(data, at)
        if cls.__flexible__:
            _, at = _tags(data, at)
        entity = SimpleNamespace(**values)
        for name in many:
            setattr(entity, name, (SimpleNamespace(**_defaults(shapes[name].nested) | values),))
        return entity, at

    return read


def _defaults(cls: Any) -> Answer:
    return {shape.name: shape.default for shape in _shapes(cls)}


def _field(shape: Shape, newest: Shape, is_flexible: bool) -> Reader:
    if shape.nested is not None:
        item = _entity(shape.nested, newest.nested or shape.nested)
    elif shape.kind in ("string", "bytes", "records"):
        item = _compact_string if is_flexible else _string
        if shape.kind != "string":
            item = _compact_bytes if is_flexible else _bytes
    else:
        item = _number(shape.kind)
    if not shape.is_array:
        return item

    def read_array(data: bytes, at: int) -> tuple[Any, int]:
        count, at = _compact_length(data, at) if is_flexible else _length(data, at)
        if count > len(data) - at:
            raise BadRequest(f"an array of {count} items is promised, in {len(data) - at} bytes")
        items = []
        for _ in range(count):
            value, at = item(data, at)
            items.append(value)
        return (tuple(items) if count >= 0 else None), at

    return read_array


_FORMATS: Final = {"bool": ">?", "int8": ">b", "int16": ">h", "int32": ">i", "timedelta_i32": ">i"}


def _number(kind: str) -> Reader:
    """Times are read as seconds."""
    number, is_time = struct.Struct(_FORMATS.get(kind, ">q")), kind.startswith("timedelta")

    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = number.unpack_from(data, at)
        return (value / 1000 if is_time else value), at + number.size

    return read


_length = _number("int32")
_short_length = _number("int16")


def _compact_length(data: bytes, at: int) -> tuple[int, int]:
    """Of what may be null: then -1."""
    length, at = _varint(data, at)
    return length - 1, at


def _cut(data: bytes, at: int, length: int) -> tuple[bytes | None, int]:
    end = at + length
    if length < 0:
        return None, at
    if end > len(data):
        raise BadRequest(f"{length} bytes are promised, {len(data) - at} are there")
    return data[at:end], end


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _length(data, at)
    return _cut(data, at, length)


def _compact_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _compact_length(data, at)
    return _cut(data, at, length)


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    length, at = _short_length(data, at)
    value, at = _cut(data, at, length)
    return None if value is None else value.decode(), at


def _compact_string(data: bytes, at: int) -> tuple[str | None, int]:
    value, at = _compact_bytes(data, at)
    return None if value is None else value.decode(), at


def _tags(data: bytes, at: int) -> tuple[None, int]:
    """Fields that only some senders know: none of those that there are is needed here."""
    count, at = _varint(data, at)
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        _, at = _cut(data, at, size)
    return None, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to five bytes, and where it ends."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BadRequest("a number has more than five bytes")
