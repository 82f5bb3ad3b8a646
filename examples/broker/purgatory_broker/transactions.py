"""Transactions: records in many partitions, and committed offsets, that consumers with `read_committed` see all or not at all.

EMPTY -> ONGOING: the producer adds a partition or a group
ONGOING -> PREPARE_COMMIT, PREPARE_ABORT: the producer ends it, another one takes its place, or its time is up
PREPARE_COMMIT, PREPARE_ABORT -> EMPTY: each partition has a marker, which says how it has ended, and the offsets are committed

Each change is in the metadata log before the next one, so that what was prepared is completed after a restart. The rules and
the terms are Kafka's (`TransactionCoordinator.scala`), before its KIP-890.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from purgatory import TimerTask, WheelTimer

from .batches import NO_PRODUCER, Batch, make_marker
from .metadata_log import Change, Key
from .responses import ApiError, ErrorCode, Response, for_partitions, raise_if
from .wire import Request

if TYPE_CHECKING:
    from .broker import Broker
    from .topics import Partition

MAX_TIMEOUT: Final = 900.0  # seconds; Kafka's transaction.max.timeout.ms
MAX_EPOCH: Final = 2**15 - 2
READ_COMMITTED: Final = 1  # the isolation level


class State(Enum):
    """Of a transaction; the values are Kafka's."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"


