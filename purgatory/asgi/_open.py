"""The polls that are open on one event loop, from the beginning of an application's lifespan to its end.

    polls.open                register                 unregister
      ...  a request waits ──────────> it is counted ────────────> it is not

    is_stopping: nobody can register any more; after `grace` seconds each open poll is stopped, 512 per iteration of the loop

Each lifespan and each loop has a new `OpenPolls`. A poll unregisters where it registered, and a stop that is under way ends
only the polls that were open when it began.
"""

from asyncio import AbstractEventLoop, Event
from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Protocol, final

MAX_STOPS_PER_ITERATION: Final = 512


class Stoppable(Protocol):
    """What this module needs of a poll."""

    def on_stop(self) -> None:
        """Called once, when the server stops."""


@final
class OpenPolls:
    """The open polls, how many each client has, and how they are stopped.

    Args:
        loop: theirs.
    """

    __slots__ = ("_drained", "_to_stop", "is_stopping", "loop", "per_client", "polls")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.is_stopping = False
        self.polls: dict[Stoppable, Hashable] = {}
        """Each with the key of the client that it counts for, or None."""
        self.per_client: Counter[Hashable] = Counter()
        self._to_stop: deque[Stoppable] = deque()
        self._drained = Event()

    def register(self, poll: Stoppable, client_key: Hashable, max_open: int | None, max_per_client: int | None) -> str | None:
        """Counts `poll` as open, or says why it cannot be.

        Args:
            poll: is not registered yet.
            client_key: the client that it counts for; `None` is not limited.
            max_open: how many may be open, `None` for no limit.
            max_per_client: the same for one client.
        """
        if max_open is not None and len(self.polls) >= max_open:
            return f"{max_open} polls are open already"
        if max_per_client is None or client_key is None:
            self.polls[poll] = None
            return None
        if self.per_client.get(client_key, 0) >= max_per_client:
            return f"{max_per_client} polls of this client are open already"
        self.per_client[client_key] += 1
        self.polls[poll] = client_key
        return None

    def unregister(self, poll: Stoppable) -> None:
        """No longer counts `poll`, if it is registered."""
        client_key = self.polls.pop(poll, None)
        if client_key is not None:
            self.per_client[client_key] -= 1
            if not self.per_client[client_key]:
                del self.per_client[client_key]
        if not self.polls:
            self._drained.set()

    def stop(self, grace: float) -> None:
        """Lets no poll register any more, and stops the open ones after `grace` seconds. Calling it again is allowed."""
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
        self._to_stop.extend(self.polls)
        self._stop_some()

    def _stop_some(self) -> None:
        for _ in range(min(MAX_STOPS_PER_ITERATION, len(self._to_stop))):
            self._to_stop.popleft().on_stop()
        if self._to_stop:
            self.loop.call_soon(self._stop_some)
