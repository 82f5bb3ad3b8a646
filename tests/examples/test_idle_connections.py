"""`examples/idle_connections.py`: the server in virtual time; over real connections
as a process."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from asgi_modules import EXAMPLES, load
from loops import on_virtual_time
from server_process import ENVIRONMENT, TIMEOUT

EXAMPLE = EXAMPLES / "idle_connections.py"


class Transport:
    """The server's side of a connection, without a socket."""

    def __init__(self, example: ModuleType, server: Any) -> None:
        self.dropped_at: float | None = None
        self.connection = example.Connection(server)
        self.connection.connection_made(self)

    def is_closing(self) -> bool:
        return self.dropped_at is not None

    def abort(self) -> None:
        self.dropped_at = asyncio.get_running_loop().time()
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)


@on_virtual_time
async def test_only_silent_connections_are_dropped() -> None:
    example = load(EXAMPLE)
    server = example.Server(2.0)
    silent, talking, closed = (Transport(example, server) for _ in range(3))
    closed.connection.connection_lost(None)
    for _ in range(30):
        await asyncio.sleep(1.9)
        talking.connection.data_received(b"still here")
    assert silent.dropped_at is not None and 2.0 <= silent.dropped_at < 2.1
    assert (closed.dropped_at, talking.dropped_at) == (None, None)
    assert (server.packets, server.drops, server.open) == (30, 1, {talking.connection})
    await asyncio.sleep(2.1)
    assert talking.dropped_at is not None
    assert (server.drops, server.open) == (2, set())
    server.close()


@pytest.mark.slow
def test_program_drops_silent_and_closes_open_connections() -> None:
    idle, pipes = 0.5, dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, EXAMPLE, "--port", "0", "--idle", str(idle)]
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes, text=True) as server:
        try:
            listening = r"listening on 127\.0\.0\.1:(\d+), drops after \S+ s of silence\n"
            [port] = re.findall(listening, server.stdout.readline())
            address, began = ("127.0.0.1", int(port)), time.monotonic()
            with socket.create_connection(address, TIMEOUT) as silent:
                assert silent.recv(1) == b""
            assert time.monotonic() - began >= idle - 0.001  # uvloop's clock: whole milliseconds
            with socket.create_connection(address, TIMEOUT) as still_open:
                server.send_signal(signal.SIGTERM)
                output, errors = server.communicate(timeout=TIMEOUT)
                assert (errors, server.returncode) == ("", 0)
                assert re.match(r"packets: 0, dropped: [12], still open: [01]\n", output)
                with suppress(ConnectionResetError):
                    assert still_open.recv(1) == b""
        finally:
            server.kill()
