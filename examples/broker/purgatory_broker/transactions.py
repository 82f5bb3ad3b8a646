"""Transactions: records in many partitions, and committed offsets, that consumers with
`read_committed` see all or not at all.

- EMPTY -> ONGOING: the producer adds a partition or a group.
- ONGOING -> PREPARE_COMMIT, PREPARE_ABORT: the producer ends it, another one takes its place, or its
  time is up.
- PREPARE_COMMIT, PREPARE_ABORT -> EMPTY: each partition has a marker with the outcome, and the
  offsets are committed.

Each change is in the metadata log before the next one, so that prepared transactions are completed
after a restart. The rules and the terms are Kafka's (`TransactionCoordinator.scala`), before its
KIP-890.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from purgatory import TimerTask, WheelTimer

from .batches import Batch, make_marker
from .metadata_log import Change, Key
from .responses import ApiError, ErrorCode, Response, attempt, for_partitions, raise_if
from .wire import Request

if TYPE_CHECKING:
    from .broker import Broker
    from .topics import Partition

MAX_TIMEOUT: Final = 900.0  # seconds; Kafka's transaction.max.timeout.ms
MAX_EPOCH: Final = 2**15 - 2


class State(Enum):
    """Of a transaction; the values are Kafka's."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """The transactions of one transactional id, one after the other. Each change makes another one
    of it.

    Attributes:
        timeout: seconds after which a transaction is aborted.
        began: start of this one, in seconds since 1970.
        replaced: id and epoch that the producer gave back for these ones; None if it did not, or a
            transaction has started since.
        partitions: names and indexes of the added partitions.
        offsets: offsets that are committed with it, by group, topic and partition.
        groups: to which offsets may be committed.
        was_committed: how the last one has ended; None before.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    timeout: float
    replaced: tuple[int, int] | None = None
    began: float = 0.0
    state: State = State.EMPTY
    partitions: frozenset[tuple[str, int]] = frozenset()
    groups: frozenset[str] = frozenset()
    offsets: Mapping[tuple[str, str, int], Any] = field(default_factory=dict)
    was_committed: bool | None = None

    def to_metadata(self) -> Any:
        """The transaction as a value for the metadata log."""
        return {
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "timeout": self.timeout,
            "began": self.began,
            "replaced": self.replaced,
            "state": self.state.value,
            "partitions": sorted(self.partitions),
            "groups": sorted(self.groups),
            "offsets": [(*key, value) for key, value in self.offsets.items()],
            "was_committed": self.was_committed,
        }

    @classmethod
    def from_metadata(cls, transactional_id: str, value: Any) -> "Transaction":
        """The transaction as the metadata log has it."""
        replaced = value.get(
            "replaced"
        )  # earlier versions did not write it, nor the start of a transaction
        return cls(
            transactional_id=transactional_id,
            producer_id=value["producer_id"],
            epoch=value["epoch"],
            timeout=value["timeout"],
            replaced=None if replaced is None else (replaced[0], replaced[1]),
            began=value.get("began", 0.0),
            state=State(value["state"]),
            partitions=frozenset((name, index) for name, index in value["partitions"]),
            groups=frozenset(value["groups"]),
            offsets={
                (group, name, index): offset for group, name, index, offset in value["offsets"]
            },
            was_committed=value["was_committed"],
        )


