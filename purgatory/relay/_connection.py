"""Connects a store to its server: opens a connection at its first use, replaces it after an error,
and translates the errors of the client.

    use        connects, and yields the connection to one call at a time
    an error   while connecting: NotWritten; later: what the store says, or RelayUnavailable
               the connection is dropped, since the server may be another one by now
    a caller   that is cancelled, such as by a time limit: the connection is dropped, too, since a
               dead one may be the reason
    use        connects again
"""

from asyncio import Lock, StreamReader, StreamWriter, Task, gather, get_running_loop
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, Protocol, TypeVar, final

from purgatory import RelayUnavailable, timeout
from purgatory.relay._store import NotWritten

LAST_WORDS_TIMEOUT: Final = 0.5
"""Seconds within which a server that has closed a connection says why."""

C = TypeVar("C")


class Server(Protocol[C]):
    """A store, as its connections need it."""

    address: str

    async def connect(self, current: C | None) -> C:
        """Returns `current` if it is still alive, and a new connection otherwise."""
        ...

    async def disconnect(self, connection: C, is_broken: bool, /) -> None:
        """Closes a connection. A broken one is not in use, but perhaps in the middle of a call."""
        ...

    def kind_of(self, error: Exception) -> type[Exception] | None:
        """The class of the error that callers get instead of `error`; None to keep it."""
        ...


@final
class Connection(Generic[C]):
    """One connection to a server, used by one call at a time."""

    def __init__(self, server: Server[C]) -> None:
        self._server = server
        self._lock = Lock()
        self._connection: C | None = None
        self._closing: set[Task[None]] = set()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[C]:
        """The connection, for exclusive use in the block."""
        is_connected = False
        async with self._lock:
            try:
                connection = await self._server.connect(self._connection)
                if connection is not self._connection:
                    self.drop(self._connection)
                    self._connection = connection
                is_connected = True
                yield connection
            except BaseException as error:
                self.drop(self._connection)
                if not isinstance(error, Exception):
                    raise
                kind = self._server.kind_of(error)
                if isinstance(error, RelayUnavailable):
                    kind = type(error)
                elif isinstance(error, ValueError):
                    kind = ValueError
                if kind is None:
                    raise
                if kind is RelayUnavailable and not is_connected:
                    kind = NotWritten
                reason = str(error) or "no answer"
                if kind is ValueError and not isinstance(error, ValueError):
                    reason += ": it is not a relay's, and was left alone"
                raise kind(f"cannot use {self._server.address}: {reason}") from error

    def drop(self, connection: C | None) -> None:
        """Closes a connection in the background, if it is the current one."""
        if connection is not None and connection is self._connection:
            self._connection = None
            self.discard(connection)

    def discard(self, connection: C) -> None:
        """Closes any connection to the server in the background."""
        task = get_running_loop().create_task(self._server.disconnect(connection, True))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._server.disconnect(connection, False)
        await gather(*self._closing, return_exceptions=True)


async def last_words(opening: Awaitable[tuple[StreamReader, StreamWriter]]) -> str:
    """What a server says when it closes each new connection, as beyond its limit; empty for nothing.
    A client that speaks first may lose these words, so `opening`, a connection, only listens."""
    with suppress(Exception):
        async with timeout(LAST_WORDS_TIMEOUT):
            reader, writer = await opening
            try:
                while line := await reader.readline():
                    if line.startswith(b"-"):
                        return line[1:].decode(errors="replace").strip(" '\r\n")
            finally:
                writer.close()
    return ""
