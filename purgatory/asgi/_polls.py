"""`LongPolls`, one for each application: limits, middleware, and the stop of the server.

    the server ─> LongPolls.middleware ─> any other middleware ─> the endpoint ─>
    polls.poll(scope).wait_for(...)
                      │                                                               │
                      └── puts the Client of the request into the scope ──────────────┘ finds it there

So a poll reads from the server directly, even if other middleware wraps `receive`.
"""

from asyncio import CancelledError, get_running_loop
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from math import ceil, inf, isnan
from random import random
from signal import SIGINT, SIGTERM, valid_signals
from typing import Any, ClassVar, Final, cast, final

from purgatory import Observer, WrongLoop
from purgatory._core.arguments import describe, seconds
from purgatory._core.loop import call_threadsafe, running_loop
from purgatory._core.observers import observers_of
from purgatory.asgi._open import (
    OpenPolls,
    SignalChain,
    Stoppable,
    default_max_open,
    warn_of_open_files,
)
from purgatory.asgi._outcome import Ending, PollEnded, PollNotifier, malformed
from purgatory.asgi._poll import Poll
from purgatory.asgi._request import (
    READ_AHEAD,
    AnyApp,
    Client,
    Message,
    Receive,
    Scope,
    Send,
    preference_applied,
    requested_wait,
)

CLIENT: Final = "purgatory.asgi.client"
"""Where the `Client` of a request is in its scope."""

NO_STORE: Final = (b"cache-control", b"no-store")
"""Without this header shared caches keep a poll's answer, and give it to later polls."""


def host_of(scope: Scope) -> Hashable:
    """Address of a request's client, without its port; `None` if the server does not report it."""
    client = scope.get("client")
    return client[0] if client else None


