"""`examples/long_poll_board.py`: its application in virtual time, and the program, as a process,
over real connections."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pyarrow.parquet as pq
import pytest
from asgi_modules import EXAMPLES, load
from loops import on_asyncio, on_virtual_time

EXAMPLE = EXAMPLES / "long_poll_board.py"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the same purgatory as here
    "PYTHONUNBUFFERED": "",  # lines that are read at once must be flushed
}
TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes


long_poll = load(EXAMPLE)


# The application, in process and in virtual time


@asynccontextmanager
async def client_of(board: Any) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(board.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://board") as client:
        yield client


async def until_pending(board: Any, count: int) -> None:
    while board.polls.pending != count:
        await asyncio.sleep(0)


@on_virtual_time
async def test_messages_that_are_there_are_answered_at_once() -> None:
    async with client_of(long_poll.Board()) as client:
        for offset, message in enumerate(("zero", "one", "zwölf")):
            response = await client.post("/topics/news", content=message.encode())
            assert (response.status_code, response.json()) == (201, {"offset": offset})
        started = asyncio.get_running_loop().time()
        response = await client.get("/topics/news?offset=1&timeout=20")
        assert response.status_code == 200
        assert response.json() == {"messages": ["one", "zwölf"], "next": 3, "ending": "event"}
        assert (await client.get("/topics/news")).json()["messages"] == ["zero", "one", "zwölf"]
        assert asyncio.get_running_loop().time() - started < 20


@on_virtual_time
@pytest.mark.parametrize("timeout", [0.0, 0.0004, 0.25, 59.9999, 60.0])
async def test_unanswered_poll_ends_exactly_at_its_deadline(
    timeout: float,
) -> None:
    async with client_of(long_poll.Board()) as client:
        await client.post("/topics/news", content="old")
        started = asyncio.get_running_loop().time()
        answer = (await client.get(f"/topics/news?offset=1&timeout={timeout}")).json()
        grain = (
            long_poll.CLOCK_GRAIN if timeout else 0.0
        )  # a server's clock may be as much behind the client's
        assert asyncio.get_running_loop().time() >= started + timeout + grain
        late = answer.pop("late")
        assert answer == {"messages": [], "next": 1, "ending": "deadline"}
        assert late >= 0


@on_virtual_time
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("offset=-1", "offset must be from 0 to "),
        ("offset=one", "offset must be a whole number, not 'one'"),
        ("offset=1.5", "offset must be a whole number, not '1.5'"),
        ("offset=", "offset must be a whole number, not ''"),
        ("offset=" + "9" * 30, "offset must be from 0 to "),
        ("offset=" + "9" * 5000, "offset must be a whole number"),
        ("timeout=-0.001", "timeout must be from 0 to 60.0, not -0.001"),
        ("timeout=soon", "timeout must be a number of seconds, not 'soon'"),
        ("timeout=", "timeout must be a number of seconds, not ''"),
        ("timeout=nan", "timeout must be from 0 to 60.0, not nan"),
        ("timeout=inf", "timeout must be from 0 to 60.0, not inf"),
        ("timeout=-inf", "timeout must be from 0 to 60.0, not -inf"),
        ("timeout=60.001", "timeout must be from 0 to 60.0, not 60.001"),
        ("timeout=1e400", "timeout must be from 0 to 60.0, not 1e400"),
    ],
)
async def test_bad_offset_or_timeout_is_400_with_reason(query: str, reason: str) -> None:
    board = long_poll.Board()
    async with client_of(board) as client:
        response = await client.get(f"/topics/news?{query}")
    assert response.status_code == 400
    assert response.text.startswith(reason)
    assert len(response.text) < 100
    assert (board.topics, board.polls.pending, board.polls.watched) == ({}, 0, 0)


@on_virtual_time
async def test_offset_beyond_end_is_400_with_the_end() -> None:
    async with client_of(long_poll.Board()) as client:
        await client.post("/topics/news", content="only")
        response = await client.get("/topics/news?offset=2&timeout=0")
        assert (response.status_code, response.json()["end"]) == (400, 1)
        response = await client.get("/topics/nothing?offset=1&timeout=0")
        assert (response.status_code, response.json()["end"]) == (400, 0)


@on_virtual_time
@pytest.mark.parametrize(
    ("message", "status"), [(b"\xff", 400), (b"x" * 65537, 413), (b"x" * 65536, 201), (b"", 201)]
)
async def test_message_is_limited_to_64_kib_of_utf8(message: bytes, status: int) -> None:
    board = long_poll.Board()
    async with client_of(board) as client:
        assert (await client.post("/topics/news", content=message)).status_code == status
    assert board.topics == ({"news": [message.decode()]} if status == 201 else {})


@on_virtual_time
async def test_full_board_refuses_polls_until_one_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_poll, "MAX_POLLS", 1)
    board = long_poll.Board()
    async with client_of(board) as client:
        waiting = asyncio.create_task(client.get("/topics/news?timeout=20"))
        await until_pending(board, 1)
        for _ in range(3):
            response = await client.get("/topics/news?timeout=20")
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        await client.post("/topics/news", content="news")
        assert (await waiting).status_code == 200
        assert (await client.get("/topics/news?offset=1&timeout=0")).status_code == 200


@on_virtual_time
async def test_message_resent_with_its_key_is_stored_once() -> None:
    board = long_poll.Board()
    async with client_of(board) as client:
        answers = [
            await client.post(f"/topics/{topic}", content=content, headers={"Idempotency-Key": key})
            for topic, content, key in (
                ("news", "a", "k1"),
                ("news", "b", "k2"),
                ("news", "a", "k1"),
                ("weather", "a", "k1"),
            )
        ]
        assert [(answer.status_code, answer.json()["offset"]) for answer in answers] == [
            (201, 0),
            (201, 1),
            (200, 0),
            (201, 0),
        ]
    assert board.topics == {"news": ["a", "b"], "weather": ["a"]}


@on_virtual_time
async def test_the_page_and_the_metrics_show_who_waits() -> None:
    board = long_poll.Board()
    async with client_of(board) as client:
        waiting = asyncio.create_task(client.get("/topics/news?timeout=20"))
        await asyncio.sleep(1)
        state = (await client.get("/purgatory/state", headers={"Host": "localhost"})).json()
        assert [each["name"] for each in state["purgatories"]] == ["polls", "versions"]
        assert (
            state["purgatories"][0]["oldest"][0]["keys"] == ["'news'"]
            and state["polls"]["open"] == 1
        )
        assert (
            'purgatory_pending_operations{purgatory="polls"} 1.0'
            in (await client.get("/metrics/")).text
        )
        await client.post("/topics/news", content="news")
        await waiting


@on_virtual_time
async def test_client_may_continue_from_last_tag() -> None:
    async with client_of(long_poll.Board()) as client:

        async def poll(tag: str) -> httpx2.Response:
            return await client.get(
                "/topics/news", headers={"If-None-Match": tag, "Prefer": "wait=9"}
            )

        await client.post("/topics/news", content="one")
        first = await poll('""')
        assert first.json()["messages"] == ["one"]
        await client.post("/topics/news", content="two")
        second = await poll(first.headers["etag"])
        assert second.json()["messages"] == ["two"]
        assert second.headers["preference-applied"] == "wait=9"
        started = asyncio.get_running_loop().time()
        third = await poll(second.headers["etag"])
        assert (third.status_code, third.content, third.headers["etag"]) == (
            304,
            b"",
            second.headers["etag"],
        )
        assert asyncio.get_running_loop().time() - started >= 9


@on_virtual_time
async def test_client_of_earlier_board_gets_all_messages() -> None:
    tags = []
    for messages in (["old", "older"], ["new", "newer"]):
        async with client_of(long_poll.Board()) as client:
            for message in messages:
                await client.post("/topics/news", content=message)
            answer = await client.get(
                "/topics/news", headers={"If-None-Match": tags[0] if tags else '""'}
            )
            assert answer.json()["messages"] == messages
            tags.append(answer.headers["etag"])
    assert len(set(tags)) == 2


@on_virtual_time
async def test_board_with_file_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "board.jsonl"
    tag = '""'
    for message in ("one", "zwei\n", "three"):
        board = long_poll.Board(file)
        async with board.lifespan(board.app), client_of(board) as client:
            send = {"content": message.encode(), "headers": {"Idempotency-Key": message.strip()}}
            assert (await client.post("/topics/news", **send)).status_code == 201
            assert (await client.post("/topics/news", **send)).status_code == 200
            answer = await client.get("/topics/news", headers={"If-None-Match": tag})
            assert answer.json()["messages"] == [message]
            tag = answer.headers["etag"]
            assert board.versions.version("news") == len(board.topics["news"])


def test_half_written_tail_of_killed_board_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "board.jsonl"
    with closing(long_poll.Topics(file)) as topics:
        topics.append("news", "one", None)
    whole = file.read_bytes()
    for length in range(1, len(whole)):
        file.write_bytes(whole[:length])
        with closing(long_poll.Topics(file)) as topics:
            assert topics.messages == {}
            topics.append("news", "two", "key")
        with closing(long_poll.Topics(file)) as again:
            assert again.messages == {"news": ["two"]}
            assert again.board == topics.board


@on_virtual_time
async def test_server_sent_events_bring_missing_messages() -> None:
    board = long_poll.Board()
    async with client_of(board) as client:
        for message in ("one", "two"):
            await client.post("/topics/news", content=message)
    scope = {"type": "http", "method": "GET", "path": "/topics/news/events", "query_string": b""}
    scope["headers"] = [(b"last-event-id", board.versions.tag(1).encode())]
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    answer: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    stream = asyncio.create_task(board.app(scope, messages.get, answer.put))
    assert (await answer.get())["status"] == 200
    assert (await answer.get())[
        "body"
    ].decode() == f"id: {board.versions.tag(2)}\r\ndata: two\r\n\r\n"
    messages.put_nowait({"type": "http.disconnect"})
    await stream


# The program, as a process


@contextmanager
def board_process(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The example on a free port of the loopback interface, and its address."""
    command = [sys.executable, str(EXAMPLE), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


@asynccontextmanager
async def board_at_work(
    *options: str,
) -> AsyncIterator[tuple["subprocess.Popen[str]", httpx2.AsyncClient]]:
    """The example as a process, and a client of it that may hold any number of connections."""
    with board_process(*options) as (process, url):
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            base_url=url, limits=limits, timeout=TIMEOUT, trust_env=False
        ) as client:
            yield process, client


