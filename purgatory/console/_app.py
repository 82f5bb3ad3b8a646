"""The page as an ASGI application: three read-only paths for authorized visitors.

GET /         the page, one file: its script and its style have a nonce, and nothing else may run or
              be loaded
GET /state    the state as JSON: at once; or, if If-None-Match names the current version, with the
              next one; or the content of /worker, if Purgatory-Worker names another worker behind
              the same address
GET /worker   the id of the worker that answers, and the number of its waits
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from inspect import isawaitable
from json import dumps
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from purgatory import Purgatory, ThresholdPurgatory
from purgatory._local import refusal
from purgatory.asgi._outcome import Ending
from purgatory.asgi._polls import LongPolls
from purgatory.asgi._request import ASGIApp, Receive, Scope, Send, header_values
from purgatory.asgi._versions import Versions
from purgatory.console._describe import (
    MAX_ADDRESS_BYTES,
    AnyPurgatory,
    KeyOf,
    is_web_address,
    shown,
)
from purgatory.console._feed import STATE, Feed

if TYPE_CHECKING:
    from purgatory.metrics import Meter, StreamMeter
    from purgatory.relay import Relay
else:
    Meter = StreamMeter = Relay = Any  # for `get_type_hints`

Authorize = Callable[[Scope], bool | Awaitable[bool]]

MAX_WAIT: Final = 25.0
"""Seconds that a page waits for a version at most; there is one each `refresh`."""

PAGE: Final = files("purgatory.console") / "page.html"
"""Read through its loader, which may be an archive's."""

QUERY: Final = "%&=+;:@/?~!$'()*,-._"
"""Characters of a query that need no escape."""

WORKER: Final = b"purgatory-worker"
"""The request header that names the worker to show, percent-encoded."""

