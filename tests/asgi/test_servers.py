"""`purgatory.asgi` under real servers and behind proxies, with real sockets and clients that behave
badly."""

import asyncio
import json
import resource
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from gzip import decompress
from importlib.util import find_spec
from pathlib import Path
from zlib import decompressobj

import pytest
from asgi_server import UVICORN, Connection, Server, running
from loops import on_asyncio
from ports import free_port
from requirements import need, unavailable

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
NGINX_CACHE = NGINX.replace("daemon off;", "daemon off;\nuser root;").replace(  # the folder's user
    "gzip on;",
    "proxy_cache_path {folder}/cache keys_zone=c:1m; proxy_cache_valid any 1h; proxy_cache c;",
)
APACHE_CACHE = """
LoadModule cache_module {modules}/mod_cache.so
LoadModule cache_socache_module {modules}/mod_cache_socache.so
LoadModule socache_shmcb_module {modules}/mod_socache_shmcb.so
CacheSocache shmcb
CacheEnable socache /
"""
VARNISH = """
vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{server}"; }}
"""
MODULES = Path("/usr/lib/apache2/modules")  # where Debian has them
PROXIES = {"nginx": ("-c", NGINX), "apache2": ("-DFOREGROUND", "-f", APACHE)}
"""By name of the program: its options, the last of which names the configuration."""
CACHES = {
    "nginx": ("-c", NGINX_CACHE),
    "apache2": ("-DFOREGROUND", "-f", APACHE + APACHE_CACHE),
    "varnishd": (
        *[
            "-F",
            "-j",
            "none",
            "-s",
            "malloc,16m",
            "-n",
            "{folder}/n",
            "-a",
            "127.0.0.1:{port}",
            "-f",
        ],
        VARNISH,
    ),
}

HYPERCORN = ["hypercorn", "--bind=127.0.0.1:{port}", "--log-level=warning", "--keep-alive=60"]
GUNICORN = ["gunicorn", "--bind=127.0.0.1:{port}", "--log-level=warning"]


ROWS = {
    "uvicorn-uvloop-httptools": UVICORN,
    "uvicorn-uvloop-h11": [*UVICORN, "--http=h11"],
    "uvicorn-asyncio-httptools": [*UVICORN, "--loop=asyncio"],
    "uvicorn-asyncio-h11": [*UVICORN, "--loop=asyncio", "--http=h11"],
    "hypercorn-asyncio": [*HYPERCORN, "--workers=0"],
    "hypercorn-uvloop": [*HYPERCORN, "--workers=0", "--worker-class=uvloop"],
    "hypercorn-worker": HYPERCORN,  # cancels open polls when it stops
    "gunicorn": [*GUNICORN, "--worker-class=asgi"],
    "gunicorn-uvicorn": [*GUNICORN, "-k=uvicorn_worker.UvicornWorker"],
    "granian": ["granian", "--interface=asgi", "--port={port}"],
    "nginx": UVICORN,
    "apache2": UVICORN,  # hides disconnects, and marks the tags that it compresses
}
"""By name: a module of Python with its options, behind the proxy of this name, if it is one."""
TYPICAL = ["uvicorn-asyncio-h11", "uvicorn-uvloop-httptools", "hypercorn-asyncio"]


@pytest.fixture
async def server(kind: str, tmp_path: Path) -> AsyncIterator[Server]:
    module = ROWS[kind][0]
    if find_spec(module) is None:
        unavailable(f"needs {module}: pip install {module}")
    async with (
        running(ROWS[kind]) as server,
        behind(kind, PROXIES, tmp_path, server) if kind in PROXIES else nullcontext(),
    ):
        yield server


@asynccontextmanager
async def behind(
    program: str, proxies: Mapping[str, tuple[str, ...]], folder: Path, server: Server
) -> AsyncIterator[None]:
    """Puts a proxy in front of a server."""
    command = need(program, f"needs {program}: apt-get install {program.removesuffix('d')}")
    file, own, server.port = folder / "configuration", server.port, free_port()
    places = {"folder": folder, "modules": MODULES, "port": server.port, "server": own}
    *options, configuration = (each.format(**places) for each in proxies[program])
    file.write_text(configuration)
    process = await asyncio.create_subprocess_exec(command, *options, file)
    try:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, (folder / "log").read_text()
                with suppress(OSError):
                    (await server.connect()).hang_up()
                    break
                await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await process.wait()


