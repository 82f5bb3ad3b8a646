"""Handlers of the requests that read and write records: produce, fetch, list offsets, delete
records."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .batches import Budget
from .delayed_operations import DelayedDeleteRecords, DelayedFetch, DelayedProduce, Write
from .responses import ApiError, ErrorCode, Response, for_partitions, raise_if
from .wire import Request

if TYPE_CHECKING:
    from .broker import Broker

ACKS_ALL: Final = -1
FIRST_WITH_TOPIC_IDS: Final = 13  # version of fetch that has them instead of names
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3  # instead of a time


class Records:
    """The handlers."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.topics, self.followers = broker, broker.topics, broker.followers

    def produce(self, request: Request) -> Response | DelayedProduce | None:
        """Appends; responds when the replicas that `acks` asks for have the records."""
        body, writes, budget = request.body, list[Write](), Budget()

        def append(name: str, wanted: Any) -> Response:
            writes.append(self._append(body, name, wanted, budget))
            return writes[-1].entry

        response = for_partitions(body.topics, append, **DelayedProduce.on_error)
        if body.acks == 0:
            entries = [entry for topic in response["topics"] for entry in topic["partitions"]]
            errors = [entry["error_message"] for entry in entries if "error_code" in entry]
            # With acks=0 there is no response, so closing the connection is the only way to report
            # an error.
            request.respond(ConnectionError(f"acks=0, and {errors[0]}") if errors else None)
            return None
        if body.acks != ACKS_ALL or not writes:
            return response
        operation = DelayedProduce(request, response, writes)
        self.broker.produces.try_complete_else_watch(
            operation, [write.partition.key for write in writes]
        )
        return operation

    def _append(self, body: Any, name: str, wanted: Any, budget: Budget) -> Write:
        partition = self.topics.partition(name, wanted.index)
        if body.acks not in (ACKS_ALL, 0, 1):
            raise ApiError(ErrorCode.invalid_required_acks, f"acks={body.acks}")
        if body.acks == ACKS_ALL and not partition.has_enough_replicas:
            raise ApiError(ErrorCode.not_enough_replicas, f"in sync: {sorted(partition.in_sync)}")
        verify = partial(self.broker.transactions.verify, body.transactional_id, partition.key)
        now = self.topics.clock.milliseconds()
        batch = partition.append(wanted.records or b"", now, verify, budget)
        if self.followers.replicate(partition):
            self.broker.deferred.append(partial(self.broker.on_append, partition.key))
        entry = {
            "base_offset": batch.base_offset,
            "log_append_time": batch.max_time if partition.topic.config.takes_append_time else None,
            "log_start_offset": partition.log.start,
        }
        return Write(entry, partition, batch.next_offset)

    def fetch(self, request: Request) -> Response | DelayedFetch:
        """Responds when there is enough to read, or at the deadline."""
        body = request.body
        continues_session = (
            body.session_epoch > 0
        )  # other epochs start a session or decline it, and name all partitions
        if continues_session or not body.topics:  # sessions are not offered
            return {
                "error_code": ErrorCode.fetch_session_id_not_found
                if continues_session
                else ErrorCode.none
            }
        if request.version >= FIRST_WITH_TOPIC_IDS:
            for topic in body.topics:
                topic.name = self.topics.name_of(topic.topic_id)
        operation = DelayedFetch(request, self.topics)
        keys = [(topic.name, wanted.index) for topic in body.topics for wanted in topic.partitions]
        self.broker.fetches.try_complete_else_watch(operation, keys)
        return operation

    def list_offsets(self, request: Request) -> Response:
        """The first offset of partitions, the next one, or the offset of a time."""
        seen: Counter[tuple[str, int]] = Counter(
            (topic.name, wanted.index)
            for topic in request.body.topics
            for wanted in topic.partitions
        )

        def offset(name: str, wanted: Any) -> Response:
            is_repeated = seen[name, wanted.index] > 1  # as by Kafka: each costs a search
            raise_if(is_repeated, ErrorCode.invalid_request, "a partition is there twice")
            return self._offset(request.body.isolation_level, name, wanted)

        return for_partitions(request.body.topics, offset)

    def _offset(self, isolation_level: int, name: str, wanted: Any) -> Response:
        partition, time = self.topics.partition(name, wanted.index), wanted.timestamp
        log, end = partition.log, partition.readable_end(isolation_level)
        if time in (LATEST, EARLIEST):
            return {"offset": end if time == LATEST else log.start, "leader_epoch": 0}
        found = log.find_max_time(end) if time == MAX_TIMESTAMP else log.find_time(time, end)
        return (
            {} if found is None else {"offset": found[0], "timestamp": found[1], "leader_epoch": 0}
        )

    def delete_records(self, request: Request) -> Response | DelayedDeleteRecords:
        """Deletes records; responds when all replicas have done so."""
        writes = list[Write]()

        def delete(name: str, wanted: Any) -> Response:
            writes.append(self._delete(name, wanted))
            return writes[-1].entry

        response = for_partitions(request.body.topics, delete, **DelayedDeleteRecords.on_error)
        if not writes:
            return response
        operation = DelayedDeleteRecords(request, response, writes)
        self.broker.deletes.try_complete_else_watch(
            operation, [write.partition.key for write in writes]
        )
        return operation

    def _delete(self, name: str, wanted: Any) -> Write:
        partition = self.topics.partition(name, wanted.index)
        offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
        raise_if(not 0 <= offset <= partition.high_watermark, ErrorCode.offset_out_of_range)
        partition.log.delete_before(offset)
        partition.transactions.discard_before(offset)
        self.topics.save(partition.topic)
        self.followers.replicate(partition)
        self.broker.deferred.append(partial(self.broker.on_watermark, partition.key))
        return Write({"low_watermark": partition.log.start}, partition, partition.log.start)
