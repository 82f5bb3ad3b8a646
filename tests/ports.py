"""Free ports for servers that a test starts, and perhaps stops and starts again.

They are outside the range from which the system assigns ports (from 32,768 on Linux) to sockets
that ask for any: other tests that run at the same time, and the client ends of a thousand
connections, would soon be given a port that a server has left.
"""

import socket
from contextlib import suppress
from secrets import choice

NEVER_ASSIGNED = range(15_000, 30_000)
"""Ports that only those get who name them."""


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    while True:
        port = choice(NEVER_ASSIGNED)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_ports(count: int) -> list[int]:
    """Different ones."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