def added_partitions(body: Any, outcome: Callable[[tuple[str, int]], ErrorCode]) -> Response:
    """The response to a request that adds partitions, with the outcome for each."""
    results = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"index": index, "partition_error_code": outcome((topic.name, index))}
                for index in topic.partitions
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
        self._by_id = {
            str(name): Transaction.from_metadata(str(name), value)
            for (name,), value in table.items()
        }
        self._timers: dict[
            str, TimerTask
        ] = {}  # by transactional id; when an ongoing transaction is aborted

    def start(self) -> None:
        """Completes transactions that were prepared before a restart, and aborts ongoing ones in
        time."""
        for transaction in list(self._by_id.values()):
            for group_id, _, _ in transaction.offsets:
                self._broker.coordinator.ensure_group(group_id)
            if transaction.state is State.ONGOING:
                self._arm(
                    transaction,
                    max(0.0, transaction.began + transaction.timeout - self._broker.clock.time()),
                )
            elif transaction.state is not State.EMPTY:
                self._end_by_itself(transaction.transactional_id)

    def stop(self) -> None:
        """Nothing happens by itself any more."""
        for name in list(self._timers):
            self._disarm(name)

    def clear(self) -> None:
        """Forgets all transactions. Their partitions are deleted already."""
        self.stop()
        self._metadata_log.append(*[("transactions", (name,), None) for name in self._by_id])
        self._by_id.clear()

    def unstable(self, key: Key) -> bool:
        """Whether an ongoing transaction is going to commit an offset for this group and
        partition."""
        return any(key in transaction.offsets for transaction in self._by_id.values())

    def discard_offsets(self, which: Callable[[Key], bool]) -> None:
        """Transactions do not commit these offsets any more: another request has committed or
        deleted them meanwhile."""
        for transaction in list(self._by_id.values()):
            kept = {key: value for key, value in transaction.offsets.items() if not which(key)}
            if len(kept) < len(transaction.offsets):
                changed = self._by_id[transaction.transactional_id] = replace(
                    transaction, offsets=kept
                )
                with suppress(ApiError):  # after a restart they are committed
                    self._save(changed)

    def verify(self, transactional_id: str | None, key: tuple[str, int], batch: Batch) -> None:
        """Raises `ApiError` if a batch is to be part of a transaction, and cannot be appended to
        this partition as that."""
        if not batch.is_transactional:
            return
        raise_if(transactional_id is None, ErrorCode.transactional_id_authorization_failed)
        transaction = self._by_id.get(transactional_id or "")
        if transaction is None or transaction.producer_id != batch.producer_id:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        raise_if(transaction.epoch != batch.producer_epoch, ErrorCode.invalid_producer_epoch)
        is_added = transaction.state is State.ONGOING and key in transaction.partitions
        raise_if(
            not is_added,
            ErrorCode.invalid_txn_state,
            f"partition {key[1]} of {key[0]!r} is in no transaction",
        )

    # -- the requests of a producer

    def init_producer_id(self, request: Request) -> Response:
        """The id and the epoch of a producer; an earlier producer with this transactional id is
        fenced."""
        body, name = request.body, request.body.transactional_id
        if name is None:
            return {"producer_id": self._broker.topics.new_producer_id()}
        raise_if(not name, ErrorCode.invalid_request, "an empty transactional.id")
        raise_if(
            not 0 < body.transaction_timeout <= MAX_TIMEOUT, ErrorCode.invalid_transaction_timeout
        )
        known = self._by_id.get(name)
        if known is None:
            producer_id = self._broker.topics.new_producer_id()
            new = Transaction(
                transactional_id=name,
                producer_id=producer_id,
                epoch=0,
                timeout=body.transaction_timeout,
            )
        else:
            claimed = None if body.producer_id < 0 else (body.producer_id, body.producer_epoch)
            if claimed is not None and claimed == known.replaced:  # the last response was lost
                return {"producer_id": known.producer_id, "producer_epoch": known.epoch}
            is_fenced = claimed not in (None, (known.producer_id, known.epoch))
            raise_if(is_fenced, self._fenced(request, first_version=4))
            if known.state is not State.EMPTY:
                known = self._abort_by_fencing(known)
            producer_id, epoch = known.producer_id, known.epoch + 1
            if epoch > MAX_EPOCH:
                producer_id, epoch = self._broker.topics.new_producer_id(), 0
            new = replace(
                known, producer_id=producer_id, epoch=epoch, replaced=claimed, was_committed=None
            )
        new = self._save(replace(new, timeout=body.transaction_timeout))
        return {"producer_id": new.producer_id, "producer_epoch": new.epoch}

    def add_partitions_to_txn(self, request: Request) -> Response:
        """Adds partitions to a transaction, which starts with the first one; all of them or, if one
        is unknown, none."""
        body = request.body
        wanted = {
            (topic.name, index) for topic in body.v3_and_below_topics for index in topic.partitions
        }
        unknown = {key for key in wanted if not self._has_partition(*key)}
        identity = (
            body.v3_and_below_transactional_id,
            body.v3_and_below_producer_id,
            body.v3_and_below_producer_epoch,
        )

        def add() -> None:
            transaction = self._find(request, *identity)
            self._begin(transaction, partitions=transaction.partitions | wanted)

        code = (
            ErrorCode.operation_not_attempted
            if unknown
            else attempt(add).get("error_code", ErrorCode.none)
        )
        return added_partitions(
            body, lambda key: ErrorCode.unknown_topic_or_partition if key in unknown else code
        )

    def add_offsets_to_txn(self, request: Request) -> Response:
        """Adds a group. Its offsets are committed with the transaction."""
        body = request.body
        transaction = self._find(
            request, body.transactional_id, body.producer_id, body.producer_epoch
        )
        self._begin(transaction, groups=transaction.groups | {body.group_id})
        return {}

    def txn_offset_commit(self, request: Request) -> Response:
        """Offsets that are committed when the transaction is."""
        body, offsets = request.body, dict[tuple[str, str, int], Any]()

        def commit(name: str, wanted: Any) -> None:
            transaction = self._find(
                request, body.transactional_id, body.producer_id, body.producer_epoch
            )
            is_possible = transaction.state is State.ONGOING and body.group_id in transaction.groups
            raise_if(not is_possible, ErrorCode.invalid_txn_state)
            self._broker.coordinator.check_transactional_commit(body)
            self._broker.topics.partition(name, wanted.index)
            value = (
                wanted.committed_offset,
                wanted.committed_leader_epoch,
                wanted.committed_metadata or "",
            )
            offsets[body.group_id, name, wanted.index] = value

        response = for_partitions(body.topics, commit)
        if offsets:
            transaction = self._by_id[body.transactional_id]
            try:
                self._save(replace(transaction, offsets={**transaction.offsets, **offsets}))
                self._broker.coordinator.ensure_group(body.group_id)
            except ApiError as error:
                code = error.code
                return for_partitions(body.topics, lambda *_: {"error_code": code})
        return response

    def end_txn(self, request: Request) -> Response:
        """Commits or aborts a transaction."""
        body = request.body
        transaction = self._find(
            request, body.transactional_id, body.producer_id, body.producer_epoch
        )
        if transaction.state is State.EMPTY:
            raise_if(transaction.was_committed is not body.committed, ErrorCode.invalid_txn_state)
            return {}  # the last response was lost
        prepared = State.PREPARE_COMMIT if body.committed else State.PREPARE_ABORT
        raise_if(transaction.state not in (State.ONGOING, prepared), ErrorCode.invalid_txn_state)
        self._end(transaction, prepared)
        return {}

    # -- the steps

    def _find(
        self, request: Request, transactional_id: str, producer_id: int, epoch: int
    ) -> Transaction:
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            raise ApiError(ErrorCode.invalid_producer_id_mapping)
        raise_if(transaction.epoch != epoch, self._fenced(request, first_version=2))
        return transaction

    @staticmethod
    def _fenced(request: Request, first_version: int) -> ErrorCode:
        """The error for a producer that another one has replaced; older versions of a request know
        another one."""
        return (
            ErrorCode.producer_fenced
            if request.version >= first_version
            else ErrorCode.invalid_producer_epoch
        )

    def _has_partition(self, name: str, index: int) -> bool:
        topic = self._broker.topics.by_name.get(name)
        return topic is not None and 0 <= index < len(topic.partitions)

    def _begin(self, transaction: Transaction, **added: Any) -> None:
        """Adds something to an open transaction, or opens it with that."""
        raise_if(
            transaction.state not in (State.EMPTY, State.ONGOING), ErrorCode.concurrent_transactions
        )
        began = self._broker.clock.time() if transaction.state is State.EMPTY else transaction.began
        changed = replace(
            transaction,
            state=State.ONGOING,
            began=began,
            was_committed=None,
            replaced=None,
            **added,
        )
        if changed != transaction:
            self._save(changed)
        if transaction.state is State.EMPTY:
            self._arm(transaction, transaction.timeout)

    def _end(self, transaction: Transaction, prepared: State) -> Transaction:
        """Ends a transaction. If the disk is full, the client has to repeat the request: it
        continues from the same point."""
        if transaction.state is State.ONGOING:
            transaction = self._save(replace(transaction, state=prepared))
        transaction = self._complete(transaction)
        self._disarm(transaction.transactional_id)
        return transaction

    def _complete(self, transaction: Transaction) -> Transaction:
        """Writes the markers and, if it is committed, the offsets. A partition that has its marker
        gets no second one."""
        committed = transaction.state is State.PREPARE_COMMIT
        for name, index in sorted(transaction.partitions):
            if self._has_partition(name, index):
                self._mark(self._broker.topics.partition(name, index), transaction, committed)
        changes: list[Change] = [
            ("offsets", key, value) for key, value in transaction.offsets.items() if committed
        ]
        nothing: Any = {"partitions": frozenset(), "groups": frozenset(), "offsets": {}}
        return self._save(
            replace(transaction, state=State.EMPTY, was_committed=committed, **nothing), *changes
        )

    def _mark(self, partition: "Partition", transaction: Transaction, committed: bool) -> None:
        if transaction.producer_id in partition.transactions.ongoing:
            now = self._broker.clock.milliseconds()
            try:
                partition.append_marker(
                    make_marker(transaction.producer_id, transaction.epoch, now, committed),
                    committed,
                )
            except OSError as error:
                raise ApiError(ErrorCode.not_coordinator, str(error)) from error
            self._broker.on_marker(partition)

    def _end_by_itself(self, transactional_id: str) -> None:
        """Aborts a transaction that has taken too long, and fences its producer; or completes one
        that was prepared."""
        transaction = self._by_id[transactional_id]
        try:
            self._abort_by_fencing(transaction)
        except ApiError:  # the disk is full: once more, later
            self._arm(transaction, transaction.timeout)
        self._broker.run_deferred()

    def _abort_by_fencing(self, transaction: Transaction) -> Transaction:
        """Aborts a transaction, or completes a prepared one, and fences its producer."""
        if transaction.state is State.ONGOING:
            transaction = replace(transaction, epoch=transaction.epoch + 1)
        return self._end(transaction, State.PREPARE_ABORT)

    def _arm(self, transaction: Transaction, delay: float) -> None:
        name = transaction.transactional_id
        self._timers[name] = self._timer.call_later(delay, self._end_by_itself, name)

    def _disarm(self, transactional_id: str) -> None:
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()

    def _save(self, transaction: Transaction, *changes: Change) -> Transaction:
        """Sets a transaction, and changes something else with it.

        Raises:
            ApiError: the metadata log could not be written; nothing has changed. The error is
                Kafka's: clients try again.
        """
        try:
            self._metadata_log.append(
                *changes,
                ("transactions", (transaction.transactional_id,), transaction.to_metadata()),
            )
        except OSError as error:
            raise ApiError(ErrorCode.not_coordinator, str(error)) from error
        self._by_id[transaction.transactional_id] = transaction
        return transaction