def under(*kinds: str, quick: Sequence[str] = ()) -> pytest.MarkDecorator:
    marks = {kind: [pytest.mark.slow] * (kind not in quick) for kind in kinds}
    return pytest.mark.parametrize(
        "kind", [pytest.param(kind, marks=marks[kind]) for kind in kinds]
    )


@on_asyncio
@under(*ROWS, quick=["uvicorn-uvloop-httptools"])
async def test_each_ending_has_its_answer(kind, server):
    hides_disconnects, answers_at_stop = kind == "apache2", kind != "hypercorn-worker"
    polls = await server.open_polls(20)
    assert await server.ask("/check?key=k", "POST") == {"completed": 20}
    for connection in polls:
        assert (await connection.answer())[::2] == (200, b'{"value":"1"}')
    started = time.monotonic()
    polls[0].send("/poll?key=never", headers="prefer: wait=1\r\n")
    status, headers, _ = await polls[0].answer()
    # A server's clock may show the last whole millisecond.
    assert time.monotonic() - started >= 0.99
    assert (status, headers["preference-applied"]) == (204, "wait=1")
    leaving = [await server.connect() for _ in range(9)]
    for number, connection in enumerate(leaving):
        unread = bytes(200 * 1024) if number > 5 and kind in TYPICAL else b""
        target = f"/poll?key=b&wait={3 if hides_disconnects else 300}"
        connection.send(target, "POST" if unread else "GET", body=unread)
        await connection.writer.drain()
    await server.until(lambda stats: stats["open"] == 9)
    for number, connection in enumerate(leaving):
        if number % 3 == 0:
            connection.hang_up()
        elif number % 3 == 1 or kind not in TYPICAL:
            connection.reset()
        else:
            connection.writer.write_eof()
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["endings"].get("gone", 0) == (0 if hides_disconnects else 9)
    stopped = await server.open_polls(20, "/poll?key=c&wait=300")
    server.process.send_signal(signal.SIGTERM)
    for connection in stopped:
        status, headers, body = await connection.answer()
        if answers_at_stop:
            assert (status, headers["retry-after"], body) == (503, "1", b"the server is stopping")
        else:
            assert status == 500
    for connection in (*polls, *leaving, *stopped):
        connection.hang_up()
    if answers_at_stop:
        await server.ended()
    else:  # it reports the requests that it cancels
        await asyncio.to_thread(server.process.communicate)
    assert server.process.returncode in (0, -signal.SIGTERM)


@on_asyncio
@under(*ROWS)
async def test_tag_that_has_been_sent_waits(kind, server):
    client = await server.connect()
    client.send("/news", headers="accept-encoding: gzip\r\n")
    status, headers, content = await client.answer()
    is_compressed = headers.get("content-encoding") == "gzip"
    assert (status, is_compressed) == (200, kind in PROXIES)
    end = '-0-gzip"' if kind == "apache2" else '-0"'
    assert headers["etag"].startswith('W/"') and headers["etag"].endswith(end)
    for version in (1, 2, 3):
        seen = f"accept-encoding: gzip\r\nif-none-match: {headers['etag']}\r\n"
        client.send("/news?wait=0", headers=seen)
        assert (await client.answer())[0] == 304
        client.send("/news?wait=60", headers=seen)
        await server.until(lambda stats: stats["open"] == 1)
        await server.ask("/news", "POST")
        status, headers, content = await client.answer()
        text = decompress(content) if is_compressed else content
        assert (status, json.loads(text)["version"]) == (200, version)
    client.hang_up()


