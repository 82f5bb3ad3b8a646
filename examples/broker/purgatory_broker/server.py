"""The network: frames in and out of connections.

As in Kafka, a connection handles one request at a time: the next one is read from the buffer when
this one has its response and the client has taken it. So responses come in order, and a client that
does not read is not read from. No task waits: an operation sends its response by itself. A request
that is wrong in any way closes its own connection, with a line in the log, and no other.
"""

import asyncio
import logging
import socket
import struct
from typing import Final, cast

from purgatory import DelayedOperation, IdleTracker

from .broker import Broker
from .files import max_open_files
from .logs import printable
from .responses import Response
from .settings import Settings
from .wire import MAX_REQUEST_SIZE, Address, BadRequest, Request, read_request, write_response

logger: Final = logging.getLogger("purgatory_broker")

MAX_CACHED_SIZE: Final = 1024  # bytes of a request or response that is kept for comparison
BACKLOG: Final = (
    4096  # connections that may wait to be accepted: thousands may reconnect at the same time
)
ACCEPTS: Final = 16  # connections that asyncio accepts before it looks whether it could
MAX_RESERVED_FILES: Final = 64  # open files that are not for connections
MAX_READ_AHEAD: Final = 1024 * 1024  # bytes of the next requests that are buffered while one waits
TLS_HANDSHAKE: Final = b"\x16\x03"  # the first bytes of a client of TLS
IDLE_TIMEOUT: Final = 600.0  # seconds without a request; Kafka's connections.max.idle.ms


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop if that is installed: it halves the cost of a request."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Server:
    """A broker that listens.

    async with Server(port=0) as server:
        print(server.address)

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        advertised: the address that responses name; by default the address that the client used.

    Attributes:
        address: where it listens, in the form that clients take.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        host: str = "127.0.0.1",
        port: int = 9092,
        *,
        advertised: Address | None = None,
    ) -> None:
        self.broker = Broker(settings)
        self.host, self.port, self.advertised = host, port, advertised
        self.connections, self.is_full = set[Connection](), False
        self.idle: IdleTracker[Connection] = IdleTracker(
            IDLE_TIMEOUT, lambda connection: connection.on_idle()
        )

    async def __aenter__(self) -> "Server":
        self.broker.start()
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family)
        except BaseException:
            await self.broker.aclose()
            raise
        self.listener = await loop.create_server(
            lambda: Connection(self), sock=listening, backlog=ACCEPTS
        )
        listening.listen(BACKLOG)
        self.address = f"{self.host}:{self.listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.close()
        self.abort_connections()
        self.idle.close()
        await self.broker.aclose()

    def has_files_left(self, newest: int) -> bool:
        """Whether the process may open some more files, of which `newest` is the last one; the log
        has it when it may not."""
        limit = max_open_files()
        has_some = newest < limit - min(MAX_RESERVED_FILES, limit // 4)
        if not has_some and not self.is_full:
            message = (
                "connections are refused: %d are open, and the limit of open files (ulimit -n) "
                "is %d"
            )
            logger.error(message, len(self.connections), limit)
        self.is_full = not has_some
        return has_some

    def abort_connections(self) -> None:
        """Closes all connections, without a response to waiting requests."""
        for connection in list(self.connections):
            connection.transport.abort()

    def clear(self) -> None:
        """Closes all connections, and deletes all topics, groups and offsets: as if the broker were
        new."""
        self.abort_connections()
        self.broker.clear()


class Connection(asyncio.Protocol):
    """One client's connection.

    Attributes:
        request: the last request.
        is_busy: `request` has no response yet.
        is_write_paused: the client does not read responses.
        operation: the operation that will respond to `request`, if any.
        last_request: the bytes of `request`, if they are few.
        last_response: the response to it, and its bytes, if they are few.
    """

    transport: asyncio.Transport
    request: Request

    def __init__(self, server: Server) -> None:
        self.server, self.broker = server, server.broker
        self.buffer = bytearray()
        self.is_busy = self.is_write_paused = False
        self.operation: DelayedOperation[None] | None = None
        self.last_request = b""
        self.last_response: tuple[Response | None, bytes] = None, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's has the methods, but not the base class
        self.address: Address = self.server.advertised or transport.get_extra_info("sockname")[:2]
        self.peer: Address = transport.get_extra_info("peername")[:2]
        if not self.server.listener.is_serving():  # the server is stopping
            self.transport.abort()
            return
        if not self.server.has_files_left(transport.get_extra_info("socket").fileno()):
            self.transport.abort()
            return
        self.server.connections.add(self)
        self.server.idle.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Cancels the operation of the ended connection."""
        self.server.connections.discard(self)
        self.server.idle.remove(self)
        self.buffer.clear()
        if self.operation is not None:
            self.operation.cancel()

    def data_received(self, data: bytes) -> None:
        """Buffers the bytes and handles the requests in them."""
        self.buffer += data
        self._advance()
        # Below this we keep reading while a request waits, because only a read notices that the
        # client has left.
        if len(self.buffer) > MAX_READ_AHEAD and (self.is_busy or self.is_write_paused):
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read responses."""
        self.is_write_paused = True

    def resume_writing(self) -> None:
        """The client reads responses again."""
        self.is_write_paused = False
        self._advance()

    def on_idle(self) -> None:
        """No request has come for a long time: closes the connection, unless it is the client that
        waits for us."""
        if self.is_busy:
            self.server.idle.touch(self)
        else:
            self.transport.abort()

    def _advance(self) -> None:
        """Handles buffered requests until one must wait."""
        while (
            not self.is_busy
            and not self.is_write_paused
            and not self.transport.is_closing()
            and len(self.buffer) >= 4
        ):
            (length,) = struct.unpack_from(">i", self.buffer)
            if self.buffer.startswith(TLS_HANDSHAKE):
                if self.broker.mistakes.is_first("TLS", self.peer[0]):
                    self._fail(
                        BadRequest(
                            "the client begins with TLS (security.protocol=SSL or SASL_SSL), "
                            "this port is PLAINTEXT"
                        )
                    )
                self.transport.abort()
            elif not 8 <= length <= MAX_REQUEST_SIZE:
                self._fail(
                    BadRequest(f"a request of {length} bytes; 8 to {MAX_REQUEST_SIZE} are possible")
                )
            elif len(self.buffer) < 4 + length:
                break
            else:
                frame = bytes(memoryview(self.buffer)[4 : 4 + length])
                del self.buffer[: 4 + length]
                self._handle(frame)
        if not self.is_busy and not self.is_write_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _handle(self, frame: bytes) -> None:
        self.server.idle.touch(self)
        self.is_busy = True
        try:
            self.request = self._read(frame)
            operation = self.broker.handle(self.request)
            self.operation = None if operation is None or operation.is_completed else operation
        except Exception as error:
            self._fail(error)

    def _read(self, frame: bytes) -> Request:
        """A waiting consumer repeats its request again and again: then only the correlation id is
        new."""
        if frame[:4] == self.last_request[:4] and frame[8:] == self.last_request[8:]:
            self.request.correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
            return self.request
        self.last_request, self.last_response = (
            frame if len(frame) <= MAX_CACHED_SIZE else b"",
            (None, b""),
        )
        return read_request(frame, self.address, self.peer, self._respond)

    def _write(self, response: Response) -> bytes | bytearray:
        """A response that is repeated is sent as the same bytes, but for the correlation id."""
        last, frame = self.last_response
        if response == last:
            return (
                frame[:4] + self.request.correlation_id.to_bytes(4, "big", signed=True) + frame[8:]
            )
        written = write_response(self.request, response)
        if self.last_request and len(written) <= MAX_CACHED_SIZE:
            self.last_response = response, bytes(written)
        return written

    def _respond(self, response: Response | Exception | None) -> None:
        """The callback of the request."""
        self.operation = None
        self.is_busy = False
        if self.transport.is_closing():
            return
        try:
            if isinstance(response, Exception):
                raise response
            if response is not None:
                self.transport.write(self._write(response))
        except Exception as error:
            self._fail(error)
        if self.buffer:  # in another iteration: the caller is in the middle of something
            asyncio.get_running_loop().call_soon(self._advance)

    def _fail(self, error: Exception) -> None:
        """Closes the connection. If the error is ours and not the client's, the log has the
        traceback."""
        is_theirs = isinstance(error, (BadRequest, ConnectionError))
        logger.warning(
            "connection from %s:%s closed: %s",
            *self.peer,
            printable(error),
            exc_info=None if is_theirs else error,
        )
        self.transport.abort()
