"""What waits in the broker for records: the conditions of Kafka's delayed produce, fetch and delete, and what is answered.

Each waits under the keys of its partitions. Whoever moves a high watermark calls `check_and_complete` with that key.
"""

from collections.abc import Callable
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


def answer_writes(writes: list[Write]) -> Answer:
    """The answer to a produce request."""
    responses = [
        {
            "name": write.topic,
            "partition_responses": [
                {
                    "index": write.index,
                    "error_code": write.error,
                    "base_offset": write.offset if write.error is ErrorCode.none else -1,
                    "log_start_offset": write.partition.log.start if write.partition else -1,
                    "error_message": write.message,
                }
            ],
        }
        for write in writes
    ]
    return {"responses": responses}


class DelayedProduce(Delayed):
    """`acks=all`: until all replicas that are in sync have what was appended; at the deadline a timeout is answered."""

    __slots__ = ("writes",)

    def __init__(self, timeout: float, reply: Reply, writes: list[Write]) -> None:
        super().__init__(timeout, reply)
        self.writes = writes

    def try_complete(self) -> bool:
        """Each partition has the offset below its high watermark, or failed."""
        is_waiting = False
        for write in self.writes:
            if write.needed is None:
                continue
            partition = write.partition
            if partition is None or partition.is_deleted:
                write.error, write.needed = UNKNOWN, None
            elif partition.high_watermark >= write.needed:
                write.needed = None
                if not partition.has_enough_replicas:
                    write.error = ErrorCode.not_enough_replicas_after_append
            else:
                is_waiting = True
        return not is_waiting and self.force_complete()

    def answer(self) -> Answer:
        """For each partition its offset or its error."""
        for write in self.writes:
            if write.needed is not None:
                write.error = ErrorCode.request_timed_out
        return answer_writes(self.writes)


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
        left, is_empty = self.max_bytes, True
        topics: dict[str, list[Answer]] = {}
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
            topics.setdefault(read.topic, []).append(partition)
        return {"responses": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]}


class DelayedDeleteRecords(Delayed):
    """Until all replicas have let go of the records before an offset."""

    __slots__ = ("writes",)

    def __init__(self, timeout: float, reply: Reply, writes: list[Write]) -> None:
        super().__init__(timeout, reply)
        self.writes = writes

    def try_complete(self) -> bool:
        """Each partition's low watermark has reached the offset, or it failed."""
        is_waiting = False
        for write in self.writes:
            if write.needed is None:
                continue
            if write.partition is None or write.partition.is_deleted:
                write.error, write.needed = UNKNOWN, None
            elif write.partition.copies.low_watermark >= write.needed:
                write.needed = None
            else:
                is_waiting = True
        return not is_waiting and self.force_complete()

    def answer(self) -> Answer:
        """For each partition its first offset, or its error."""
        topics: dict[str, list[Answer]] = {}
        for write in self.writes:
            error = ErrorCode.request_timed_out if write.needed is not None else write.error
            low = write.offset if error is ErrorCode.none else -1
            topics.setdefault(write.topic, []).append(
                {"partition_index": write.index, "low_watermark": low, "error_code": error}
            )
        return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}