@final
class LongPolls:
    """The long polls of one application: limits of time and number, and their end when the server
    stops.

    Serves one event loop at a time. Each lifespan and each new loop starts without a stop and
    without open polls. `middleware` must be the outermost layer around the endpoints that poll.

    Args:
        max_wait: limit of each wait, in seconds; more than zero.
        default_wait: wait of a request that names none, in seconds; `None` for `max_wait`.
        spread: largest fraction, from 0 to 1, by which each wait is shortened at random, so that
            polls that started together do not all end together.
        wait_parameter: name of the query parameter that requests a wait.
        max_open: how many may be open at once, `inf` for no limit; one more is refused. By default
            three quarters of the limit of open files (`ulimit -n`) when this is made.
        max_per_client: limit of open polls for each client, in this process; `None` for no limit.
        replace_oldest: a client's poll above `max_per_client` is not refused: the client's oldest
            poll ends instead, as refused. So a phone that has lost its connection need not wait for
            the deadline of its old poll.
        client_of: returns the client that a request counts for; `None` is not limited. By default
            the peer's address: behind a proxy that is the proxy's address, unless the server
            replaces it by the client's.
        retry_after: least value of `Retry-After` in refusals, in seconds, rounded up.
        retry_jitter: most whole seconds by which each `Retry-After` is lengthened at random, so
            that refused clients do not come back together; zero and more.
        grace: seconds for which open polls may continue when the server is to stop, before they
            are answered.
        name: name for observers and log messages.
        observer: is notified of each wait of a request, as of an operation of the kind "poll"; or a
            sequence of such observers.
        signals: numbers of the signals at which the polls are stopped, before the server handles
            them; empty if `stop` is called by other means. They are handled during the lifespan;
            under a server without the lifespan protocol, call `stop`.
        read_ahead: bytes of a request's body that are read and buffered for the application while
            it waits, each message counted as at least 256; zero and more. An open poll may take
            that much memory. If a client sends more, reading stops until the application reads: the
            server slows the client down, and a disconnect is noticed only then, or at the deadline.
            To avoid that, read the body before you wait.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or has a wrong type.
    """

    def __init__(
        self,
        *,
        max_wait: float = 60.0,
        default_wait: float | None = None,
        spread: float = 0.0,
        wait_parameter: str = "wait",
        max_open: float | None = None,
        max_per_client: int | None = None,
        replace_oldest: bool = False,
        client_of: Callable[[Scope], Hashable] = host_of,
        retry_after: float = 1.0,
        retry_jitter: float = 4.0,
        grace: float = 0.0,
        name: str = "polls",
        observer: Observer | Sequence[Observer] | None = None,
        signals: Collection[int] = (SIGTERM, SIGINT),
        read_ahead: int = READ_AHEAD,
    ) -> None:
        self.name = name
        max_wait = seconds("max_wait", max_wait)
        if not 0.0 < max_wait < inf:
            raise ValueError(
                f"max_wait must be a finite number of seconds above zero, not {max_wait!r}"
            )
        default_wait = max_wait if default_wait is None else seconds("default_wait", default_wait)
        if not 0.0 <= default_wait <= max_wait:
            raise ValueError(
                f"default_wait must be from 0 to max_wait ({max_wait!r}), not {default_wait!r}"
            )
        for name, number in (
            ("spread", spread), ("read_ahead", read_ahead), ("max_open", max_open),
            ("max_per_client", max_per_client),
        ):  # fmt: skip
            if isinstance(number, str):
                raise TypeError(f"{name} must be a number, not {number!r}")
        if not 0.0 <= spread <= 1.0:
            raise ValueError(f"spread must be a fraction from 0 to 1, not {spread!r}")
        if max_open is None:
            max_open = default_max_open()
        for name, limit in (("max_open", max_open), ("max_per_client", max_per_client)):
            if limit is not None and not limit >= 1:  # so that NaN is refused, too
                raise ValueError(f"{name} must be at least 1, not {limit!r}")
        if replace_oldest and max_per_client is None:
            raise ValueError("replace_oldest needs max_per_client, which is None")
        for name, pause in (
            ("retry_after", retry_after), ("retry_jitter", retry_jitter), ("grace", grace),
        ):  # fmt: skip
            if not 0.0 <= seconds(name, pause) < inf:
                raise ValueError(
                    f"{name} must be a finite number of seconds, zero or more, not {pause!r}"
                )
        if not 0 <= read_ahead < inf:
            raise ValueError(f"read_ahead must be zero or more bytes, not {read_ahead!r}")
        self._signals = tuple(signals)
        for number in self._signals:
            if number not in valid_signals():
                raise ValueError(f"signals must be numbers of signals, which {number!r} is not")
        self.max_wait = max_wait
        self.default_wait = default_wait
        self.spread = spread
        self.wait_parameter = wait_parameter
        self.max_open = max_open
        self.max_per_client = max_per_client
        self.replace_oldest = replace_oldest
        self.retry_after = retry_after
        self.retry_jitter = retry_jitter
        self.grace = grace
        self.endings: Counter[Ending] = Counter()
        """Number of waits by ending."""
        self.all_endings = tuple(Ending)
        """All endings, for metrics, which report zeros too."""
        self.read_ahead = read_ahead
        observers = observers_of(observer)
        self.notifier = PollNotifier(self.name, observers) if observers else None
        """Notifies the observers; None without observers."""
        self.middleware: type[PollMiddleware] = type(
            "PollMiddleware", (PollMiddleware,), {"polls": self}
        )
        """Wraps an application: `app = polls.middleware(app)`, or
        `app.add_middleware(polls.middleware)` as the last call. A class of these polls alone, so
        that libraries may wrap it, or assign to it."""
        self._client_of = client_of
        self._open_polls: OpenPolls | None = None

    @property
    def open(self) -> int:
        """Number of open polls, exact. Cost: O(1)."""
        return 0 if self._open_polls is None else len(self._open_polls.polls)

    @property
    def is_stopping(self) -> bool:
        """Whether new polls are answered with 503, and open polls soon. May be set on the loop, for
        instance to allow polls again; `WrongLoop` in another thread."""
        return self._open_polls is not None and self._open_polls.is_stopping

    @is_stopping.setter
    def is_stopping(self, value: bool) -> None:
        self._polls_in_thread("set is_stopping of").is_stopping = value

    # -- for the author of an endpoint

    def poll(self, scope: Mapping[str, Any], wait: float | None = None) -> Poll:
        """A poll for the request of `scope`. It counts as open only while it waits.

        Args:
            scope: scope of a request or a WebSocket that came through `middleware`.
            wait: limit of all its waits together, in seconds; by default the wait that the request
                names, capped.

        Raises:
            RuntimeError: the request did not come through `middleware`, or the application has
                returned.
            ValueError: `wait` is NaN.
            TypeError: `scope` is no scope, or `wait` no number.
        """
        if not isinstance(scope, Mapping):
            hint = ": pass its .scope" if hasattr(scope, "scope") else ""
            raise TypeError(f"scope must be the scope of a request, got {describe(scope)}{hint}")
        if callable(wait):
            raise TypeError(
                f"wait must be a number of seconds, got {describe(wait)}: pass the scope alone, "
                "since the middleware has `receive` already"
            )
        scope = cast(Scope, scope)
        client = scope.get(CLIENT)
        if client is None:
            raise RuntimeError(
                "cannot poll: the request did not come through LongPolls.middleware, which has "
                "to be around the app, or is over"
            )
        client.has_polled = True
        if wait is not None:
            if isnan(wait):
                raise ValueError(f"wait must be a number of seconds, not {wait!r}")
            return Poll(self, scope, client, wait)
        try:
            requested = requested_wait(scope, self.wait_parameter)
        except ValueError as error:
            return Poll(self, scope, client, 0.0, problem=malformed(str(error), scope))
        timeout = self.default_wait if requested is None else min(requested.seconds, self.max_wait)
        if self.spread:
            timeout *= 1.0 - self.spread * random()
        applied = None if requested is None else preference_applied(timeout, requested.from_header)
        return Poll(self, scope, client, timeout, applied)

    # -- the stop

    def stop(self) -> None:
        """Refuses new polls from now on, and answers open polls: after `grace`, 512 in each
        iteration of the loop.

        Called at a signal, or at the latest at the end of the lifespan. Calling it again is
        allowed.

        Raises:
            WrongLoop: called from another thread than the loop's.
        """
        self._polls_in_thread("stop").stop(self.grace)

    def stop_threadsafe(self) -> None:
        """Has `stop` called on the loop of these polls soon; may be called from any thread.

        Before the first lifespan or poll, and when the loop is closed, it is without effect.
        """
        open_polls = self._open_polls
        if open_polls is not None:
            call_threadsafe(open_polls.loop, open_polls.stop, self.grace)

    async def aclose(self) -> None:
        """Calls `stop`, and returns when no poll is open any more.

        Raises:
            WrongLoop: called on another loop than theirs.
        """
        await self._polls_in_thread("close").aclose(self.grace)

    # -- for a poll

    def register(self, poll: Stoppable, scope: Scope) -> OpenPolls | str:
        """Where `poll` counts as open from now on, or why it cannot be open; an empty text if the
        server stops.

        Raises:
            WrongLoop: polls of another loop, which is not closed, are open.
        """
        open_polls = self._polls_of_loop()
        if open_polls.is_stopping:
            return ""
        limit = inf if self.max_per_client is None else self.max_per_client
        client_key = None if limit == inf else self._client_of(scope)
        refusal = open_polls.register(poll, client_key, self.max_open, limit, self.replace_oldest)
        return refusal or open_polls

    def count(self, ending: Ending) -> None:
        """Counts the ending of a wait."""
        self.endings[ending] += 1

    def pause(self) -> int:
        """A value of `Retry-After`, in seconds."""
        return ceil(self.retry_after) + int(random() * (int(self.retry_jitter) + 1))

    # -- loops and lifespans

    def on_lifespan(self, receive: Receive) -> Receive:
        """Starts without a stop, and stops at the signals and at the end of the lifespan; returns
        the `receive` for the application."""
        open_polls = self._polls_of_loop(reset=True)
        chain = SignalChain(self._signals, partial(open_polls.stop, self.grace))
        chain.install(open_polls.loop)
        return partial(self._receive_lifespan, receive, open_polls, chain)

    def _polls_in_thread(self, action: str) -> OpenPolls:
        """The open polls of the running loop, or `WrongLoop` if theirs runs in another thread."""
        running, known = running_loop(), self._open_polls
        if running is None or (
            known is not None and known.loop is not running and known.loop.is_running()
        ):
            raise WrongLoop(
                f"cannot {action} these LongPolls: their event loop does not run in this thread; "
                "from another thread call stop_threadsafe"
            )
        return self._polls_of_loop()

    def _polls_of_loop(self, *, reset: bool = False) -> OpenPolls:
        """The open polls of the running loop.

        Args:
            reset: a lifespan starts, so a stop of an earlier one does not count any more.
        """
        loop, known = get_running_loop(), self._open_polls
        if known is not None and known.loop is loop and not (reset and known.is_stopping):
            return known
        if (
            known is not None
            and known.loop is not loop
            and known.polls
            and not known.loop.is_closed()
        ):
            raise WrongLoop(
                f"cannot poll on {loop!r}: these LongPolls have open polls ({len(known.polls)}) "
                f"on {known.loop!r}"
            )
        warn_of_open_files(self.name, self.max_open)
        self._open_polls = OpenPolls(loop)
        return self._open_polls

    async def _receive_lifespan(
        self, receive: Receive, open_polls: OpenPolls, chain: SignalChain
    ) -> Message:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await open_polls.aclose(self.grace)
            chain.remove()
        return message


