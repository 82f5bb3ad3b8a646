"""Server-sent events: a stream with an event for each version, which can be resumed.

    def read(seen: int) -> Iterable[tuple[int, str]]:
        return enumerate(news[seen:], seen + 1)

    event_source(polls.poll(request.scope), versions, "news", read)

    GET /news/events                              id: 8f3a21c0-1   data: hello
                                                  id: 8f3a21c0-2   data: again
    the connection breaks, two more are published
    GET /news/events  Last-Event-ID: 8f3a21c0-2   id: 8f3a21c0-3 ...

A browser sends the header only when it reconnects by itself. A page that makes a new `EventSource`
has the query, `?last-event-id=8f3a21c0-2`. Its browser adds the header at each later reconnection,
so the header takes precedence.

A browser reconnects after the end of a stream, and never after a status other than 200. So a stream
that is refused is 200, too, and ends at once:

    GET /news/events                              : 768 polls are open already
                                                  retry: 5000

A stream ends when the client disconnects and when its polls stop, not before: within the `grace` of
the polls it continues. Browsers then reconnect by themselves.

A client that has stopped reading blocks `send`. Its stream is cut off after `send_timeout`, and a
second after the stop. A browser that was only slow resumes after its last whole event.
"""

from asyncio import Lock, create_task, get_running_loop, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from inspect import isawaitable
from math import inf
from re import compile as regex
from typing import Any, Final, TypeAlias, TypeVar

from purgatory import timeout
from purgatory._core.errors import how_to_install

try:
    from starlette.responses import PlainTextResponse, Response
except ImportError as error:
    raise ImportError(f"purgatory.asgi.sse needs Starlette: {how_to_install('asgi')}") from error

from purgatory.asgi._outcome import Outcome
from purgatory.asgi._poll import Poll
from purgatory.asgi._request import Receive, Scope, Send, header_values, query_parameter
from purgatory.asgi._versions import Versions

__all__ = ["event_source"]

MIN_RETRY: Final = 5
"""Seconds after which a browser returns to a stream that was refused, at least. By default it
returns after about three, and it never waits longer from one refusal to the next."""

PING: Final = b": ping\r\n\r\n"
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""No cache keeps a stream, and nginx does not buffer it."""

_LINE_END = regex(r"\r\n|\r|\n")

K = TypeVar("K", bound=Hashable)
Events: TypeAlias = Iterable[tuple[int, Any]]


def event_source(
    poll: Poll,
    versions: Versions[K],
    key: K,
    read: Callable[[int], Events | Awaitable[Events]],
    *,
    ping: float = 15.0,
    send_timeout: float = 60.0,
) -> Response:
    """A response that sends an event for each version of `key` after the client's last version: the
    `Last-Event-ID` of the request, or else `last-event-id` in its query.

    Args:
        poll: the request's poll, which counts as open until the stream ends.
        versions: the versions of `key`.
        key: the key of the versions.
        read: is called with the last version that the client has, 0 if it has none of this epoch,
            and returns the later ones: pairs of a version and the data of its event, in order.
            It may be asynchronous, for instance a query.
        ping: seconds between two comments that keep the connection alive; 0 for none.
        send_timeout: seconds for which the client may take no data, more than zero, before the
            stream is cut off; `inf` for no limit. The server and the network buffer some data, and
            this time starts when their buffers are full.

    Returns:
        A streaming response; or, if too many polls are open or the server stops, a stream without
        events that ends at once, and brings the browser back 4 seconds later than the
        `Retry-After` of the refusal; or 400 for a malformed wait.

    Raises:
        ValueError: `ping` is negative, infinite or NaN, or `send_timeout` is not above zero.
    """
    if not 0.0 <= ping < inf:
        raise ValueError(f"ping must be zero or more seconds, not {ping!r}")
    if not send_timeout > 0.0:  # so that NaN is refused, too
        raise ValueError(f"send_timeout must be more than zero seconds, not {send_timeout!r}")
    refusal = poll.hold()
    if refusal is not None:
        return _refused(refusal)
    scope = poll.scope
    named = [*header_values(scope, b"last-event-id"), query_parameter(scope, "last-event-id") or ""]
    seen = versions.parse(named[0]) or 0
    if versions.relay is None and seen > versions.version(
        key
    ):  # the key was forgotten, and counts from 0 again
        seen = 0
    return _Stream(poll, _events(poll, versions, key, read, seen), ping, send_timeout)


class _Stream(Response):
    """A response that sends events as they come, and pings.

    Args:
        poll: is held.
        events: encoded events.
        ping: seconds between two pings; 0 for none.
        send_timeout: limit of each send, in seconds.
    """

    media_type = "text/event-stream"

    def __init__(
        self, poll: Poll, events: AsyncIterator[bytes], ping: float, send_timeout: float
    ) -> None:
        self.status_code = 200
        self.background: Any = None  # FastAPI may set it
        self.init_headers(HEADERS)
        self._poll = poll
        self._events = events
        self._ping = ping
        self._send_timeout = send_timeout
        self._sending = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive  # the poll listens to the client
        start = {"status": self.status_code, "headers": self.raw_headers}
        await self._send(send, "start", **start)
        if scope["method"] != "HEAD":
            pings = create_task(self._send_pings(send)) if self._ping else None
            try:
                async for event in self._events:
                    await self._send(send, "body", body=event, more_body=True)
            finally:
                if pings is not None:
                    pings.cancel()
        await self._send(send, "body", body=b"", more_body=False)
        if self.background is not None:
            await self.background()

    async def _send_pings(self, send: Send) -> None:
        while True:
            await sleep(self._ping)
            await self._send(send, "body", body=PING, more_body=True)

    async def _send(self, send: Send, kind: str, **parts: Any) -> None:
        """Sends a message, or has the request cut off if that takes too long."""
        try:
            async with self._sending, timeout(self._send_timeout):
                await send({"type": f"http.response.{kind}", **parts})
        except TimeoutError:
            self._poll.cut_off()
            # Until the cancellation arrives: later events may not be sent.
            await get_running_loop().create_future()


def _refused(refusal: Outcome[Any]) -> Response:
    """The response for a stream that may not be open."""
    if "Retry-After" not in refusal.headers:
        return PlainTextResponse(refusal.reason, refusal.status, refusal.headers)
    seconds = int(refusal.headers["Retry-After"]) + MIN_RETRY - 1  # keeps the jitter
    headers = {**refusal.headers, **HEADERS}
    content = f": {refusal.reason}\nretry: {1000 * seconds}\n\n"
    return Response(content, headers=headers, media_type="text/event-stream")


def _encoded(tag: str, data: Any) -> bytes:
    """An event, with a field for each line of the data."""
    lines = "".join(f"data: {line}\r\n" for line in _LINE_END.split(str(data)))
    return f"id: {tag}\r\n{lines}\r\n".encode()


async def _events(
    poll: Poll,
    versions: Versions[K],
    key: K,
    read: Callable[[int], Events | Awaitable[Events]],
    seen: int,
) -> AsyncIterator[bytes]:
    poll.timeout = inf
    now = versions.version(key) if versions.relay is None else 0
    while True:
        found = read(seen)
        for version, data in await found if isawaitable(found) else found:
            seen = version
            yield _encoded(versions.tag(version), data)
        seen = max(seen, now)  # a version need not have an event
        outcome = await versions.reach(poll, key, seen + 1)
        if not outcome.is_satisfied:
            return
        now = versions.version(key) if versions.relay is None else outcome.value or 0
        if now <= seen:  # the key was forgotten, or a relay has started a new epoch
            seen = 0
