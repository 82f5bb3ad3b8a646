"""Topics and their partitions, in memory or in a directory: a folder for each topic, a file for each partition."""

import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .answers import ErrorCode, Refused, refuse_if
from .batches import Batch, read_produced
from .configs import DEFAULTS, check
from .kept import Kept
from .log import Log, Store
from .producers import Producers
from .replicas import Copies
from .settings import Settings

LEGAL_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
MOST_PARTITIONS: Final = 10_000  # of one topic


class Partition(Copies):
    """A log and its copies, and the producers that write to it. Its key is what operations wait under."""

    def __init__(self, topic: "Topic", index: int, log: Log, producers: Producers) -> None:
        super().__init__((topic.name, index), topic.factor, log)
        self.topic, self.producers = topic, producers
        self.is_deleted = False

    @property
    def has_enough_replicas(self) -> bool:
        """As many are in sync as `acks=all` asks for."""
        return len(self.in_sync) >= int(self.topic.config("min.insync.replicas"))

    def append(self, data: bytes) -> Batch:
        """Keeps the batch that a producer has sent, or finds it if it was sent again; returns it as it is kept.

        Raises:
            Refused: nothing has changed.
            OSError: it could not be written; nothing has changed.
        """
        batch = read_produced(data)
        if batch.size > int(self.topic.config("max.message.bytes")):
            raise Refused(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        kept = self.producers.repeated(batch)
        if kept is None:
            kept = self.log.append(data, batch)
            self.producers.add(kept)
        return kept


class Topic:
    """A name, its partitions, and what was set for it."""

    def __init__(self, name: str, factor: int, configs: dict[str, str]) -> None:
        self.name, self.factor, self.configs = name, factor, configs
        self.partitions: list[Partition] = []

    def config(self, name: str) -> str:
        """What was set, or what it is otherwise."""
        return self.configs.get(name) or DEFAULTS[name]


class Topics:
    """All topics.

    Args:
        settings: in its directory the records are.
        kept: where all else is that survives a restart.
    """

    def __init__(self, settings: Settings, kept: Kept) -> None:
        self.directory, self.fsync, self.kept = settings.directory, settings.fsync, kept
        self.by_name: dict[str, Topic] = {}
        for (name,), saved in kept.tables["topics"].items():
            topic = self.by_name[str(name)] = Topic(str(name), saved["factor"], saved["configs"])
            self._extend(topic, len(saved["starts"]), saved["starts"])

    def __iter__(self) -> Iterator[Partition]:
        return (partition for topic in self.by_name.values() for partition in topic.partitions)

    def topic(self, name: str) -> Topic:
        """One that is there. Raises `Refused` if it is not."""
        if (topic := self.by_name.get(name)) is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic

    def partition(self, name: str, index: int) -> Partition:
        """One that is there. Raises `Refused` if it is not."""
        topic = self.by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no partition {index} of {name!r}")
        return topic.partitions[index]

    def create(self, name: str, partitions: int, factor: int, configs: dict[str, str], is_trial: bool = False) -> None:
        """A new topic; as a trial only whether there could be one.

        Raises:
            Refused: the name is taken or illegal, or a number or a configuration is out of its bounds.
        """
        refuse_if(not LEGAL_NAME.fullmatch(name), ErrorCode.invalid_topic_exception, f"{name!r} is not a name for a topic")
        refuse_if(name in self.by_name, ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        message = f"{partitions} partitions; 1 to {MOST_PARTITIONS} are possible"
        refuse_if(not 1 <= partitions <= MOST_PARTITIONS, ErrorCode.invalid_partitions, message)
        check(configs)
        if not is_trial:
            topic = Topic(name, factor, configs)
            self.extend(topic, partitions)
            self.by_name[name] = topic

    def extend(self, topic: Topic, count: int) -> None:
        """More partitions of a topic, `count` in all."""
        self._extend(topic, count)
        self.save(topic)

    def delete(self, topic: Topic) -> None:
        """The topic is gone, with all that is in it."""
        del self.by_name[topic.name]
        for partition in topic.partitions:
            partition.is_deleted = True
            partition.log.store.file.close()
        self.kept.change(("topics", (topic.name,), None))
        if self.directory is not None:
            shutil.rmtree(self.directory / "topics" / topic.name, ignore_errors=True)

    def new_producer_id(self) -> int:
        """A number that no producer has had."""
        new: int = self.kept.tables["producers"].get((), 0)
        self.kept.change(("producers", (), new + 1))
        return new

    def save(self, topic: Topic) -> None:
        """Writes down what a topic is, and where its partitions begin."""
        starts = [partition.log.start for partition in topic.partitions]
        saved: Any = {"factor": topic.factor, "configs": topic.configs, "starts": starts}
        self.kept.change(("topics", (topic.name,), saved))

    def close(self) -> None:
        """Closes all files."""
        for partition in self:
            partition.log.store.file.close()

    def _extend(self, topic: Topic, count: int, starts: Sequence[int] | None = None) -> None:
        """Adds partitions; with `starts`, takes up the files that are there."""
        for index in range(len(topic.partitions), count):
            log, producers = Log(), Producers()
            if self.directory is not None:
                path = self.directory / "topics" / topic.name / f"{index}.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                if starts is None:
                    path.unlink(missing_ok=True)  # left there by a process that was ended while it deleted
                log = Log(Store(path, self.fsync))
                for batch in log.load():
                    producers.add(batch)
            if starts is not None:
                log.forget(min(starts[index], log.end))
            topic.partitions.append(Partition(topic, index, log, producers))
