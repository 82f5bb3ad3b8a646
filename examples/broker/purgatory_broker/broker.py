"""The broker: its purgatories, the handler of each request, and the checks after a partition has
changed."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Any

from purgatory import DelayedOperation, Purgatory

from .admin import Admin
from .cleaner import Cleaner
from .clock import Clock
from .coordinator import Coordinator
from .delayed_operations import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from .faults import Faults, Handler
from .files import lock
from .group_requests import GroupRequests
from .logs import Mistakes
from .metadata_log import MetadataLog
from .records import Records
from .replicas import Followers
from .responses import ApiError, ErrorCode
from .settings import Settings
from .topics import Partition, Topic, Topics
from .transactions import Transactions
from .wire import APIS, Request


class Broker:
    """The broker without the network. `handle` handles a request; checks that it triggers run after
    its handler has returned.

    Nothing here awaits anything.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        self._lock: IO[bytes] | None = None
        self.mistakes = Mistakes()
        if settings.directory is not None:
            settings.directory.mkdir(parents=True, exist_ok=True)
            self._lock = lock(settings.directory / "lock")
        self.produces: Purgatory[DelayedProduce] = Purgatory("produce")
        self.fetches: Purgatory[DelayedFetch] = Purgatory("fetch")
        self.deletes: Purgatory[DelayedDeleteRecords] = Purgatory("delete records")
        self.metadata_log = MetadataLog(settings)
        self.clock = Clock()
        self.topics = Topics(settings, self.metadata_log, self.clock)
        self.followers = Followers(settings, self.topics, self.on_watermark)
        self.cleaner = Cleaner(settings, self.topics, self.clock, self.on_delete)
        self.coordinator = Coordinator(settings, self.metadata_log)
        self.faults = Faults(self)
        self.transactions = Transactions(self)
        self.deferred: deque[Callable[[], object]] = deque()  # called when the handler has returned
        group_requests = GroupRequests(self.coordinator, self.topics, self.transactions)
        owners = (Records(self), self.coordinator, group_requests, self.transactions, Admin(self))
        self._handlers: dict[str, Handler] = {
            api.name: next(getattr(owner, api.name) for owner in owners if hasattr(owner, api.name))
            for api in APIS.values()
        }

    @property
    def purgatories(self) -> tuple[Purgatory[Any], ...]:
        """All purgatories, one for each kind of operation."""
        groups = self.coordinator
        return (
            self.produces,
            self.fetches,
            self.deletes,
            groups.joins,
            groups.syncs,
            groups.heartbeats,
        )

    def handle(self, request: Request) -> DelayedOperation[None] | None:
        """Handles a request.

        Returns:
            The operation that will respond; None if the response was sent, or something else will
            send it.
        """
        try:
            outcome = self.faults.handle(request, self._handlers[request.api.name])
        except ApiError as error:
            outcome = error.response
        except OSError as error:
            outcome = ApiError(ErrorCode.kafka_storage_error, str(error)).response
        if isinstance(outcome, dict):
            request.respond(outcome)
            outcome = None
        self.run_deferred()
        return outcome

    def run_deferred(self) -> None:
        """Runs the checks that were put off until a handler, or something else that changes
        partitions, has returned."""
        while self.deferred:
            self.deferred.popleft()()

    def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic and its committed offsets; operations that wait for its partitions
        complete with an error."""
        self.topics.delete(topic)
        self.coordinator.delete_offsets(lambda key: key[1] == topic.name)
        self.transactions.discard_offsets(lambda key: key[1] == topic.name)
        for partition in topic.partitions:
            self.on_watermark(partition.key)

    def clear(self) -> None:
        """Deletes all topics, groups, offsets and faults."""
        for topic in list(self.topics.by_name.values()):
            self.delete_topic(topic)
        self.coordinator.clear()
        self.transactions.clear()
        self.faults.clear()
        self.mistakes.clear()
        self.clock.offset = 0.0  # nothing is left that has a later time

    def start(self) -> None:
        """Starts the timers: members without heartbeats expire, and old records are deleted."""
        self.coordinator.start()
        self.transactions.start()
        self.run_deferred()
        self.cleaner.start()

    async def aclose(self) -> None:
        """Cancels all operations without a response, and closes all files."""
        self.cleaner.stop()
        self.transactions.stop()
        for purgatory in self.purgatories:
            await purgatory.aclose()
        self.topics.close()
        self.metadata_log.close()
        if self._lock is not None:
            self._lock.close()

    # -- checks after a partition has changed

    def on_delete(self, partition: Partition) -> None:
        """The first records of a partition were deleted."""
        with suppress(OSError):  # after a restart they are there until the next time
            self.topics.save(partition.topic)
        self.followers.replicate(partition)
        self.on_watermark(partition.key)

    def on_marker(self, partition: Partition) -> None:
        """A transaction has ended in this partition."""
        if self.followers.replicate(partition):
            self.deferred.append(partial(self.on_append, partition.key))

    def on_append(self, key: tuple[str, int]) -> None:
        """An append to this partition has moved its high watermark. The order of the checks is
        Kafka's."""
        self.produces.check_and_complete(key)
        self.fetches.check_and_complete(key)
        self.deletes.check_and_complete(key)

    def on_watermark(self, key: tuple[str, int]) -> None:
        """A follower has moved a watermark, or the partition is deleted. The order is Kafka's, and
        differs from the other."""
        self.fetches.check_and_complete(key)
        self.produces.check_and_complete(key)
        self.deletes.check_and_complete(key)
