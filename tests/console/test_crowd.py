"""More pages than may be open, on real sockets of a real server: one is refused, and a stop answers
all the others."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from asgi_connection import Connection
from loops import on_asyncio
from ports import free_port

pytestmark = pytest.mark.slow

SERVER = Path(__file__).with_name("console_server.py")
TIMEOUT = 110.0  # seconds; no test passes or fails by how much of it a busy machine takes
MAX_PAGES = 1000


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port))


async def connect_when_it_serves(port: int, server: asyncio.subprocess.Process) -> Connection:
    while True:
        try:
            return await connect(port)
        except OSError:
            assert server.returncode is None, "the server has ended"
            await asyncio.sleep(0.05)


async def look(page: Connection, seen: str) -> tuple[dict[str, str], bytes]:
    """Polls as a page does, until it gets a 503. There is a version each minute."""
    status, headers, reason = 0, {}, b""
    while status != 503:
        page.send("/purgatory/state", headers=seen)
        status, headers, reason = await page.answer()
        assert status in (200, 304, 503)
    return headers, reason


@on_asyncio
async def test_thousand_pages_refuse_one_more_and_stop() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * MAX_PAGES), hard))
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "REFRESH": "60",
        "MAX_WAIT": "100",
    }
    server = await asyncio.create_subprocess_exec(
        sys.executable, SERVER, str(port), env=environment
    )
    connections: list[Connection] = []
    try:
        async with asyncio.timeout(TIMEOUT):
            other = await connect_when_it_serves(port, server)
            connections.append(other)
            other.send("/purgatory/state")
            seen = f"if-none-match: {(await other.answer())[1]['etag']}\r\n"
            connections += [await connect(port) for _ in range(MAX_PAGES + 1)]
            looking = [asyncio.create_task(look(page, seen)) for page in connections[1:]]
            [refused], open_pages = await asyncio.wait(looking, return_when=asyncio.FIRST_COMPLETED)
            headers, reason = await refused
            assert (
                headers["retry-after"] == "5"
                and reason == b"max_open (1000) polls are open already"
            )
            connections.append(
                other := await connect(port)
            )  # a new one: uvicorn closes connections after 5 s without use
            other.send("/hello")  # for which there is room
            assert (await other.answer())[0] == 200
            server.send_signal(signal.SIGTERM)
            assert {reason for _, reason in await asyncio.gather(*open_pages)} == {
                b"the server is stopping"
            }
            await server.wait()
    finally:
        for connection in connections:
            connection.hang_up()
        if server.returncode is None:
            server.kill()
            await server.wait()
        await asyncio.gather(
            *(connection.writer.wait_closed() for connection in connections), return_exceptions=True
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
