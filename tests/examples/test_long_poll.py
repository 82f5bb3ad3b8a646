"""`examples/long_poll.py`, the board in a hundred lines, and what `examples/long_poll_board.py` has in
common with it; in virtual time. `test_long_poll_demo` has both over real connections."""

import asyncio
from typing import Any

import pytest
from asgi_modules import EXAMPLES, client_of, load
from asgi_requests import Request
from loops import on_virtual_time


@pytest.fixture(params=["long_poll.py", "long_poll_board.py"])
def board(request: pytest.FixtureRequest) -> Any:
    module = load(EXAMPLES / request.param)
    return module if request.param == "long_poll.py" else module.Board()


async def until_pending(board: Any, count: int) -> None:
    while getattr(board, "waiting", board.polls).pending != count:
        await asyncio.sleep(0)


WAIT = "wait=20&timeout=20"
"""Each board has its own name for the time to wait."""


@on_virtual_time
async def test_message_answers_only_polls_of_its_topic(board: Any) -> None:
    async with client_of(board) as client:
        assert (await client.post("/topics/news", content="old")).json() == {"offset": 0}
        news = f"/topics/news?offset=1&{WAIT}"
        waiting = [asyncio.create_task(client.get(news)) for _ in range(3)]
        elsewhere = asyncio.create_task(client.get(f"/topics/weather?{WAIT}"))
        await until_pending(board, 4)
        await client.post("/topics/news", content="new")
        for response in await asyncio.gather(*waiting):
            assert response.json() == {"messages": ["new"], "next": 2, "ending": "event"}
        assert asyncio.get_running_loop().time() == 0
        answer = (await elsewhere).json()
        answer.pop("late", None)
        assert answer == {"messages": [], "next": 0, "ending": "deadline"}
        assert 20 <= asyncio.get_running_loop().time() <= 20.1
        assert (await client.get("/topics/news")).json()["messages"] == ["old", "new"]
        stats = (await client.get("/stats")).json()
    assert stats["endings"] == {"event": 4, "deadline": 1, "gone": 0, "stopped": 0}
    counts = {name: stats["purgatory"][name] for name in ("pending", "watched", "expired")}
    assert counts == {"pending": 0, "watched": 0, "expired": 1}


@on_virtual_time
async def test_leaving_client_or_stopping_server_ends_waits(board: Any) -> None:
    leaving = Request(board.app, WAIT.encode(), path="/topics/news")
    await until_pending(board, 1)
    leaving.body()
    await asyncio.sleep(1)
    leaving.leave()
    await leaving.done()
    async with client_of(board) as client:
        waiting = [asyncio.create_task(client.get(f"/topics/news?{WAIT}")) for _ in range(3)]
        await until_pending(board, 3)
        await board.polls.aclose()
        for response in await asyncio.gather(*waiting):
            assert (response.status_code, response.text) == (503, "the server is stopping")
        assert asyncio.get_running_loop().time() < 2
        stats = (await client.get("/stats")).json()
    assert stats["endings"] == {"event": 0, "deadline": 0, "gone": 1, "stopped": 3}
    assert stats["purgatory"]["pending"] == stats["purgatory"]["watched"] == 0


@on_virtual_time
async def test_client_naming_its_offset_misses_no_message(board: Any) -> None:
    async with client_of(board) as client:
        offset, messages = 0, []
        for number in range(5):
            await client.post("/topics/news", content=f"{number}")
            await client.post("/topics/news", content=f"{number} again")
            answer = (await client.get(f"/topics/news?offset={offset}&wait=0&timeout=0")).json()
            messages += answer["messages"]
            offset = answer["next"]
        assert messages == board.topics["news"]
        assert len(messages) == 10


@on_virtual_time
@pytest.mark.parametrize(
    ("file", "query", "reason"),
    [
        ("long_poll", "offset=2", "offset must be from 0 to 1, which is the end of the topic"),
        ("long_poll", "offset=one", "offset must be a whole number"),
        ("long_poll", "wait=soon", "wait"),
        ("long_poll_board", "offset=-1", "offset must be from 0 to "),
        ("long_poll_board", "offset=2", '{"reason":"offset 2 is beyond the end, 1","end":1}'),
        ("long_poll_board", "offset=one", "offset must be a whole number, not 'one'"),
        ("long_poll_board", "offset=" + "9" * 5000, "offset must be a whole number"),
        *(
            ("long_poll_board", f"timeout={value}", f"timeout must be from 0 to 60.0, not {value}")
            for value in ("-0.001", "nan", "60.001")
        ),
        ("long_poll_board", "timeout=soon", "timeout must be a number of seconds, not 'soon'"),
    ],
)
async def test_bad_offset_or_wait_is_400_with_reason(file: str, query: str, reason: str) -> None:
    module = load(EXAMPLES / f"{file}.py")
    board = module if file == "long_poll" else module.Board()
    async with client_of(board) as client:
        await client.post("/topics/news", content="only")
        response = await client.get(f"/topics/news?{query}")
        assert response.status_code == 400
        assert response.text.startswith(reason) and len(response.text) < 100
        assert getattr(board, "waiting", board.polls).pending == 0
