"""The requests that read and write records: produce, fetch, offsets by time, deletion, and numbers for idempotent producers."""

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .answers import Answer, ErrorCode, Refused, for_partitions, refuse_if
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
        acks, operation = request.body.acks, DelayedProduce(request, partial(self._append, request.body))
        if acks == 0:
            parts = [part for topic in operation.answer["topics"] for part in topic["partitions"]]
            errors = [part["error_message"] for part in parts if "error_code" in part]
            request.reply(ConnectionError(f"acks=0, so this is how to tell of {errors[0]}") if errors else None)
            return None
        if acks != ALL or not operation.writes:
            return operation.answer
        self.broker.produces.try_complete_else_watch(operation, operation.keys)
        return operation

    def _append(self, body: Any, name: str, wanted: Any) -> Write:
        refuse_transactions(body.transactional_id)
        partition = self.topics.partition(name, wanted.index)
        if body.acks not in (ALL, 0, 1):
            raise Refused(ErrorCode.invalid_required_acks, f"acks={body.acks}")
        if body.acks == ALL and not partition.has_enough_replicas:
            raise Refused(ErrorCode.not_enough_replicas, f"in sync: {sorted(partition.in_sync)}")
        try:
            batch = partition.append(wanted.records or b"")
        except OSError as error:
            raise Refused(ErrorCode.kafka_storage_error, str(error)) from error
        if self.replicas.moved(partition):
            self.broker.later.append(partial(self.broker.written, partition.key))
        part = {"base_offset": batch.base_offset, "log_start_offset": partition.log.start}
        return Write(part, partition, batch.next_offset)

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
        operation = DelayedDeleteRecords(request, self._cut)
        if not operation.writes:
            return operation.answer
        self.broker.deletes.try_complete_else_watch(operation, operation.keys)
        return operation

    def _cut(self, name: str, wanted: Any) -> Write:
        partition = self.topics.partition(name, wanted.index)
        offset = partition.high_watermark if wanted.offset == -1 else wanted.offset
        refuse_if(not 0 <= offset <= partition.high_watermark, ErrorCode.offset_out_of_range)
        partition.log.forget(offset)
        self.topics.save(partition.topic)
        self.replicas.moved(partition)
        self.broker.later.append(partial(self.broker.changed, partition.key))
        return Write({"low_watermark": partition.log.start}, partition, partition.log.start)

    def init_producer_id(self, request: Request) -> Answer:
        """A number for a producer that is idempotent."""
        refuse_transactions(request.body.transactional_id)
        return {"producer_id": self.topics.new_producer_id()}