HEADERS: Final = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every response."""

POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

FORBIDDEN: Final = (
    "This page is open only to visitors on its own machine, at a local address such as "
    "http://127.0.0.1:8000, and not through a proxy. console(authorize=...) can admit others.\n"
    "This request was refused because {}.\n"
)
UNAUTHORIZED: Final = "This page was not shown: console(authorize=...) has refused this request.\n"


def console(
    *purgatories: AnyPurgatory,
    polls: LongPolls | None = None,
    relay: "Relay | None" = None,
    meter: "Meter | None" = None,
    stream: "StreamMeter | None" = None,
    authorize: Authorize | None = None,
    key_of: KeyOf = shown,
    address: str | None = None,
    name: str | None = None,
    refresh: float = 1.0,
    max_pages: int = 1000,
) -> ASGIApp:
    """A page that shows pending operations, slow waits and missed triggers. An ASGI application, to
    mount under any path.

        meter = Meter()
        jobs = Purgatory("jobs", observer=meter)
        app.mount("/purgatory", console(jobs, polls=polls, meter=meter))

    It is read-only. It starts with the sum over all workers that it knows, and shows the details of
    one. While a page is open, and for five minutes after, it takes a snapshot each `refresh`: less
    than a millisecond of the loop for each purgatory, with any number of pending operations and
    open pages. Before the first page is opened it costs nothing.

    Args:
        purgatories: the purgatories to show, in this order; all of one event loop.
        polls: the long polls to show.
        relay: the relay to show, with the waits for its versions, and the other workers: processes
            that show the same relay on a page. They announce their process ids, hosts, addresses
            and numbers of pending operations while a page is open.
        meter: the purgatories' observer, to show how long waits take and which triggers were
            missed.
        stream: the meter of a stream of `purgatory.pipeline` to show.
        authorize: is called with the scope of each request, and returns whether it is allowed; it
            may be asynchronous. It alone decides. The page's own requests carry its cookies and its
            query, `?token=...` for instance. By default only visitors on this machine are allowed,
            under a local name, not through a proxy. A proxy that adds no header and puts a local
            name into `Host` looks like such a visitor: behind one, give `authorize`.
        key_of: returns the text to show for a key, to hide or to hash it; by default its `repr`,
            shortened.
        address: address of this worker's own page, for the lists of other workers: `http://...` or
            `https://...`. Workers behind one address need none.
        name: name of the service, for the title.
        refresh: seconds between two snapshots, from 0.1 to 60.
        max_pages: limit of open pages.

    Raises:
        TypeError: an object to show is neither a `Purgatory` nor a `ThresholdPurgatory`, or
            `authorize` or `key_of` is not callable.
        ValueError: `refresh` or `max_pages` is out of its bounds, or `address` is not
            the address of a page.
    """
    for purgatory in purgatories:
        if not isinstance(purgatory, (Purgatory, ThresholdPurgatory)):
            raise TypeError(
                "console shows purgatories and threshold purgatories, not "
                f"{purgatory!r}{_instead(purgatory)}"
            )
    for argument, function in (("authorize", authorize), ("key_of", key_of)):
        if function is not None and not callable(function):
            raise TypeError(f"{argument} must be a function, not {function!r}")
    if address is not None and not is_web_address(address):
        raise ValueError(
            f"address must begin with http:// or https://, not {address!r}, and take at most "
            f"{MAX_ADDRESS_BYTES} bytes as JSON"
        )
    if not 0.1 <= refresh <= 60.0:
        raise ValueError(f"refresh must be from 0.1 to 60 seconds, not {refresh!r}")
    if not max_pages >= 1:
        raise ValueError(f"max_pages must be at least 1, not {max_pages!r}")
    pages = LongPolls(
        max_wait=MAX_WAIT,
        signals=(),
        retry_after=5.0,
        read_ahead=0,
    )
    pages.max_open = min(max_pages, pages.max_open or max_pages)  # or the limit of open files
    name = name or "purgatory"
    feed = Feed(purgatories, polls, relay, meter, stream, key_of, address, name, refresh, pages)
    page = _Console(feed, pages, authorize)

    async def application(
        scope: Scope, receive: Receive, send: Send
    ) -> None:  # servers know ASGI 3 by the coroutine function
        await page.serve(scope, receive, send)

    return application


def _instead(given: object) -> str:
    """Names the right argument for an object that is shown in another way."""
    if isinstance(given, Versions):
        return (
            ": give its `thresholds`"
            if given.relay is None
            else ": give `relay=`, which shows their waits"
        )
    if isinstance(given, LongPolls):
        return ": give it as `polls=`"
    return ": give it as `relay=`" if hasattr(given, "introduce") else ""


class _Console:
    """The application that `console` returns."""

    def __init__(self, feed: Feed, pages: LongPolls, authorize: Authorize | None) -> None:
        self.feed = feed
        self.pages = pages
        self.authorize = authorize
        self.html = PAGE.read_text(encoding="utf-8")
        self.state = pages.middleware(self._state)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application."""
        if scope["type"] == "lifespan":
            await self.state(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        elif reason := await self._refusal(scope):
            await _send(send, 403, reason)
        elif scope["method"] not in ("GET", "HEAD"):
            await _send(send, 405, "This page is read-only.\n", {"allow": "GET, HEAD"})
        else:
            await self._respond(scope, receive, send)

    async def _refusal(self, scope: Scope) -> str:
        """Why this request is refused; an empty text if it is allowed."""
        if self.authorize is None:
            reason = refusal(scope)
            return FORBIDDEN.format(reason) if reason else ""
        verdict = self.authorize(scope)
        return "" if (await verdict if isawaitable(verdict) else verdict) else UNAUTHORIZED

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            path = path[len(prefix) :]
        if path == "":  # the page's own addresses are relative to its folder
            query = scope.get("query_string", b"").decode(
                "latin-1"
            )  # what `authorize` may have read
            place = f"./{quote(prefix.rpartition('/')[2])}/" + (
                f"?{quote(query, safe=QUERY)}" if query else ""
            )
            await _send(send, 307, "", {"location": place})
        elif path == "/":
            nonce = token_urlsafe(16)
            headers = {"content-security-policy": POLICY.format(nonce=nonce)}
            await _send(
                send,
                200,
                self.html.replace("{{nonce}}", nonce),
                headers,
                "text/html",
                scope["method"] == "HEAD",
            )
        elif path not in ("/state", "/worker") or scope["method"] != "GET":
            await _send(send, 404, "There is nothing here.\n")
        elif _is_cross_site(scope):
            await _send(send, 403, "Only the page itself may ask for this.\n")
        elif path == "/worker" or self._is_misdirected(scope):
            await self._introduce(scope, send)
        else:
            # Without its query, which could be large and has no meaning here.
            await self.state({**scope, "query_string": b""}, receive, send)

    def _is_misdirected(self, scope: Scope) -> bool:
        """Whether a request is for another worker behind the same address."""
        wanted = header_values(scope, WORKER)
        return bool(wanted) and unquote(wanted[0]) != self.feed.worker

    async def _introduce(self, scope: Scope, send: Send) -> None:
        """Answers which worker this is, and closes the connection: the next one may lead to
        another worker."""
        is_http_1 = scope.get("http_version", "1.1").startswith("1")
        headers = {"connection": "close"} if is_http_1 else {}
        body = dumps(self.feed.announcement())
        await _send(send, 200, body, headers, "application/json")

    async def _state(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits for a version that the page does not have."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        feed = self.feed
        await feed.ready()
        seen = feed.versions.seen(scope)
        outcome = await feed.versions.changed(self.pages.poll(scope, wait=MAX_WAIT), STATE)
        if outcome.ending is Ending.GONE:
            return
        headers = {name.lower(): value for name, value in outcome.headers.items()}
        if outcome.is_satisfied:
            await _send(send, outcome.status, feed.response(seen), headers, "application/json")
        else:
            await _send(send, outcome.status, outcome.reason, headers)


def _is_cross_site(scope: Scope) -> bool:
    """Whether the browser's headers show that a page of another site made this request."""
    sites = {value for name, value in scope.get("headers", ()) if name.lower() == b"sec-fetch-site"}
    return not sites <= {b"same-origin", b"none"}


async def _lifespan(receive: Receive, send: Send) -> None:
    """The lifespan protocol, where the page is served by itself."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _send(
    send: Send,
    status: int,
    body: str | bytes,
    headers: dict[str, str] | None = None,
    media_type: str = "text/plain",
    is_head: bool = False,
) -> None:
    data = body.encode() if isinstance(body, str) else body
    fields: dict[str, Any] = HEADERS | (headers or {})
    if status not in (204, 304):
        fields |= {"content-type": f"{media_type}; charset=utf-8", "content-length": str(len(data))}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send(
        {"type": "http.response.body", "body": b"" if is_head or status in (204, 304) else data}
    )
