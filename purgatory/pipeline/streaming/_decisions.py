"""Decides which operations of a stream completed and which expired, exactly once. Without Spark.

A shard owns operations; no other shard decides on them. Everything that it receives goes into its
event queue. When the watermark has passed them, it takes the due events out in the order of
event time, and does what `ThresholdPurgatory` does in an event loop, with the same
queues of waiters (`purgatory._core.threshold_queue`). So outcomes depend on event time, and not on
the order in which the shard received the events.

    received, in this order
        12:00:20  "paid" has reached 1
        12:00:05  order 7 waits for all of ("paid", 1), ("stock", 3)
        12:00:02  "stock" has reached 4
    decided, when the watermark has reached 12:00:30
        12:00:05  order 7 is registered: "stock" has reached 4 already, "paid" has no value
        12:00:20  order 7 completed: all its keys have reached their thresholds

At one instant signals come first, then registrations, then deadlines. So a signal exactly at the
deadline still counts.

Events arrive as batches of many rows, and stay batches until they are due. New operations are then
decided by `decide_batch`, all at once. The others, which wait since an earlier call or have
duplicate ids, are decided one by one, by the few signals that reach a threshold of theirs.

After an operation has ended, only its id is kept, until its deadline. So a copy that arrives before
the deadline is recognized, and a later copy is too late anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory._core.threshold_queue import UNKNOWN
from purgatory.pipeline.streaming._batch_decisions import (
    BatchDecisions,
    decide_batch,
    have_distinct_keys,
)
from purgatory.pipeline.streaming._event_queue import EventQueue, Events, Store
from purgatory.pipeline.streaming._events import (
    COMPLETED,
    DECISIONS,
    EXPIRED,
    LATE,
    MODES,
    NOWHERE,
    REGISTRATIONS,
    SIGNALS,
    Decision,
    Operation,
    operations_of,
    pairs_of,
    refusal,
)
from purgatory.pipeline.streaming._forgetful_history import ForgetfulHistory, check_at
from purgatory.pipeline.streaming._pending import Pending, StreamQueue
from purgatory.pipeline.streaming._value_history import Int64Array, ValueHistory

# Type checkers do not see its functions, which are created when it is imported.
pc: Final[Any] = pyarrow.compute

SIGNAL: Final = 0
REGISTRATION: Final = 1
DEADLINE: Final = 2

Event = tuple[Any, ...]
"""An instant in microseconds; `SIGNAL`, `REGISTRATION` or `DEADLINE`; and the event's data."""

_at = itemgetter(0)


@dataclass(slots=True)
class Counts:
    """Counts of a shard's events and decisions so far. `registered` counts every operation, copies
    included."""

    registered: int = 0
    completed: int = 0
    expired: int = 0
    late: int = 0
    """Operations without a decision: too late, copies, or malformed."""
    late_signals: int = 0
    newest: int = 0
    """The latest instant of a registration or a signal."""


