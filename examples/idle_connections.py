"""A TCP server that drops connections that say nothing for a given time.

Start it, connect from another terminal, type a line now and then, and stop typing:

    python examples/idle_connections.py --port 8001 --idle 10
    nc 127.0.0.1 8001

or let it deal with as many connections as this machine allows, and with a million in memory, next to the two ways in
which it is usually done: `python examples/idle_connections.py --demo`. Needs uvloop; the demo also needs rich, and
Linux.

The whole of it is in `Connection`: three lines that call the tracker, and one that it calls.
"""

import argparse
import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

import uvloop

from purgatory import IdleTracker

BACKLOG = 4096  # connections that may wait to be accepted: thousands may come back at once

Id_contra = TypeVar("Id_contra", contravariant=True)


class IdleWatch(Protocol[Id_contra]):
    """What the server calls to find idle connections: `IdleTracker` is one of these, the demo brings two others."""

    def touch(self, id: Id_contra, /) -> None:  # noqa: A002
        """`id` is there, and alive."""

    def remove(self, id: Id_contra, /) -> object:  # noqa: A002
        """`id` is gone."""

    def close(self) -> None:
        """Everybody is gone."""


class Server:
    """Accepts connections, counts what they send, and drops those that are idle."""

    def __init__(
        self,
        idle: float,
        watch_type: "Callable[[float, Callable[[Connection], None]], IdleWatch[Connection]]" = IdleTracker,
    ) -> None:
        self.idle = watch_type(idle, self.drop)
        self.open: set[Connection] = set()
        self.packets = self.drops = 0

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listens; the caller closes the server that is returned."""
        return await asyncio.get_running_loop().create_server(lambda: Connection(self), host, port, backlog=BACKLOG)

    def drop(self, connection: "Connection") -> None:
        """What the tracker calls."""
        self.drops += 1
        connection.transport.abort()

    def close(self) -> None:
        """Ends what is open."""
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
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is one in all but name
        self.server.open.add(self)
        self.server.idle.touch(self)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        """Another one."""
        self.server.packets += 1
        if not self.transport.is_closing():
            self.server.idle.touch(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The end, whichever side wanted it. One that was dropped is not tracked any more; to remove it is no error."""
        self.server.open.discard(self)
        self.server.idle.remove(self)


async def serve(host: str, port: int, idle: float) -> None:
    """Serves until SIGINT or SIGTERM."""
    server = Server(idle)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listener = await server.start(host, port)
    print(f"listening on {host}:{listener.sockets[0].getsockname()[1]}, drops after {idle:g} s of silence", flush=True)
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


def count(text: str) -> int:
    """A positive number of things, from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A TCP server that drops connections that say nothing.")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: loopback only)")
    parser.add_argument("--port", type=int, default=8001, help="port to serve on; 0 takes a free one (default: 8001)")
    parser.add_argument("--idle", type=seconds, help="seconds of silence (default: 60, in the demo 3)")
    parser.add_argument("--demo", action="store_true", help="three servers under load, one after the other, and a report")
    parser.add_argument(
        "--connections", type=count, default=100_000, help="of the demo; no more than the file limit allows (default: 100000)"
    )
    parser.add_argument(
        "--ids",
        type=count,
        nargs="*",
        default=[100_000, 1_000_000],
        help="how many ids the demo tracks in memory, a table for each (default: 100000 1000000)",
    )
    options = parser.parse_args(arguments)
    if options.demo:
        from _idle_demo import run_demo  # noqa: PLC0415 - it needs more than the server does

        run_demo(options.connections, options.ids, options.idle or 3.0)
    else:
        uvloop.run(serve(options.host, options.port, options.idle or 60.0))


if __name__ == "__main__":
    main()
