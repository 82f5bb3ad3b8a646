"""Topics and their partitions, and what of them survives a restart."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kio.schema.errors import ErrorCode

from .batches import BadBatch, Batch
from .log import File, Log
from .producers import Producers
from .replicas import Copies, Replicas

LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
MOST_PARTITIONS: Final = 10_000  # of one topic

# What can be set for a topic, and what it is otherwise. The two that are heeded come first.
TABLE: Final = """
    min.insync.replicas=1 max.message.bytes=1048588
    cleanup.policy=delete compression.type=producer delete.retention.ms=86400000 file.delete.delay.ms=60000
    flush.messages=9223372036854775807 flush.ms=9223372036854775807 index.interval.bytes=4096
    max.compaction.lag.ms=9223372036854775807 message.timestamp.type=CreateTime min.cleanable.dirty.ratio=0.5
    min.compaction.lag.ms=0 preallocate=false retention.bytes=-1 retention.ms=-1 segment.bytes=1073741824
    segment.index.bytes=10485760 segment.jitter.ms=0 segment.ms=604800000 unclean.leader.election.enable=false
"""
CONFIGS: Final = {name: value for name, _, value in (pair.partition("=") for pair in TABLE.split())}
WHOLE_NUMBERS: Final = ("min.insync.replicas", "max.message.bytes")


class Refused(Exception):
    """What was asked for is not done; nothing has changed.

    Attributes:
        code: the error to answer with.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class Partition:
    """A log, its copies, and the producers that write to it. Its key is what operations wait under."""

    def __init__(self, topic: "Topic", index: int, log: Log, producers: Producers) -> None:
        self.topic, self.index, self.log, self.producers = topic, index, log, producers
        self.key = (topic.name, index)
        self.copies = Copies(self.key, topic.factor, log.start, log.end)
        self.is_deleted = False

    @property
    def high_watermark(self) -> int:
        """Up to where consumers may read."""
        return self.copies.high_watermark

    @property
    def has_enough_replicas(self) -> bool:
        """As many are in sync as `acks=all` asks for."""
        return len(self.copies.in_sync) >= int(self.topic.config("min.insync.replicas"))

    def append(self, data: bytes, batch: Batch) -> tuple[int, int]:
        """Keeps a batch, or finds it if it was sent again.

        Returns:
            The offset of its first record, and the one after its last.

        Raises:
            BadBatch: it is refused; nothing has changed.
            OSError: it could not be written; nothing has changed.
        """
        if batch.size > int(self.topic.config("max.message.bytes")):
            raise BadBatch(ErrorCode.message_too_large, f"a batch of {batch.size} bytes")
        if (repeated := self.producers.repeated(batch)) is not None:
            return repeated
        offset = self.log.append(data, batch)
        self.producers.add(batch, offset)
        return offset, self.log.end


class Topic:
    """A name, its partitions, and what was set for it."""

    def __init__(self, name: str, factor: int, configs: dict[str, str]) -> None:
        self.name, self.factor, self.configs = name, factor, configs
        self.partitions: list[Partition] = []

    def config(self, name: str) -> str:
        """What was set, or what it is otherwise."""
        return self.configs.get(name) or CONFIGS[name]


