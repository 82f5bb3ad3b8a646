"""`purgatory.asgi` and WebSockets: a poll notices a disconnect, and takes nothing from the
application."""

import asyncio
from typing import Any

import pytest
from asgi_requests import Message, Request, Service
from helpers import iterations
from loops import on_virtual_time

from purgatory.asgi import Ending
from purgatory.asgi._request import READ_AHEAD

LEFT = {"type": "websocket.disconnect", "code": 1001, "reason": "going away"}


def text(words: str) -> Message:
    return {"type": "websocket.receive", "text": words, "bytes": None}


class Socket(Request):
    """A WebSocket to an application, as a server makes it; the client has connected."""

    def __init__(self, app: Any, query: bytes = b"") -> None:
        async def as_socket(scope: Any, receive: Any, send: Any) -> None:
            await app(scope | {"type": "websocket"}, receive, send)

        super().__init__(as_socket, query)
        self.say({"type": "websocket.connect"})

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.messages.put_nowait(message)


class Board(Service):
    """An application that, once connected, waits once, and then keeps what else it receives."""

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.received: list[Message] = []
        if scope["query_string"] != b"poll=first":
            self.received.append(await receive())
            await send({"type": "websocket.accept"})
        outcome = await self.wait(self.polls.poll(scope))
        end = {"code": outcome.close_code, "reason": outcome.reason}
        await send({"type": "websocket.close", **end})
        while not self.received or self.received[-1]["type"] != "websocket.disconnect":
            self.received.append(await receive())
        self.received.append(await receive())


@pytest.mark.parametrize("query", [b"", b"poll=first"])
@pytest.mark.parametrize("ending", [Ending.SATISFIED, Ending.GONE])
async def test_ended_wait_keeps_message_order(query, ending):
    board = Board()
    socket = Socket(board.app, query)
    spoken = [text("one"), {"type": "websocket.receive", "bytes": b"two"}, text("three")]
    socket.say(*spoken)
    await iterations(30)
    assert board.polls.open == 1
    assert socket.messages.empty()
    if ending is Ending.SATISFIED:
        board.satisfy()
        await iterations(30)
    socket.say(LEFT)
    await socket.task
    assert board.endings == [ending]
    closes = [each["code"] for each in socket.answer if each["type"] == "websocket.close"]
    assert closes == [1000] * (ending is Ending.SATISFIED)  # a disconnect is not answered
    assert board.received == [{"type": "websocket.connect"}, *spoken, LEFT, LEFT]
    board.check_nothing_is_left()


@pytest.mark.parametrize("character", [b"%F0%9F%90%99", b"%00", b"%22"])
async def test_every_reason_fits_into_a_close_frame(character):
    board = Board()
    socket = Socket(board.app, b"wait=" + character * 99)
    await iterations(10)
    reason = socket.answer[-1]["reason"]
    assert reason.startswith("wait must be a number of seconds")
    assert len(reason.encode()) <= 123
    socket.task.cancel()


@on_virtual_time
@pytest.mark.parametrize(
    ("part", "content", "bytes_each"),
    [
        ("text", "x" * 1024, 1024),
        ("bytes", b"x" * 1024, 1024),
        ("text", "ж" * 1024, 4096),
        ("text", "\N{OCTOPUS}" * 1024, 4096),
    ],
)
async def test_endless_messages_slow_the_client_down(part, content, bytes_each):
    board = Board()
    socket = Socket(board.app)
    for _ in range(1_000):
        socket.say({"type": "websocket.receive", part: content})
    socket.say(LEFT)
    await asyncio.sleep(1)
    taken = 1_001 - socket.messages.qsize()
    assert taken == READ_AHEAD // (bytes_each + 256) + 1
    board.satisfy()
    await socket.task
    assert len(board.received) == 1 + 1_000 + 2
