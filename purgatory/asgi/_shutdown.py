"""Hearing that the server is to stop before the server does anything about it.

A server that is told to stop waits until its connections are idle, and only then tells the application, in the lifespan
protocol. With polls open that takes as long as the longest of them: each waits for the other. What both hear at once is
the signal. So its handler is wrapped: ours, and then the one that was there, as if nothing had happened.

    SIGTERM  ->  callback on the loop, soon   ->  the polls are answered, and the connections fall idle
             ->  the server's handler         ->  the server waits for its connections, which takes no time now

Works where the server handles signals in the application's process: uvicorn, its workers and gunicorn's, hypercorn without
worker processes. Where nobody handles the signal, it kills the process as ever, and we leave that alone.
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

    __slots__ = ("_callback", "_loop", "_previous", "_signals")

    def __init__(self, signals: Collection[int], callback: Callable[[], None]) -> None:
        self._signals = tuple(signals)
        self._callback = callback
        self._loop: AbstractEventLoop | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def install(self, loop: AbstractEventLoop) -> None:
        """Wraps the handlers. Without effect outside the main thread, where Python lets nobody set any."""
        self.remove()
        if current_thread() is not main_thread():
            return
        self._loop = loop
        for number in self._signals:
            handler = signal.getsignal(number)
            if callable(handler):
                self._previous[number] = handler
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Puts the handlers back, but for those that somebody has set since."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle and current_thread() is main_thread():
                signal.signal(number, previous)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._callback)
        previous = self._previous.get(number)
        if previous is not None:
            previous(number, frame)
