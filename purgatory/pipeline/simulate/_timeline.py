"""An event loop that has only timers, and whose time is advanced by calls.

`purgatory.testing.VirtualTimeLoop` runs everything that a real loop runs, and an iteration of it
costs as much as a real one. A replay has no tasks, futures or files, but has to advance time to an
instant for each operation. Here that costs a call, not an iteration.

    with Timeline().running() as loop:
        loop.call_at(7.0, print, "seven")
        loop.move_to(10.0)                    # prints it at 7.0
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, NoReturn, cast


class Timeline:
    """The part of a loop that a wheel needs. Its time starts at zero. Exceptions of callbacks
    propagate out of `move_to`."""

    def __init__(self) -> None:
        self._as_loop = cast(
            asyncio.AbstractEventLoop, self
        )  # it has all methods that are called here
        self.now = 0.0
        """What `time` returns, without a call."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_made = 0
        self._soon: deque[asyncio.Handle] = deque()

    @contextmanager
    def running(self) -> Iterator["Timeline"]:
        """Makes it the running loop of this thread."""
        asyncio._set_running_loop(self._as_loop)
        try:
            yield self
        finally:
            asyncio._set_running_loop(None)

    def move_to(self, at: float) -> None:
        """Calls everything that is due up to `at`, inclusive, in order and each at its time; then
        sets the time to `at`."""
        timers, soon = self._timers, self._soon
        while True:
            if soon:
                handle = soon.popleft()
            elif timers and timers[0][0] <= at:
                when, _, handle = heappop(timers)
                self.now = max(when, self.now)
            else:
                break
            if not handle.cancelled():
                handle._callback(*handle._args)  # type: ignore[attr-defined]  # like `_run`, but errors propagate
        self.now = max(at, self.now)

    def time(self) -> float:
        return self.now

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._as_loop, context)
        self._timers_made += 1
        heappush(self._timers, (when, self._timers_made, handle))
        return handle

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._as_loop, context)
        self._soon.append(handle)
        return handle

    def call_exception_handler(self, context: dict[str, Any]) -> NoReturn:
        raise RuntimeError(context["message"]) from context.get("exception")

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Does nothing: `move_to` skips cancelled handles."""
