"""Decides on a stream which operations completed and which expired, exactly once. Plain Python, without Spark.

A shard owns operations; no other shard decides on them. It puts everything that it hears on its agenda. When the watermark says
that nothing earlier will come, it takes the events from there in the order of event time, and does what `ThresholdPurgatory`
does in an event loop, with the same lines of waiters (`purgatory._lines`). So outcomes depend on what happened when, and not on
the order in which the shard heard of it.

    heard, in this order                                           decided, when the watermark has come to 12:00:30
    12:00:20  "paid" has reached 1                                 12:00:05  order 7 is registered: "stock" has reached 4
    12:00:05  order 7 waits for all of ("paid", 1), ("stock", 3)             already, "paid" has no value
    12:00:02  "stock" has reached 4                                12:00:20  order 7 completed: all its keys have

At the same instant signals come first, then registrations, then deadlines. So a signal at the very deadline still counts.

Of an operation that has ended, only the id is kept, until the deadline. So a copy that arrives before the deadline is
recognised as a copy, and one that arrives later is too late anyway.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from purgatory._lines import UNKNOWN, Line, Place, has_reached
from purgatory.pipeline.streaming._agenda import Agenda, Event, Store

COMPLETED: Final = "completed"
EXPIRED: Final = "expired"
LATE: Final = "late"
MODES: Final = ("all", "any")

SIGNAL: Final = 0
REGISTRATION: Final = 1
DEADLINE: Final = 2

Origin = tuple[str, int, int]
"""The topic, partition and offset of the record that something came in."""
NOWHERE: Final = (None, None, None)

_at = itemgetter(0)


class Operation(NamedTuple):
    """An operation, as a shard hears of it. Instants are in microseconds."""

    operation_id: str
    requirements: tuple[tuple[str, int], ...]
    """Pairs of a key and a threshold. Each key is there once."""
    mode: str
    """`all` or `any`: for how many of the requirements it waits."""
    registered_at: int
    deadline: int
    origin: Origin | None = None
    problem: str | None = None
    """Why the record it came in could not be read; `None` if it could. Then the other fields are what could be read."""


class Decision(NamedTuple):
    """What became of an operation; or, if `outcome` is `late`, of which operation or signal nothing was decided, and why."""

    outcome: str
    operation_id: str | None = None
    decided_at: int | None = None
    satisfied_keys: list[str] | None = None
    """In the order of the requirements."""
    reason: str | None = None
    key: str | None = None
    """The key of a late signal."""
    at: int | None = None
    """If late: the instant that the operation gives for its registration, or the signal for itself."""
    topic: str | None = None
    """If late, and read from Kafka: where the record is."""
    partition: int | None = None
    offset: int | None = None


class Waiter:
    """An operation in the line of one of its keys."""

    __slots__ = ("operation_id", "threshold")

    def __init__(self, operation_id: str, threshold: int) -> None:
        self.operation_id = operation_id
        self.threshold = threshold


class Watched(Line):
    """The line of a key, in which waiters can be found by their operation."""

    __slots__ = ("waiters",)

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.waiters: dict[str, Waiter] = {}

    def watch(self, operation_id: str, threshold: int) -> None:
        """Puts an operation into the line."""
        waiter = self.waiters[operation_id] = Waiter(operation_id, threshold)
        self.join(waiter)

    def unwatch(self, operation_id: str) -> None:
        """Takes an operation out of the line."""
        self.leave(self.waiters.pop(operation_id))

    def rise(self, value: int) -> Iterator[str]:
        """Raises the value of the key to `value`, and takes out the operations that waited for it. A lower value changes
        nothing."""
        if not has_reached(self.key, self.value, value):
            for place in self.advance(value)[1]:
                for waiter in _several(place):
                    del self.waiters[waiter.operation_id]
                    yield waiter.operation_id


def _several(place: Place) -> Iterable[Any]:
    return place if isinstance(place, dict) else (place,)


@dataclass(slots=True)
class Pending:
    """An operation that waits, or that has ended and is remembered until its deadline."""

    deadline: int
    mode: str = ""
    requirements: tuple[tuple[str, int], ...] = ()
    """Empty if it has ended."""
    satisfied: set[str] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        return not self.requirements

    def is_complete(self) -> bool:
        return len(self.satisfied) == len(self.requirements) if self.mode == "all" else bool(self.satisfied)


@dataclass(slots=True)
class Counts:
    """What a shard has heard of and has decided so far. `registered` counts every operation, with copies."""

    registered: int = 0
    completed: int = 0
    expired: int = 0
    late: int = 0
    """Operations that will not be decided on: too late, copies, or not well formed."""
    late_signals: int = 0
    newest: int = 0
    """The latest instant of a registration or a signal."""


class Shard:
    """One owner of operations.

    Args:
        operations: by id.
        lines: by key. The line of a key that has a value stays; any other is deleted with its last operation.
        agenda: what was heard and is not yet due.
        counts: those of the past, to go on from.
    """

    __slots__ = ("agenda", "counts", "decisions", "lines", "operations")

    def __init__(
        self, operations: Store[str, Pending], lines: Store[str, Watched], agenda: Agenda, counts: Counts | None = None
    ) -> None:
        self.operations = operations
        self.lines = lines
        self.agenda = agenda
        self.counts = Counts() if counts is None else counts
        self.decisions: list[Decision] = []
        """The decisions since they were last taken."""

    def take(self) -> list[Decision]:
        """Takes out the decisions since the last call."""
        decisions, self.decisions = self.decisions, []
        return decisions

    # -- what a shard hears

    def register(self, operation: Operation, now: int) -> None:
        """Hears of an operation while the watermark is at `now`.

        If its deadline is still ahead, it will have an outcome; if its registration is in the past, it begins to wait now. If
        nothing can be decided, the decision says `late`, and why.
        """
        self.counts.registered += 1
        if reason := operation.problem or _refusal(operation, now):
            self._refuse(operation, reason)
        else:
            at = operation.registered_at
            self.counts.newest = max(self.counts.newest, at)
            # As a plain tuple: a store may have to pickle it where this class cannot be imported.
            remembered = tuple(operation[:-1] if operation.origin else operation[:-2])
            self.agenda.add((max(at, now), REGISTRATION, remembered), now)

    def signal(
        self,
        key: str,
        value: int,
        at: int,
        now: int,
        reports: bool = True,
        origin: Origin | None = None,
        problem: str | None = None,
    ) -> None:
        """Hears that `key` has reached `value`, while the watermark is at `now`.

        If that happened at the watermark or before, a decision says that the signal is `late`, and it counts from now on.

        Args:
            reports: whether this shard says that a signal is late; one of all the shards that hear of it does.
            origin: where it came from.
            problem: why the record it came in could not be read.
        """
        if problem is not None or key is None or value is None or at is None:
            if reports:
                self._report(key, at, problem or "it lacks a key, a value or an instant", origin)
            return
        if at <= now:
            if reports:
                self._report(key, at, "it is not after the watermark; it counts from there on", origin)
            at = now
        elif at > self.counts.newest:
            self.counts.newest = at
        self.agenda.add((at, SIGNAL, key, value), now)

    def _report(self, key: str | None, at: int | None, reason: str, origin: Origin | None) -> None:
        self.counts.late_signals += 1
        topic, partition, offset = origin or NOWHERE
        self.decisions.append(Decision(LATE, reason=reason, key=key, at=at, topic=topic, partition=partition, offset=offset))

    def _refuse(self, operation: Operation, reason: str) -> None:
        self.counts.late += 1
        topic, partition, offset = operation.origin or NOWHERE
        at = operation.registered_at
        self.decisions.append(Decision(LATE, operation.operation_id, None, None, reason, None, at, topic, partition, offset))

    # -- what a shard decides

    def advance_to(self, now: int) -> None:
        """Decides everything up to the watermark `now`, inclusive: no more rows are expected from before it.

        Cost: O(log n) for each event of the n that are due.
        """
        events = self.agenda.take(now)
        deadlines: list[Event] = []
        for event in events:
            if event[1] == REGISTRATION:
                operation = Operation(*event[2])
                deadline = (operation.deadline, DEADLINE, operation.operation_id)
                if operation.deadline <= now:
                    deadlines.append(deadline)
                else:
                    self.agenda.add(deadline, now)
        events += deadlines
        events.sort()
        for at, instant in groupby(events, _at):
            self._decide(at, instant)

    def _decide(self, at: int, events: Iterator[Event]) -> None:
        touched: dict[str, None] = {}
        deadlines: list[str] = []
        for event in events:
            if event[1] == SIGNAL:
                self._rise(event[2], event[3], touched)
            elif event[1] == REGISTRATION:
                self._watch(Operation(*event[2]), touched)
            else:
                deadlines.append(event[2])
        for operation_id in touched:
            self._complete(operation_id, at)
        for operation_id in deadlines:
            self._expire(operation_id, at)

    def _rise(self, key: str, value: int, touched: dict[str, None]) -> None:
        line = self.lines.get(key) or Watched(key)
        for operation_id in line.rise(value):
            operation = self.operations.get(operation_id)
            assert operation is not None
            operation.satisfied.add(key)
            self.operations[operation_id] = operation
            touched[operation_id] = None
        self.lines[key] = line

    def _watch(self, operation: Operation, touched: dict[str, None]) -> None:
        operation_id = operation.operation_id
        if self.operations.get(operation_id) is not None:
            self._refuse(operation, "it is a copy: the operation of this id was registered before")
            return
        pending = Pending(operation.deadline, operation.mode, operation.requirements)
        for key, threshold in operation.requirements:
            line = self.lines.get(key) or Watched(key)
            if has_reached(key, line.value, threshold):
                pending.satisfied.add(key)
            else:
                line.watch(operation_id, threshold)
                self.lines[key] = line
        self.operations[operation_id] = pending
        touched[operation_id] = None

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
            return  # This is the deadline of a copy.
        if not operation.has_ended:
            self.counts.expired += 1
            self._end(EXPIRED, operation_id, operation, at)
        del self.operations[operation_id]

    def _end(self, outcome: str, operation_id: str, operation: Pending, at: int) -> None:
        satisfied = [key for key, _ in operation.requirements if key in operation.satisfied]
        for key, _ in operation.requirements:
            if key not in operation.satisfied:
                self._unwatch(key, operation_id)
        self.decisions.append(Decision(outcome, operation_id, at, satisfied))

    def _unwatch(self, key: str, operation_id: str) -> None:
        line = self.lines.get(key)
        assert line is not None
        line.unwatch(operation_id)
        if line.value is UNKNOWN and not line.waiters:
            del self.lines[key]
        else:
            self.lines[key] = line


def _refusal(operation: Operation, now: int) -> str | None:
    """Why nothing can be decided on `operation` when the watermark is at `now`; `None` if something can."""
    if operation.operation_id is None or operation.registered_at is None or operation.deadline is None:
        return "it lacks an id, an instant of registration or a deadline"
    if operation.mode not in MODES:
        return f"its mode is {operation.mode!r}, and neither 'all' nor 'any'"
    if not operation.requirements:
        return "it requires nothing"
    if any(key is None or threshold is None for key, threshold in operation.requirements):
        return "a requirement lacks its key or its threshold"
    if operation.deadline < operation.registered_at:
        return "its deadline is before its registration"
    if operation.deadline <= now:
        return "its deadline is not after the watermark"
    return None


def requirements_of(pairs: Iterable[tuple[str, int]] | None, mode: str) -> tuple[tuple[str, int], ...]:
    """Requirements with each key once. Of several thresholds of a key the highest counts for `all`, the lowest for `any`."""
    required: dict[str, int] = {}
    decides = min if mode == "any" else max
    for key, threshold in pairs or ():
        if key is None or threshold is None:
            return ((key, threshold),)  # which is refused
        required[key] = decides(required.get(key, threshold), threshold)
    return tuple(required.items())
