"""The requests that read and write records: produce, fetch, offsets by time, deletion, and numbers for idempotent producers."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .answers import Answer, ErrorCode, Refused, for_partitions
from .batches import read_produced
from .topics import Partition
from .waits import DelayedDeleteRecords, DelayedFetch, DelayedProduce, Write
from .wire import Request

if TYPE_CHECKING:
    from .broker import Broker

ALL: Final = -1  # acks
LATEST, EARLIEST, OF_GREATEST_TIME = -1, -2, -3  # in place of a time


def refuse_transactions(transactional_id: str | None) -> None:
    """Raises `Refused` if somebody wants one."""
    if transactional_id is not None:
        raise Refused(ErrorCode.transactional_id_authorization_failed, "transactions are not offered here")


class Records:
    """Handlers, each of them for all partitions of a request."""

    def __init__(self, broker: "Broker") -> None:
        self.broker, self.topics, self.replicas = broker, broker.topics, broker.replicas

    def produce(self, request: Request) -> Answer | DelayedProduce | None:
        """Appends; answers when as many replicas have it as `acks` says."""
        body, writes = request.body, list[Write]()

        def append(name: str, wanted: Any) -> Answer:
            refuse_transactions(body.transactional_id)
            partition = self.topics.partition(name, wanted.index)
            offset, end = self._append(partition, wanted.records or b"", body.acks)
            part = {"base_offset": offset, "log_start_offset": partition.log.start}
            writes.append(Write(part, partition, end))
            return part

        answer = for_partitions(body.topics, append, **DelayedProduce.if_refused)
        if body.acks == 0:
            parts = [part for topic in answer["topics"] for part in topic["partitions"]]
            error = next((part["error_message"] for part in parts if "error_code" in part), None)
            request.reply(ConnectionError(f"acks=0, so this is how to tell of {error}") if error else None)
            return None
        if body.acks != ALL or not writes:
            return answer
        operation = DelayedProduce(request, answer, writes)
        self.broker.produces.try_complete_else_watch(operation, operation.keys)
        return operation

    def _append(self, partition: Partition, records: bytes, acks: int) -> tuple[int, int]:
        """The offset of the first record, and the one after the last."""
        if acks not in (ALL, 0, 1):
            raise Refused(ErrorCode.invalid_required_acks, f"acks={acks}")
        if acks == ALL and not partition.has_enough_replicas:
            raise Refused(ErrorCode.not_enough_replicas, f"in sync: {sorted(partition.in_sync)}")
        try:
            place = partition.append(records, read_produced(records))
        except OSError as error:
            raise Refused(ErrorCode.kafka_storage_error, str(error)) from error
        if self.replicas.moved(partition, partition.log.start, partition.log.end):
            self.broker.later.append(partial(self.broker.written, partition.key))
        return place

    def fetch(self, request: Request) -> Answer | DelayedFetch:
        """Answers when there is enough to read, or at the deadline."""
        body = request.body
        goes_on = body.session_epoch > 0  # other epochs begin a session or decline it, and say all that they want
        if goes_on or not body.topics:  # sessions are not offered
            return {"error_code": ErrorCode.fetch_session_id_not_found if goes_on else ErrorCode.none}
        operation = DelayedFetch(request, self.topics)
        keys = [(topic.name, wanted.index) for topic in body.topics for wanted in topic.partitions]
        self.broker.fetches.try_complete_else_watch(operation, keys)
        return operation

    def list_offsets(self, request: Request) -> Answer:
        """The first offset, the next one, or that of a time."""
        return for_partitions(request.body.topics, self._offset)

    def _offset(self, name: str, wanted: Any) -> Answer:
        partition, time = self.topics.partition(name, wanted.index), wanted.timestamp
        log, end = partition.log, partition.high_watermark
        if time in (LATEST, EARLIEST):
            return {"offset": end if time == LATEST else log.start, "leader_epoch": 0}
        found = log.latest(end) if time == OF_GREATEST_TIME else log.since(time, end)
        return {} if found is None else {"offset": found[0], "timestamp": found[1], "leader_epoch": 0}

    def delete_records(self, request: Request) -> Answer | DelayedDeleteRecords:
        """Lets go of records; answers when all replicas have done so."""
        body, writes = request.body, list[Write]()

        def cut(name: str, wanted: Any) -> Answer:
            partition = self.topics.partition(name, wanted.index)
            offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
            if not 0 <= offset <= partition.high_watermark:
                raise Refused(ErrorCode.offset_out_of_range)
            partition.log.forget(offset)
            self.topics.save(partition.topic)
            self.replicas.moved(partition, partition.log.start, partition.log.end)
            self.broker.later.append(partial(self.broker.changed, partition.key))
            part = {"low_watermark": partition.log.start}
            writes.append(Write(part, partition, partition.log.start))
            return part

        answer = for_partitions(body.topics, cut, **DelayedDeleteRecords.if_refused)
        if not writes:
            return answer
        operation = DelayedDeleteRecords(request, answer, writes)
        self.broker.deletes.try_complete_else_watch(operation, operation.keys)
        return operation

    def init_producer_id(self, request: Request) -> Answer:
        """A number for a producer that is idempotent."""
        refuse_transactions(request.body.transactional_id)
        return {"producer_id": self.topics.new_producer_id()}
