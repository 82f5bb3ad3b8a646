"""`examples/long_poll.py`, the board in a hundred lines, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from asgi_modules import EXAMPLES, load
from loops import on_virtual_time

EXAMPLE = EXAMPLES / "long_poll.py"


@pytest.fixture
def board() -> Any:
    return load(EXAMPLE)


@asynccontextmanager
async def client_of(board: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(board.app), base_url="http://board"
    ) as client:
        yield client


async def until_pending(board: Any, count: int) -> None:
    while board.waiting.pending != count:
        await asyncio.sleep(0)


@on_virtual_time
async def test_message_answers_only_polls_of_its_topic(board: Any) -> None:
    async with client_of(board) as client:
        assert (await client.post("/topics/news", content="old")).json() == {"offset": 0}
        waiting = [
            asyncio.create_task(client.get("/topics/news?offset=1&wait=20")) for _ in range(3)
        ]
        elsewhere = asyncio.create_task(client.get("/topics/weather?wait=20"))
        await until_pending(board, 4)
        await client.post("/topics/news", content="new")
        for response in await asyncio.gather(*waiting):
            assert response.json() == {"messages": ["new"], "next": 2, "ending": "event"}
        assert asyncio.get_running_loop().time() == 0
        assert board.waiting.statistics().missed_triggers == 0
        assert (await elsewhere).json() == {"messages": [], "next": 0, "ending": "deadline"}
        assert asyncio.get_running_loop().time() == 20
        assert (await client.get("/topics/news")).json()["messages"] == ["old", "new"]


@on_virtual_time
async def test_client_naming_its_offset_misses_no_message(
    board: Any,
) -> None:
    async with client_of(board) as client:
        offset, messages = 0, []
        for number in range(5):
            await client.post("/topics/news", content=f"{number}")
            await client.post("/topics/news", content=f"{number} again")
            answer = (await client.get(f"/topics/news?offset={offset}&wait=0")).json()
            messages += answer["messages"]
            offset = answer["next"]
        assert messages == board.topics["news"]
        assert len(messages) == 10


@on_virtual_time
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("offset=-1", "offset must be from 0 to 1, which is the end of the topic"),
        ("offset=2", "offset must be from 0 to 1, which is the end of the topic"),
        ("offset=one", "offset must be a whole number"),
        ("wait=soon", "wait"),
    ],
)
async def test_bad_offset_or_wait_is_400_with_reason(board: Any, query: str, reason: str) -> None:
    async with client_of(board) as client:
        await client.post("/topics/news", content="only")
        response = await client.get(f"/topics/news?{query}")
        assert response.status_code == 400
        assert response.text.startswith(reason)
        assert board.waiting.pending == 0


@on_virtual_time
async def test_client_hangup_ends_wait_and_is_counted(board: Any) -> None:
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/topics/news",
        "query_string": b"wait=20",
        "headers": [],
    }

    async def send(_: Any) -> None:
        pass

    poll = asyncio.create_task(board.app(scope, messages.get, send))
    await until_pending(board, 1)
    messages.put_nowait({"type": "http.disconnect"})
    await poll
    async with client_of(board) as client:
        stats = (await client.get("/stats")).json()
    assert stats["endings"] == {"event": 0, "deadline": 0, "gone": 1, "stopped": 0}
    assert stats["purgatory"]["pending"] == stats["purgatory"]["watched"] == 0


@on_virtual_time
async def test_stopping_server_answers_open_polls_with_503(board: Any) -> None:
    async with client_of(board) as client:
        waiting = asyncio.create_task(client.get("/topics/news?wait=20"))
        await until_pending(board, 1)
        await board.polls.aclose()
        response = await waiting
        assert (response.status_code, response.text) == (503, "the server is stopping")
