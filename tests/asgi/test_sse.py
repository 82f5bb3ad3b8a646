"""`purgatory.asgi.sse`: streams that resume where the connection was lost."""

import asyncio
from math import inf, nan
from typing import Any

import pytest
from asgi_requests import Reader, Request, kind_of
from asgi_server import Connection, serving
from helpers import iterations
from loops import on_asyncio, on_virtual_time
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route

from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.asgi.sse import event_source


class News:
    def __init__(self, *items: str, stream: Any = None, **options: Any) -> None:
        self.versions: Versions[str] = Versions(epoch="e")
        self.stream_options = {"ping": 0, **(stream or {})}
        self.polls = LongPolls(signals=(), **options)
        self.items: list[str] = []
        for item in items:
            self.publish(item)
        app = Starlette(routes=[Route("/", self.stream)])
        self.app = self.polls.middleware(app)

    async def stream(self, request: StarletteRequest) -> Response:
        poll = self.polls.poll(request.scope)
        return event_source(poll, self.versions, "news", self.read, **self.stream_options)

    def read(self, seen: int) -> list[tuple[int, str]]:
        return list(enumerate(self.items[seen:], seen + 1))

    def publish(self, item: str) -> None:
        self.items.append(item)
        self.versions.bump("news")


def event(number: int, data: str) -> str:
    return f"id: e-{number}\r\ndata: {data}\r\n\r\n"


@on_virtual_time
async def test_stream_sends_past_and_future_events():
    news = News("one")
    request = Request(news.app)
    slow = Reader(news.app, "event", 59.0)
    await asyncio.sleep(1)
    assert request.headers["content-type"].startswith("text/event-stream")
    assert request.content.decode() == event(1, "one")
    news.versions.bump("news")  # brings nothing
    news.publish("two")
    news.publish("three")
    await asyncio.sleep(200)
    expected = event(1, "one") + event(2, "two") + event(3, "three")
    assert request.content.decode() == slow.content.decode() == expected
    assert news.polls.open == 2
    for each in (request, slow):
        each.leave()
        await each.done()
    assert news.polls.open == news.versions.thresholds.pending == 0


@on_virtual_time
@pytest.mark.parametrize(
    ("header", "query", "first"),
    [
        *((header, "", 1) for header in ("e-0", "old-2", "nonsense", "", "e-99")),
        ("e-1", "", 2),
        (None, "e-1", 2),
        (None, "nonsense", 1),
        ("e-2", "e-1", 3),
        ("old-2", "e-2", 1),
    ],
)
async def test_stream_resumes_after_last_event_id(header, query, first):
    news = News("1", "2", "3")
    headers = {} if header is None else {"Last-Event-ID": header}
    request = Request(news.app, f"last-event-id={query}".encode() if query else b"", headers)
    await asyncio.sleep(1)
    expected = "".join(event(number, str(number)) for number in range(first, 4))
    assert request.content.decode() == expected
    request.leave()
    await request.done()


@on_virtual_time
@pytest.mark.parametrize("message", ["", "start", "event", "ping", "end"])
async def test_stop_ends_streams_read_or_not(message):
    news = News("one", stream={"ping": 5 if message else 0, "send_timeout": inf})
    requests = [Reader(news.app, message) for _ in range(3)]
    await asyncio.sleep(100)
    assert news.polls.open == 3
    await news.polls.aclose()
    is_quick = message in ("", "ping")  # a ping is given up for the last message
    assert asyncio.get_running_loop().time() == (100.0 if is_quick else 101.0)
    assert news.polls.open == news.versions.thresholds.pending == 0
    for request in requests:
        await request.done()
        assert not is_quick or request.answer[-1]["more_body"] is False


@on_virtual_time
@pytest.mark.parametrize("grace", [0.0, 30.0])
async def test_stream_begun_at_the_stop_ends_with_it(grace):
    news = News("one", grace=grace, stream={"send_timeout": inf})

    async def stopping(scope: Any, receive: Any, send: Any) -> None:
        response = await news.stream(StarletteRequest(scope))
        news.polls.stop()
        await response(scope, receive, send)

    await Reader(news.polls.middleware(stopping), "event").done()
    assert (asyncio.get_running_loop().time(), news.polls.open) == (grace + 1.0, 0)


