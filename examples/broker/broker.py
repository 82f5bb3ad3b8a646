"""The broker: its purgatories, what is done when a partition has changed, and the requests that read and write records."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from purgatory import DelayedOperation, Purgatory

from .admin import Admin
from .batches import BadBatch, read_produced
from .codec import Answer
from .coordinator import Coordinator
from .group_requests import GroupRequests
from .offsets import Offsets
from .replicas import Replicas
from .topics import Topics
from .waits import UNKNOWN, DelayedDeleteRecords, DelayedFetch, DelayedProduce, Read, Reply, Write
from .wire import APIS, Request

Handler = Callable[[Request, Reply], DelayedOperation[None] | None]

LATEST: Final = -1
EARLIEST: Final = -2
OF_GREATEST_TIME: Final = -3


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be chosen. Times are in seconds.

    Attributes:
        directory: where everything is kept; None keeps it in memory.
        fsync: each append is on the disk before it is answered.
        partitions: of topics that nobody has created.
        creates_topics: who asks for a topic that is not there gets it, as by Kafka's default.
        replicas, replica_lag, replica_patience: see `Replicas`.
        rebalance_delay: how long a group that was empty waits for more members; Kafka's is 3 s.
        shortest_session: session timeouts below this are refused; Kafka's is 6 s.
    """

    directory: Path | None = None
    fsync: bool = False
    partitions: int = 1
    creates_topics: bool = True
    replicas: int = 1
    replica_lag: float = 0.005
    replica_patience: float = 30.0
    rebalance_delay: float = 0.1
    shortest_session: float = 0.1