@dataclass(eq=False, kw_only=True)
class Transaction:
    """The transactions of one transactional id, one after the other.

    Attributes:
        timeout: in seconds, after which one is aborted.
        partitions: name and index of those that were added.
        offsets: what is committed with it, by group, topic and partition.
        groups: to which offsets may be committed.
        was_committed: how the last one has ended; None before.
        timer: when this one is aborted.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout: float
    state: State = State.EMPTY
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    was_committed: bool | None = None
    timer: TimerTask | None = None

    def to_metadata(self) -> Any:
        """The transaction as a value for the metadata log."""
        return {
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "timeout": self.timeout,
            "state": self.state.value,
            "partitions": sorted(self.partitions),
            "groups": sorted(self.groups),
            "offsets": [(*key, value) for key, value in self.offsets.items()],
            "was_committed": self.was_committed,
        }

    @classmethod
    def from_metadata(cls, transactional_id: str, value: Any) -> "Transaction":
        """The transaction as the metadata log has it."""
        return cls(
            transactional_id=transactional_id,
            producer_id=value["producer_id"],
            epoch=value["epoch"],
            timeout=value["timeout"],
            state=State(value["state"]),
            partitions={(name, index) for name, index in value["partitions"]},
            groups=set(value["groups"]),
            offsets={(group, name, index): offset for group, name, index, offset in value["offsets"]},
            was_committed=value["was_committed"],
        )


class PartitionTransactions:
    """What one partition's log says about transactions.

    Attributes:
        ongoing: the first offset of each that has no marker yet, by the id of its producer.
        aborted: producer, first offset, and offset of the marker, of each that was aborted, in the order of their markers.
    """

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        self.aborted: deque[tuple[int, int, int]] = deque()

    def add(self, batch: Batch, committed: bool | None) -> None:
        """Takes note of a batch that was appended; `committed` is what it says if it is a marker."""
        if not batch.is_transactional:
            return
        if committed is None:
            self.ongoing.setdefault(batch.producer_id, batch.base_offset)
            return
        first = self.ongoing.pop(batch.producer_id, None)
        if first is not None and not committed:
            self.aborted.append((batch.producer_id, first, batch.base_offset))

    def aborted_between(self, start: int, end: int) -> list[Response]:
        """Those that have records between two offsets, as consumers are told them. Cost: iterates over all aborted ones."""
        return [
            {"producer_id": producer_id, "first_offset": first}
            for producer_id, first, marker in self.aborted
            if marker >= start and first < end
        ]

    def discard_before(self, offset: int) -> None:
        """Forgets those whose records were deleted."""
        while self.aborted and self.aborted[0][2] < offset:
            self.aborted.popleft()


def added_partitions(body: Any, outcome: Callable[[tuple[str, int]], ErrorCode]) -> Response:
    """The response to a request that adds partitions, with the outcome for each."""
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"index": index, "partition_error_code": outcome((topic.name, index))} for index in topic.partitions
            ],
        }
        for topic in body.v3_and_below_topics
    ]
    return {"results_by_topic_v3_and_below": results}


class Transactions:
    """The coordinator of all transactions: the handlers of their requests."""

    def __init__(self, broker: "Broker") -> None:
        self._broker, self._metadata_log, self._timer = broker, broker.metadata_log, WheelTimer()
        table = self._metadata_log.tables["transactions"]
        self._by_id = {str(name): Transaction.from_metadata(str(name), value) for (name,), value in table.items()}

    def start(self) -> None:
        """Completes what was prepared before a restart, and aborts in time what is ongoing."""
        for transaction in self._by_id.values():
            if transaction.state is State.ONGOING:
                self._arm(transaction)
            elif transaction.state is not State.EMPTY:
                self._complete(transaction)

    def stop(self) -> None:
        """Nothing happens by itself any more."""
        for transaction in self._by_id.values():
            self._disarm(transaction)

    def clear(self) -> None:
        """Forgets all transactions. Their partitions are deleted already."""
        self.stop()
        self._metadata_log.append(*[("transactions", (name,), None) for name in self._by_id])
        self._by_id.clear()

    def unstable(self, key: Key) -> bool:
        """Whether an ongoing transaction is going to commit an offset for this group and partition."""
        return any(key in transaction.offsets for transaction in self._by_id.values())

    def verify(self, transactional_id: str | None, key: tuple[str, int], batch: Batch) -> None:
        """Raises `ApiError` if a batch cannot be appended to a partition as part of a transaction, or outside of one."""
        if not batch.is_transactional:
            return
        raise_if(transactional_id is None, ErrorCode.transactional_id_authorization_failed)
        transaction = self._by_id.get(transactional_id or "")
        if transaction is None or transaction.producer_id != batch.producer_id:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        raise_if(transaction.epoch != batch.producer_epoch, ErrorCode.invalid_producer_epoch)
        is_added = transaction.state is State.ONGOING and key in transaction.partitions
        raise_if(not is_added, ErrorCode.invalid_txn_state, f"partition {key[1]} of {key[0]!r} is in no transaction")

    # -- the requests of a producer

    def init_producer_id(self, request: Request) -> Response:
        """The id and the epoch of a producer; whoever had this transactional id before is fenced."""
        body, name = request.body, request.body.transactional_id
        if name is None:
            return {"producer_id": self._broker.topics.new_producer_id()}
        raise_if(not name, ErrorCode.invalid_request, "an empty transactional.id")
        raise_if(not 0 < body.transaction_timeout <= MAX_TIMEOUT, ErrorCode.invalid_transaction_timeout)
        known = self._by_id.get(name)
        if known is None:
            producer_id = self._broker.topics.new_producer_id()
            known = Transaction(transactional_id=name, producer_id=producer_id, epoch=0, timeout=body.transaction_timeout)
        else:
            claimed = getattr(body, "producer_id", NO_PRODUCER), getattr(body, "producer_epoch", -1)
            is_fenced = claimed[0] >= 0 and claimed != (known.producer_id, known.epoch)
            raise_if(is_fenced, self._fenced(request, first_version=4))
            if known.state is not State.EMPTY:
                self._abort_by_fencing(known)
            known.timeout = body.transaction_timeout
            self._bump(known)
        self._save(known)
        self._by_id[name] = known
        return {"producer_id": known.producer_id, "producer_epoch": known.epoch}

    def add_partitions_to_txn(self, request: Request) -> Response:
        """Adds partitions to a transaction, which begins with the first one."""
        body = request.body
        wanted = [(topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions]
        try:
            identity = body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
            transaction = self._find(request, *identity)
            unknown = [key for key in wanted if not self._has_partition(*key)]
            code = ErrorCode.operation_not_attempted if unknown else ErrorCode.none
            if not unknown:
                self._begin(transaction, lambda: transaction.partitions.update(wanted))
        except ApiError as error:
            code, unknown = error.code, []
        return added_partitions(body, lambda key: ErrorCode.unknown_topic_or_partition if key in unknown else code)

    def add_offsets_to_txn(self, request: Request) -> Response:
        """Adds a group, whose offsets are to be committed with the transaction."""
        body = request.body
        transaction = self._find(request, body.transactional_id, body.producer_id, body.producer_epoch)
        self._begin(transaction, lambda: transaction.groups.add(body.group_id))
        return {}

    def txn_offset_commit(self, request: Request) -> Response:
        """Offsets that are committed when the transaction is."""
        body, offsets = request.body, dict[tuple[str, str, int], Any]()

        def commit(name: str, wanted: Any) -> None:
            transaction = self._find(request, body.transactional_id, body.producer_id, body.producer_epoch)
            is_possible = transaction.state is State.ONGOING and body.group_id in transaction.groups
            raise_if(not is_possible, ErrorCode.invalid_txn_state)
            self._broker.coordinator.check_transactional_commit(body)
            self._broker.topics.partition(name, wanted.index)
            value = wanted.committed_offset, wanted.committed_leader_epoch, wanted.committed_metadata or ""
            offsets[body.group_id, name, wanted.index] = value

        response = for_partitions(body.topics, commit)
        if offsets:
            transaction = self._by_id[body.transactional_id]
            transaction.offsets |= offsets
            self._save(transaction)
        return response

    def end_txn(self, request: Request) -> Response:
        """Commits or aborts a transaction."""
        body = request.body
        transaction = self._find(request, body.transactional_id, body.producer_id, body.producer_epoch)
        if transaction.state is State.EMPTY:
            raise_if(transaction.was_committed is not body.committed, ErrorCode.invalid_txn_state)
            return {}  # the last response was lost
        prepared = State.PREPARE_COMMIT if body.committed else State.PREPARE_ABORT
        raise_if(transaction.state not in (State.ONGOING, prepared), ErrorCode.invalid_txn_state)
        self._end(transaction, prepared)
        return {}

    # -- the steps

    def _find(self, request: Request, transactional_id: str, producer_id: int, epoch: int) -> Transaction:
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        raise_if(transaction.epoch != epoch, self._fenced(request, first_version=2))
        return transaction

    @staticmethod
    def _fenced(request: Request, first_version: int) -> ErrorCode:
        """The error for a producer that another one has replaced; older versions of a request know another one."""
        return ErrorCode.producer_fenced if request.version >= first_version else ErrorCode.invalid_producer_epoch

    def _has_partition(self, name: str, index: int) -> bool:
        topic = self._broker.topics.by_name.get(name)
        return topic is not None and 0 <= index < len(topic.partitions)

    def _begin(self, transaction: Transaction, change: Callable[[], object]) -> None:
        """Changes a transaction that goes on, or begins with that."""
        raise_if(transaction.state not in (State.EMPTY, State.ONGOING), ErrorCode.concurrent_transactions)
        change()
        if transaction.state is State.EMPTY:
            transaction.state, transaction.was_committed = State.ONGOING, None
            self._arm(transaction)
        self._save(transaction)

    def _end(self, transaction: Transaction, prepared: State) -> None:
        """Ends a transaction. If the disk is full, the same is to be asked for once more: it goes on from where it was."""
        if transaction.state is State.ONGOING:
            transaction.state = prepared
            try:
                self._save(transaction)
            except OSError:
                transaction.state = State.ONGOING
                raise
        self._complete(transaction)
        self._disarm(transaction)

    def _complete(self, transaction: Transaction) -> None:
        """Writes the markers and, if it is committed, the offsets. A partition that has its marker gets no second one."""
        committed = transaction.state is State.PREPARE_COMMIT
        for name, index in sorted(transaction.partitions):
            if self._has_partition(name, index):
                self._mark(self._broker.topics.partition(name, index), transaction, committed)
        changes: list[Change] = [("offsets", key, value) for key, value in transaction.offsets.items() if committed]
        for key in transaction.offsets:
            self._broker.coordinator.ensure_group(key[0])
        transaction.state, transaction.was_committed = State.EMPTY, committed
        transaction.partitions, transaction.groups, transaction.offsets = set(), set(), {}
        self._metadata_log.append(*changes, ("transactions", (transaction.transactional_id,), transaction.to_metadata()))

    def _mark(self, partition: "Partition", transaction: Transaction, committed: bool) -> None:
        if transaction.producer_id in partition.transactions.ongoing:
            now = self._broker.clock.milliseconds()
            partition.append_marker(make_marker(transaction.producer_id, transaction.epoch, now, committed), committed)
            self._broker.on_marker(partition)

    def _expire(self, transaction: Transaction) -> None:
        """It has taken too long: it is aborted, and its producer is fenced."""
        try:
            self._abort_by_fencing(transaction)
        except OSError:  # the disk is full: once more, later
            self._arm(transaction)
        self._broker.run_deferred()

    def _abort_by_fencing(self, transaction: Transaction) -> None:
        """Aborts a transaction, or completes one that was prepared; its producer is fenced."""
        if transaction.state is State.ONGOING:
            self._bump(transaction)
        self._end(transaction, State.PREPARE_ABORT)

    def _bump(self, transaction: Transaction) -> None:
        """A new epoch, by which the producer that has the old one is fenced."""
        if transaction.epoch >= MAX_EPOCH and transaction.state is not State.ONGOING:
            transaction.producer_id, transaction.epoch = self._broker.topics.new_producer_id(), 0
        else:
            transaction.epoch += 1

    def _arm(self, transaction: Transaction) -> None:
        transaction.timer = self._timer.call_later(transaction.timeout, self._expire, transaction)

    def _disarm(self, transaction: Transaction) -> None:
        if transaction.timer is not None:
            transaction.timer.cancel()

    def _save(self, transaction: Transaction) -> None:
        self._metadata_log.append(("transactions", (transaction.transactional_id,), transaction.to_metadata()))
