"""What people do today, with tasks: each request is a task in `asyncio.timeout` around a future, which is found in sets by key.

A result that can be awaited costs a task switch for each request. The other designs here do not pay this price; for a
comparison under equal conditions see `python -m purgatory.bench micro --only wait`.
"""

import asyncio
from collections.abc import Hashable, Sequence

from purgatory.bench.rivals.designs._interface import Request
from purgatory.bench.rivals.designs._watch_sets import OnWatchSets


class Awaited(Request):
    """A request whose end sets a future."""

    __slots__ = ("design", "future")

    design: "AsyncioTimeouts"
    future: "asyncio.Future[None] | None"

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        design = self.design
        design.watchers.remove(self, self.keys)
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
        self.on_complete()
        return True


class AsyncioTimeouts(OnWatchSets):
    """A task for each request."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: set[asyncio.Task[None]] = set()
        self.new_request = Awaited
        self.complete = Awaited.force_complete

    def watch(self, request: Awaited, keys: Sequence[Hashable]) -> bool:
        if request.world.now_ms >= request.completes_at_ms:  # try_complete, before there is anything to be taken out of
            request.done = True
            request.on_complete()
            return True
        request.design = self
        request.keys = keys
        request.future = self._loop.create_future()
        request.deadline = self._loop.time() + request.timeout
        self.watchers.add(request, keys)
        task = self._loop.create_task(self._wait(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def _wait(self, request: Awaited) -> None:
        assert request.future is not None
        try:
            async with asyncio.timeout_at(request.deadline):
                await request.future
        except TimeoutError:
            self.wake_ups += 1
            if request.force_complete():
                request.on_expiration()
        request.future = None

    def pending(self) -> int:
        return len(self._tasks)
