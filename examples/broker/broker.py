"""The broker: its purgatories, which request goes to whom, and what is done when a partition has changed."""

from collections import deque
from collections.abc import Callable
from typing import Any

from purgatory import DelayedOperation, Purgatory

from .admin import Admin
from .answers import Answer, Refused
from .coordinator import Coordinator
from .group_requests import GroupRequests
from .kept import Kept
from .records import Records
from .replicas import Replicas
from .settings import Settings
from .topics import Topics
from .waits import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from .wire import APIS, Request

Handler = Callable[[Request], Answer | DelayedOperation[None] | None]
"""Returns its answer; or the operation that will answer; or None, if the group will, or nobody."""


class Broker:
    """All but the network. A request goes to `handle`; what it sets off is done when its handler has returned.

    Nothing here awaits anything.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        if settings.directory is not None:
            settings.directory.mkdir(parents=True, exist_ok=True)
        self.produces: Purgatory[DelayedProduce] = Purgatory("produce")
        self.fetches: Purgatory[DelayedFetch] = Purgatory("fetch")
        self.deletes: Purgatory[DelayedDeleteRecords] = Purgatory("delete records")
        self.kept = Kept(settings)
        self.topics = Topics(settings, self.kept)
        self.replicas = Replicas(settings, self.topics, self.changed)
        self.coordinator = Coordinator(settings, self.kept)
        self.later: deque[Callable[[], object]] = deque()  # what is to be done when the handler has returned
        owners = (Records(self), self.coordinator, GroupRequests(self.coordinator, self.topics), Admin(self))
        self._handlers: dict[str, Handler] = {
            api.name: next(getattr(owner, api.name) for owner in owners if hasattr(owner, api.name)) for api in APIS.values()
        }

    @property
    def purgatories(self) -> tuple[Purgatory[Any], ...]:
        """Where something can wait, one for each kind."""
        waits = self.coordinator
        return self.produces, self.fetches, self.deletes, waits.joins, waits.syncs, waits.heartbeats

    def handle(self, request: Request) -> DelayedOperation[None] | None:
        """Handles a request.

        Returns:
            What it waits for; None if it has been answered, or is by somebody else.
        """
        try:
            outcome = self._handlers[request.api.name](request)
        except Refused as error:
            outcome = error.answer
        if isinstance(outcome, dict):
            request.reply(outcome)
            outcome = None
        while self.later:
            self.later.popleft()()
        return outcome

    async def aclose(self) -> None:
        """Ends all waits without an answer, and closes all files."""
        for purgatory in self.purgatories:
            await purgatory.aclose()
        self.topics.close()
        self.kept.close()

    # -- when a partition has changed

    def written(self, key: tuple[str, int]) -> None:
        """Records were appended to the partition with this key, and its high watermark has moved: in Kafka's order."""
        self.produces.check_and_complete(key)
        self.fetches.check_and_complete(key)
        self.deletes.check_and_complete(key)

    def changed(self, key: tuple[str, int]) -> None:
        """A follower has moved a watermark, or the partition is gone: in Kafka's order, which is another one here."""
        self.fetches.check_and_complete(key)
        self.produces.check_and_complete(key)
        self.deletes.check_and_complete(key)
