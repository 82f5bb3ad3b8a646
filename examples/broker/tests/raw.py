"""A client for what real clients do not do: kio writes its requests and reads the responses; it
makes batches by itself."""

import asyncio
import io
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from purgatory_broker.broker import Broker
from purgatory_broker.settings import Settings
from purgatory_broker.testing import BrokerThread
from purgatory_broker.wire import APIS, read_request, write_response

BY_NAME = {api.name: api for api in APIS.values()}
WITH_NAMES = {"fetch": 12, "delete_topics": 5}
"""The last versions that have the names of topics instead of their ids: the default here, elsewhere
it is the newest."""
LOCAL, PEER = ("127.0.0.1", 9092), ("127.0.0.1", 50000)


def make(cls: Any, values: dict[str, Any]) -> Any:
    """A kio entity. Missing fields have their default or, without a default, None, zero or an empty
    value."""
    made = {}
    for field in fields(cls):
        inner, is_nullable = field.type, get_origin(field.type) is UnionType
        if is_nullable:
            (inner,) = (argument for argument in get_args(inner) if argument is not NoneType)
        is_array = get_origin(inner) is tuple
        item = get_args(inner)[0] if is_array else inner
        value = values.get(field.name, field.default)
        if value is MISSING:
            kind = field.metadata.get("kafka_type", "")
            nothing: dict[str, Any] = {"string": "", "bytes": b"", "bool": False}
            nothing |= {"timedelta_i32": timedelta(), "timedelta_i64": timedelta()}
            value = None if is_nullable else () if is_array else nothing.get(kind, 0)
        elif is_dataclass(item) and field.name in values and value is not None:
            value = tuple(make(item, one) for one in value) if is_array else make(item, value)
        made[field.name] = value
    return cls(**made)


def framed(name: str, version: int | None = None, correlation_id: int = 1, **values: Any) -> bytes:
    """A request without its length."""
    api = BY_NAME[name]
    version = WITH_NAMES.get(name, api.max_version) if version is None else version
    cls: Any = load_request_schema(api.key, version)
    header = cls.__header_schema__
    buffer = io.BytesIO()
    fields = {"request_api_key": api.key, "request_api_version": version}
    fields |= {"correlation_id": correlation_id, "client_id": "raw"}
    entity_writer(header)(buffer, make(header, fields))
    entity_writer(cls)(buffer, make(cls, values))
    return buffer.getvalue()


def unframed(name: str, version: int | None, data: bytes) -> Any:
    """A response without its length."""
    api = BY_NAME[name]
    version = WITH_NAMES.get(name, api.max_version) if version is None else version
    cls: Any = load_response_schema(api.key, version)
    _, size_of_header = entity_reader(cls.__header_schema__)(data, 0)
    entity, size = entity_reader(cls)(data, size_of_header)
    assert size_of_header + size == len(data)
    return entity


def with_length(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


class Raw:
    """A connection over a socket."""

    def __init__(self, address: str, timeout: float = 120.0) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, name: str, version: int | None = None, **values: Any) -> None:
        self.socket.sendall(with_length(framed(name, version, **values)))

    def frame(self) -> bytes:
        """The next response without its length."""
        return self._read(int.from_bytes(self._read(4)))

    def receive(self, name: str, version: int | None = None) -> Any:
        return unframed(name, version, self.frame())

    def ask(self, name: str, version: int | None = None, **values: Any) -> Any:
        self.send(name, version, **values)
        return self.receive(name, version)

    def create(self, topic: str) -> None:
        """A topic, by a request for its metadata."""
        self.ask("metadata", topics=[{"name": topic}], allow_auto_topic_creation=True)

    def produce(self, topic: str, *batches: bytes, **options: Any) -> list[tuple[str, int]]:
        return produced(self.ask("produce", **produce_fields(topic, *batches, **options)))

    def fetch(self, topic: str, *offsets: int, **options: Any) -> list[tuple[str, int]]:
        return fetched(self.ask("fetch", **fetch_fields(topic, *offsets, **options)))

    def is_closed(self) -> bool:
        """Waits for the broker to close the connection; False if it sends something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data


def assert_alive(broker: BrokerThread) -> None:
    """A new client can produce and fetch."""
    batch = make_batch(b"one")
    with Raw(broker.address) as client:
        client.create("alive")
        ((error, offset),) = client.produce("alive", batch)
        assert error == "none"
        assert client.fetch("alive", offset, wait=5) == [("none", len(batch))]


class Direct:
    """The same without a network, for tests on virtual time."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def send(self, name: str, version: int | None = None, **values: Any) -> "asyncio.Future[Any]":
        response = asyncio.get_running_loop().create_future()

        def respond(fields: Any) -> None:
            if isinstance(fields, Exception):
                response.set_exception(fields)
            elif fields is None:
                response.set_result(None)
            else:
                data = bytes(write_response(request, fields)[4:])
                response.set_result(unframed(name, version, data))

        request = read_request(framed(name, version, **values), LOCAL, PEER, respond)
        self.broker.handle(request)
        return response

    async def ask(self, name: str, version: int | None = None, **values: Any) -> Any:
        return await self.send(name, version, **values)

    async def produce(self, topic: str, *batches: bytes, **options: Any) -> list[tuple[str, int]]:
        return produced(await self.ask("produce", **produce_fields(topic, *batches, **options)))

    async def fetch(self, topic: str, *offsets: int, **options: Any) -> list[tuple[str, int]]:
        return fetched(await self.ask("fetch", **fetch_fields(topic, *offsets, **options)))

    async def list_offset(self, topic: str, time: int, **options: Any) -> tuple[int, int]:
        """The offset and the time that are found for a time: -2 is the first, -1 the end."""
        topics = at(topic, timestamp=time)
        (found,) = (await self.ask("list_offsets", topics=topics, **options)).topics[0].partitions
        return found.offset, found.timestamp


