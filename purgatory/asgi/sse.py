"""Server-sent events: a stream with an event for each version, which can be resumed.

    event_source(polls.poll(request.scope), versions, "news", lambda seen: enumerate(news[seen:],
    seen + 1))

    GET /news/events                              id: 8f3a21c0-1   data: hello
                                                  id: 8f3a21c0-2   data: again
    the connection breaks, two more come
    GET /news/events  Last-Event-ID: 8f3a21c0-2   id: 8f3a21c0-3 ...

A browser sends the header only when it reconnects by itself. A page that makes a new `EventSource`
has the query, `?last-event-id=8f3a21c0-2`. Its browser adds the header at each later reconnection,
so the header takes precedence.

A browser reconnects after the end of a stream, and never after a status other than 200. So a stream
that is refused is 200, too, and ends at once:

    GET /news/events                              : 768 polls are open already
                                                  retry: 5000

`sse-starlette` makes the stream itself: its format and its pings. It ends when the client
disconnects and when the server stops; browsers then reconnect by themselves.

A client that has stopped reading blocks `send`. Its stream is cut off after `send_timeout`, and a
second after the stop. A browser that was only slow resumes after its last whole event.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from math import inf
from typing import Any, Final, TypeVar

from anyio import move_on_after, sleep_forever

from purgatory._core.errors import how_to_install

try:
    from sse_starlette import EventSourceResponse, ServerSentEvent
except ImportError as error:
    raise ImportError(
        f"purgatory.asgi.sse needs sse-starlette: {how_to_install('asgi')}"
    ) from error
from starlette.responses import PlainTextResponse, Response

from purgatory.asgi._outcome import Outcome
from purgatory.asgi._poll import Poll
from purgatory.asgi._request import Message, Receive, Scope, Send, header_values, query_parameter
from purgatory.asgi._versions import Versions

__all__ = ["event_source"]

MIN_RETRY: Final = 5
"""Seconds after which a browser returns to a stream that was refused, at least. By default it
returns after about three, and it never waits longer from one refusal to the next."""

K = TypeVar("K", bound=Hashable)


def event_source(
    poll: Poll,
    versions: Versions[K],
    key: K,
    read: Callable[[int], Iterable[tuple[int, Any]]],
    *,
    ping: float = 15.0,
    send_timeout: float = 60.0,
) -> Response:
    """A response that sends an event for each version of `key` after the client's last version: the
    `Last-Event-ID` of the request, or else `last-event-id` in its query.

    Args:
        poll: the request's poll, which counts as open until the stream ends.
        versions: the versions of `key`.
        key: whose versions.
        read: is called with the last version that the client has, 0 if it has none of this epoch,
            and returns what came after it: pairs of a version and the data of its event, in order.
        ping: seconds between two comments that keep the connection alive; 0 for none.
        send_timeout: seconds for which the client may take no data, more than zero, before the
            stream is cut off; `inf` for no limit. The server and the network buffer some data, and
            this time begins when their buffers are full.

    Returns:
        An `EventSourceResponse`; or, if too many polls are open or the server stops, a stream
        without events that ends at once, and brings the browser back after `retry_after` of the
        polls, 5 seconds at least; or 400 for a malformed wait.

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
    events = _events(poll, versions, key, read, seen)
    return _Stream(poll, send_timeout, events, ping=ping)


class _Stream(EventSourceResponse):
    """A stream that ends if its client does not read.

    `EventSourceResponse` has a `send_timeout`, too, which limits neither the first nor the last
    message, and raises an error for the server to log.

    Args:
        poll: is held.
        send_timeout: in seconds, for each message.
        content, options: as `EventSourceResponse`.
    """

    def __init__(self, poll: Poll, send_timeout: float, content: Any, **options: Any) -> None:
        super().__init__(content, **options)
        self._poll = poll
        self._seconds = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            with move_on_after(self._seconds):
                await send(message)
                return
            self._poll.cut_off()
            await sleep_forever()  # until the cancellation arrives: later events may not be sent

        await super().__call__(scope, receive, send_in_time)


def _refused(refusal: Outcome[Any]) -> Response:
    """The response for a stream that may not be open."""
    if "Retry-After" not in refusal.headers:
        return PlainTextResponse(refusal.reason, refusal.status, refusal.headers)
    seconds = max(int(refusal.headers["Retry-After"]), MIN_RETRY)
    headers = {**refusal.headers, "Cache-Control": "no-store"}
    content = f": {refusal.reason}\nretry: {1000 * seconds}\n\n"
    return Response(content, headers=headers, media_type="text/event-stream")


async def _events(
    poll: Poll,
    versions: Versions[K],
    key: K,
    read: Callable[[int], Iterable[tuple[int, Any]]],
    seen: int,
) -> AsyncIterator[ServerSentEvent]:
    poll.timeout = inf
    now = versions.version(key) if versions.relay is None else 0
    while True:
        for version, data in read(seen):
            seen = version
            yield ServerSentEvent(data, id=versions.tag(version))
        seen = max(seen, now)  # a version need not have an event
        outcome = await poll.reach(versions.thresholds, key, seen + 1)
        if not outcome.is_satisfied:
            return
        now = versions.version(key) if versions.relay is None else outcome.value or 0
        if now <= seen:  # a relay has begun a new epoch
            seen = 0
