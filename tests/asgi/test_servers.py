"""`purgatory.asgi` under real servers, each in a process of its own, with real sockets and clients that behave badly."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SERVICE = Path(__file__).parent / "service.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
PATIENCE = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
SERVERS = {
    "uvicorn-asyncio-h11": ["uvicorn", "--loop", "asyncio", "--http", "h11"],
    "uvicorn-asyncio-httptools": ["uvicorn", "--loop", "asyncio", "--http", "httptools"],
    "uvicorn-uvloop-h11": ["uvicorn", "--loop", "uvloop", "--http", "h11"],
    "uvicorn-uvloop-httptools": ["uvicorn", "--loop", "uvloop", "--http", "httptools"],
    "hypercorn-asyncio": ["hypercorn", "--loop", "asyncio"],
    "hypercorn-uvloop": ["hypercorn", "--loop", "uvloop"],
}


class Connection:
    """A client's side of one connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, target: str, method: str = "GET", headers: str = "", body: bytes = b"") -> None:
        length = f"content-length: {len(body)}\r\n" if body or method == "POST" else ""
        self.writer.write(f"{method} {target} HTTP/1.1\r\nhost: service\r\n{headers}{length}\r\n".encode() + body)

    async def answer(self, first: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """The next answer on the connection, whose `first` bytes were read: status, headers and body."""
        head = (first + await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split()[1])
        if status in (204, 304):
            return status, headers, b""
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    def hang_up(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class Server:
    process: "subprocess.Popen[str]"
    port: int

    async def connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, target: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Any:
        connection = await self.connect()
        connection.send(target, method, headers, body)
        status, _, content = await connection.answer()
        connection.hang_up()
        assert status == 200
        return json.loads(content)

    async def open_polls(self, count: int, target: str = "/poll?key=k&wait=300") -> list[Connection]:
        connections = []
        while len(connections) < count:
            batch = await asyncio.gather(*(self.connect() for _ in range(min(200, count - len(connections)))))
            for connection in batch:
                connection.send(target)
            connections += batch
        await self.until(lambda stats: stats["open"] == count)
        return connections

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        while not holds(stats := await self.ask("/stats")):
            await asyncio.sleep(0.02)
        return stats

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Sends the signal and returns what the server has printed by its end."""
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=PATIENCE)
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
            output = server.stop() if process.returncode is None else ""
            assert "rror" not in output, output
            assert "unhandled" not in output, output
        finally:
            process.kill()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(*SERVERS[request.param]) as server:
        yield server


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(patiently())


def test_polls_are_answered_by_event_and_by_deadline_and_the_connection_lives_on(server: Server) -> None:
    async def main() -> None:
        polls = await server.open_polls(20)
        assert await server.ask("/check?key=k", "POST") == {"completed": 20}
        for connection in polls:
            assert (await connection.answer())[::2] == (200, b'{"value":"1"}')
        started = time.monotonic()
        polls[0].send("/poll?key=never", headers="prefer: wait=1\r\n")
        status, headers, _ = await polls[0].answer()
        assert time.monotonic() - started >= 0.99  # a server's clock may show the last whole millisecond
        assert (status, headers["preference-applied"]) == (204, "wait=1")
        polls[0].send("/news")
        status, headers, _ = await polls[0].answer()
        polls[0].send("/news?wait=0.05", headers=f"if-none-match: {headers['etag']}\r\n")
        assert (await polls[0].answer())[0] == 304
        stats = await server.until(lambda stats: stats["open"] == 0)
        assert stats["pending"] == stats["watched"] == 0
        for connection in polls:
            connection.hang_up()

    run(main)


def test_clients_that_are_killed_hang_up_or_half_close_free_their_operations(server: Server) -> None:
    async def main() -> None:
        polls = await server.open_polls(60)
        for number, connection in enumerate(polls):
            if number % 3 == 0:
                connection.hang_up()
            elif number % 3 == 1:
                connection.reset()
            else:
                connection.writer.write_eof()
        stats = await server.until(lambda stats: stats["endings"].get("gone", 0) == 60)
        assert stats["open"] == stats["pending"] == stats["watched"] == 0
        for connection in polls:
            connection.hang_up()

    run(main)


def test_a_client_process_that_is_killed_in_mid_poll_frees_its_operations(server: Server) -> None:
    program = """
import asyncio, sys
async def main():
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
        writer.write(b"GET /poll?key=k&wait=300 HTTP/1.1\\r\\nhost: service\\r\\n\\r\\n")
        connections.append(writer)
    await asyncio.sleep(3600)
connections = []
asyncio.run(main())
"""

    async def main() -> None:
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(server.port))
        await server.until(lambda stats: stats["open"] == 50)
        client.kill()
        await client.wait()
        stats = await server.until(lambda stats: stats["open"] == 0)
        assert stats["pending"] == stats["watched"] == 0
        assert stats["endings"] == {"gone": 50}

    run(main)


def test_slow_clients_are_waited_for_and_lose_nothing_of_what_they_send(server: Server) -> None:
    async def main() -> None:
        connection = await server.connect()
        request = b"POST /poll?key=k&wait=300 HTTP/1.1\r\nhost: service\r\ncontent-length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz"
        for position in range(0, len(request), 5):
            connection.writer.write(request[position : position + 5])
            await connection.writer.drain()
            await asyncio.sleep(0.002)
            if position == 90:  # in the middle of the body
                await server.until(lambda stats: stats["open"] == 1)
                await server.ask("/check?key=k", "POST")
        assert (await connection.answer())[0] == 200
        stats = await server.until(lambda stats: stats["open"] == 0)
        assert stats["bodies"] == ["abcdefghijklmnopqrstuvwxyz"]
        connection.hang_up()

    run(main)


def test_pipelined_polls_are_answered_in_order(server: Server) -> None:
    async def main() -> None:
        connection = await server.connect()
        for key in "abc":
            connection.send(f"/poll?key={key}&wait=300")
        await server.until(lambda stats: stats["open"] >= 1)
        for key in "cba":
            await server.ask(f"/check?key={key}", "POST", body=key.encode())
        answers = [(await connection.answer())[2] for _ in "abc"]
        assert answers == [b'{"value":"a"}', b'{"value":"b"}', b'{"value":"c"}']
        await server.until(lambda stats: stats["open"] == 0)
        connection.hang_up()

    run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_has_every_open_poll_answered_and_then_the_server_stops(server: Server, number: int) -> None:
    async def main() -> None:
        polls = await server.open_polls(200)
        server.process.send_signal(number)
        for connection in polls:
            status, headers, body = await connection.answer()
            assert (status, headers["retry-after"], body) == (503, "1", b"the server is stopping")
            assert await connection.reader.read() == b""
            connection.hang_up()

    run(main)
    output, _ = server.process.communicate(timeout=PATIENCE)  # the polls themselves would have gone on for five minutes
    assert 'endings: {"stopping": 200}' in output


@pytest.mark.parametrize("kind", ["uvicorn-uvloop-httptools", "uvicorn-asyncio-h11"])
def test_behind_starlettes_base_middleware_it_is_all_the_same(kind: str) -> None:
    async def main() -> None:
        polls = await server.open_polls(10)
        for connection in polls[:4]:
            connection.reset()
        await server.until(lambda stats: stats["endings"].get("gone", 0) == 4)
        slow = await server.connect()
        slow.send("/poll?key=k&wait=300", "POST", body=b"a body")
        await server.until(lambda stats: stats["open"] == 7)
        await server.ask("/check?key=k", "POST")
        for connection in [*polls[4:], slow]:
            assert (await connection.answer())[0] == 200
            connection.hang_up()
        stats = await server.until(lambda stats: stats["open"] == 0)
        assert stats["pending"] == stats["watched"] == 0
        assert stats["bodies"] == ["a body"]

    with running(*SERVERS[kind], "--base-middleware") as server:
        run(main)


@pytest.mark.parametrize(("kind", "count"), [("uvicorn-uvloop-httptools", 5_000), ("hypercorn-uvloop", 1_000)])
def test_thousands_of_polls_are_open_and_each_ends_in_its_own_way(kind: str, count: int) -> None:
    async def main() -> None:
        polls = await server.open_polls(count)
        leaving = count // 2
        for connection in polls[:leaving]:
            connection.reset()
        stats = await server.until(lambda stats: stats["open"] == count - leaving)
        assert stats["pending"] == stats["watched"] == count - leaving
        await server.ask("/check?key=k", "POST")
        for connection in polls[leaving:]:
            assert (await connection.answer())[0] == 200
            connection.hang_up()
        stats = await server.until(lambda stats: stats["open"] == 0)
        assert stats["pending"] == stats["watched"] == 0
        assert stats["endings"] == {"gone": leaving, "satisfied": count - leaving}

    files_needed = count + 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= files_needed or hard >= files_needed, f"this test needs {files_needed} files open at once"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files_needed), hard))
    with running(*SERVERS[kind]) as server:
        run(main)


@pytest.mark.parametrize("kind", ["uvicorn-uvloop-httptools", "uvicorn-asyncio-h11", "hypercorn-asyncio"])
def test_a_signal_under_load_answers_every_open_poll_and_breaks_off_no_answer(kind: str) -> None:
    answers: list[int] = []

    async def poll_until_the_server_stops(wait: float) -> None:
        connection = await server.connect()
        while True:
            connection.send(f"/poll?key=never&wait={wait}")
            try:
                first = await connection.reader.read(1)
            except ConnectionError:
                first = b""
            if not first:
                break  # it was closed between two requests
            status, headers, _ = await connection.answer(first)
            answers.append(status)
            if headers.get("connection") == "close":
                break
        connection.hang_up()

    async def main() -> None:
        clients = [asyncio.create_task(poll_until_the_server_stops(wait)) for wait in [0.01] * 100 + [300.0] * 100]
        while len(answers) < 300:
            await asyncio.sleep(0.01)
        await server.until(lambda stats: stats["open"] >= 100)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        assert set(answers) == {204, 503}
        assert answers.count(503) >= 100

    with running(*SERVERS[kind]) as server:
        run(main)