class PollMiddleware:
    """The middleware of a `LongPolls`, around an ASGI application.

    Args:
        app: the application.
    """

    polls: ClassVar[LongPolls]

    def __init__(self, app: AnyApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, a WebSocket or the lifespan."""
        if CLIENT in scope:  # from a LongPolls around this one: the channel has one reader
            await self.app(scope, receive, send)
        elif scope["type"] in ("http", "websocket"):
            scope[CLIENT] = client = Client(receive, self.polls.read_ahead)
            send = partial(_send, client, send)
            try:
                await self.app(scope, client, send)
            except PollEnded as ended:
                if type(ended) is not PollEnded:  # its framework answers it
                    raise
                await ended.outcome(scope, client, send)
            except CancelledError:
                if not client.was_cut_off():
                    raise
            finally:
                client.close()
                # breaks the cycle: scope, client, the server's `receive`, scope
                scope.pop(CLIENT, None)
        else:
            if scope["type"] == "lifespan":
                receive = self.polls.on_lifespan(receive)
            await self.app(scope, receive, send)


async def _send(client: Client, send: Send, message: Message) -> None:
    """Sends a message of the application. No cache may keep the answer to a poll, unless the
    application allows it. The close of a WebSocket after the client's own is left out, since some
    servers report it as an error."""
    if message["type"] == "http.response.start":
        if client.has_polled:
            headers = list(message.get("headers", ()))
            if not any(name.lower() == NO_STORE[0] for name, _ in headers):
                message = {**message, "headers": [*headers, NO_STORE]}
    elif message["type"] == "websocket.close" and client.disconnected:
        return
    await send(message)