@on_virtual_time
@pytest.mark.parametrize(
    ("message", "ping", "end"), [("start", 0, 60.0), ("event", 0, 60.0), ("ping", 5, 65.0)]
)
async def test_send_timeout_ends_the_stream_without_later_events(message, ping, end):
    news = News("1", "2", "3", stream={"ping": ping})
    request = await Reader(news.app, message).done()
    assert (asyncio.get_running_loop().time(), news.polls.open) == (end, 0)
    assert kind_of(request.answer[-1]) == message


@on_asyncio
async def test_stop_ends_a_stream_that_uvicorn_cannot_send():
    news = News()
    async with serving(news.app) as port:
        client = Connection(*await asyncio.open_connection("127.0.0.1", port, limit=1))
        client.send("/")
        while not news.polls.open:
            await asyncio.sleep(0.01)
        news.publish("event " * 10_000_000)  # more than the system buffers
        news.publish("and one more, which has to wait")
        await iterations(20)
        await news.polls.aclose()
        assert news.polls.open == news.versions.thresholds.pending == 0
        client.reset()


@on_virtual_time
async def test_stream_counts_as_one_open_poll():
    news = News(max_open=1, retry_jitter=0)
    stream = Request(news.app)
    await asyncio.sleep(1)
    for number in range(3):
        news.publish(str(number))
        await asyncio.sleep(1)
        refused = await Request(news.app).done()
        assert refused.content == b": max_open (1) polls are open already\nretry: 5000\n\n"
    stream.leave()
    await stream.done()
    assert (await Request(news.app, method="HEAD").done()).status == 200
    assert news.polls.open == 0


@on_virtual_time
@pytest.mark.parametrize(("retry_after", "retry"), [(1, 5_000), (30, 34_000), (6.5, 11_000)])
async def test_refused_stream_has_browsers_connect_again(retry_after, retry):
    news = News(retry_after=retry_after, retry_jitter=0)
    news.polls.stop()
    refused = await Request(news.app).done()
    assert refused.status == 200
    assert refused.headers["content-type"].startswith("text/event-stream")
    expected = {"connection": "close", "cache-control": "no-store"}
    assert refused.headers.items() >= expected.items()
    assert refused.content == b": the server is stopping\nretry: %d\n\n" % retry
    assert news.polls.endings == {Ending.STOPPING: 1}


@on_virtual_time
async def test_read_may_be_asynchronous():
    news = News("one", "two\r\nlines\n")

    async def read(seen: int) -> list[tuple[int, str]]:
        await asyncio.sleep(0.5)  # a query
        return [*enumerate(news.items[seen:], seen + 1)]

    news.read = read  # type: ignore[method-assign, assignment]
    request = Request(news.app)
    await asyncio.sleep(0.75)
    news.publish("three")
    await asyncio.sleep(1)
    lines = "id: e-2\r\ndata: two\r\ndata: lines\r\ndata: \r\n\r\n"
    assert request.content.decode() == event(1, "one") + lines + event(3, "three")
    news.polls.stop()
    await request.done()
    assert request.answer[-1]["more_body"] is False


@on_virtual_time
async def test_stream_follows_a_key_that_was_forgotten():
    news = News("one", "two", "three")
    request = Request(news.app)
    await asyncio.sleep(1)
    news.versions.thresholds.forget("news")
    news.items.clear()
    news.publish("new")
    await asyncio.sleep(1)
    assert request.content.decode().endswith(event(3, "three") + event(1, "new"))
    request.leave()
    await request.done()


@on_virtual_time
async def test_stream_continues_within_the_grace():
    news = News(grace=2.0)
    request = Request(news.app)
    await asyncio.sleep(1)
    news.polls.stop()
    await asyncio.sleep(1)
    news.publish("late")
    await request.done()
    assert asyncio.get_running_loop().time() == 3.0
    assert request.content.decode() == event(1, "late")
    assert request.answer[-1]["more_body"] is False


async def test_malformed_wait_of_a_stream_is_400():
    assert (await Request(News().app, b"wait=soon").done()).status == 400


async def test_invalid_option_is_refused_before_registration():
    refused = {
        "ping must be zero or more seconds, not": ("ping", [-1.0, nan, inf]),
        "send_timeout must be more than zero seconds, not": ("send_timeout", [0.0, nan]),
    }
    for complaint, (name, values) in refused.items():
        for value in values:
            news = News(stream={name: value})
            with pytest.raises(ValueError, match=f"{complaint} {value}"):
                await Request(news.app).done()
            assert news.polls.open == 0
