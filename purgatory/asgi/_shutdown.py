"""Stops the polls at a signal, before the server handles it.

A stopping server waits until its connections are idle, and only then notifies the application, by
the lifespan protocol. With open polls that takes as long as the longest poll. So we wrap the
handler of the signal: the wrapper schedules our callback, and calls the previous handler.

    SIGTERM  ->  our callback, soon on the loop  ->  the polls are answered, and the connections
                                                     become idle
             ->  the server's handler            ->  the server waits for its connections, which
                                                     takes no time now

Several chains may wrap one signal, and be removed in any order. Each has a link, whose `previous`
is the handler that it wraps. An inactive link only passes the signal on, and is unlinked when it is
the first one, or between two others of ours:

    first.install, second.install    second -> first -> the server's
    first.remove                     second ----------> the server's
    second.remove                                       the server's

This works where the server handles signals in the application's process: uvicorn, its workers and
gunicorn's, hypercorn without worker processes. An unhandled signal kills the process, as
it would without this module.
"""

import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, final


@final
class SignalChain:
    """Calls `callback` on the loop at each of `signals`, before the present handlers.

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
        # Some look for the server in its handler's `__self__`, sse-starlette for instance.
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
