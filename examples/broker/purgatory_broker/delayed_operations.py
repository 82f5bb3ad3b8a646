"""The delayed operations of produce, delete records and fetch: Kafka's conditions, and the
responses.

Each waits under the keys of its partitions. Code that moves a high watermark calls
`check_and_complete` with that key.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

from purgatory import DelayedOperation

from .partition_transactions import READ_COMMITTED
from .responses import ApiError, ErrorCode, Response, for_partitions
from .topics import Partition, Topics
from .wire import Request


class Write(NamedTuple):
    """The effect of a produce or delete request on one partition.

    Attributes:
        entry: entry of the response.
        required_offset: the offset that the replicas must reach before the response.
    """

    entry: Response
    partition: Partition
    required_offset: int


class DelayedWrite(DelayedOperation[None]):
    """Completes when each partition has reached its required offset, or is deleted.

    Args:
        response: has the entries of all partitions; entries of `writes` may still become errors.
        writes: the effects on partitions, which replicas have not confirmed yet.

    Attributes:
        pending: the writes without a confirmation.
        on_error: fields of a partition's entry besides the error.
    """

    on_error: ClassVar[Response]

    def __init__(self, request: Request, response: Response, writes: Sequence[Write]) -> None:
        super().__init__(request.body.timeout)
        self.request, self.response, self.pending = request, response, list(writes)

    @abstractmethod
    def status(self, write: Write) -> ErrorCode | None:
        """The outcome for one partition; None while it is pending."""

    def try_complete(self) -> bool:
        """No partition is pending any more."""
        for write in self.pending.copy():
            error = (
                ErrorCode.unknown_topic_or_partition
                if write.partition.is_deleted
                else self.status(write)
            )
            if error is not None:
                self._finish(write, error)
        return not self.pending and self.force_complete()

    def on_complete(self) -> None:
        """Responds; partitions that are still pending have timed out."""
        for write in self.pending.copy():
            self._finish(write, ErrorCode.request_timed_out)
        self.request.respond(self.response)

    def _finish(self, write: Write, error: ErrorCode) -> None:
        self.pending.remove(write)
        if error is not ErrorCode.none:
            write.entry.update(self.on_error, error_code=error)


class DelayedProduce(DelayedWrite):
    """A produce request with `acks=all`: completes when all in-sync replicas have the records."""

    on_error: ClassVar[Response] = {"base_offset": -1}

    def status(self, write: Write) -> ErrorCode | None:
        """None below the high watermark. That may also have moved because too few replicas are left
        in sync."""
        if write.partition.high_watermark < write.required_offset:
            return None
        return (
            ErrorCode.none
            if write.partition.has_enough_replicas
            else ErrorCode.not_enough_replicas_after_append
        )


class DelayedDeleteRecords(DelayedWrite):
    """Completes when all replicas have deleted the records before an offset."""

    on_error: ClassVar[Response] = {"low_watermark": -1}

    def status(self, write: Write) -> ErrorCode | None:
        """None until the low watermark is there."""
        return ErrorCode.none if write.partition.low_watermark >= write.required_offset else None


MAX_FETCH_SIZE: Final = 1024 * 1024
"""Limit of a response to a fetch, in bytes, unless its first batch is larger. It bounds the memory
for a client that does not read, and the time for which other requests wait while a response is
built. Kafka's fetch.max.bytes is 55 MiB, but Kafka does not copy the batches."""


class DelayedFetch(DelayedOperation[None]):
    """Completes when all partitions together have `min_bytes` to read; at the deadline it responds
    with the available records."""

    on_error: ClassVar[Response] = {"high_watermark": -1, "records": b""}

    __slots__ = ("has_read", "remaining", "request", "topics")

    def __init__(self, request: Request, topics: Topics) -> None:
        super().__init__(request.body.max_wait)
        self.request, self.topics, self.remaining = (
            request,
            topics,
            min(request.body.max_bytes, MAX_FETCH_SIZE),
        )
        self.has_read = False

    def try_complete(self) -> bool:
        """There is enough to read, or an error."""
        size, body = 0, self.request.body
        try:
            for topic in body.topics:
                for wanted in topic.partitions:
                    partition = self._partition(topic.name, wanted)
                    available = partition.log.size(
                        wanted.fetch_offset, partition.readable_end(body.isolation_level)
                    )
                    size += min(available, wanted.partition_max_bytes)
        except ApiError:
            return self.force_complete()
        return size >= min(body.min_bytes, MAX_FETCH_SIZE) and self.force_complete()

    def on_complete(self) -> None:
        """Responds with whole batches, up to the limits."""
        try:
            response: Response | Exception = for_partitions(
                self.request.body.topics, self._read, **self.on_error
            )
        except OSError as error:  # the disk cannot be read
            response = error
        self.request.respond(response)

    def _partition(self, name: str | None, wanted: Any) -> Partition:
        """The partition. Raises `ApiError` if it cannot be read from this offset."""
        if name is None:
            raise ApiError(ErrorCode.unknown_topic_id)
        partition = self.topics.partition(name, wanted.index)
        if wanted.current_leader_epoch > 0:
            raise ApiError(ErrorCode.unknown_leader_epoch)
        if not partition.log.start <= wanted.fetch_offset <= partition.log.end:
            raise ApiError(ErrorCode.offset_out_of_range)
        return partition

    def _read(self, name: str | None, wanted: Any) -> Response:
        """Reads one partition. The first batch of the response may exceed the limits, so that a
        consumer makes progress."""
        partition = self._partition(name, wanted)
        isolation_level = self.request.body.isolation_level
        log, size = partition.log, min(wanted.partition_max_bytes, self.remaining)
        end = partition.readable_end(isolation_level)
        records, end = log.read(wanted.fetch_offset, end, size, at_least_one=not self.has_read)
        self.remaining -= len(records)
        self.has_read = self.has_read or bool(records)
        is_committed = isolation_level == READ_COMMITTED
        return {
            "high_watermark": partition.high_watermark,
            "last_stable_offset": partition.last_stable_offset,
            "log_start_offset": log.start,
            "aborted_transactions": partition.transactions.aborted_between(wanted.fetch_offset, end)
            if is_committed
            else None,
            "records": records,
        }
