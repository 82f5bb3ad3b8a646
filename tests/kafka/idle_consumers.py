"""Consumers that wait in fetch and get nothing: the same requests for every broker, one connection
for each consumer."""

import asyncio
import resource
import struct
import time
from dataclasses import dataclass
from typing import Final

from brokers import Running

FETCH: Final = 1
VERSION: Final = 4
SIZE: Final = 1 << 20


@dataclass(frozen=True)
class Idle:
    """The broker's cost of waiting consumers."""

    cpu: float
    """Processor time, in microseconds for each consumer and second."""
    bytes_each: float
    """Of memory."""
    responses: float
    """In a second, all together."""
    share: float
    """Of one processor, all together."""
    lost: int
    """Connections that the broker has closed."""


def fetch_request(topic: str, max_wait: float) -> bytes:
    """A fetch of the one partition of an empty topic, which waits for a byte or for `max_wait`
    seconds."""
    name = topic.encode()
    head = struct.pack(">hhih4s", FETCH, VERSION, 1, 4, b"idle")
    wanted = struct.pack(">iiiib", -1, round(max_wait * 1000), 1, SIZE, 0)
    body = (
        head
        + wanted
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iiqi", 1, 0, 0, SIZE)
    )
    return struct.pack(">i", len(body)) + body


class Crowd:
    """The state that all consumers share."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.responses = self.lost = 0


class Consumer(asyncio.Protocol):
    """Sends its request again after each response."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.crowd.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) >= 4 and len(self.buffer) >= 4 + int.from_bytes(self.buffer[:4]):
            self.buffer = b""
            self.crowd.responses += 1
            self.transport.write(self.crowd.request)

    def connection_lost(self, error: Exception | None) -> None:
        self.crowd.lost += 1


async def let_them_wait(
    broker: Running, topic: str, consumers: int, max_wait: float, seconds: float
) -> Idle:
    """Connects them, lets each get one response, and then measures for some seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = broker.address.rsplit(":", 1)
    loop, crowd = asyncio.get_running_loop(), Crowd(fetch_request(topic, max_wait))
    before = broker.resident()
    transports = [
        (await loop.create_connection(lambda: Consumer(crowd), host, int(port)))[0]
        for _ in range(consumers)
    ]
    await asyncio.sleep(max_wait + 1.0)
    memory = broker.resident() - before
    cpu, responses, began = broker.cpu(), crowd.responses, time.monotonic()
    await asyncio.sleep(seconds)
    passed = time.monotonic() - began
    cpu, responses, lost = broker.cpu() - cpu, crowd.responses - responses, crowd.lost
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0.1)
    return Idle(
        cpu / passed / consumers * 1e6, memory / consumers, responses / passed, cpu / passed, lost
    )
