"""`examples/recipes`: in each framework a wait ends when its condition holds, at its deadline, when
the client has left, and when the server stops. On real servers and sockets, in this process."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import ModuleType
from typing import Any

import grpc
import pytest
import uvicorn
from aiohttp import web
from asgi_modules import EXAMPLES, load
from asgi_server import Connection
from django.test.utils import override_settings
from django.urls import clear_url_caches
from loops import on_asyncio, on_virtual_time
from ports import free_port


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


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield connection
    finally:
        connection.hang_up()
        with suppress(ConnectionError):
            await connection.writer.wait_closed()


async def endings(module: ModuleType, get: Any, put: Any, stop: Any) -> list[Any]:
    """The answers to `get(name, seconds)` at the deadline, with the value, and at the stop. Between
    them a client leaves, which ends its wait."""

    async def until_pending(number: int) -> None:
        while module.jobs.pending != number:
            await asyncio.sleep(0.01)

    async def waiting(name: str) -> "asyncio.Task[Any]":
        task = asyncio.create_task(get(name, 60.0))
        await until_pending(1)
        return task

    late = await get("1", 0.05)
    satisfied = await waiting("1")
    await put("1", "done")
    value = await satisfied
    (await waiting("2")).cancel()
    await until_pending(0)
    stopped = await waiting("3")
    await stop()
    return [late, value, await stopped]


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

    async def ask(target: str, method: str = "GET", body: bytes = b"") -> Any:
        async with connected(port) as connection:
            connection.send(target, method, body=body)
            status, headers, body = await connection.answer()
            return status, headers.get("retry-after"), body

    async with AsyncExitStack() as stack:
        server = under_aiohttp if name == "aiohttp" else under_uvicorn
        port = await stack.enter_async_context(server(module.app))
        late, value, stopped = await endings(
            module,
            lambda name, seconds: ask(f"{path}/{name}?wait={seconds}"),
            lambda name, value: ask(f"{path}/{name}", "PUT", value.encode()),
            stack.aclose,
        )
    assert (late[0], value, stopped[0]) == (204, (200, None, b"done"), 503)
    assert 1 <= int(stopped[1]) <= 5  # with its jitter
    assert module.jobs.pending == 0


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
    port = (await bound).sockets[0].getsockname()[1]

    async def ask(line: str) -> bytes:
        async with connected(port) as connection:
            connection.writer.write(line.encode())
            return await connection.reader.read()

    def get(name: str, seconds: float) -> Awaitable[bytes]:
        monkeypatch.setattr(module, "TIMEOUT", seconds)
        return ask(f"get {name}\n")

    async def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        await serving
        assert not module.asking  # they have their answers, though the loop may end now

    found = await endings(module, get, lambda name, value: ask(f"put {name} {value}\n"), stop)
    assert found == [b"-timeout\n", b"+done\n", b"-stopping\n"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_asyncio
async def test_loops_in_threads_share_their_waits(monkeypatch):
    module = recipe("threads")
    monkeypatch.setattr(module, "TIMEOUT", 600.0)
    port, waiting = free_port(), []
    serving = threading.Thread(target=module.main, args=(port, 2))
    serving.start()

    async def ask(line: bytes) -> bytes:
        async with connected(port) as connection:
            connection.writer.write(line)
            return await connection.reader.read()

    def pending() -> list[int]:
        return [jobs.pending for jobs in module.purgatories]

    while len(pending()) < 2 or not all(pending()):
        await asyncio.sleep(0.05)
        if pending():  # it listens
            waiting.append(asyncio.create_task(ask(b"get 1\n")))
    assert await ask(b"put 1 done\n") == b"+\n"
    assert {*await asyncio.gather(*waiting)} == {b"+done\n"}
    last = asyncio.create_task(ask(b"get 2\n"))
    while not any(pending()):
        await asyncio.sleep(0.01)
    assert serving.ident is not None
    signal.pthread_kill(serving.ident, signal.SIGTERM)
    assert await last == b"-stopping\n"
    await asyncio.to_thread(serving.join)


@on_asyncio
async def test_over_grpc_each_ending_has_its_status(monkeypatch):
    module = recipe("grpc")
    server, port = module.server_on("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        result, finish = channel.unary_unary("/jobs/Result"), channel.unary_unary("/jobs/Finish")

        async def get(name: str, seconds: float) -> bytes | grpc.StatusCode:
            monkeypatch.setattr(module, "MAX_WAIT", seconds)
            try:
                return await result(name.encode())
            except grpc.aio.AioRpcError as error:
                return error.code()

        async def put(name: str, value: str) -> None:
            await finish(f"{name}={value}".encode())

        found = await endings(module, get, put, lambda: module.stop(server))
    assert found == [grpc.StatusCode.NOT_FOUND, b"done", grpc.StatusCode.UNAVAILABLE]


@on_virtual_time
async def test_grpc_wait_ends_before_the_calls_deadline():
    class Context:
        time_remaining = staticmethod(lambda: 5.0)

        async def abort(self, status: grpc.StatusCode, _: str) -> None:
            raise LookupError(status)

    with pytest.raises(LookupError, match="NOT_FOUND"):
        await recipe("grpc").result(b"1", Context())
    assert asyncio.get_running_loop().time() == 4.5
