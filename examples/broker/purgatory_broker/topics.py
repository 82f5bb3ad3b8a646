"""Topics and their partitions, in memory or in a directory: a folder for each topic, a file for
each partition."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID, uuid4

from .batches import (
    Batch,
    Budget,
    check_records,
    parse_records,
    read_batch,
    read_marker,
    read_produced,
)
from .clock import Clock
from .configs import NEVER, TopicConfig, validate, warn_of_no_effect
from .log import Log, Store
from .metadata_log import MetadataLog
from .partition_transactions import READ_COMMITTED, PartitionTransactions
from .producers import Producers
from .replicas import Replicas
from .responses import ApiError, ErrorCode, raise_if
from .settings import Settings

VALID_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
MAX_PARTITIONS: Final = 10_000  # of all topics together; each takes some 4 KB


class Partition(Replicas):
    """A log, its replicas, the producers that write to it, and their transactions. Operations wait
    under its key."""

    def __init__(
        self,
        topic: "Topic",
        index: int,
        log: Log,
        producers: Producers,
        transactions: PartitionTransactions,
    ) -> None:
        super().__init__((topic.name, index), topic.factor, log)
        self.topic, self.producers, self.transactions = topic, producers, transactions
        self.transactions.on_watermark(self.high_watermark)
        self.is_deleted = False

    @property
    def has_enough_replicas(self) -> bool:
        """Whether as many replicas are in sync as `acks=all` needs."""
        return len(self.in_sync) >= self.topic.config.min_insync_replicas

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which consumers of committed records may read: the first undecided
        record."""
        return max(self.log.start, min(self.transactions.undecided(), default=self.high_watermark))

    def readable_end(self, isolation_level: int) -> int:
        """Up to where a consumer may read."""
        return self.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark

    def advance(self) -> bool:
        """As for all replicas; transactions are decided when all in-sync replicas have their
        markers."""
        has_moved = super().advance()
        self.transactions.on_watermark(self.high_watermark)
        return has_moved

    def append(
        self, data: bytes, now: int, verify: Callable[[Batch], None], budget: Budget | None = None
    ) -> Batch:
        """Appends a producer's batch to the log, unless it is a duplicate; returns it as the log
        has it.

        Args:
            now: the time in milliseconds.
            verify: raises `ApiError` if a batch may not be appended, be it a duplicate or not.
            budget: budget of the request, for compressed batches.

        Raises:
            ApiError: the batch is refused; nothing has changed.
            OSError: the batch could not be written; nothing has changed.
        """
        batch = read_produced(data)
        config = self.topic.config
        if batch.size > config.max_message_size:
            raise ApiError(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        check_by_config(check_records(data, batch, budget), batch, config, now)
        verify(batch)
        if not batch.is_transactional and batch.producer_id in self.transactions.ongoing:
            raise ApiError(
                ErrorCode.invalid_txn_state,
                "the producer has a transaction, and the batch is not part of it",
            )
        self.producers.expire(now)
        appended = self.producers.find_duplicate(batch)
        if appended is None:
            appended = self.log.append(data, batch, now if config.takes_append_time else None)
            self.producers.add(appended, now)
            self.transactions.add(appended, None)
        return appended

    def append_marker(self, marker: bytes, committed: bool) -> None:
        """Appends the end of a transaction. Raises `OSError` if it could not be written; nothing
        has changed."""
        self.transactions.add(self.log.append(marker, read_batch(marker)), committed)


def check_by_config(records: bytes, batch: Batch, config: TopicConfig, now: int) -> None:
    """Raises `ApiError` if records break the configuration of their topic. Cost: parses them if
    it must."""
    if not config.takes_append_time:
        times = "One or more records have been rejected due to invalid timestamp"
        raise_if(batch.max_time > now + config.max_time_after, ErrorCode.invalid_timestamp, times)
        if config.max_time_before < NEVER:
            earliest = min(record.time for record in parse_records(records, batch))
            raise_if(earliest < now - config.max_time_before, ErrorCode.invalid_timestamp, times)
    if config.compacts and not all(
        record.key is not None for record in parse_records(records, batch)
    ):
        raise ApiError(
            ErrorCode.invalid_record, "Compacted topic cannot accept message without key."
        )


class Topic:
    """A name, its partitions, and its configuration.

    Attributes:
        topic_id: differs from the id of a deleted topic of the same name.
        configs: values that were set.
        config: values that have an effect.
    """

    def __init__(
        self, name: str, factor: int, configs: dict[str, str], topic_id: UUID | None = None
    ) -> None:
        self.name, self.factor, self.topic_id = name, factor, topic_id or uuid4()
        self.partitions: list[Partition] = []
        self.set_configs(configs)

    def set_configs(self, configs: dict[str, str]) -> None:
        """Sets the configuration, of which all values are valid."""
        self.configs, self.config = configs, TopicConfig.parse(configs)


def _close(partitions: Iterable[Partition]) -> None:
    """Closes the files of partitions."""
    for partition in partitions:
        partition.log.store.file.close()


class Topics:
    """All topics.

    Args:
        settings: the records are in its directory.
        metadata_log: everything else that survives a restart.
        clock: the time of appends.
    """

    def __init__(self, settings: Settings, metadata_log: MetadataLog, clock: Clock) -> None:
        self.clock = clock
        self.directory, self.fsync, self.metadata_log = (
            settings.directory,
            settings.fsync,
            metadata_log,
        )
        self.by_name: dict[str, Topic] = {}
        self._names: dict[UUID, str] = {}
        self._partition_count = 0
        for (name,), value in metadata_log.tables["topics"].items():
            topic = self.by_name[str(name)] = Topic(
                str(name), value["factor"], value["configs"], UUID(value["id"])
            )
            self._names[topic.topic_id] = topic.name
            self._add_partitions(topic, len(value["starts"]), value["starts"])

    def __iter__(self) -> Iterator[Partition]:
        return (partition for topic in self.by_name.values() for partition in topic.partitions)

    def topic(self, name: str) -> Topic:
        """The topic of this name. Raises `ApiError` if it does not exist."""
        if (topic := self.by_name.get(name)) is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The name of the topic with this id, if there is one."""
        return None if topic_id is None else self._names.get(topic_id)

    def partition(self, name: str, index: int) -> Partition:
        """A partition of a topic. Raises `ApiError` if it does not exist."""
        topic = self.by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise ApiError(
                ErrorCode.unknown_topic_or_partition, f"there is no partition {index} of {name!r}"
            )
        return topic.partitions[index]

    def create(
        self,
        name: str,
        partitions: int,
        factor: int,
        configs: dict[str, str],
        validate_only: bool = False,
    ) -> Topic | None:
        """Creates a topic, or only checks whether it could be created.

        Raises:
            ApiError: the name is taken or invalid, or a number or a configuration is out of its
                bounds.
        """
        raise_if(
            not VALID_NAME.fullmatch(name),
            ErrorCode.invalid_topic_exception,
            f"{name!r} is not a name for a topic",
        )
        raise_if(
            name in self.by_name, ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
        )
        message = f"{partitions} partitions; 1 to {MAX_PARTITIONS} are possible"
        raise_if(not 1 <= partitions <= MAX_PARTITIONS, ErrorCode.invalid_partitions, message)
        validate(configs)
        if validate_only:
            self.raise_if_too_many(partitions)
            return None
        topic = Topic(name, factor, configs)
        self.extend(topic, partitions)
        self.by_name[name], self._names[topic.topic_id] = topic, name
        warn_of_no_effect(name, configs)
        return topic

    def alter(self, topic: Topic, configs: dict[str, str], validate_only: bool = False) -> None:
        """Changes the configuration of a topic, or only checks whether it could be changed.

        Raises:
            ApiError: a value is invalid.
        """
        validate(configs)
        if not validate_only:
            before = topic.configs
            topic.set_configs(configs)
            try:
                self.save(topic)
            except OSError:
                topic.set_configs(before)
                raise
            warn_of_no_effect(
                topic.name,
                {name: value for name, value in configs.items() if before.get(name) != value},
            )

    def extend(self, topic: Topic, count: int) -> None:
        """Adds partitions to a topic, up to `count`.

        Raises:
            ApiError: there would be more than `MAX_PARTITIONS`.
            OSError: they could not be written; nothing has changed.
        """
        before = len(topic.partitions)
        self.raise_if_too_many(count - before)
        self._add_partitions(topic, count)
        try:
            self.save(topic)
        except OSError:
            _close(topic.partitions[before:])
            self._partition_count -= count - before
            del topic.partitions[before:]
            raise

    def raise_if_too_many(self, added: int) -> None:
        """Raises `ApiError` if `added` more partitions would be too many."""
        message = f"there are {self._partition_count} partitions, {MAX_PARTITIONS} are possible"
        raise_if(
            self._partition_count + added > MAX_PARTITIONS, ErrorCode.policy_violation, message
        )

    def delete(self, topic: Topic) -> None:
        """Deletes a topic and its records."""
        self.metadata_log.append(("topics", (topic.name,), None))
        del self.by_name[topic.name], self._names[topic.topic_id]
        self._partition_count -= len(topic.partitions)
        for partition in topic.partitions:
            partition.is_deleted = True
        _close(topic.partitions)
        if self.directory is not None:
            shutil.rmtree(self.directory / "topics" / topic.name, ignore_errors=True)

    def new_producer_id(self) -> int:
        """An id that no producer has had, also before a restart."""
        new: int = self.metadata_log.tables["producers"].get((), 0)
        self.metadata_log.append(("producers", (), new + 1))
        return new

    def save(self, topic: Topic) -> None:
        """Writes a topic, and the first offsets of its partitions, to the metadata log."""
        starts = [partition.log.start for partition in topic.partitions]
        value: Any = {
            "id": str(topic.topic_id),
            "factor": topic.factor,
            "configs": topic.configs,
            "starts": starts,
        }
        self.metadata_log.append(("topics", (topic.name,), value))

    def close(self) -> None:
        """Closes all files."""
        _close(self)

    def _add_partitions(
        self, topic: Topic, count: int, starts: Sequence[int] | None = None
    ) -> None:
        """Adds partitions; with `starts`, their files exist."""
        added: list[Partition] = []
        try:
            for index in range(len(topic.partitions), count):
                added += [self._open(topic, index, None if starts is None else starts[index])]
        except OSError:  # such as too many open files
            _close(added)
            raise
        topic.partitions += added
        self._partition_count += len(added)

    def _open(self, topic: Topic, index: int, start: int | None) -> Partition:
        """A new partition or, with `start`, one with a file."""
        log, producers, transactions = Log(), Producers(), PartitionTransactions()
        if self.directory is not None:
            path = self.directory / "topics" / topic.name / f"{index}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            if start is None:
                path.unlink(
                    missing_ok=True
                )  # of a deleted topic, if the process ended before the file was deleted
            log = Log(Store(path, self.fsync))
            for batch, data in log.load():
                transactions.add(batch, read_marker(data, batch))
                if not batch.is_control:
                    producers.add(batch, batch.max_time)
        if start is not None:
            log.delete_before(min(start, log.end))
            transactions.discard_before(log.start)
        return Partition(topic, index, log, producers, transactions)
