"""Behind Apache, which compresses, and adds a suffix to the tags of what it has compressed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from gzip import decompress
from pathlib import Path
from typing import Any

import pytest
from asgi_connection import Connection
from asgi_server import serving
from loops import on_asyncio
from ports import free_port
from requirements import need

from purgatory.asgi import LongPolls, Versions

MODULES = Path("/usr/lib/apache2/modules")  # of Debian
CONFIGURATION = """
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
AddOutputFilterByType DEFLATE text/plain
ProxyPass / http://127.0.0.1:{server}/
"""


@asynccontextmanager
async def apache(folder: Path, server: int) -> AsyncIterator[Connection]:
    """A connection to an Apache in front of the server on this port."""
    command = need("apache2", "needs Apache: apt-get install apache2")
    file, port = folder / "apache.conf", free_port()
    file.write_text(CONFIGURATION.format(folder=folder, modules=MODULES, port=port, server=server))
    process = await asyncio.create_subprocess_exec(command, "-f", file, "-D", "FOREGROUND")
    try:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, (folder / "log").read_text()
                try:
                    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield connection
        connection.hang_up()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def body_of(version: int) -> bytes:
    return b"%d" % version * 1000  # Apache does not compress a few bytes


@pytest.mark.slow
@on_asyncio
async def test_tags_that_apache_has_changed_wait(tmp_path: Path) -> None:
    versions: Versions[str] = Versions()
    polls = LongPolls(signals=())
    statuses = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        outcome = await versions.changed(polls.poll(scope), "news")
        statuses.append(outcome.status)
        body = body_of(outcome.value) if outcome.is_satisfied else b""
        await outcome.send(send, body, "text/plain")

    async with serving(polls.middleware(answer)) as port, apache(tmp_path, port) as client:
        client.send("/", headers="accept-encoding: gzip\r\n")
        status, headers, content = await client.answer()
        assert (status, decompress(content)) == (200, body_of(0))
        assert headers["etag"] == f'W/"{versions.epoch}-0-gzip"'
        for version in (1, 2, 3):
            seen = f"accept-encoding: gzip\r\nif-none-match: {headers['etag']}\r\n"
            client.send("/?wait=0", headers=seen)
            assert (await client.answer())[0] == 304
            client.send("/?wait=60", headers=seen)
            waiting = asyncio.create_task(client.answer())
            while not polls.open:
                assert not waiting.done()
                await asyncio.sleep(0.01)
            versions.bump("news")
            status, headers, content = await waiting
            assert (status, decompress(content)) == (200, body_of(version))
    assert statuses == [200, *[304, 200] * 3]
