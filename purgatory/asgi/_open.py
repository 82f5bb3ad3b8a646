"""The polls that are open on one event loop, from the beginning of an application's lifespan to its end.

    polls.open                 enter                    leave
      ...  a request waits ──────────>  it counts  ──────────>  it does not

    is_stopping: nobody enters; after a grace time each of the open ones is told, 512 in each iteration of the loop

After a lifespan, and on another loop, there is a new one of these: a poll leaves the one that it has entered, and a stop
that is under way ends the polls that were open then.
"""

from asyncio import AbstractEventLoop, Future
from collections import Counter, deque
from collections.abc import Hashable
from typing import Final, Protocol, final

PORTION: Final = 512
"""How many polls the stop ends in one iteration of the loop."""


class Waiting(Protocol):
    """What this module needs of a poll."""

    def server_stops(self) -> None:
        """Called once, when the server stops."""


@final
class OpenPolls:
    """Those that are open, how many each client has, and their end.

    Args:
        loop: theirs.
    """

    __slots__ = ("_drained", "_to_stop", "is_stopping", "loop", "per_client", "polls")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.is_stopping = False
        self.polls: dict[Waiting, Hashable] = {}
        """Each with the client that it counts for."""
        self.per_client: Counter[Hashable] = Counter()
        self._to_stop: deque[Waiting] = deque()
        self._drained: list[Future[None]] = []

    def enter(self, poll: Waiting, whose: Hashable, max_open: int | None, max_per_client: int | None) -> str | None:
        """Takes a place for `poll`, or says why there is none.

        Args:
            poll: has no place yet.
            whose: the client that it counts for; `None` is not limited.
            max_open: how many may be open, `None` for no limit.
            max_per_client: the same for one client.
        """
        if max_open is not None and len(self.polls) >= max_open:
            return f"{max_open} polls are open already"
        if max_per_client is not None and whose is not None:
            if self.per_client.get(whose, 0) >= max_per_client:
                return f"{max_per_client} polls of this client are open already"
            self.per_client[whose] += 1
            self.polls[poll] = whose
        else:
            self.polls[poll] = None
        return None

    def leave(self, poll: Waiting) -> None:
        """Frees the place of `poll`, if it has one."""
        whose = self.polls.pop(poll, None)
        if whose is not None:
            self.per_client[whose] -= 1
            if not self.per_client[whose]:
                del self.per_client[whose]
        if self._drained and not self.polls:
            drained, self._drained = self._drained, []
            for future in drained:
                if not future.done():
                    future.set_result(None)

    def stop(self, grace: float) -> None:
        """Has the open polls answered after `grace` seconds, and lets no new ones in. Calling it again is allowed."""
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
            drained = self.loop.create_future()
            self._drained.append(drained)
            await drained

    def _stop_all(self) -> None:
        self._to_stop.extend(self.polls)
        self._stop_some()

    def _stop_some(self) -> None:
        for _ in range(min(PORTION, len(self._to_stop))):
            self._to_stop.popleft().server_stops()
        if self._to_stop:
            self.loop.call_soon(self._stop_some)
