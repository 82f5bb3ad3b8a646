"""The polls that are open on one event loop, from the start of an application's lifespan to its end.

    polls.open                register                 unregister
      ...  a request waits ──────────> it is counted ────────────> it is not

    is_stopping: registration is refused; after `grace` seconds each open poll is stopped, 512
        per iteration of the loop

Each lifespan and each loop has a new `OpenPolls`. A poll unregisters where it registered, and a
stop that is under way ends only the polls that were open at its start.

**At a signal** the polls are stopped before the server handles it.

A stopping server waits until its connections are idle, and only then notifies the application, by
the lifespan protocol. With open polls that takes as long as the longest poll. So we wrap the
handler of the signal: the wrapper schedules our callback, and calls the previous handler.

    SIGTERM  ->  our callback, soon on the loop  ->  the polls are answered, and the connections
                                                     become idle
             ->  the server's handler            ->  the server waits for its connections, which
                                                     takes no time now

Several chains may wrap one signal, and be removed in any order. Each has a link, and its `previous`
is the handler that it wraps. An inactive link only passes the signal on, and is unlinked when it is
the first one, or between two links of ours:

    first.install, second.install    second -> first -> the server's
    first.remove                     second ----------> the server's
    second.remove                                       the server's

uvicorn also ends without a signal: after `--limit-max-requests`, and when a program sets its
`should_exit`. It then calls its method `shutdown`, which its handler of signals leads us to, so
that is wrapped, too.

This works where the server handles signals in the application's process: uvicorn, its workers,
gunicorn's and Granian's, hypercorn without worker processes. An unhandled signal kills the process,
as it would without this module.
"""

import signal
from asyncio import AbstractEventLoop, Event
from collections import deque
from collections.abc import Callable, Collection, Hashable
from inspect import iscoroutinefunction
from math import inf
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, Protocol, final

from purgatory._core.arguments import printable
from purgatory._core.logs import log

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

MAX_STOPS_PER_ITERATION: Final = 512

REPLACED: Final = "a newer poll of this client has replaced it"


def open_files_limit() -> int | None:
    """How many files, sockets among them, this process may have open; `None` if any number."""
    if resource is None:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit


