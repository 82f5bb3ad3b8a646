"""The decisions of a shard in plain Python, which follows the definition event by event, with late
rows and copies."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from orders import Row, Traffic

from purgatory.pipeline.streaming._decisions import Counts, Shard
from purgatory.pipeline.streaming._rows import RECEIVED_OPERATIONS, RECEIVED_SIGNALS, filled

END = 10**18
FOREVER = 10**17
LABEL = 6
"""The label of the shard."""


class Operation(NamedTuple):
    """Instants are in microseconds."""

    operation_id: Any
    requirements: Any
    mode: Any
    registered_at: Any
    deadline: Any


class Signal(NamedTuple):
    key: Any
    value: Any
    at: Any


class Outcome(NamedTuple):
    """A decision; if it is `late`, the reason in short, and the name of the operation or key."""

    outcome: str
    name: Any
    at: Any
    satisfied_keys: tuple[str, ...] = ()


def operations_batch(operations: Iterable[Operation]) -> pa.RecordBatch:
    rows = list(operations)
    columns = {name: [getattr(row, name) for row in rows] for name in Operation._fields}
    for place, name in enumerate(("keys", "thresholds")):
        columns[name] = [
            None if row.requirements is None else [pair[place] for pair in row.requirements]
            for row in rows
        ]
    return filled(RECEIVED_OPERATIONS, len(rows), **columns)


def signals_batch(signals: Iterable[Signal], reporter: int = LABEL) -> pa.RecordBatch:
    rows = list(signals)
    columns = {name: [getattr(row, name) for row in rows] for name in Signal._fields}
    return filled(RECEIVED_SIGNALS, len(rows), reporter=[reporter] * len(rows), **columns)


def outcomes_of(batches: Iterable[pa.RecordBatch]) -> list[Outcome]:
    return sorted(
        (
            Outcome("late", row["operation_id"] or row["key"], row["at"])
            if row["outcome"] == "late"
            else Outcome(
                row["outcome"], row["operation_id"], row["decided_at"], tuple(row["satisfied_keys"])
            )
            for batch in batches
            for row in batch.to_pylist()
        ),
        key=str,
    )


class Stored:
    """A shard that is made anew of its state for each call, as by Spark."""

    def __init__(self, forget_after: int | None = None, at_once: bool = False) -> None:
        self.stores: dict[str, dict[int, Any]] = defaultdict(dict)
        self.options = forget_after, at_once
        self.index, self.counts, self.next_at = None, Counts(), None
        self.now = 0

    def step(
        self, *events: Operation | Signal, now: int, before: int | None = None
    ) -> list[Outcome]:
        """Gives it operations and signals while the watermark is at `before`, and advances it."""
        before = self.now if before is None else before
        index = self.index and json.loads(self.index)
        shard = Shard(self.stores.__getitem__, index, self.counts, *self.options)
        shard.register(operations_batch(e for e in events if isinstance(e, Operation)), before)
        shard.signal(signals_batch(e for e in events if isinstance(e, Signal)), before, LABEL)
        shard.advance_to(now)
        self.index, self.now = json.dumps(shard.save()), now
        self.next_at = shard.next_at()
        return outcomes_of(shard.take())

    def rows(self, kind: str) -> int:
        return sum(rows for rows, _ in self.stores[kind].values())


def distinct(pairs: Iterable[tuple[str, int]], mode: str) -> dict[str, int]:
    required: dict[str, int] = {}
    for key, threshold in pairs:
        decides = min if mode == "any" else max
        required[key] = decides(required.get(key, threshold), threshold)
    return required


def reached(signals: list[Signal], key: str, threshold: int, since: int, forget: int) -> int:
    """`since` if the value that is not forgotten has reached the threshold by then; otherwise the
    first later signal that does."""
    value, last_at = None, 0
    for signal in sorted((each for each in signals if each.key == key), key=lambda each: each.at):
        if signal.at > since:
            break
        value = (
            signal.value
            if value is None or signal.at - last_at > forget
            else max(value, signal.value)
        )
        last_at = signal.at
    if value is not None and since - last_at <= forget and value >= threshold:
        return since
    later = (s.at for s in signals if s.key == key and s.at > since and s.value >= threshold)
    return min(later, default=END)


def decided(
    operation: Operation, signals: list[Signal], forget: int = FOREVER, now: int = END - 1
) -> Outcome | None:
    """The outcome by these signals; None if it waits at `now` and is not complete."""
    required = distinct(operation.requirements, operation.mode)
    since = operation.registered_at
    found = {key: reached(signals, key, least, since, forget) for key, least in required.items()}
    holds_at = (min if operation.mode == "any" else max)(found.values())
    if holds_at > operation.deadline > now:
        return None
    outcome = "completed" if holds_at <= operation.deadline else "expired"
    at = min(holds_at, operation.deadline)
    satisfied = tuple(key for key, instant in found.items() if instant <= at)
    return Outcome(outcome, operation.operation_id, at, satisfied)


@dataclass
class Model:
    """A shard, the simple way."""

    forget: int = FOREVER
    at_once: bool = False
    signals: list[Signal] = field(default_factory=list)
    received: list[tuple[int, Operation]] = field(default_factory=list)
    """Operations that begin to wait after the watermark, and when."""
    waiting: list[Operation] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)
    """The ids that are in use, and until when."""

    def step(
        self, operations: list[Operation], signals: list[Signal], before: int, now: int
    ) -> list[Outcome]:
        """Receives rows while the watermark is at `before`, and advances it."""
        found = [Outcome("late", s.key, s.at) for s in signals if None in s or s.at <= before]
        self.signals += [s._replace(at=max(s.at, before)) for s in signals if None not in s]
        for each in operations:
            if is_valid(each, before):
                self.received.append((max(each.registered_at, before), each))
            else:
                found.append(Outcome("late", each.operation_id, each.registered_at))
        due = [pair for pair in self.received if self.at_once or pair[0] <= now]
        self.received = [pair for pair in self.received if pair not in due]
        for since, each in sorted(due, key=order):
            if since <= self.taken.get(each.operation_id, 0):
                found.append(Outcome("late", each.operation_id, each.registered_at))
            else:
                self.taken[each.operation_id] = each.deadline
                self.waiting.append(each._replace(registered_at=since))
        self.taken = {name: until for name, until in self.taken.items() if until > now}
        known = [each for each in self.signals if self.at_once or each.at <= now]
        outcomes = [(each, decided(each, known, self.forget, now)) for each in self.waiting]
        self.waiting = [each for each, outcome in outcomes if outcome is None]
        return sorted([*found, *(each for _, each in outcomes if each is not None)], key=str)


def order(received: tuple[int, Operation]) -> tuple[Any, ...]:
    """By which the first operation of an id is found."""
    since, each = received
    required = distinct(each.requirements, each.mode)
    return since, each.deadline, each.mode, list(required), list(required.values())


def is_valid(operation: Operation, now: int) -> bool:
    return bool(
        None not in operation
        and operation.mode in ("all", "any")
        and operation.requirements
        and not any(None in pair for pair in operation.requirements)
        and operation.deadline >= operation.registered_at
        and operation.deadline > now
    )


def by_definition(operations: Iterable[Operation], signals: Iterable[Signal]) -> list[Outcome]:
    """The outcomes of operations with different ids, if nothing is late."""
    known = list(signals)
    return sorted((decided(each, known) for each in operations), key=str)


def outcomes_of_traffic(made: Traffic) -> list[Row]:
    operations, signals = map(Operation._make, made.operations), map(Signal._make, made.signals)
    return sorted((each[1], each[0], *each[2:]) for each in by_definition(operations, signals))
