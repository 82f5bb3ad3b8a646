"""A real server of `asgi/service.py` in a process of its own, with the tests' requests.

with running(*SERVERS["uvicorn-asyncio-h11"]) as server:
    polls = await server.open_polls(20)
    await server.until(lambda stats: stats["open"] == 20)
    print(server.stop())
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from asgi_connection import Connection

SERVICE = Path(__file__).parent / "asgi" / "service.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
SERVERS = {
    "uvicorn-asyncio-h11": ["uvicorn", "--loop", "asyncio", "--http", "h11"],
    "uvicorn-asyncio-httptools": ["uvicorn", "--loop", "asyncio", "--http", "httptools"],
    "uvicorn-uvloop-h11": ["uvicorn", "--loop", "uvloop", "--http", "h11"],
    "uvicorn-uvloop-httptools": ["uvicorn", "--loop", "uvloop", "--http", "httptools"],
    "hypercorn-asyncio": ["hypercorn", "--loop", "asyncio"],
    "hypercorn-uvloop": ["hypercorn", "--loop", "uvloop"],
}


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int

    async def connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(
        self, target: str, method: str = "GET", headers: str = "", body: bytes = b""
    ) -> Any:
        connection = await self.connect()
        connection.send(target, method, headers, body)
        status, _, content = await connection.answer()
        connection.hang_up()
        assert status == 200
        return json.loads(content)

    async def open_polls(
        self, count: int, target: str = "/poll?key=k&wait=300"
    ) -> list[Connection]:
        connections = []
        while len(connections) < count:
            batch = await asyncio.gather(
                *(self.connect() for _ in range(min(200, count - len(connections))))
            )
            for connection in batch:
                connection.send(target)
            connections += batch
        await self.until(lambda stats: stats["open"] == count)
        return connections

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        while not holds(stats := await self.ask("/stats")):
            await asyncio.sleep(0.02)
        return stats

    async def ended(self) -> str:
        """The output of the stopping server up to its end; no error."""
        output, _ = await asyncio.to_thread(self.process.communicate, timeout=TIMEOUT)
        return without_error(output)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Sends the signal and returns the server's output up to its end; no error."""
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=TIMEOUT)
        return without_error(output)


def without_error(output: str) -> str:
    assert "rror" not in output, output
    assert "unhandled" not in output, output
    return output


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """The service under a server; fails if that has printed any error in the end."""
    command = [sys.executable, "-W", "error", str(SERVICE), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=ENVIRONMENT, **pipes) as process:  # type: ignore[call-overload]
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("http://"), address + process.stdout.read()
            server = Server(process, int(address.rpartition(":")[2]))
            yield server
            if process.returncode is None:
                server.stop()
        finally:
            process.kill()


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