def default_max_open() -> float:
    """Three quarters of the limit of open files; a quarter is left for other files and
    connections."""
    limit = open_files_limit()
    return inf if limit is None else max(limit - limit // 4, 1)


def warn_of_open_files(name: str, max_open: float) -> None:
    """Logs that the limit of open files will be reached before `max_open` polls are open."""
    limit = open_files_limit()
    if limit is not None and max_open >= limit:
        log.warning(
            "%s: max_open is %s, but this process may have only %d files open, connections among"
            " them. When they are used up, the server accepts no connection and sends no answers."
            " Raise the limit (ulimit -n, or LimitNOFILE= of systemd), or set max_open below it",
            printable(name),
            max_open,
            limit,
        )


class Stoppable(Protocol):
    """The part of a poll that this module uses."""

    def on_stop(self) -> None:
        """Called once, when the server stops."""

    def on_replaced(self, reason: str) -> None:
        """Called once, when a newer poll of the client has taken its place."""


@final
class OpenPolls:
    """The open polls, how many each client has, and how they are stopped.

    Args:
        loop: the event loop of the polls.
    """

    __slots__ = (
        "_drained",
        "_to_stop",
        "has_stopped",
        "is_stopping",
        "loop",
        "per_client",
        "polls",
    )

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.is_stopping = False
        self.has_stopped = False
        """Whether the grace is over, too."""
        self.polls: dict[Stoppable, Hashable] = {}
        """The open polls, each with the key of the client that it counts for, or None."""
        self.per_client: dict[Hashable, dict[Stoppable, None]] = {}
        """The polls of each limited client, the oldest first."""
        self._to_stop: deque[Stoppable] = deque()
        self._drained = Event()

    def register(
        self,
        poll: Stoppable,
        client_key: Hashable,
        max_open: float,
        max_per_client: float,
        replace_oldest: bool,
    ) -> str | None:
        """Counts `poll` as open, or returns the reason for a refusal.

        Args:
            poll: is not registered yet.
            client_key: the client that it counts for; `None` is not limited.
            max_open: how many polls may be open.
            max_per_client: how many polls one client may have.
            replace_oldest: whether the client's oldest poll makes room above `max_per_client`.
        """
        of_client = None if client_key is None else self.per_client.get(client_key, {})
        if of_client is not None and len(of_client) >= max_per_client:
            if not replace_oldest:
                return f"max_per_client ({max_per_client}) polls of this client are open already"
            oldest = next(iter(of_client))
            self.unregister(oldest)
            oldest.on_replaced(REPLACED)
        if len(self.polls) >= max_open:
            return f"max_open ({max_open}) polls are open already"
        if of_client is not None:
            self.per_client.setdefault(client_key, of_client)[poll] = None
        self.polls[poll] = client_key
        return None

    def unregister(self, poll: Stoppable) -> None:
        """No longer counts `poll`, if it is registered."""
        client_key = self.polls.pop(poll, None)
        if client_key is not None:
            del self.per_client[client_key][poll]
            if not self.per_client[client_key]:
                del self.per_client[client_key]
        if not self.polls:
            self._drained.set()

    def stop(self, grace: float) -> None:
        """Lets no poll register any more, and stops the open ones after `grace` seconds. Calling it
        again is allowed."""
        if self.is_stopping:
            return
        self.is_stopping = True
        if grace:
            self.loop.call_later(grace, self._stop_all)
        else:
            self._stop_all()

    async def aclose(self, grace: float) -> None:
        """Calls `stop`, and returns when no poll is open any more."""
        self.stop(grace)
        if self.polls:
            self._drained.clear()
            await self._drained.wait()

    def _stop_all(self) -> None:
        self.has_stopped = True
        self._to_stop.extend(self.polls)
        self._stop_some()

    def _stop_some(self) -> None:
        for _ in range(min(MAX_STOPS_PER_ITERATION, len(self._to_stop))):
            self._to_stop.popleft().on_stop()
        if self._to_stop:
            self.loop.call_soon(self._stop_some)


@final
class SignalChain:
    """Calls `callback` on the loop at each of `signals`, before the present handlers; and before the
    `shutdown` of uvicorn, which installs these handlers.

    Args:
        signals: numbers of signals; signals without a handler are left alone.
        callback: a plain function, called on the loop's thread.
    """

    __slots__ = ("_callback", "_links", "_signals")

    def __init__(self, signals: Collection[int], callback: Callable[[], object]) -> None:
        self._signals = tuple(signals)
        self._callback = callback
        self._links: dict[int, _Link] = {}

    def install(self, loop: AbstractEventLoop) -> None:
        """Wraps the handlers. Has no effect outside the main thread, as Python sets handlers only
        there."""
        self.remove()
        if current_thread() is not main_thread():
            return
        for number in self._signals:
            _unlink_inactive(number)  # of loops that were closed without `remove`
            handler = signal.getsignal(number)
            if callable(handler):
                self._links[number] = link = _Link(loop, self._callback, handler)
                signal.signal(number, link)
                self._wrap_shutdown(getattr(handler, "__self__", None))

    def _wrap_shutdown(self, server: Any) -> None:
        shutdown = getattr(server, "shutdown", None)
        if not iscoroutinefunction(shutdown) or getattr(shutdown, "chain", None) is self:
            return

        async def stop_and_shut_down(*args: Any, **options: Any) -> None:
            if self._links:
                self._callback()
            await shutdown(*args, **options)

        stop_and_shut_down.chain = self  # type: ignore[attr-defined]
        server.shutdown = stop_and_shut_down

    def remove(self) -> None:
        """Stops calling `callback`, and restores the handlers, unless other code has wrapped
        ours."""
        links, self._links = self._links, {}
        for number, link in links.items():
            link.callback = None
            _unlink_inactive(number)


class _Link:
    """A signal handler that calls `callback` on a loop, and then the `previous` handler."""

    __slots__ = ("callback", "loop", "previous")

    def __init__(
        self,
        loop: AbstractEventLoop,
        callback: Callable[[], object],
        previous: Callable[[int, FrameType | None], Any],
    ) -> None:
        self.loop = loop
        self.callback: Callable[[], object] | None = callback
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.callback is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.callback)
        self.previous(number, frame)

    def __getattr__(self, name: str) -> Any:
        # Some look for the server in its handler's `__self__`; `_wrap_shutdown` and sse-starlette do.
        return getattr(self.previous, name)

    @property
    def is_inactive(self) -> bool:
        return self.callback is None or self.loop.is_closed()


def _unlink_inactive(number: int) -> None:
    """Unlinks the inactive links of a signal, from the first one on, up to the first handler that
    is not ours."""
    if current_thread() is not main_thread():
        return
    link = handler = signal.getsignal(number)
    while isinstance(link, _Link) and link.is_inactive:
        link = link.previous
    if link is not handler:
        signal.signal(number, link)
    while isinstance(link, _Link):
        while isinstance(link.previous, _Link) and link.previous.is_inactive:
            link.previous = link.previous.previous
        link = link.previous
