"""What waits in the broker for records: the conditions of Kafka's delayed produce, fetch and delete, and what is answered.

Each waits under the keys of its partitions. Whoever moves a high watermark calls `check_and_complete` with that key.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from purgatory import DelayedOperation

from .answers import Answer, ErrorCode, Refused, for_partitions
from .topics import Partition, Topics
from .wire import Request


class Write(NamedTuple):
    """One partition of a produce or delete request that is still waited for.

    Attributes:
        part: of the answer.
        needed: the offset that the replicas have to reach.
    """

    part: Answer
    partition: Partition
    needed: int


class DelayedWrite(DelayedOperation[None]):
    """Until each partition has what it is waited for, or is deleted.

    Args:
        write: does what is asked for one partition of a topic. This happens at once.

    Attributes:
        answer: how it went so far.
        writes: those that are waited for.
        keys: of their partitions.
        if_refused: what is answered besides an error.
    """

    if_refused: ClassVar[Answer]

    def __init__(self, request: Request, write: Callable[[str, Any], Write]) -> None:
        super().__init__(request.body.timeout)
        self.request, self.writes = request, list[Write]()

        def part(name: str, wanted: Any) -> Answer:
            self.writes.append(write(name, wanted))
            return self.writes[-1].part

        self.answer = for_partitions(request.body.topics, part, **self.if_refused)
        self.keys = [write.partition.key for write in self.writes]

    def error_of(self, write: Write) -> ErrorCode | None:
        """What has become of one partition; None if it is still to be waited for."""
        raise NotImplementedError

    def try_complete(self) -> bool:
        """None is to be waited for."""
        for write in self.writes.copy():
            error = ErrorCode.unknown_topic_or_partition if write.partition.is_deleted else self.error_of(write)
            if error is not None:
                self._end(write, error)
        return not self.writes and self.force_complete()

    def on_complete(self) -> None:
        """Answers for each partition; what is still waited for was too slow."""
        for write in self.writes.copy():
            self._end(write, ErrorCode.request_timed_out)
        self.request.reply(self.answer)

    def _end(self, write: Write, error: ErrorCode) -> None:
        self.writes.remove(write)
        if error is not ErrorCode.none:
            write.part.update(self.if_refused, error_code=error)


class DelayedProduce(DelayedWrite):
    """`acks=all`: until all replicas that are in sync have what was appended."""

    if_refused: ClassVar[Answer] = {"base_offset": -1}

    def error_of(self, write: Write) -> ErrorCode | None:
        """None before the high watermark is there. It may be there because few replicas are left."""
        if write.partition.high_watermark < write.needed:
            return None
        return ErrorCode.none if write.partition.has_enough_replicas else ErrorCode.not_enough_replicas_after_append


class DelayedDeleteRecords(DelayedWrite):
    """Until all replicas have let go of the records before an offset."""

    if_refused: ClassVar[Answer] = {"low_watermark": -1}

    def error_of(self, write: Write) -> ErrorCode | None:
        """None before the low watermark is there."""
        return ErrorCode.none if write.partition.low_watermark >= write.needed else None


class DelayedFetch(DelayedOperation[None]):
    """Until there are `min_bytes` to read in all partitions together; at the deadline what there is is answered."""

    __slots__ = ("left", "request", "topics")

    def __init__(self, request: Request, topics: Topics) -> None:
        super().__init__(request.body.max_wait)
        self.request, self.topics, self.left = request, topics, request.body.max_bytes

    def try_complete(self) -> bool:
        """Enough to read, or an error to tell."""
        size, body = 0, self.request.body
        try:
            for topic in body.topics:
                for wanted in topic.partitions:
                    partition = self._partition(topic.name, wanted)
                    available = partition.log.size(wanted.fetch_offset, partition.high_watermark)
                    size += min(available, wanted.partition_max_bytes)
        except Refused:
            return self.force_complete()
        return size >= body.min_bytes and self.force_complete()

    def on_complete(self) -> None:
        """Answers whole batches, up to the limits."""
        try:
            answer: Answer | Exception = for_partitions(self.request.body.topics, self._read, high_watermark=-1, records=b"")
        except OSError as error:  # a disk that cannot be read
            answer = error
        self.request.reply(answer)

    def _partition(self, name: str, wanted: Any) -> Partition:
        """One that can be read. Raises `Refused` if it cannot."""
        partition = self.topics.partition(name, wanted.index)
        if wanted.current_leader_epoch > 0:
            raise Refused(ErrorCode.unknown_leader_epoch)
        if not partition.log.start <= wanted.fetch_offset <= partition.log.end:
            raise Refused(ErrorCode.offset_out_of_range)
        return partition

    def _read(self, name: str, wanted: Any) -> Answer:
        """What one partition has; its first batch in any case if nothing was read before, so that a consumer gets on."""
        partition, is_first = self._partition(name, wanted), self.left == self.request.body.max_bytes
        log, end, size = partition.log, partition.high_watermark, min(wanted.partition_max_bytes, self.left)
        records = log.read(wanted.fetch_offset, end, size, at_least_one=is_first)
        self.left -= len(records)
        return {"high_watermark": end, "last_stable_offset": end, "log_start_offset": log.start, "records": records}