class Broker:
    """All but the network. A request goes to `handle`; what it sets off is done when its handler has returned.

    Handlers answer at once, or leave an operation to wait and return it. Nothing here awaits anything.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings = settings or Settings()
        if settings.directory is not None:
            settings.directory.mkdir(parents=True, exist_ok=True)
        self.produces: Purgatory[DelayedProduce] = Purgatory("produce")
        self.fetches: Purgatory[DelayedFetch] = Purgatory("fetch")
        self.deletes: Purgatory[DelayedDeleteRecords] = Purgatory("delete records")
        self.topics = Topics(settings.directory, settings.fsync)
        self.topics.load()
        self.replicas = Replicas(
            settings.replicas,
            settings.replica_lag,
            settings.replica_patience,
            lambda: (partition.copies for partition in self.topics),
            self.changed,
        )
        self.offsets = Offsets(settings.directory, settings.fsync)
        self.coordinator = Coordinator(self.offsets, settings.rebalance_delay, settings.shortest_session)
        owners = (self, self.coordinator, GroupRequests(self.coordinator, self.topics), Admin(self))
        self._actions: deque[Callable[[], object]] = deque()
        self._handlers: dict[str, Handler] = {}
        for api in APIS.values():
            owner = next(owner for owner in owners if hasattr(owner, api.name))
            self._handlers[api.name] = getattr(owner, api.name)

    @property
    def purgatories(self) -> tuple[Purgatory[Any], ...]:
        """Where something can wait, one for each kind."""
        waits = self.coordinator
        return self.produces, self.fetches, self.deletes, waits.joins, waits.syncs, waits.heartbeats

    def handle(self, request: Request, reply: Reply) -> DelayedOperation[None] | None:
        """Handles a request.

        Returns:
            What it waits for; None if it has been answered, or is by somebody else.
        """
        operation = self._handlers[request.api.name](request, reply)
        while self._actions:
            self._actions.popleft()()
        return operation

    async def aclose(self) -> None:
        """Ends all waits without an answer, and closes all files."""
        for purgatory in self.purgatories:
            await purgatory.aclose()
        self.topics.save()
        self.topics.close()
        self.offsets.close()

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

    # -- requests

    def produce(self, request: Request, reply: Reply) -> DelayedProduce | None:
        """Appends; then answers at once, or when all replicas have it."""
        body = request.body
        writes = [
            self._write(topic.name, data.index, data.records, body)
            for topic in body.topic_data
            for data in topic.partition_data
        ]
        if body.acks == 0:
            failed = [write for write in writes if write.error is not ErrorCode.none]
            reply(ConnectionError(f"acks=0, so this is how to tell of {failed[0].message}") if failed else None)
        elif body.acks == 1 or not writes:
            reply(DelayedProduce.answer_of(writes))
        else:
            operation = DelayedProduce(body.timeout, reply, writes)
            self.produces.try_complete_else_watch(operation, [(write.topic, write.index) for write in writes])
            return operation
        return None

    def _write(self, topic: str, index: int, records: bytes | None, body: Any) -> Write:
        write = Write(topic, index, self.topics.partition(topic, index))
        partition = write.partition
        try:
            if body.acks not in (-1, 0, 1):
                raise BadBatch(ErrorCode.invalid_required_acks, f"acks={body.acks}")
            if body.transactional_id is not None:
                raise BadBatch(ErrorCode.transactional_id_authorization_failed, "transactions are not offered here")
            if partition is None:
                raise BadBatch(UNKNOWN, f"there is no partition {index} of {topic!r}")
            if body.acks == -1 and not partition.has_enough_replicas:
                raise BadBatch(ErrorCode.not_enough_replicas, f"in sync: {sorted(partition.copies.in_sync)}")
            write.offset, write.needed = partition.append(records or b"", read_produced(records))
        except BadBatch as error:
            write.error, write.message = error.code, str(error)
        except OSError as error:
            write.error, write.message = ErrorCode.kafka_storage_error, str(error)
        else:
            if self.replicas.appended(partition.copies, partition.log.end):
                self._actions.append(partial(self.written, partition.key))
        return write

    def fetch(self, request: Request, reply: Reply) -> DelayedFetch | None:
        """Answers when there is enough to read, or at the deadline."""
        body = request.body
        reads = [self._read(topic.topic, wanted) for topic in body.topics for wanted in topic.partitions]
        if body.session_id or not reads:  # each fetch says all that it wants: sessions are not offered
            reply({"error_code": ErrorCode.fetch_session_id_not_found if body.session_id else ErrorCode.none})
            return None
        operation = DelayedFetch(body.max_wait, reply, reads, body.min_bytes, body.max_bytes)
        self.fetches.try_complete_else_watch(operation, [(read.topic, read.index) for read in reads])
        return operation

    def _read(self, topic: str, wanted: Any) -> Read:
        partition = self.topics.partition(topic, wanted.partition)
        error = ErrorCode.unknown_leader_epoch if wanted.current_leader_epoch > 0 else ErrorCode.none
        return Read(topic, wanted.partition, partition, error, wanted.fetch_offset, wanted.partition_max_bytes)

    def list_offsets(self, request: Request, reply: Reply) -> None:
        """The first offset, the next one, or that of a time."""
        topics = [
            {"name": topic.name, "partitions": [self._offset(topic.name, wanted) for wanted in topic.partitions]}
            for topic in request.body.topics
        ]
        reply({"topics": topics})

    def _offset(self, topic: str, wanted: Any) -> Answer:
        partition = self.topics.partition(topic, wanted.partition_index)
        if partition is None:
            return {"partition_index": wanted.partition_index, "error_code": UNKNOWN}
        log, end = partition.log, partition.high_watermark
        found: tuple[int, int] | None
        if wanted.timestamp == LATEST:
            found = end, -1
        elif wanted.timestamp == EARLIEST:
            found = log.start, -1
        else:
            found = log.latest(end) if wanted.timestamp == OF_GREATEST_TIME else log.since(wanted.timestamp, end)
        offset, time = found or (-1, -1)
        epoch = -1 if found is None else 0
        return {"partition_index": wanted.partition_index, "offset": offset, "timestamp": time, "leader_epoch": epoch}

    def delete_records(self, request: Request, reply: Reply) -> DelayedDeleteRecords | None:
        """Lets go of records; answers when all replicas have done so."""
        body = request.body
        writes = [
            self._cut(topic.name, wanted.partition_index, wanted.offset) for topic in body.topics for wanted in topic.partitions
        ]
        self.topics.save()
        if not writes:
            reply({})
            return None
        operation = DelayedDeleteRecords(body.timeout, reply, writes)
        self.deletes.try_complete_else_watch(operation, [(write.topic, write.index) for write in writes])
        return operation

    def _cut(self, topic: str, index: int, offset: int) -> Write:
        write = Write(topic, index, self.topics.partition(topic, index))
        partition = write.partition
        if partition is None:
            write.error = UNKNOWN
            return write
        if offset == -1:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            write.error = ErrorCode.offset_out_of_range
            return write
        partition.log.forget(offset)
        write.offset = write.needed = partition.log.start
        self.replicas.cut(partition.copies, partition.log.start)
        self._actions.append(partial(self.changed, partition.key))
        return write

    def init_producer_id(self, request: Request, reply: Reply) -> None:
        """A number for a producer that is idempotent."""
        if request.body.transactional_id is not None:
            reply({"error_code": ErrorCode.transactional_id_authorization_failed, "producer_id": -1, "producer_epoch": -1})
        else:
            reply({"producer_id": self.topics.new_producer_id(), "producer_epoch": 0})

    def api_versions(self, request: Request, reply: Reply) -> None:
        """What is offered. A version of this very request that is not gets the list all the same."""
        lowest: Iterable[tuple[int, int, int]] = (
            (api.key, 0 if api.name == "produce" else api.lowest, api.highest) for api in APIS.values()
        )
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in lowest]
        reply({"error_code": ErrorCode.unsupported_version if request.version < 0 else ErrorCode.none, "api_keys": keys})
