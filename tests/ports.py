"""Ports for servers that a test starts, and perhaps stops and starts again: nobody else is given them meanwhile.

A port that was asked for by its number 0 and given back is one of those that the system hands out: to the other tests that run
at the same time, and to their clients' ends of connections, a thousand at once here and there.
"""

import socket
from contextlib import suppress
from secrets import choice

UNASKED = range(15_000, 30_000)
"""Ports that the system gives only to who asks for them by number."""


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    while True:
        port = choice(UNASKED)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_ports(count: int) -> list[int]:
    """Different ones."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
