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

`sse-starlette` makes the stream itself: its format, its pings, and its handling of slow clients. It
ends when the client disconnects and when the server stops; browsers then reconnect by
themselves.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from math import inf
from typing import Any, Final, TypeVar

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
from purgatory.asgi._preferences import query_parameter
from purgatory.asgi._types import header_values
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

    Returns:
        An `EventSourceResponse`; or, if too many polls are open or the server stops, a stream
        without events that ends at once, and brings the browser back after `retry_after` of the
        polls, 5 seconds at least; or 400 for a malformed wait.

    Raises:
        ValueError: `ping` is negative, infinite or NaN.
    """
    if not 0.0 <= ping < inf:
        raise ValueError(f"ping must be zero or more seconds, not {ping!r}")
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
    return EventSourceResponse(_events(poll, versions, key, read, seen), ping=ping)


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