@asynccontextmanager
async def running_broker(
    topics: Iterable[str] = ("topic",), **settings: Any
) -> AsyncIterator[Direct]:
    """A client of a new broker, without a network. At the end no trigger was missed, and closing
    leaves nothing pending."""
    broker = Broker(Settings(**settings))
    broker.coordinator.start()
    for name in topics:
        broker.topics.create(name, broker.settings.partitions, broker.settings.replicas, {})
    yield Direct(broker)
    assert [purgatory.statistics().missed_triggers for purgatory in broker.purgatories] == [0] * 6
    await broker.aclose()
    assert [purgatory.pending for purgatory in broker.purgatories] == [0] * 6


def at(topic: str, index: int = 0, **values: Any) -> list[dict[str, Any]]:
    """The `topics` of a request about one partition."""
    return [{"name": topic, "partitions": [{"partition_index": index, **values}]}]


def new_topic(name: str = "topic", partitions: int = 1, **values: Any) -> list[dict[str, Any]]:
    """The `topics` of a request to create one."""
    wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    return [wanted | values]


def errors(response: Any) -> list[str]:
    """The names of all errors in a response, in order."""
    found = []
    for value in [getattr(response, field.name) for field in fields(response)]:
        if isinstance(value, ErrorCode):
            found.append(value.name)
        for each in value if isinstance(value, tuple) else ():
            found += errors(each) if is_dataclass(each) else []
    return found


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def make_batch(
    *values: bytes | None,
    time: int = 1000,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    key: bytes | None = None,
    count: int | None = None,
    compress: Callable[[bytes], bytes] = bytes,
) -> bytes:
    """A batch of records, the nth of them n ms later than the first; `count` is the number in the
    header."""
    records = b""
    for number, value in enumerate(values):
        parts = [varint(-1) if each is None else varint(len(each)) + each for each in (key, value)]
        body = b"\0" + varint(number) * 2 + b"".join(parts) + varint(0)
        records += varint(len(body)) + body
    count = len(values) if count is None else count
    last = count - 1
    times = time, time + len(values) - 1
    numbers = producer, epoch, sequence, count
    head = struct.pack(">hiqqqhii", attributes, last, *times, *numbers)
    tail = head + compress(records)
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def produce_fields(
    topic: str, *batches: bytes, acks: int = -1, timeout: float = 30.0
) -> dict[str, Any]:
    """Fields of a produce request: the nth batch is for partition n."""
    partitions = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    topics = [{"name": topic, "partition_data": partitions}]
    return {"acks": acks, "timeout": timedelta(seconds=timeout), "topic_data": topics}


def fetch_fields(
    topic: str,
    *offsets: int,
    wait: float = 0.0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
) -> dict[str, Any]:
    """Fields of a fetch request: from the nth offset of partition n."""
    partitions = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_bytes}
        for index, offset in enumerate(offsets)
    ]
    topics = [{"topic": topic, "partitions": partitions}]
    limits = {"min_bytes": min_bytes, "max_bytes": max_bytes}
    return {"max_wait": timedelta(seconds=wait), "topics": topics, **limits}


def produced(response: Any) -> list[tuple[str, int]]:
    """Error and first offset for each partition."""
    return [
        (partition.error_code.name, partition.base_offset)
        for topic in response.responses
        for partition in topic.partition_responses
    ]


def fetched(response: Any) -> list[tuple[str, int]]:
    """Error and number of bytes for each partition."""
    return [
        (partition.error_code.name, len(partition.records or b""))
        for topic in response.responses
        for partition in topic.partitions
    ]
