"""`examples/recipes`: in each framework a wait ends when its condition holds, at its deadline, when
the client has left, and when the server stops. On real servers and sockets, in this process."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any

import grpc
import pytest
import uvicorn
from aiohttp import web
from asgi_connection import Connection
from asgi_modules import EXAMPLES, load
from django.test.utils import override_settings
from django.urls import clear_url_caches
from loops import on_asyncio, on_virtual_time


def recipe(name: str) -> ModuleType:
    clear_url_caches()  # Django's
    return load(EXAMPLES / "recipes" / f"with_{name}.py")


@pytest.fixture(autouse=True)
def terminations() -> Iterator[list[int]]:
    """The SIGTERMs without another handler."""
    unhandled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: unhandled.append(number))
    yield unhandled
    signal.signal(signal.SIGTERM, before)


@asynccontextmanager
async def under_uvicorn(app: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    signal.raise_signal(signal.SIGTERM)
    await serving


@asynccontextmanager
async def under_aiohttp(app: Any) -> AsyncIterator[int]:
    runner = web.AppRunner(app, handler_cancellation=True)  # as web.run_app, but for the signals
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    await runner.cleanup()


async def until_pending(module: ModuleType, number: int) -> None:
    while module.jobs.pending != number:
        await asyncio.sleep(0.01)


class Clients:
    """Connections to a port, each hung up in the end."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections: list[Connection] = []

    async def ask(self, what: str | bytes, method: str = "GET", body: bytes = b"") -> Connection:
        """A new connection, on which a line was sent, or a request with its body."""
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.connections.append(connection)
        if isinstance(what, bytes):
            connection.writer.write(what)
        else:
            connection.send(what, method, body=body)
        return connection

    async def hang_up(self) -> None:
        for connection in self.connections:
            connection.hang_up()
            with suppress(ConnectionError):
                await connection.writer.wait_closed()


@on_asyncio
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("aiohttp", "/jobs"),
        pytest.param("litestar", "/jobs", marks=pytest.mark.slow),
        pytest.param("quart", "/jobs", marks=pytest.mark.slow),
        pytest.param("django", "/jobs", marks=pytest.mark.slow),
        pytest.param("django", "/sync/jobs", marks=pytest.mark.slow),
    ],
)
async def test_over_http_each_ending_has_its_answer(name, path, request):
    module = recipe(name)
    if name == "django":  # its settings belong to the process, and other tests may have made them
        settings = override_settings(ROOT_URLCONF=module.__name__, ALLOWED_HOSTS=["127.0.0.1"])
        settings.enable()
        request.addfinalizer(settings.disable)
    server = under_aiohttp if name == "aiohttp" else under_uvicorn
    async with server(module.app) as port:
        clients = Clients(port)
        ask = clients.ask
        assert (await (await ask(f"{path}/1?wait=0.05")).answer())[0] == 204

        satisfied = await ask(f"{path}/1?wait=60")
        await until_pending(module, 1)
        assert (await (await ask(f"{path}/1", "PUT", b"done")).answer())[0] == 204
        assert (await satisfied.answer())[::2] == (200, b"done")

        leaving = await ask(f"{path}/2?wait=60")
        await until_pending(module, 1)
        leaving.hang_up()
        await until_pending(module, 0)

        stopped = await ask(f"{path}/3?wait=60")
        await until_pending(module, 1)
    status, headers, _ = await stopped.answer()
    assert (status, headers["retry-after"]) == (503, "1")
    assert module.jobs.pending == 0
    await clients.hang_up()


@on_asyncio
async def test_over_tcp_each_ending_has_its_line(monkeypatch):
    module = recipe("tcp")

    bound: asyncio.Future[asyncio.Server] = asyncio.get_running_loop().create_future()
    start_server = asyncio.start_server

    async def start(*arguments: Any) -> asyncio.Server:
        bound.set_result(await start_server(*arguments))
        return bound.result()

    monkeypatch.setattr(asyncio, "start_server", start)
    serving = asyncio.create_task(module.main(port=0))
    clients = Clients((await bound).sockets[0].getsockname()[1])
    ask = clients.ask
    monkeypatch.setattr(module, "TIMEOUT", 0.05)
    assert await (await ask(b"get 1\n")).reader.read() == b"-timeout\n"
    monkeypatch.setattr(module, "TIMEOUT", 60.0)

    satisfied = await ask(b"get 1\n")
    await until_pending(module, 1)
    assert await (await ask(b"put 1 done\n")).reader.read() == b"+\n"
    assert await satisfied.reader.read() == b"+done\n"

    for leave in (Connection.hang_up, Connection.reset):
        leaving = await ask(b"get 2\n")
        await until_pending(module, 1)
        leave(leaving)
        await until_pending(module, 0)

    stopped = await ask(b"get 3\n")
    await until_pending(module, 1)
    signal.raise_signal(signal.SIGTERM)
    assert await stopped.reader.read() == b"-stopping\n"
    await serving
    await clients.hang_up()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_asyncio
async def test_over_grpc_each_ending_has_its_status(monkeypatch):
    module = recipe("grpc")
    server, port = module.server_on("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        result, finish = channel.unary_unary("/jobs/Result"), channel.unary_unary("/jobs/Finish")
        monkeypatch.setattr(module, "MAX_WAIT", 0.05)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await result(b"1", timeout=60)
        assert late.value.code() is grpc.StatusCode.NOT_FOUND
        monkeypatch.setattr(module, "MAX_WAIT", 60.0)

        satisfied = asyncio.ensure_future(result(b"1", timeout=60))
        await until_pending(module, 1)
        await finish(b"1=done")
        assert await satisfied == b"done"

        leaving = asyncio.ensure_future(result(b"2"))
        await until_pending(module, 1)
        leaving.cancel()
        await until_pending(module, 0)

        stopped = asyncio.ensure_future(result(b"3"))
        await until_pending(module, 1)
        await module.stop(server)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stopped
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


@on_virtual_time
async def test_grpc_wait_ends_before_the_calls_deadline():
    class Context:
        time_remaining = staticmethod(lambda: 5.0)

        async def abort(self, status: grpc.StatusCode, _: str) -> None:
            raise LookupError(status)

    with pytest.raises(LookupError, match="NOT_FOUND"):
        await recipe("grpc").result(b"1", Context())
    assert asyncio.get_running_loop().time() == 4.5
