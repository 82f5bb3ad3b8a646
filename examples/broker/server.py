"""The network: frames in and out of connections.

A connection has one request at a time, as Kafka's have: the next is looked at when this one has been answered and the answer
has been taken. So answers come in order, and whoever does not read is not read from. Nothing waits in a task: an operation
answers by itself. Whatever is wrong with a request closes its connection, with a line in the log, and nobody else's.
"""

import asyncio
import logging
import struct
from typing import Final, cast

from purgatory import DelayedOperation, IdleTracker

from .answers import Answer
from .broker import Broker
from .settings import Settings
from .wire import LARGEST, Address, BadRequest, Request, read_request, write_answer

logger: Final = logging.getLogger("broker")

SHORT: Final = 1024  # bytes of a request that are remembered
BACKLOG: Final = 4096  # connections that may wait to be accepted: thousands may come back at once
AHEAD: Final = 1024 * 1024  # bytes of the next requests that may come while one waits
IDLE_TIMEOUT: Final = 600.0  # seconds of silence after which a connection is closed; Kafka's connections.max.idle.ms


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where there is one: it halves what a request costs."""
    try:
        import uvloop  # noqa: PLC0415 - it does without
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Server:
    """A broker that listens.

    async with Server(port=0) as server:
        print(server.address)

    Args:
        host: address to listen on. Clients are told the one by which they came.
        port: 0 takes a free one.

    Attributes:
        address: where it listens, as clients want to be told.
    """

    def __init__(self, settings: Settings | None = None, host: str = "127.0.0.1", port: int = 9092) -> None:
        self.broker = Broker(settings)
        self.host, self.port = host, port
        self.connections = set[Connection]()
        self.idle: IdleTracker[Connection] = IdleTracker(IDLE_TIMEOUT, lambda connection: connection.fell_idle())

    async def __aenter__(self) -> "Server":
        self.broker.coordinator.start()
        loop = asyncio.get_running_loop()
        self.listener = await loop.create_server(lambda: Connection(self), self.host, self.port, backlog=BACKLOG)
        self.address = f"{self.host}:{self.listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        for connection in list(self.connections):
            connection.transport.abort()
        self.idle.close()
        await self.broker.aclose()


class Connection(asyncio.Protocol):
    """One client's connection.

    Attributes:
        request: the last one.
        is_busy: it is being handled or waits.
        waits: what it waits for.
    """

    transport: asyncio.Transport
    request: Request

    def __init__(self, server: Server) -> None:
        self.server, self.broker = server, server.broker
        self.buffer = bytearray()
        self.is_busy = self.is_full = False
        self.waits: DelayedOperation[None] | None = None
        self.asked = b""  # the bytes of the last request, if they are few
        self.told: tuple[Answer | None, bytes] = None, b""  # its answer, and the bytes of that, if they are few, too

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has come."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.here: Address = transport.get_extra_info("sockname")[:2]
        self.peer: Address = transport.get_extra_info("peername")[:2]
        if not self.server.listener.is_serving():  # it has come while we stop
            self.transport.abort()
            return
        self.server.connections.add(self)
        self.server.idle.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """They are gone; what waited for them is not to be answered any more."""
        self.server.connections.discard(self)
        self.server.idle.remove(self)
        self.buffer.clear()
        if self.waits is not None:
            self.waits.cancel()

    def data_received(self, data: bytes) -> None:
        """Some bytes."""
        self.buffer += data
        self._advance()
        if len(self.buffer) > AHEAD and (self.is_busy or self.is_full):  # we read on, or we would not hear that they leave
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not take what we have sent."""
        self.is_full = True

    def resume_writing(self) -> None:
        """It has taken it."""
        self.is_full = False
        self._advance()

    def fell_idle(self) -> None:
        """Nothing has come for a long time: perhaps since it is we who are asked to wait."""
        if self.is_busy:
            self.server.idle.touch(self)
        else:
            self.transport.abort()

    def _advance(self) -> None:
        """Handles what has come, as long as nothing has to wait."""
        while not self.is_busy and not self.is_full and not self.transport.is_closing() and len(self.buffer) >= 4:
            (length,) = struct.unpack_from(">i", self.buffer)
            if not 8 <= length <= LARGEST:
                self._fail(BadRequest(f"a request of {length} bytes; 8 to {LARGEST} are possible"))
            elif len(self.buffer) < 4 + length:
                break
            else:
                frame = bytes(memoryview(self.buffer)[4 : 4 + length])
                del self.buffer[: 4 + length]
                self._handle(frame)
        if not self.is_busy and not self.is_full and not self.transport.is_closing():
            self.transport.resume_reading()

    def _handle(self, frame: bytes) -> None:
        self.server.idle.touch(self)
        self.is_busy = True
        try:
            self.request = self._read(frame)
            operation = self.broker.handle(self.request)
            self.waits = None if operation is None or operation.is_completed else operation
        except Exception as error:
            self._fail(error)

    def _read(self, frame: bytes) -> Request:
        """A consumer that waits asks the same again and again: then only the number of its request is new."""
        if frame[:4] == self.asked[:4] and frame[8:] == self.asked[8:]:
            self.request.number = int.from_bytes(frame[4:8], "big", signed=True)
            return self.request
        self.asked, self.told = frame if len(frame) <= SHORT else b"", (None, b"")
        return read_request(frame, self.here, self.peer, self._answer)

    def _write(self, answer: Answer) -> bytes | bytearray:
        """In the same way, who is told the same again is sent the same bytes, but for the number."""
        told, frame = self.told
        if answer == told:
            return frame[:4] + self.request.number.to_bytes(4, "big", signed=True) + frame[8:]
        written = write_answer(self.request, answer)
        if self.asked and len(written) <= SHORT:
            self.told = answer, bytes(written)
        return written

    def _answer(self, answer: Answer | Exception | None) -> None:
        """What the handler or its operation calls, once."""
        self.waits = None
        self.is_busy = False
        if self.transport.is_closing():
            return
        try:
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                self.transport.write(self._write(answer))
        except Exception as error:
            self._fail(error)
        if self.buffer:  # not at once: whoever answers is in the middle of something
            asyncio.get_running_loop().call_soon(self._advance)

    def _fail(self, error: Exception) -> None:
        """Closes the connection. A mistake of ours is told with where it happened."""
        is_theirs = isinstance(error, (BadRequest, ConnectionError))
        logger.warning("connection from %s:%s closed: %s", *self.peer, error, exc_info=None if is_theirs else error)
        self.transport.abort()