class Topics:
    """All topics, in memory or in a directory.

    Args:
        directory: where they are kept: a folder for each topic, a file for each partition, and `topics.json`.
        fsync: see `File`.
    """

    def __init__(self, directory: Path | None, fsync: bool) -> None:
        self.directory, self.fsync = directory, fsync
        self.by_name: dict[str, Topic] = {}
        self.next_producer_id = self._reserved = 0

    def __iter__(self) -> Iterator[Partition]:
        return (partition for topic in self.by_name.values() for partition in topic.partitions)

    def partition(self, name: str, index: int) -> Partition | None:
        """One that is there."""
        topic = self.by_name.get(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def create(self, name: str, partitions: int, factor: int, configs: dict[str, str]) -> Topic:
        """A new topic.

        Raises:
            Refused: the name is taken or illegal, or a number or a configuration is out of its bounds.
        """
        self.check(name, partitions, configs)
        topic = Topic(name, factor, configs)
        self._extend(topic, partitions)
        self.by_name[name] = topic
        self.save()
        return topic

    def check(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        """Raises `Refused` if `create` would."""
        if not LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            raise Refused(ErrorCode.invalid_topic_exception, f"{name!r} is not a name for a topic")
        if name in self.by_name:
            raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise Refused(ErrorCode.invalid_partitions, f"{partitions} partitions; 1 to {MOST_PARTITIONS} are possible")
        for config, value in configs.items():
            if config not in CONFIGS or (config in WHOLE_NUMBERS and not value.isdecimal()):
                raise Refused(ErrorCode.invalid_config, f"{config}={value!r} cannot be set for a topic")

    def add_partitions(self, topic: Topic, count: int) -> None:
        """More partitions of a topic, `count` in all."""
        self._extend(topic, count)
        self.save()

    def delete(self, topic: Topic) -> None:
        """The topic is gone, with all that is in it."""
        del self.by_name[topic.name]
        for partition in topic.partitions:
            partition.is_deleted = True
            partition.log.store.close()
        self.save()
        if self.directory is not None:
            shutil.rmtree(self._folder(topic.name), ignore_errors=True)

    def new_producer_id(self) -> int:
        """A number that no producer has had; they are reserved by the thousand."""
        if self.next_producer_id >= self._reserved:
            self._reserved = self.next_producer_id + 1000
            self.save()
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def _extend(self, topic: Topic, count: int, starts: list[int] | None = None) -> None:
        for index in range(len(topic.partitions), count):
            log, producers = Log(), Producers()
            if self.directory is not None:
                path = self._folder(topic.name) / f"{index}.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                if starts is None:
                    path.unlink(missing_ok=True)  # left there by a process that was ended while it deleted
                for batch in log.load(File(path, self.fsync)):
                    producers.add(batch, batch.base_offset)
            if starts is not None:
                log.forget(min(starts[index], log.end))
            topic.partitions.append(Partition(topic, index, log, producers))

    # -- what survives a restart

    def load(self) -> None:
        """Takes up what is in the directory."""
        if self.directory is None or not (path := self.directory / "topics.json").exists():
            return
        saved = json.loads(path.read_text())
        self.next_producer_id = self._reserved = saved["next_producer_id"]
        for name, of_topic in saved["topics"].items():
            topic = Topic(name, of_topic["factor"], of_topic["configs"])
            self._extend(topic, len(of_topic["starts"]), of_topic["starts"])
            self.by_name[name] = topic

    def save(self) -> None:
        """Writes down which topics there are: a new file, then in place of the old one."""
        if self.directory is None:
            return
        topics: dict[str, Any] = {
            topic.name: {
                "factor": topic.factor,
                "configs": topic.configs,
                "starts": [partition.log.start for partition in topic.partitions],
            }
            for topic in self.by_name.values()
        }
        replace(self.directory / "topics.json", json.dumps({"next_producer_id": self._reserved, "topics": topics}))

    def close(self) -> None:
        """Closes all files."""
        for partition in self:
            partition.log.store.close()

    def _folder(self, name: str) -> Path:
        assert self.directory is not None
        return self.directory / "topics" / quote(name, safe="")


def enough(replicas: Replicas, factor: int) -> int:
    """The number of copies that is meant; -1 stands for all that there are.

    Raises:
        Refused: there are not so many nodes.
    """
    if factor == -1:
        return replicas.count
    if not 1 <= factor <= replicas.count:
        message = f"Replication factor: {factor} larger than available brokers: {replicas.count}."
        raise Refused(ErrorCode.invalid_replication_factor, message)
    return factor


def replace(path: Path, text: str) -> None:
    """Writes a file as a whole: who reads it finds the old one or the new one."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
