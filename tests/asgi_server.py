"""Real servers of `asgi/service.py`, each in a process of its own, with the requests of tests."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from server_process import TIMEOUT, ServerProcess

SERVICE = Path(__file__).parent / "asgi"
UVICORN = [
    *["uvicorn", "--port={port}", "--log-level=warning"],
    *["--backlog=8192", "--timeout-keep-alive=60"],
]


class Connection:
    """A client's side of an HTTP connection, by hand, which ends as badly as one likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, target: str, method: str = "GET", headers: str = "", body: bytes = b"") -> None:
        is_chunked = "transfer-encoding" in headers
        if body or (method == "POST" and not is_chunked):
            headers += f"content-length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self, first: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """The next answer on the connection, whose `first` bytes were read: status, headers and
        body."""
        head = (first + await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        status = int(status_line.split()[1])
        if status in (204, 304):
            return status, headers, b""
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        chunks = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size + 2))
        await self.reader.readline()
        return status, headers, b"".join(chunk[:-2] for chunk in chunks)

    def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Server(ServerProcess):
    """A server that runs: a module of Python with its options. Clients know `port`: its own, or a
    proxy's."""

    last = signal.SIGTERM
    pipes: ClassVar = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__("-m", *command, "service:app", ready="stats", folder=SERVICE)
        self._own_port = self.port

    async def connect(self, port: int | None = None) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", port or self.port))

    async def ask(self, target: str, method: str = "GET", body: bytes = b"") -> Any:
        """The answer of the server itself, behind a proxy, too."""
        connection = await self.connect(self._own_port)
        try:
            connection.send(target, method, body=body)
            status, _, content = await connection.answer()
        finally:
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
    """The service under a server; fails if the server has printed any error in the end."""
    with Server(command) as server:
        yield server
        if server.process.poll() is None:
            server.process.terminate()
            await server.ended()


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
