"""A TCP server that drops connections after a given time without data.

Start it, connect from another terminal, type a line now and then, and stop typing:

    python examples/idle_connections.py --port 8001 --idle 10
    nc 127.0.0.1 8001

It needs uvloop. Everything about idleness is in `Connection`: three lines call the tracker, and the
tracker calls one.
"""

import argparse
import asyncio
import signal
from collections.abc import Sequence
from typing import cast

import uvloop

from purgatory import IdleTracker

BACKLOG = 4096  # connections that may wait to be accepted: thousands may come back at once


class Server:
    """Accepts connections, counts their packets, and drops idle ones."""

    def __init__(self, idle: float) -> None:
        self.idle: IdleTracker[Connection] = IdleTracker(idle, self.drop)
        self.open: set[Connection] = set()
        self.packets = self.drops = 0

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listens; the caller closes the server that is returned."""
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(self), host, port, backlog=BACKLOG
        )

    def drop(self, connection: "Connection") -> None:
        """Called by the tracker."""
        self.drops += 1
        connection.transport.abort()

    def close(self) -> None:
        """Ends all connections."""
        self.idle.close()
        for connection in self.open:
            connection.transport.abort()


class Connection(asyncio.Protocol):
    """A connection; its packets are signs of life and nothing else."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The first sign of life."""
        self.transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport is one in all but name
        self.server.open.add(self)
        self.server.idle.touch(self)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Another one."""
        self.server.packets += 1
        if not self.transport.is_closing():
            self.server.idle.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Handles the end of the connection, from either side. Removing a dropped connection, which
        is no longer tracked, is not an error."""
        self.server.open.discard(self)
        self.server.idle.remove(self)


async def serve(host: str, port: int, idle: float) -> None:
    """Serves until SIGINT or SIGTERM."""
    server = Server(idle)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listener = await server.start(host, port)
    print(
        f"listening on {host}:{listener.sockets[0].getsockname()[1]}, drops after {idle:g} s of "
        "silence",
        flush=True,
    )
    await stop.wait()
    listener.close()
    print(f"packets: {server.packets}, dropped: {server.drops}, still open: {len(server.open)}")
    server.close()


def seconds(text: str) -> float:
    """A positive number of seconds, from the command line."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, not {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A TCP server that drops silent connections.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: loopback only)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8001,
        help="port to serve on; 0 takes a free one (default: 8001)",
    )
    parser.add_argument(
        "--idle", type=seconds, default=60.0, help="seconds of silence (default: 60)"
    )
    options = parser.parse_args(arguments)
    uvloop.run(serve(options.host, options.port, options.idle))


if __name__ == "__main__":
    main()
