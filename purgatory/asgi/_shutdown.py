"""Hearing that the server is to stop before the server does anything about it.

A server that is told to stop waits until its connections are idle, and only then tells the application, in the lifespan
protocol. With polls open that takes as long as the longest of them: each waits for the other. What both hear at once is
the signal. So its handler is wrapped: ours, and then the one that was there, as if nothing had happened.

    SIGTERM  ->  callback on the loop, soon   ->  the polls are answered, and the connections fall idle
             ->  the server's handler         ->  the server waits for its connections, which takes no time now

Several may wrap one signal, and leave in any order. Each is a link, which knows the one below it for good; a link whose owner
has left only passes the signal on, and is taken out once it is on top, or between two others of ours:

    first.install, second.install    second -> first -> the server's
    first.remove                     second ----------> the server's
    second.remove                                       the server's

Works where the server handles signals in the application's process: uvicorn, its workers and gunicorn's, hypercorn without
worker processes. Where nobody handles the signal, it kills the process as always, and we do not change that.
"""

import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, final


@final
class SignalChain:
    """Calls `callback` on the loop at each of `signals`, before whoever handles them now does so.

    Args:
        signals: numbers of signals; those that nobody handles are passed over.
        callback: a plain function, called on the loop's thread.
    """

    __slots__ = ("_callback", "_links", "_signals")

    def __init__(self, signals: Collection[int], callback: Callable[[], object]) -> None:
        self._signals = tuple(signals)
        self._callback = callback
        self._links: dict[int, _Link] = {}

    def install(self, loop: AbstractEventLoop) -> None:
        """Wraps the handlers. Has no effect outside the main thread, because only that one may set handlers in Python."""
        self.remove()
        if current_thread() is not main_thread():
            return
        for number in self._signals:
            _take_off_the_dead(number)  # of loops that were closed without removing theirs
            handler = signal.getsignal(number)
            if callable(handler):
                self._links[number] = link = _Link(loop, self._callback, handler)
                signal.signal(number, link)

    def remove(self) -> None:
        """Stops calling, and puts the handlers back, unless somebody else has wrapped ours."""
        links, self._links = self._links, {}
        for number, link in links.items():
            link.callback = None
            _take_off_the_dead(number)


class _Link:
    """A signal handler that tells a loop, and then calls the handler `below` it."""

    __slots__ = ("below", "callback", "loop")

    def __init__(
        self, loop: AbstractEventLoop, callback: Callable[[], object], below: Callable[[int, FrameType | None], Any]
    ) -> None:
        self.loop = loop
        self.callback: Callable[[], object] | None = callback
        self.below = below

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.callback is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.callback)
        self.below(number, frame)

    def __getattr__(self, name: str) -> Any:
        # Some look for the server in its handler's `__self__`, sse-starlette for instance.
        return getattr(self.below, name)

    @property
    def is_dead(self) -> bool:
        return self.callback is None or self.loop.is_closed()


def _take_off_the_dead(number: int) -> None:
    """Takes dead links out of what handles a signal, from the top as far down as the links are ours."""
    if current_thread() is not main_thread():
        return
    top = handler = signal.getsignal(number)
    while isinstance(top, _Link) and top.is_dead:
        top = top.below
    if top is not handler:
        signal.signal(number, top)
    while isinstance(top, _Link):
        while isinstance(top.below, _Link) and top.below.is_dead:
            top.below = top.below.below
        top = top.below