class Shard:
    """An owner of operations.

    Args:
        operations: by id.
        queues: by key. The queue of a key with a value stays; any other queue is deleted with its
            last operation.
        event_queue: received events that are not yet due.
        counts: to continue from.
        forget_after: time for which the value of a key counts after its last signal, in
            microseconds; None for ever.
    """

    __slots__ = (
        "_batches", "_decisions", "_forget_after", "counts", "event_queue", "operations", "queues",
    )  # fmt: skip

    def __init__(
        self,
        operations: Store[str, Pending],
        queues: Store[str, StreamQueue],
        event_queue: EventQueue,
        counts: Counts | None = None,
        forget_after: int | None = None,
    ) -> None:
        self._forget_after = forget_after
        self.operations = operations
        self.queues = queues
        self.event_queue = event_queue
        self.counts = Counts() if counts is None else counts
        self._decisions: list[Decision] = []
        """Single decisions since the last call of `take`."""
        self._batches: list[pa.RecordBatch] = []
        """Decisions on whole batches since then."""

    def take(self) -> list[pa.RecordBatch]:
        """Takes out the decisions since the last call: batches with the columns of `DECISIONS`,
        none of them empty."""
        taken, self._batches = self._batches, []
        decisions, self._decisions = self._decisions, []
        if decisions:
            columns = zip(zip(*decisions, strict=True), DECISIONS, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            taken.append(pa.RecordBatch.from_arrays(arrays, schema=DECISIONS))
        return taken

    # -- receiving

    def register(self, operations: pa.RecordBatch, now: int) -> None:
        """Receives operations while the watermark is at `now`.

        An operation whose deadline is after `now` will have an outcome; if it was registered
        before, it begins to wait now. Any other gets the decision `late`, with the reason. Cost:
        Arrow's, and a step for each operation that may be invalid.

        Args:
            operations: with the columns of `REGISTRATIONS` but `at`; `topic`, `partition`, `offset`
                and `problem` may be missing.
        """
        self.counts.registered += operations.num_rows
        valid = _are_valid(operations, now)
        if not valid.all():
            for operation in operations_of(operations.filter(pa.array(~valid))):
                reason = refusal(operation, now)
                assert reason is not None
                self._refuse(operation, reason)
            operations = operations.filter(pa.array(valid))
        if rows := operations.num_rows:
            registered_at = operations.column("registered_at").to_numpy()
            self.counts.newest = max(self.counts.newest, int(registered_at.max()))
            columns = {name: operations.column(name) for name in operations.schema.names}
            columns["at"] = pa.array(np.maximum(registered_at, now))
            made = [
                columns[each.name] if each.name in columns else pa.nulls(rows, each.type)
                for each in REGISTRATIONS
            ]
            self.event_queue.add_registrations(
                pa.RecordBatch.from_arrays(made, schema=REGISTRATIONS), now
            )

    def signal(self, signals: pa.RecordBatch, now: int, label: int) -> None:
        """Receives signals while the watermark is at `now`: keys have reached values.

        One from the watermark or before is reported as `late`, and counts from now on. Cost: some
        calls of Arrow, and a step for each late one.

        Args:
            signals: with the columns `key`, `value`, `at`, and `reporter`: the label of the shard
            that reports it if it is late.
                `topic`, `partition`, `offset` and `problem` may be missing.
            label: of this shard.
        """
        has_all = _have_all(signals, ("key", "value", "at"))
        at = signals.column("at").fill_null(0).to_numpy()
        is_early = has_all & (at > now)
        if not is_early.all():
            is_reporter = signals.column("reporter").fill_null(label).to_numpy() == label
            self._report(signals.filter(pa.array(is_reporter & ~is_early)))
        if is_early.any():
            self.counts.newest = max(self.counts.newest, int(at[is_early].max()))
        if not has_all.all():
            signals, at = signals.filter(pa.array(has_all)), at[has_all]
        columns = [pa.array(np.maximum(at, now)), signals.column("key"), signals.column("value")]
        self.event_queue.add_signals(pa.RecordBatch.from_arrays(columns, schema=SIGNALS), now)

    def _report(self, signals: pa.RecordBatch) -> None:
        """Adds a decision for each signal, all of which are late or invalid."""
        nothing = [None] * signals.num_rows
        names = ("key", "value", "at", "topic", "partition", "offset", "problem")
        columns = [
            signals.column(name).to_pylist() if name in signals.schema.names else nothing
            for name in names
        ]
        for key, value, at, topic, partition, offset, problem in zip(*columns, strict=True):
            reason = problem or "it is not after the watermark; it counts from there on"
            if problem is None and (key is None or value is None or at is None):
                reason = (
                    "it lacks a key, a value or an instant, or that is not between the years 1 "
                    "and 9999"
                )
            self.counts.late_signals += 1
            self._decisions.append(
                Decision(LATE, None, None, None, reason, key, at, topic, partition, offset)
            )

    def _refuse(self, operation: Operation, reason: str) -> None:
        self.counts.late += 1
        topic, partition, offset = operation.origin or NOWHERE
        at = operation.registered_at
        self._decisions.append(
            Decision(
                LATE, operation.operation_id, None, None, reason, None, at, topic, partition, offset
            )
        )

    # -- deciding

    def advance_to(self, now: int) -> None:
        """Decides everything up to the watermark `now`, inclusive: no earlier rows are expected any
        more.

        Cost: O(log n) for each of the n events that are due, mostly in numpy. Operations that wait
        since an earlier call, and those with duplicate ids, are decided one by one.
        """
        due = self.event_queue.pop_due(now)
        history = self._history(due)
        new, others = self._split_new(due.registrations)
        decisions = None
        if new is not None:
            keys = pc.unique(new.column("keys").flatten()).to_pylist()
            known = dict.fromkeys(keys) if self._forget_after is not None else self._known(keys)
            decisions = decide_batch(new, history, known, now)
        self._decide(self._events(due.deadlines, others, history, now), history)
        if isinstance(history, ForgetfulHistory):
            self._keep_values(history, now)
        elif history is not None:
            for key, value in history.final_values():
                completed = list(self._queue(key).reach(value))
                assert not completed
        if decisions is not None:
            self._add(decisions, now)
        for _, key in due.checks:
            self._check_key(key, now)

    def _known(self, keys: Iterable[str]) -> dict[str, int | None]:
        """The values of keys."""
        return {
            key: None if (queue := self.queues.get(key)) is None else queue.known for key in keys
        }

    def _history(self, due: Events) -> ValueHistory | None:
        """The signals that are due. If keys are forgotten, it begins with the values that keys had
        before."""
        if self._forget_after is None:
            return ValueHistory(due.signals) if due.signals else None
        columns = [batch.column("key") for batch in due.signals]
        columns += [batch.column("keys").flatten() for batch in due.registrations]
        if not columns:
            return None
        first_at = Events(due.signals, due.registrations).first_at()
        known = []
        for key in pc.unique(pa.chunked_array(columns)).to_pylist():
            queue = self.queues.get(key)
            if queue is not None and queue.known is not None:
                # Values from before keys were forgotten count from the first use on.
                at = first_at if queue.last_at is None else queue.last_at
                known.append((key, at, queue.known))
        if not known and not due.signals:
            return None
        return ForgetfulHistory(due.signals, known, self._forget_after)

    def _keep_values(self, history: ForgetfulHistory, now: int) -> None:
        """Keeps the values that keys have at `now`, and has their keys checked."""
        assert self._forget_after is not None
        for key, last_at, value in history.ends():
            queue = self.queues.get(key) or StreamQueue(key)
            if now - last_at > self._forget_after:
                queue.value = UNKNOWN
                if queue.last_at is None:
                    self._store(queue)
                    continue
            else:
                assert not queue.size or value < queue.lowest
                if queue.last_at == last_at and queue.known == value:
                    continue
                if queue.last_at is None:
                    self.event_queue.add_check((check_at(last_at, self._forget_after), key), now)
                queue.value = value
            queue.last_at = last_at
            self._store(queue)

    def _check_key(self, key: str, now: int) -> None:
        """Forgets a key, or has it checked later."""
        queue = self.queues.get(key)
        if queue is None or queue.last_at is None:
            return
        if self._forget_after is None:
            queue.last_at = None
        elif now - queue.last_at <= self._forget_after:
            self.event_queue.add_check((check_at(queue.last_at, self._forget_after), key), now)
            return
        else:
            queue.value, queue.last_at = UNKNOWN, None
        self._store(queue)

    def _split_new(
        self, registrations: list[pa.RecordBatch]
    ) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
        """The operations that `decide_batch` can decide on, and the remaining ones."""
        if not registrations:
            return None, None
        rows = pa.concat_batches(registrations)
        ids = rows.column("operation_id").dictionary_encode()
        names, codes = ids.dictionary.to_pylist(), ids.indices.to_numpy()
        is_new = np.array([self.operations.get(name) is None for name in names]) & (
            np.bincount(codes) == 1
        )
        is_new = is_new[codes] & have_distinct_keys(rows)
        if is_new.all():
            return rows, None
        return rows.filter(pa.array(is_new)) if is_new.any() else None, rows.filter(
            pa.array(~is_new)
        )

    def _add(self, batch: BatchDecisions, now: int) -> None:
        """Adds the decisions on a batch, and enqueues the operations that keep waiting."""
        self.counts.completed += batch.completed
        self.counts.expired += batch.expired
        if batch.decisions.num_rows:
            self._batches.append(batch.decisions)
        ended = batch.operations.take(pa.array(batch.ended))
        ids, deadlines = (ended.column(name).to_pylist() for name in ("operation_id", "deadline"))
        for operation_id, deadline in zip(ids, deadlines, strict=True):
            self.operations[operation_id] = Pending(deadline)
            self.event_queue.add_deadline((deadline, operation_id), now)
        waiting = batch.operations.take(pa.array(batch.waiting))
        for operation, index in zip(operations_of(waiting), batch.waiting.tolist(), strict=True):
            operation_id, requirements, mode, _, deadline, *_ = operation
            are_satisfied = batch.is_satisfied[batch.starts[index] : batch.starts[index + 1]]
            satisfied = set()
            for (key, threshold), is_satisfied in zip(requirements, are_satisfied, strict=True):
                if is_satisfied:
                    satisfied.add(key)
                else:
                    self._queue(key).watch(operation_id, threshold)
            self.operations[operation_id] = Pending(deadline, mode, requirements, satisfied)
            self.event_queue.add_deadline((deadline, operation_id), now)

    def _events(
        self,
        deadlines: Iterable[tuple[int, str]],
        registrations: pa.RecordBatch | None,
        history: ValueHistory | None,
        now: int,
    ) -> list[Event]:
        """The events that are processed one by one, in order."""
        events: list[Event] = [(at, DEADLINE, operation_id) for at, operation_id in deadlines]
        if registrations is not None:
            for at, operation in zip(
                registrations.column("at").to_pylist(), operations_of(registrations), strict=True
            ):
                # Without the origin if it is None, so that the tuples can be compared.
                events.append(
                    (at, REGISTRATION, operation[:-1] if operation.origin else operation[:-2])
                )
                if operation.deadline <= now:
                    events.append((operation.deadline, DEADLINE, operation.operation_id))
                else:
                    self.event_queue.add_deadline((operation.deadline, operation.operation_id), now)
        if history is not None:
            indexes, thresholds = self._thresholds(registrations, history)
            keys = history.keys.to_pylist()
            events += [
                (at, SIGNAL, keys[key], value)
                for key, at, value in history.decisive_signals(indexes, thresholds)
            ]
        events.sort()
        return events

    def _thresholds(
        self, registrations: pa.RecordBatch | None, history: ValueHistory
    ) -> tuple[Int64Array, Int64Array]:
        """The thresholds of waiting and new operations, and the indexes of their keys in
        `history`."""
        keys: list[int] = []
        lengths: list[int] = []
        awaited: list[int] = []
        for index, key in enumerate(history.keys.to_pylist()):
            if (queue := self.queues.get(key)) is not None:
                keys.append(index)
                lengths.append(len(queue.by_threshold))
                awaited += queue.by_threshold
        indexes, thresholds = (
            np.repeat(np.array(keys, np.int64), lengths),
            np.array(awaited, np.int64),
        )
        if registrations is not None:
            indexes = np.append(
                indexes, history.key_indexes(registrations.column("keys").flatten())
            )
            thresholds = np.append(
                thresholds, registrations.column("thresholds").flatten().to_numpy()
            )
        return indexes, thresholds

    def _decide(self, events: list[Event], history: ValueHistory | None) -> None:
        """Processes events in order, and completes operations after all signals and registrations
        of an instant."""
        changed: dict[str, None] = {}
        for at, instant in groupby(events, _at):
            deadlines = []
            for event in instant:
                if event[1] == SIGNAL:
                    self._reach(event[2], event[3], changed)
                elif event[1] == REGISTRATION:
                    self._watch(Operation(*event[2]), at, history, changed)
                else:
                    deadlines.append(event[2])
            for operation_id in changed:
                self._complete(operation_id, at)
            changed.clear()
            for operation_id in deadlines:
                self._expire(operation_id, at)

    def _queue(self, key: str) -> StreamQueue:
        """The queue of a key, which is about to change."""
        queue = self.queues[key] = self.queues.get(key) or StreamQueue(key)
        return queue

    def _reach(self, key: str, value: int, changed: dict[str, None]) -> None:
        queue = self._queue(key)
        if self._forget_after is not None:
            # Its value may be from an earlier life. All its waiters wait for a signal from now on.
            queue.value = UNKNOWN
        for operation_id in queue.reach(value):
            operation = self.operations.get(operation_id)
            assert operation is not None
            operation.satisfied.add(key)
            self.operations[operation_id] = operation
            changed[operation_id] = None

    def _watch(
        self,
        operation: Operation,
        at: int,
        history: ValueHistory | None,
        changed: dict[str, None],
    ) -> None:
        operation_id = operation.operation_id
        if self.operations.get(operation_id) is not None:
            self._refuse(operation, "it is a copy: the operation of this id was registered before")
            return
        pending = Pending(operation.deadline, operation.mode, operation.requirements)
        for key, threshold in operation.requirements:
            if isinstance(history, ForgetfulHistory):
                value = history.value_at(key, at)
            else:
                value = None if (queue := self.queues.get(key)) is None else queue.known
            if value is not None and threshold <= value:
                pending.satisfied.add(key)
            else:
                self._queue(key).watch(operation_id, threshold)
        self.operations[operation_id] = pending
        changed[operation_id] = None

    def _complete(self, operation_id: str, at: int) -> None:
        operation = self.operations.get(operation_id)
        assert operation is not None
        if not operation.has_ended and operation.is_complete():
            self.counts.completed += 1
            self._end(COMPLETED, operation_id, operation, at)
            self.operations[operation_id] = Pending(operation.deadline)

    def _expire(self, operation_id: str, at: int) -> None:
        operation = self.operations.get(operation_id)
        if operation is None or operation.deadline != at:
            return  # it is the deadline of a copy
        if not operation.has_ended:
            self.counts.expired += 1
            self._end(EXPIRED, operation_id, operation, at)
        del self.operations[operation_id]

    def _end(self, outcome: str, operation_id: str, operation: Pending, at: int) -> None:
        satisfied = [key for key, _ in operation.requirements if key in operation.satisfied]
        for key, _ in operation.requirements:
            if key not in operation.satisfied:
                self._unwatch(key, operation_id)
        self._decisions.append(Decision(outcome, operation_id, at, satisfied))

    def _unwatch(self, key: str, operation_id: str) -> None:
        queue = self.queues.get(key)
        assert queue is not None
        queue.unwatch(operation_id)
        self._store(queue)

    def _store(self, queue: StreamQueue) -> None:
        """Stores a queue that has changed, or deletes it if nothing is in it."""
        if queue.value is UNKNOWN and queue.last_at is None and not queue.waiters:
            del self.queues[queue.key]
        else:
            self.queues[queue.key] = queue


def _are_valid(operations: pa.RecordBatch, now: int) -> Any:
    """For each row, whether it is certain to have no `refusal`."""
    valid = _have_all(operations, ("operation_id", "registered_at", "deadline"))
    valid &= pc.is_in(operations.column("mode"), value_set=pa.array(MODES)).to_numpy(
        zero_copy_only=False
    )
    valid &= operations.column("keys").value_lengths().fill_null(0).to_numpy() > 0
    if any(operations.column(name).flatten().null_count for name in ("keys", "thresholds")):
        valid &= [all(None not in pair for pair in pairs) for pairs in pairs_of(operations)]
    registered_at, deadline = (
        operations.column(name).fill_null(0).to_numpy() for name in ("registered_at", "deadline")
    )
    return valid & (deadline >= registered_at) & (deadline > now)


def _have_all(rows: pa.RecordBatch, names: Iterable[str]) -> Any:
    """For each row, whether it has these values and no `problem`."""
    has_all = np.ones(rows.num_rows, bool)
    for name in names:
        if rows.column(name).null_count:
            has_all &= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    if "problem" in rows.schema.names:
        has_all &= rows.column("problem").is_null().to_numpy(zero_copy_only=False)
    return has_all
