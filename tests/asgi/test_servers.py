"""`purgatory.asgi` under real servers, each in a process of its own, with real sockets and clients
that behave badly."""

import asyncio
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import pytest
from asgi_connection import Connection
from asgi_server import SERVERS, Server, running
from loops import on_asyncio

pytestmark = pytest.mark.slow

on_every_server = pytest.mark.parametrize("server", SERVERS, indirect=True)


@pytest.fixture(params=["uvicorn-asyncio-h11", "uvicorn-uvloop-httptools", "hypercorn-asyncio"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(*SERVERS[request.param]) as server:
        yield server


@on_asyncio
@on_every_server
async def test_polls_are_answered_and_the_connection_stays(
    server: Server,
) -> None:
    polls = await server.open_polls(20)
    assert await server.ask("/check?key=k", "POST") == {"completed": 20}
    for connection in polls:
        assert (await connection.answer())[::2] == (200, b'{"value":"1"}')
    started = time.monotonic()
    polls[0].send("/poll?key=never", headers="prefer: wait=1\r\n")
    status, headers, _ = await polls[0].answer()
    assert (
        time.monotonic() - started >= 0.99
    )  # a server's clock may show the last whole millisecond
    assert (status, headers["preference-applied"]) == (204, "wait=1")
    polls[0].send("/news")
    status, headers, _ = await polls[0].answer()
    polls[0].send("/news?wait=0.05", headers=f"if-none-match: {headers['etag']}\r\n")
    assert (await polls[0].answer())[0] == 304
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["pending"] == stats["watched"] == 0
    for connection in polls:
        connection.hang_up()


@on_asyncio
async def test_killed_or_half_closed_clients_free_their_operations(
    server: Server,
) -> None:
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


@on_asyncio
async def test_a_disconnect_after_an_unread_body_is_noticed(server: Server) -> None:
    connections = [await server.connect() for _ in range(4)]
    for connection in connections:
        connection.send("/poll?key=k&wait=300", "POST", body=bytes(200 * 1024))
        await connection.writer.drain()
    await server.until(lambda stats: stats["open"] == 4)
    for number, connection in enumerate(connections):
        connection.reset() if number % 2 else connection.hang_up()
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["endings"] == {"gone": 4}
    assert stats["pending"] == stats["watched"] == 0


@on_asyncio
async def test_disconnect_after_hundreds_of_chunks_is_noticed(server: Server) -> None:
    connection = await server.connect()
    connection.send("/poll?key=k&wait=300", "POST", headers="transfer-encoding: chunked\r\n")
    await server.until(lambda stats: stats["open"] == 1)
    for _ in range(400):
        connection.writer.write(b"1\r\nx\r\n")
        await connection.writer.drain()
        await asyncio.sleep(0.001)
    connection.hang_up()
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["endings"] == {"gone": 1}


@on_asyncio
async def test_client_beyond_the_bound_is_slowed_without_loss(server: Server) -> None:
    connection = await server.connect()
    body = b"abcdefgh" * (8 * 1024 * 1024 // 8)
    connection.send("/poll?key=k&wait=300", "POST", body=body)
    await server.until(lambda stats: stats["open"] == 1)
    await asyncio.sleep(0.5)  # in which the server could have read all of it
    assert connection.writer.transport.get_write_buffer_size() > 0
    await server.ask("/check?key=k", "POST")
    assert (await connection.answer())[0] == 200
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["bodies"] == [body.decode()]
    connection.hang_up()


@on_asyncio
async def test_killed_client_frees_its_operations(
    server: Server,
) -> None:
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

    client = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(server.port))
    await server.until(lambda stats: stats["open"] == 50)
    client.kill()
    await client.wait()
    stats = await server.until(lambda stats: stats["open"] == 0)
    assert stats["pending"] == stats["watched"] == 0
    assert stats["endings"] == {"gone": 50}


@on_asyncio
async def test_slow_clients_lose_nothing(
    server: Server,
) -> None:
    connection = await server.connect()
    request = (
        b"POST /poll?key=k&wait=300 HTTP/1.1\r\nhost: service\r\ncontent-length: "
        b"26\r\n\r\nabcdefghijklmnopqrstuvwxyz"
    )
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


@on_asyncio
async def test_pipelined_polls_are_answered_in_order(server: Server) -> None:
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


@on_asyncio
@on_every_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_answers_open_polls_then_stops_the_server(server: Server, number: int) -> None:
    polls = await server.open_polls(200)
    server.process.send_signal(number)
    for connection in polls:
        status, headers, body = await connection.answer()
        assert (status, headers["retry-after"], body) == (503, "1", b"the server is stopping")
        assert await connection.reader.read() == b""
        connection.hang_up()
    assert (
        'endings: {"stopping": 200}' in await server.ended()
    )  # the polls would have gone on for five minutes


@on_asyncio
async def test_signal_reaches_polls_after_other_chains_left(
    server: Server,
) -> None:
    polls = await server.open_polls(20)
    await server.ask("/plug", "POST")
    server.process.send_signal(signal.SIGTERM)
    for connection in polls:
        assert (await connection.answer())[0] == 503
        connection.hang_up()
    assert 'endings: {"stopping": 20}' in await server.ended()


@on_asyncio
async def test_malformed_wait_closes_a_websocket_with_reason(server: Server) -> None:
    address = f"http://127.0.0.1:{server.port}/socket?wait={'%F0%9F%90%99' * 99}"
    async with aiohttp.ClientSession() as session:
        socket = await session.ws_connect(address)
        message = await socket.receive()
        assert message.data == 1008
        assert message.extra.startswith("wait must be a number of seconds, zero or more, not")


@on_asyncio
@pytest.mark.parametrize("kind", ["uvicorn-asyncio-h11", "uvicorn-uvloop-httptools"])
async def test_polls_beyond_open_files_are_refused(kind: str) -> None:
    limit, max_open = 1024, 768
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            server = stack.enter_context(running(*SERVERS[kind]))
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
async def test_websockets_end_in_each_way_without_loss(server: Server) -> None:
    address = f"http://127.0.0.1:{server.port}/socket"
    async with aiohttp.ClientSession() as session:

        async def connect(query: str) -> aiohttp.ClientWebSocketResponse:
            return await session.ws_connect(f"{address}?{query}")

        late = await connect("key=never&wait=0.1")
        assert (await late.receive()).data == 1000
        satisfied, leaving, stopped = [await connect(f"key={key}&wait=300") for key in "abc"]
        await satisfied.send_str("while you wait")
        await server.until(lambda stats: stats["open"] == 3)
        await leaving.close()
        await server.until(lambda stats: stats["endings"].get("gone", 0) == 1)
        await server.ask("/check?key=a", "POST")
        assert await satisfied.receive_json() == {"value": "1", "said": "while you wait"}
        assert (await satisfied.receive()).data == 1000
        await server.until(lambda stats: stats["open"] == 1)
        server.process.send_signal(signal.SIGTERM)
        message = await stopped.receive()
        # uvicorn may close the socket before we do, with the same code and no reason: it polls for
        #     the signal every 0.1 s.
        assert message.data == 1012 and message.extra in ("the server is stopping", "")
    assert '"stopping": 1' in await server.ended()


@on_asyncio
@pytest.mark.parametrize("kind", ["uvicorn-uvloop-httptools", "uvicorn-asyncio-h11"])
async def test_base_middleware_changes_nothing(kind: str) -> None:
    with running(*SERVERS[kind], "--base-middleware") as server:
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


@on_asyncio
@pytest.mark.parametrize(
    ("kind", "count"), [("uvicorn-uvloop-httptools", 5_000), ("hypercorn-uvloop", 1_000)]
)
async def test_thousands_of_polls_end_properly(kind: str, count: int) -> None:
    files_needed = 2 * count + 1_000  # by default three quarters of the limit may be open polls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= files_needed or hard >= files_needed, (
        f"this test needs {files_needed} files open at once"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files_needed), hard))
    with running(*SERVERS[kind]) as server:
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


@on_asyncio
@pytest.mark.parametrize(
    "kind", ["uvicorn-uvloop-httptools", "uvicorn-asyncio-h11", "hypercorn-asyncio"]
)
async def test_signal_under_load_breaks_off_no_answer(
    kind: str,
) -> None:
    answers: list[int] = []

    async def poll_until_the_server_stops(connection: Connection) -> None:
        while True:
            connection.send("/poll?key=never&wait=0.01")
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

    with running(*SERVERS[kind]) as server:
        patient = await server.open_polls(100, "/poll?key=never&wait=300")
        busy = [await server.connect() for _ in range(100)]
        polling = [
            asyncio.create_task(poll_until_the_server_stops(connection)) for connection in busy
        ]
        while len(answers) < 300:
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*polling)
        assert set(answers) <= {204, 503}
        for connection in patient:
            assert (await connection.answer())[0] == 503
            connection.hang_up()
        await server.ended()  # a second signal might meet a loop that is being closed
