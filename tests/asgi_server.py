"""Real servers of `asgi/service.py`, each in a process of its own, with the requests of tests.

async with running(UVICORN) as server:
    polls = await server.open_polls(20)
    await server.until(lambda stats: stats["open"] == 20)
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from asgi_connection import Connection
from ports import free_port

SERVICE = Path(__file__).parent / "asgi"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SERVICE), *filter(None, sys.path)])}
TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
UVICORN = [
    *["uvicorn", "--port={port}", "--log-level=warning"],
    *["--backlog=8192", "--timeout-keep-alive=60"],
]


class Server:
    """A server that runs.

    Attributes:
        process: of the server.
        port: which its clients know: its own, or a proxy's.
    """

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process, self.port, self._own_port = process, port, port

    async def connect(self, port: int | None = None) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", port or self.port))

    async def ask(self, target: str, method: str = "GET", body: bytes = b"") -> Any:
        """The answer of the server itself, behind a proxy, too."""
        connection = await self.connect(self._own_port)
        connection.send(target, method, body=body)
        status, _, content = await connection.answer()
        connection.hang_up()
        assert status == 200
        return json.loads(content)

    async def open_polls(
        self, count: int, target: str = "/poll?key=k&wait=300"
    ) -> list[Connection]:
        """Clients whose polls are open, and no others."""
        connections = [await self.connect() for _ in range(count)]
        for connection in connections:
            connection.send(target)
        await self.until(lambda stats: stats["open"] == count)
        return connections

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        """The counts of the service when they fulfil a condition."""
        while not holds(stats := await self.ask("/stats")):
            await asyncio.sleep(0.02)
        return stats

    async def ended(self) -> str:
        """The output of the stopping server up to its end; no error."""
        output, _ = await asyncio.to_thread(self.process.communicate, timeout=TIMEOUT)
        assert "rror" not in output, output
        assert "unhandled" not in output, output
        return output


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[Server]:
    """The service under a server, a module of Python with its options; fails if the server has
    printed any error in the end."""
    port = free_port()
    options = [each.format(port=port) for each in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", *options, "service:app"], env=ENVIRONMENT, **pipes
    ) as process:
        server = Server(process, port)
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    assert process.poll() is None, process.communicate()[0]
                    with suppress(OSError):
                        await server.ask("/stats")
                        break
                    await asyncio.sleep(0.02)
            yield server
            if process.poll() is None:
                process.terminate()
                await server.ended()
        finally:
            process.terminate()  # it ends its workers
            if process.stdout is not None and not process.stdout.closed:
                await asyncio.to_thread(process.communicate, timeout=TIMEOUT)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    """The port of an application under uvicorn, in this process."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", log_config=None))
    task = asyncio.create_task(server._serve())  # without its handlers of signals
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await task
