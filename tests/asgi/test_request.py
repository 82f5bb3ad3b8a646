"""`purgatory.asgi._request`: one reader, which buffers the body for the application and notices a
disconnect; and the wait that a request names."""

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import pytest
from asgi_requests import Message, Request
from helpers import iterations
from hypothesis import example, given
from hypothesis import strategies as st
from loops import on_virtual_time

from purgatory.asgi._request import (
    READ_AHEAD,
    Client,
    preference_applied,
    preferred_wait,
    query_parameter,
    requested_wait,
)

LEFT = {"type": "http.disconnect"}


class Listener:
    def __init__(self) -> None:
        self.notified: list[str] = []

    def on_disconnect(self) -> None:
        self.notified.append("left")

    def on_request_end(self) -> None:
        self.notified.append("ended")


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    pass


def client_and_request(read_ahead: int = READ_AHEAD) -> tuple[Client, Request, Listener]:
    """A client that listens."""
    request, listener = Request(nobody), Listener()
    client = Client(request.receive, read_ahead)
    client.add_listener(listener)
    return client, request, listener


async def test_messages_read_ahead_keep_their_order():
    client, request, listener = client_and_request()
    end = {"type": "http.request", "body": b"", "more_body": False}
    messages = [end | {"body": b"part", "more_body": True}, end, {"type": "http.new"}, end]
    for message in messages:
        request.messages.put_nowait(message)
    await iterations(20)
    assert (request.messages.empty(), client.disconnected, listener.notified) == (True, False, [])
    request.leave()
    await iterations(20)
    assert (client.disconnected, listener.notified) == (True, ["left"])
    assert [await client.receive() for _ in range(6)] == [*messages, LEFT, LEFT]


async def test_there_is_one_reader_however_many_ask():
    client, request, listener = client_and_request()
    asking = [asyncio.create_task(client.receive()) for _ in range(4)]
    await iterations(3)
    asking.pop(0).cancel()
    request.body(b"one", more=True)
    request.body(b"two", more=True)
    await iterations(20)
    request.leave()
    assert [(await task).get("body") for task in asking] == [b"one", b"two", None]
    assert (listener.notified, request.most_readers) == (["left"], 1)


async def test_cancelled_reader_hands_over():
    request, listener = Request(nobody), Listener()
    client = Client(request.receive)
    reader = asyncio.create_task(client.receive())
    await iterations(2)
    client.add_listener(listener)
    await iterations(2)
    reader.cancel()
    await iterations(4)
    request.leave()
    await iterations(20)
    assert (listener.notified, request.most_readers) == (["left"], 1)


