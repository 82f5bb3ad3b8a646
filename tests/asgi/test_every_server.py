"""What holds under every server and behind every proxy, and the two facts in which they differ."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from gzip import decompress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import decompressobj

import pytest
from asgi_connection import Connection
from loops import on_asyncio
from ports import free_port
from requirements import need, unavailable
from server_process import ServerProcess

pytestmark = pytest.mark.slow

SERVICE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SERVICE), *filter(None, sys.path)])}
UVICORN = ["uvicorn", "--port={port}", "--log-level=warning"]
HYPERCORN = ["hypercorn", "--bind=127.0.0.1:{port}"]
GUNICORN = ["gunicorn", "--bind=127.0.0.1:{port}", "--log-level=warning"]

NGINX = """
daemon off;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types application/json text/event-stream;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{server};
            proxy_http_version 1.1;
        }}
    }}
}}
"""
APACHE = """
ServerRoot {folder}
DefaultRuntimeDir {folder}
PidFile {folder}/pid
ErrorLog {folder}/log
ServerName localhost
Listen 127.0.0.1:{port}
User www-data
Group www-data
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule proxy_module {modules}/mod_proxy.so
LoadModule proxy_http_module {modules}/mod_proxy_http.so
LoadModule filter_module {modules}/mod_filter.so
LoadModule deflate_module {modules}/mod_deflate.so
AddOutputFilterByType DEFLATE application/json text/event-stream
ProxyPass / http://127.0.0.1:{server}/
"""
MODULES = Path("/usr/lib/apache2/modules")  # of Debian
PROXIES = {"nginx": ("-c", NGINX), "apache2": ("-DFOREGROUND", "-f", APACHE)}


@dataclass(frozen=True)
class Row:
    """A server, perhaps behind a proxy.

    Attributes:
        command: of the server; a module of Python, and its options.
        proxy: a program, with a configuration in `PROXIES`.
        hides_disconnects: whether a poll whose client has left stays open to its deadline.
        suffix: of a tag whose response was compressed.
        answers_at_stop: whether an open poll is answered when the server stops.
    """

    command: list[str]
    proxy: str = ""
    hides_disconnects: bool = False
    suffix: str = ""
    answers_at_stop: bool = field(default=True)


ROWS = {
    "uvicorn": Row(UVICORN),
    "Hypercorn without workers": Row([*HYPERCORN, "--workers=0"]),
    "Hypercorn with a worker": Row(HYPERCORN, answers_at_stop=False),
    "gunicorn": Row([*GUNICORN, "--worker-class=asgi"]),
    "gunicorn with uvicorn's worker": Row([*GUNICORN, "-k=uvicorn_worker.UvicornWorker"]),
    "Granian": Row(["granian", "--interface=asgi", "--port={port}"]),
    "nginx": Row(UVICORN, "nginx"),
    "Apache": Row(UVICORN, "apache2", hides_disconnects=True, suffix="-gzip"),
}
on_every_server = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


class Front:
    """A server that runs, and the port that its clients know."""

    def __init__(self, server: ServerProcess, port: int) -> None:
        self.server, self.port = server, port

    async def connect(self, port: int | None = None) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", port or self.port))

    async def post(self, target: str) -> None:
        connection = await self.connect()
        connection.send(target, "POST")
        assert (await connection.answer())[0] == 200
        connection.hang_up()

    async def poll(self, target: str) -> Connection:
        """A client whose poll is open."""
        connection = await self.connect()
        connection.send(target)
        await self.until_open(1)
        return connection

    async def until_open(self, count: int) -> dict[str, Any]:
        """The counts of the server when `count` polls are open."""
        while True:
            stats: dict[str, Any] = json.loads(await asyncio.to_thread(self.server.get, "stats"))
            if stats["open"] == count:
                return stats
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(row: Row, folder: Path) -> AsyncIterator[Front]:
    module, *options = row.command
    if find_spec(module) is None:
        unavailable(f"needs {module}: pip install {module}")
    server = ServerProcess(
        "-m", module, *options, "service:app", ready="stats", environment=ENVIRONMENT
    )
    proxy = None
    try:
        await asyncio.to_thread(server.start)
        front = Front(server, server.port)
        if row.proxy:
            front.port = free_port()
            proxy = await started(row.proxy, folder, front)
        yield front
    finally:
        await asyncio.to_thread(server.end, signal.SIGTERM)  # it ends its workers
        if proxy is not None and proxy.returncode is None:
            proxy.terminate()
            await proxy.wait()


async def started(program: str, folder: Path, front: Front) -> asyncio.subprocess.Process:
    """A proxy in front of a server."""
    command = need(program, f"needs {program}: apt-get install {program}")
    *options, configuration = PROXIES[program]
    file = folder / "configuration"
    file.write_text(
        configuration.format(
            folder=folder, modules=MODULES, port=front.port, server=front.server.port
        )
    )
    process = await asyncio.create_subprocess_exec(command, *options, file)
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, (folder / "log").read_text()
            try:
                (await front.connect()).hang_up()
            except OSError:
                await asyncio.sleep(0.05)
            else:
                return process


@on_asyncio
@on_every_server
async def test_each_ending_has_its_answer(row: Row, tmp_path: Path) -> None:
    async with running(row, tmp_path) as front:
        late = await front.connect()
        late.send("/poll?key=never&wait=0.1")
        status, headers, _ = await late.answer()
        assert (status, headers["preference-applied"]) == (204, "wait=0.1")
        satisfied = await front.poll("/poll?key=a&wait=300")
        await front.post("/check?key=a")
        assert (await satisfied.answer())[::2] == (200, b'{"value":"1"}')
        leaving = await front.poll(f"/poll?key=b&wait={3 if row.hides_disconnects else 300}")
        leaving.reset()
        stats = await front.until_open(0)
        assert stats["endings"].get("gone", 0) == (not row.hides_disconnects)
        stopped = await front.poll("/poll?key=c&wait=300")
        assert front.server.process is not None
        front.server.process.send_signal(signal.SIGTERM)
        if row.answers_at_stop:
            assert (await stopped.answer())[::2] == (503, b"the server is stopping")
        else:
            assert (await stopped.answer())[0] == 500
        for connection in (late, satisfied, stopped):
            connection.hang_up()
        assert await asyncio.to_thread(front.server.process.wait, 60) in (0, -signal.SIGTERM)


@on_asyncio
@on_every_server
async def test_tag_that_has_been_sent_waits(row: Row, tmp_path: Path) -> None:
    async with running(row, tmp_path) as front:
        client = await front.connect()
        client.send("/news", headers="accept-encoding: gzip\r\n")
        status, headers, content = await client.answer()
        is_compressed = headers.get("content-encoding") == "gzip"
        assert (status, is_compressed) == (200, bool(row.proxy))
        assert headers["etag"].startswith('W/"') and headers["etag"].endswith(f'-0{row.suffix}"')
        for version in (1, 2, 3):
            seen = f"accept-encoding: gzip\r\nif-none-match: {headers['etag']}\r\n"
            client.send("/news?wait=0", headers=seen)
            assert (await client.answer())[0] == 304
            client.send("/news?wait=60", headers=seen)
            await front.until_open(1)
            await front.post("/news")
            status, headers, content = await client.answer()
            text = decompress(content) if is_compressed else content
            assert (status, json.loads(text)["version"]) == (200, version)
        client.hang_up()


@on_asyncio
@on_every_server
async def test_events_arrive_while_their_stream_is_open(row: Row, tmp_path: Path) -> None:
    async with running(row, tmp_path) as front:
        client = await front.connect()
        client.send("/events", headers="accept-encoding: gzip\r\n")
        await front.until_open(1)
        head = await client.reader.readuntil(b"\r\n\r\n")
        is_compressed = b"content-encoding: gzip" in head.lower()
        unzip = decompressobj(wbits=31).decompress if is_compressed else bytes
        received = b""
        for version in (1, 2):
            await front.post("/news")
            while b"data: news %d\r\n" % version not in received:
                size = int(await client.reader.readline(), 16)
                received += unzip(await client.reader.readexactly(size))
                await client.reader.readline()
        await front.until_open(1)
        client.hang_up()
