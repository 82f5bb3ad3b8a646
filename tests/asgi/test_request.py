"""`purgatory.asgi._request`: one reader, which buffers the body for the application and notices a
disconnect; and the wait that a request names."""

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import pytest
from asgi_requests import Message, Request, Service
from helpers import iterations
from hypothesis import example, given
from hypothesis import strategies as st
from loops import on_virtual_time

from purgatory.asgi._request import READ_AHEAD, Client, query_parameter


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


@on_virtual_time
@pytest.mark.parametrize("body", [b"", b"body"])
async def test_receive_that_never_blocks_lets_others_run(body):
    calls = 0

    async def receive() -> Message:
        nonlocal calls
        calls += 1
        assert calls < 1000
        return {"type": "http.request", "body": body, "more_body": False}

    service = Service()
    scope = {"type": "http", "headers": [], "query_string": b"wait=0.3"}
    await service.app(scope, receive, Request(nobody).send)
    assert (asyncio.get_running_loop().time(), calls) == (0.3, 2)


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


@given(st.text("wait&=%+;6a1 é", max_size=20).map(lambda text: text.encode("latin-1")))
@example(b"a=1&a=2&b=")
@example(b"a=%20x%C3%A9")
def test_parameter_equals_the_standard_librarys(query):
    expected = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    for name in ("wait", "a", "b", "", "wa it"):
        assert query_parameter({"query_string": query}, name) == expected.get(name)


DEFAULT, LONGEST = 30.0, 600.0


async def poll(query: bytes = b"", *prefer: str) -> tuple[Request, Service]:
    """A request with these fields `Prefer`, until its deadline."""
    service = Service(max_wait=LONGEST, default_wait=DEFAULT)
    request = Request(service.app, query)
    request.scope["headers"] = [(b"prefer", value.encode()) for value in prefer]
    return await request.done(), service


@on_virtual_time
@pytest.mark.parametrize(
    ("query", "prefer", "seconds"),
    [
        (b"", ["wait=20"], 20.0),
        (b"", ["wait=0"], 0.0),
        (b"", ["respond-async, wait=100"], 100.0),
        (b"", ["respond-async", "wait=7"], 7.0),
        (b"", ["WAIT = 20 "], 20.0),
        (b"", ["handling=lenient; foo, wait=3; bar=4"], 3.0),
        (b"", ["wait=5, wait=9"], 5.0),
        (b"", ['note="a, wait=1", wait=2'], 2.0),
        (b"", ['note="a \\" , wait=1", wait=2'], 2.0),
        (b"", ['note="never closed, wait=1'], DEFAULT),
        (b"", ["wait=999999999999999999"], LONGEST),
        *(
            (b"", [text], DEFAULT)
            for text in ["wait=-1", "wait=1.5", "wait=soon", "wait", "wait=", "wait=٣", "waiting=5"]
        ),
        (b"", ["wait=1" + "0" * 400], DEFAULT),
        (b"", ["", ",", ";;==,,"], DEFAULT),
        (b"x=1", [], DEFAULT),
        (b"", ['"\\"' * 100_000 + "\\", '"' * 100_001, "a=" * 100_000], DEFAULT),  # in linear time
        (b"x=1", ["wait=9"], 9.0),
        *(
            (b"x=1&wait=" + text, ["wait=9"], seconds)
            for text, seconds in [
                *((b"0.25", 0.25), (b".5", 0.5), (b"2.", 2.0), (b"1e2", 100.0), (b"20", 20.0)),
                *((b"0", 0.0), (b"1e3", LONGEST), (b"inf", LONGEST)),
            ]
        ),
    ],
)
async def test_first_wait_counts_and_parameter_before_header(query, prefer, seconds):
    request, _ = await poll(query, *prefer)
    applied = None if seconds == DEFAULT else f"wait={seconds:g}"
    assert (request.status, request.headers.get("preference-applied")) == (204, applied)
    assert asyncio.get_running_loop().time() == seconds


MALFORMED = b"soon - -1 -0.001 nan -inf 1,5 %00 1_0 %D9%A2 %201 1%20 %2B1 .".split()


@on_virtual_time
@pytest.mark.parametrize("text", [b"", *MALFORMED, b"x" * 1_000_000])
async def test_malformed_parameter_is_refused_with_its_value(text):
    request, service = await poll(b"wait=" + text)
    assert request.status == 400
    [outcome] = service.outcomes
    assert outcome.reason.startswith("wait must be a number of seconds, zero or more, not '")
    assert len(outcome.reason) < 120