@on_virtual_time
@pytest.mark.parametrize(
    ("read_ahead", "chunk", "count", "taken"),
    [
        (READ_AHEAD, READ_AHEAD // 4, 10, 4),  # the fourth exceeds it, with its overhead
        (READ_AHEAD, 64 * 1024, 1, 3),
        (READ_AHEAD, 100, 300, 302),
        (READ_AHEAD, READ_AHEAD - 256, 1, 3),
        (READ_AHEAD, READ_AHEAD - 255, 1, 1),
        (64 * 1024, 1, 10_000, 256),
        (0, 0, 0, 2),  # the end of a body counts for nothing
    ],
)
async def test_long_body_is_read_at_applications_pace(read_ahead, chunk, count, taken):
    client, request, listener = client_and_request(read_ahead)
    for _ in range(count):
        request.body(bytes(chunk), more=True)
    request.body()
    request.leave()
    await asyncio.sleep(1)
    assert count + 2 - request.messages.qsize() == taken
    assert listener.notified == (["left"] if taken == count + 2 else [])
    body = b"".join([(await client.receive())["body"] for _ in range(count + 1)])
    assert body == bytes(chunk * count)
    assert client._buffered_bytes == 0
    await asyncio.sleep(1)
    assert listener.notified == ["left"]


async def test_removed_listener_is_not_notified():
    client, request, first = client_and_request()
    second, third = Listener(), Listener()
    for listener in (second, third):
        client.add_listener(listener)
    for listener in (first, first, third):
        client.remove_listener(listener)
    await iterations(2)
    assert request.readers == 1
    client.close()
    await iterations(3)
    assert request.readers == 0
    notified = [listener.notified for listener in (first, second, third)]
    assert notified == [[], ["ended"], []]


async def test_receive_error_is_announced_and_raised_later():
    async def receive() -> Message:
        raise ConnectionError("the server is broken")

    client, listener = Client(receive), Listener()
    client.add_listener(listener)
    await iterations(3)
    assert (listener.notified, client.disconnected) == (["left"], False)
    with pytest.raises(ConnectionError, match="the server is broken"):
        client.add_listener(Listener())
    with pytest.raises(ConnectionError, match="the server is broken"):
        await client.receive()


def scope(query: bytes = b"", *prefer: bytes) -> dict[str, Any]:
    return {
        "type": "http",
        "query_string": query,
        "headers": [(b"prefer", value) for value in prefer],
    }


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["wait=20"], 20.0),
        (["wait=0"], 0.0),
        (["respond-async, wait=100"], 100.0),
        (["respond-async", "wait=7"], 7.0),
        (["WAIT = 20 "], 20.0),
        (["handling=lenient; foo, wait=3; bar=4"], 3.0),
        (["wait=5, wait=9"], 5.0),
        (['note="a, wait=1", wait=2'], 2.0),
        (['note="a \\" , wait=1", wait=2'], 2.0),
        (['note="never closed, wait=1'], None),
        (["wait=999999999999999999"], 999999999999999999.0),
        *(
            [[text], None]
            for text in ["wait=-1", "wait=1.5", "wait=soon", "wait", "wait=", "wait=٣", "waiting=5"]
        ),
        (["wait=1" + "0" * 400], None),
        (["", ",", ";;==,,"], None),
        ([], None),
        (['"\\"' * 100_000 + "\\", '"' * 100_001, "a=" * 100_000], None),  # in linear time
    ],
)
def test_first_wait_in_prefer_counts(values, seconds):
    assert preferred_wait(values) == seconds


@given(st.text("wait&=%+;6a1 é", max_size=20).map(lambda text: text.encode("latin-1")))
@example(b"a=1&a=2&b=")
@example(b"a=%20x%C3%A9")
def test_parameter_equals_the_standard_librarys(query):
    expected = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    for name in ("wait", "a", "b", "", "wa it"):
        assert query_parameter(scope(query), name) == expected.get(name)


@pytest.mark.parametrize(
    ("query", "prefer", "requested"),
    [
        (b"x=1&wait=0.25", b"wait=9", (0.25, False)),
        (b"x=1", b"wait=9", (9.0, True)),
        (b"x=1", b"", None),
        (b"wait=20", b"", (20.0, False)),
        (b"wait=.5", b"", (0.5, False)),
        (b"wait=2.", b"", (2.0, False)),
        (b"wait=1e3", b"", (1e3, False)),
        (b"wait=inf", b"", (float("inf"), False)),
    ],
)
def test_parameter_takes_precedence_over_header(query, prefer, requested):
    assert requested_wait(scope(query, prefer), "wait") == requested
    assert requested_wait(scope(b"patience=3&" + query), "patience") == (3.0, False)
    assert requested_wait({"type": "http"}, "wait") is None


MALFORMED = b"soon - -1 -0.001 nan -inf 1,5 %00 1_0 %D9%A2 %201 1%20 %2B1 .".split()


@pytest.mark.parametrize("text", [b"", *MALFORMED, b"x" * 1_000_000])
def test_malformed_parameter_is_refused_with_its_value(text):
    message = "wait must be a number of seconds, zero or more, not '"
    with pytest.raises(ValueError, match=message) as raised:
        requested_wait(scope(b"wait=" + text), "wait")
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize(
    ("seconds", "from_header", "applied"),
    [
        (20.0, True, "wait=20"),
        (19.01, True, "wait=20"),
        (0.0, True, "wait=0"),
        (20.0, False, "wait=20"),
        (0.25, False, "wait=0.25"),
        (0.0, False, "wait=0"),
    ],
)
def test_preference_applied_has_whole_seconds_for_prefer(seconds, from_header, applied):
    assert preference_applied(seconds, from_header) == applied
