"""`examples/long_poll_board.py`: its application in virtual time, and the program, as a process,
over real connections."""

import asyncio
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import httpx2
import pyarrow.parquet as pq
import pytest
from asgi_modules import EXAMPLES, client_of, load
from asgi_requests import Request
from loops import on_virtual_time
from server_process import ServerProcess

EXAMPLE = EXAMPLES / "long_poll_board.py"
long_poll = load(EXAMPLE)


@on_virtual_time
@pytest.mark.parametrize("timeout", [0.0, 0.0004, 60.0])
async def test_unanswered_poll_ends_exactly_at_its_deadline(timeout: float) -> None:
    async with client_of(long_poll.Board()) as client:
        await client.post("/topics/news", content="old")
        started = asyncio.get_running_loop().time()
        answer = (await client.get(f"/topics/news?offset=1&timeout={timeout}")).json()
        # A server's clock may be as much behind the client's.
        grain = long_poll.CLOCK_GRAIN if timeout else 0.0
        assert asyncio.get_running_loop().time() >= started + timeout + grain
        late = answer.pop("late")
        assert answer == {"messages": [], "next": 1, "ending": "deadline"}
        assert late >= 0


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
async def test_board_with_file_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "board.jsonl"
    tag = '""'
    for message in ("one", "zwei\n", "three"):
        board = long_poll.Board(file)
        async with board.lifespan(board.app), client_of(board) as client:
            send = {"content": message.encode(), "headers": {"Idempotency-Key": message.strip()}}
            assert (await client.post("/topics/news", **send)).status_code == 201
            again, offset = await client.post("/topics/news", **send), len(board.topics["news"]) - 1
            assert (again.status_code, again.json()) == (200, {"offset": offset})
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
    seen, path = {"Last-Event-ID": board.versions.tag(1)}, "/topics/news/events"
    stream = Request(board.app, headers=seen, path=path)
    await asyncio.sleep(0.1)
    assert stream.content.decode() == f"id: {board.versions.tag(2)}\r\ndata: two\r\n\r\n"
    stream.leave()
    await stream.done()


@pytest.mark.slow
def test_journal_records_how_polls_ended(tmp_path: Path) -> None:
    words = (EXAMPLE, "--port", "{port}", "--journal", tmp_path)

    def until_pending(count: int) -> None:
        while json.loads(server.get("stats"))["purgatory"]["pending"] != count:
            time.sleep(0.02)

    with (
        ServerProcess(*words, ready="stats", folder=tmp_path) as server,
        ThreadPoolExecutor() as threads,
    ):
        polls = [
            threads.submit(server.get, f"topics/{topic}?timeout=60") for topic in ("news", "other")
        ]
        until_pending(2)
        httpx2.post(f"{server.url}/topics/news", content="hello", trust_env=False)
        server.get("topics/other?timeout=0.001")
        until_pending(1)
        server.end(signal.SIGTERM)
        assert "hello" in polls[0].result()
        with pytest.raises(HTTPError, match="503") as refusal:
            polls[1].result()
        refusal.value.close()
    rows = pq.read_table(tmp_path / "operations").to_pylist()
    rows.sort(key=lambda row: row["ended_at"])
    assert [(row["keys"], row["outcome"], row["ended_by"]) for row in rows] == [
        (["news"], "completed", "news"),
        (["other"], "expired", None),
        (["other"], "cancelled", None),
    ]
    assert {(row["purgatory"], row["kind"]) for row in rows} == {("polls", "Poll")}
