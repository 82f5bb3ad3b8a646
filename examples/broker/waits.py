"""What waits in the broker for records: the conditions of Kafka's delayed produce, fetch and delete, and what is answered.

Each waits under the keys of its partitions. Whoever moves a high watermark calls `check_and_complete` with that key.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from purgatory import DelayedOperation

from .codec import Answer
from .topics import Partition

Reply = Callable[[Answer | Exception | None], None]
"""Sends an answer, once. An exception closes the connection; None sends nothing, as `acks=0` asks for."""

UNKNOWN: Final = ErrorCode.unknown_topic_or_partition


class Delayed(DelayedOperation[None]):
    """An operation that answers a request when it has ended."""

    __slots__ = ("reply",)

    def __init__(self, timeout: float | None, reply: Reply) -> None:
        super().__init__(timeout)
        self.reply = reply

    def answer(self) -> Answer:
        """What to answer, now that it has completed or expired."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """Answers."""
        try:
            answer: Answer | Exception = self.answer()
        except Exception as error:  # such as a disk that cannot be read
            answer = error
        self.reply(answer)


@dataclass(slots=True)
class Write:
    """One partition of a produce or delete request: what has become of it, and what it still waits for.

    Attributes:
        needed: the offset that all replicas have to reach; None if it is not waited for (any more).
    """

    topic: str
    index: int
    partition: Partition | None = None
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    offset: int = -1
    needed: int | None = None


def by_topic(parts: Iterable[tuple[str, Answer]]) -> dict[str, list[Answer]]:
    """Parts of an answer, under the names of their topics."""
    topics: dict[str, list[Answer]] = {}
    for topic, part in parts:
        topics.setdefault(topic, []).append(part)
    return topics


class DelayedWrite(Delayed):
    """Until each partition has what it is waited for, or has failed."""

    __slots__ = ("writes",)

    def __init__(self, timeout: float, reply: Reply, writes: list[Write]) -> None:
        super().__init__(timeout, reply)
        self.writes = writes

    def has_reached(self, write: Write, partition: Partition, needed: int) -> bool:
        """Whether one partition is not to be waited for any more."""
        raise NotImplementedError

    def try_complete(self) -> bool:
        """None is to be waited for."""
        is_waiting = False
        for write in self.writes:
            if write.needed is None:
                continue
            if write.partition is None or write.partition.is_deleted:
                write.error, write.needed = UNKNOWN, None
            elif self.has_reached(write, write.partition, write.needed):
                write.needed = None
            else:
                is_waiting = True
        return not is_waiting and self.force_complete()

    def answer(self) -> Answer:
        """For each partition how it went; what is still waited for was too slow."""
        for write in self.writes:
            if write.needed is not None:
                write.error = ErrorCode.request_timed_out
        return self.answer_of(self.writes)

    @staticmethod
    def answer_of(writes: list[Write]) -> Answer:
        """The same, when nothing is waited for."""
        raise NotImplementedError


class DelayedProduce(DelayedWrite):
    """`acks=all`: until all replicas that are in sync have what was appended."""

    __slots__ = ()

    def has_reached(self, write: Write, partition: Partition, needed: int) -> bool:
        """The high watermark is there; but perhaps because there are few replicas left."""
        if partition.high_watermark < needed:
            return False
        if not partition.has_enough_replicas:
            write.error = ErrorCode.not_enough_replicas_after_append
        return True

    @staticmethod
    def answer_of(writes: list[Write]) -> Answer:
        """Offsets and errors."""
        topics = by_topic(
            (
                write.topic,
                {
                    "index": write.index,
                    "error_code": write.error,
                    "base_offset": write.offset if write.error is ErrorCode.none else -1,
                    "log_start_offset": write.partition.log.start if write.partition else -1,
                    "error_message": write.message,
                },
            )
            for write in writes
        )
        return {"responses": [{"name": name, "partition_responses": parts} for name, parts in topics.items()]}


class DelayedDeleteRecords(DelayedWrite):
    """Until all replicas have let go of the records before an offset."""

    __slots__ = ()

    def has_reached(self, write: Write, partition: Partition, needed: int) -> bool:  # noqa: ARG002
        """The low watermark is there."""
        return partition.copies.low_watermark >= needed

    @staticmethod
    def answer_of(writes: list[Write]) -> Answer:
        """First offsets and errors."""
        topics = by_topic(
            (
                write.topic,
                {
                    "partition_index": write.index,
                    "error_code": write.error,
                    "low_watermark": write.offset if write.error is ErrorCode.none else -1,
                },
            )
            for write in writes
        )
        return {"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}


@dataclass(slots=True)
class Read:
    """One partition of a fetch request: from `offset` on, up to `size` bytes."""

    topic: str
    index: int
    partition: Partition | None
    error: ErrorCode
    offset: int
    size: int

    def find_error(self) -> ErrorCode:
        """Why nothing can be read, or that something could."""
        if self.error is not ErrorCode.none:
            return self.error
        if self.partition is None or self.partition.is_deleted:
            return UNKNOWN
        if not self.partition.log.start <= self.offset <= self.partition.log.end:
            return ErrorCode.offset_out_of_range
        return ErrorCode.none


class DelayedFetch(Delayed):
    """Until there are `min_bytes` to read in all partitions together; at the deadline what there is is answered."""

    __slots__ = ("max_bytes", "min_bytes", "reads")

    def __init__(self, timeout: float, reply: Reply, reads: list[Read], min_bytes: int, max_bytes: int) -> None:
        super().__init__(timeout, reply)
        self.reads, self.min_bytes, self.max_bytes = reads, min_bytes, max_bytes

    def try_complete(self) -> bool:
        """Enough to read, or an error to tell."""
        size = 0
        for read in self.reads:
            if read.find_error() is not ErrorCode.none:
                return self.force_complete()
            partition = read.partition
            assert partition is not None
            end = partition.high_watermark
            if read.offset < end:
                size += min(partition.log.size(read.offset, end), read.size)
        return size >= self.min_bytes and self.force_complete()

    def answer(self) -> Answer:
        """Whole batches, up to the limits; the first one in any case, so that a consumer gets on."""
        left, is_empty, parts = self.max_bytes, True, []
        for read in self.reads:
            error, records = read.find_error(), b""
            partition: Answer = {"partition_index": read.index, "error_code": error, "high_watermark": -1, "records": b""}
            if error is ErrorCode.none and read.partition is not None:
                end = read.partition.high_watermark
                records = read.partition.log.read(read.offset, end, min(read.size, left), at_least_one=is_empty)
                if records:
                    left, is_empty = left - len(records), False
                partition["records"] = records
                partition["high_watermark"] = partition["last_stable_offset"] = end
                partition["log_start_offset"] = read.partition.log.start
            parts.append((read.topic, partition))
        return {"responses": [{"topic": topic, "partitions": part} for topic, part in by_topic(parts).items()]}