@on_asyncio
@under(*ROWS)
async def test_events_arrive_while_their_stream_is_open(kind, server):
    client = await server.connect()
    client.send("/events", headers="accept-encoding: gzip\r\n")
    await server.until(lambda stats: stats["open"] == 1)
    head = await client.reader.readuntil(b"\r\n\r\n")
    is_compressed = b"content-encoding: gzip" in head.lower()
    unzip = decompressobj(wbits=31).decompress if is_compressed else bytes
    received = b""
    for version in (1, 2):
        await server.ask("/news", "POST")
        while b"data: news %d\r\n" % version not in received:
            size = int(await client.reader.readline(), 16)
            received += unzip(await client.reader.readexactly(size))
            await client.reader.readline()
    await server.until(lambda stats: stats["open"] == 1)
    client.hang_up()


@on_asyncio
@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
async def test_no_cache_answers_a_poll(cache, tmp_path):
    async with running(UVICORN) as server, behind(cache, CACHES, tmp_path, server):
        client = await server.connect()

        async def get(target: str, headers: str = "") -> tuple[int, dict[str, str], bytes]:
            client.send(target, headers=headers)
            return await client.answer()

        for polls in (1, 2, 3):
            assert (await get("/poll?key=never&wait=0"))[0] == 204
            assert (await server.ask("/stats"))["endings"]["deadline"] == polls
        status, headers, content = await get("/news")
        for version in (1, 2):
            target, seen = "/news?wait=0", f"if-none-match: {headers['etag']}\r\n"
            if cache == "nginx":  # where it caches it takes this header off
                target, seen = f"{target}&index={headers['etag'][3:-1]}", ""
            assert (await get(target, seen))[0] == 304
            await server.ask("/news", "POST")
            status, headers, content = await get("/news")
            assert (status, json.loads(content)["version"]) == (200, version)
            assert (await get(target, seen))[0] == 200
        client.hang_up()


@on_asyncio
@pytest.mark.slow
async def test_uvicorn_that_ends_without_a_signal_answers_polls():
    async with running([*UVICORN, "--limit-max-requests=50"]) as server:
        polls = await server.open_polls(5, "/poll?key=never&wait=300")
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await server.ask("/stats")
        async with asyncio.timeout(60):
            for connection in polls:
                assert (await connection.answer())[::2] == (503, b"the server is stopping")
                connection.hang_up()
        assert '"stopping": ' in await server.ended()


@on_asyncio
@under("uvicorn-asyncio-h11", "uvicorn-uvloop-httptools")
async def test_polls_beyond_open_files_are_refused(kind):
    limit, max_open = 1024, 768
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with AsyncExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            server = await stack.enter_async_context(running(ROWS[kind]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        polls = await server.open_polls(max_open)
        refused = []
        for _ in range(2 * limit - max_open):  # each would keep a file open until it is answered
            connection = await server.connect()
            connection.send("/poll?key=k&wait=300")
            status, headers, _ = await connection.answer()
            assert (status, headers["connection"]) == (503, "close")
            refused.append(connection)
        await server.ask("/check?key=k", "POST")
        for connection in polls:
            assert (await connection.answer())[0] == 200
        for connection in (*polls, *refused):
            connection.hang_up()


@on_asyncio
@under(*TYPICAL)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_under_load_breaks_off_no_answer(kind, server, number):
    answers: list[int] = []

    async def poll_until_the_server_stops(connection: Connection) -> None:
        headers: dict[str, str] = {}
        with suppress(ConnectionError):
            while headers.get("connection") != "close":
                connection.send("/poll?key=never&wait=0.01")
                if not (first := await connection.reader.read(1)):
                    break  # it was closed between two requests
                status, headers, _ = await connection.answer(first)
                answers.append(status)
        connection.hang_up()

    patient = await server.open_polls(100, "/poll?key=never&wait=300")
    busy = [await server.connect() for _ in range(100)]
    polling = [asyncio.create_task(poll_until_the_server_stops(connection)) for connection in busy]
    while len(answers) < 300:
        await asyncio.sleep(0.01)
    server.process.send_signal(number)
    await asyncio.gather(*polling)
    assert set(answers) <= {204, 503}
    for connection in patient:
        assert (await connection.answer())[::2] == (503, b"the server is stopping")
        assert await connection.reader.read() == b""
        connection.hang_up()
    assert '"stopping": ' in await server.ended()