async def read_stats(client: httpx2.AsyncClient) -> Any:
    return (await client.get("/stats")).json()


async def until_the_server_has(client: httpx2.AsyncClient, pending: int) -> Any:
    async with asyncio.timeout(TIMEOUT):
        while (await read_stats(client))["purgatory"]["pending"] != pending:
            await asyncio.sleep(0.02)
    return await read_stats(
        client
    )  # an operation is gone a moment before its handler has counted it


@pytest.mark.slow
@on_asyncio
@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)]
)
async def test_signal_answers_open_polls_and_stops_server(signal_number: int, status: int) -> None:
    async with board_at_work() as (process, client):
        polls = [asyncio.create_task(client.get("/topics/news?timeout=60")) for _ in range(50)]
        await until_the_server_has(client, 50)
        process.send_signal(signal_number)
        for response in await asyncio.gather(*polls):
            assert response.status_code == 503
            assert response.text == "the server is stopping"
        output, _ = process.communicate(
            timeout=TIMEOUT
        )  # the polls themselves would have gone on for a minute
        assert process.returncode == status
        assert "event: 0, deadline: 0, gone: 0, stopped: 50" in output


@pytest.mark.slow
@on_asyncio
async def test_journal_records_how_polls_ended(tmp_path: Path) -> None:
    async with board_at_work("--journal", str(tmp_path)) as (process, client):
        polls = [
            asyncio.create_task(client.get(f"/topics/{topic}?timeout=60"))
            for topic in ("news", "other")
        ]
        await until_the_server_has(client, 2)
        await client.post("/topics/news", content="hello")
        await client.get("/topics/other?timeout=0.001")
        await until_the_server_has(client, 1)
        process.terminate()
        await asyncio.gather(*polls)
        process.wait(TIMEOUT)
    rows = pq.read_table(tmp_path / "operations").to_pylist()
    endings = [
        (row["keys"], row["outcome"], row["ended_by"])
        for row in sorted(rows, key=lambda row: row["ended_at"])
    ]
    assert endings == [
        (["news"], "completed", "news"),
        (["other"], "expired", None),
        (["other"], "cancelled", None),
    ]
    assert {(row["purgatory"], row["kind"]) for row in rows} == {("polls", "Poll")}
