"""Decides on a stream which operations completed and which expired, exactly once. Without Spark.

A shard owns operations; no other shard decides on them. It puts everything that it hears on its agenda. When the watermark says
that nothing earlier will come, it takes the events from there in the order of event time, and does what `ThresholdPurgatory`
does in an event loop, with the same queues of waiters (`purgatory._thresholds.queue`). So outcomes depend on what happened
when, and not on the order in which the shard heard of it.

    heard, in this order                                           decided, when the watermark has come to 12:00:30
    12:00:20  "paid" has reached 1                                 12:00:05  order 7 is registered: "stock" has reached 4
    12:00:05  order 7 waits for all of ("paid", 1), ("stock", 3)             already, "paid" has no value
    12:00:02  "stock" has reached 4                                12:00:20  order 7 completed: all its keys have

At the same instant signals come first, then registrations, then deadlines. So a signal at the very deadline still counts.

What it hears are batches of many rows, and they stay batches until they are due. Of the signals that are due, most complete
nothing; `_decisive` finds the others, and these alone are looked at one by one.

Of an operation that has ended, only the id is kept, until the deadline. So a copy that arrives before the deadline is
recognised as a copy, and one that arrives later is too late anyway.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory._thresholds.queue import UNKNOWN, has_reached
from purgatory.pipeline.streaming._agenda import Agenda, Store
from purgatory.pipeline.streaming._course import Course, Numbers
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
from purgatory.pipeline.streaming._together import Together, decide_together, have_different_keys
from purgatory.pipeline.streaming._waiting import Pending, Watched

pc: Final[Any] = pyarrow.compute  # its functions are made when it is imported, unseen by type checkers

SIGNAL: Final = 0
REGISTRATION: Final = 1
DEADLINE: Final = 2

Event = tuple[Any, ...]
"""An instant in microseconds, one of these three, and what it is about."""

_at = itemgetter(0)


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

    __slots__ = ("_decided", "_decisions", "agenda", "counts", "lines", "operations")

    def __init__(
        self, operations: Store[str, Pending], lines: Store[str, Watched], agenda: Agenda, counts: Counts | None = None
    ) -> None:
        self.operations = operations
        self.lines = lines
        self.agenda = agenda
        self.counts = Counts() if counts is None else counts
        self._decisions: list[Decision] = []
        """The decisions since they were last taken, one by one."""
        self._decided: list[pa.RecordBatch] = []
        """And those that were made together."""

    def take(self) -> list[pa.RecordBatch]:
        """Takes out the decisions since the last call: batches with the columns of `DECISIONS`, none of them empty."""
        taken, self._decided = self._decided, []
        decisions, self._decisions = self._decisions, []
        if decisions:
            columns = zip(*decisions, strict=True)
            made = [pa.array(column, field.type) for column, field in zip(columns, DECISIONS, strict=True)]
            taken.append(pa.RecordBatch.from_arrays(made, schema=DECISIONS))
        return taken

    # -- what a shard hears

    def register(self, operations: pa.RecordBatch, now: int) -> None:
        """Hears of operations while the watermark is at `now`.

        If the deadline of one is still ahead, it will have an outcome; if its registration is in the past, it begins to wait
        now. If nothing can be decided on it, a decision says `late`, and why. Cost: that of Arrow, and a step for each that
        is not certain to be sound.

        Args:
            operations: with the columns of `REGISTRATIONS` but `at`; `topic`, `partition`, `offset` and `problem` may be
                missing.
        """
        self.counts.registered += operations.num_rows
        is_sound = _are_sound(operations, now)
        if not is_sound.all():
            for operation in operations_of(operations.filter(pa.array(~is_sound))):
                reason = refusal(operation, now)
                assert reason is not None
                self._refuse(operation, reason)
            operations = operations.filter(pa.array(is_sound))
        if rows := operations.num_rows:
            registered_at = operations.column("registered_at").to_numpy()
            self.counts.newest = max(self.counts.newest, int(registered_at.max()))
            columns = {name: operations.column(name) for name in operations.schema.names}
            columns["at"] = pa.array(np.maximum(registered_at, now))
            made = [columns[each.name] if each.name in columns else pa.nulls(rows, each.type) for each in REGISTRATIONS]
            self.agenda.add_registrations(pa.RecordBatch.from_arrays(made, schema=REGISTRATIONS), now)

    def signal(self, signals: pa.RecordBatch, now: int, label: int) -> None:
        """Hears of signals while the watermark is at `now`: keys have reached values.

        If one happened at the watermark or before, a decision says that the signal is `late`, and it counts from now on. Cost:
        that of Arrow, and a step for each that is late.

        Args:
            signals: with the columns `key`, `value`, `at`, and `home`, which is the label of the shard that reports late ones;
                `topic`, `partition`, `offset` and `problem` may be missing.
            label: of this shard.
        """
        has_all = _have_all(signals, ("key", "value", "at"))
        at = signals.column("at").fill_null(0).to_numpy()
        is_early = has_all & (at > now)
        if not is_early.all():
            is_home = signals.column("home").fill_null(label).to_numpy() == label
            self._report(signals.filter(pa.array(is_home & ~is_early)))
        if is_early.any():
            self.counts.newest = max(self.counts.newest, int(at[is_early].max()))
        if not has_all.all():
            signals, at = signals.filter(pa.array(has_all)), at[has_all]
        columns = [pa.array(np.maximum(at, now)), signals.column("key"), signals.column("value")]
        self.agenda.add_signals(pa.RecordBatch.from_arrays(columns, schema=SIGNALS), now)

    def _report(self, signals: pa.RecordBatch) -> None:
        """Reports what is late, or lacks something."""
        nothing = [None] * signals.num_rows
        names = ("key", "value", "at", "topic", "partition", "offset", "problem")
        columns = [signals.column(name).to_pylist() if name in signals.schema.names else nothing for name in names]
        for key, value, at, topic, partition, offset, problem in zip(*columns, strict=True):
            reason = problem or "it is not after the watermark; it counts from there on"
            if problem is None and (key is None or value is None or at is None):
                reason = "it lacks a key, a value or an instant, or that is not between the years 1 and 9999"
            self.counts.late_signals += 1
            self._decisions.append(Decision(LATE, None, None, None, reason, key, at, topic, partition, offset))

    def _refuse(self, operation: Operation, reason: str) -> None:
        self.counts.late += 1
        topic, partition, offset = operation.origin or NOWHERE
        at = operation.registered_at
        self._decisions.append(Decision(LATE, operation.operation_id, None, None, reason, None, at, topic, partition, offset))

    # -- what a shard decides

    def advance_to(self, now: int) -> None:
        """Decides everything up to the watermark `now`, inclusive: no more rows are expected from before it.

        Cost: O(log n) for each event of the n that are due, mostly in numpy. What is decided one by one are operations that
        wait since an earlier call, and those that are not the first of their id.
        """
        due = self.agenda.take(now)
        course = Course(due.signals) if due.signals else None
        new, others = self._new_and_others(due.registrations)
        together = None
        if new is not None:
            keys = pc.unique(new.column("keys").flatten()).to_pylist()
            known = {key: None if (line := self.lines.get(key)) is None else line.known for key in keys}
            together = decide_together(new, course, known, now)
        self._decide(self._events(due.deadlines, others, course, now))
        for key, value in course.highest() if course else ():
            line = self.lines.get(key) or Watched(key)
            reached = list(line.rise(value))
            assert not reached
            self.lines[key] = line
        if together is not None:
            self._add(together, now)

    def _new_and_others(self, registrations: list[pa.RecordBatch]) -> tuple[pa.RecordBatch | None, pa.RecordBatch | None]:
        """Those that can be decided on together, and the others."""
        if not registrations:
            return None, None
        rows = pa.concat_batches(registrations)
        ids = rows.column("operation_id").dictionary_encode()
        names, codes = ids.dictionary.to_pylist(), ids.indices.to_numpy()
        is_new = np.array([self.operations.get(name) is None for name in names]) & (np.bincount(codes) == 1)
        is_new = is_new[codes] & have_different_keys(rows)
        if is_new.all():
            return rows, None
        return rows.filter(pa.array(is_new)) if is_new.any() else None, rows.filter(pa.array(~is_new))

    def _add(self, together: Together, now: int) -> None:
        """Takes note of what was decided together, and lets those wait that wait on."""
        self.counts.completed += together.completed
        self.counts.expired += together.expired
        if together.decisions.num_rows:
            self._decided.append(together.decisions)
        ended = together.operations.take(pa.array(together.ended))
        for operation_id, deadline in zip(
            *(ended.column(name).to_pylist() for name in ("operation_id", "deadline")), strict=True
        ):
            self.operations[operation_id] = Pending(deadline)
            self.agenda.add((deadline, operation_id), now)
        waiting = together.operations.take(pa.array(together.waiting))
        for operation, place in zip(operations_of(waiting), together.waiting.tolist(), strict=True):
            operation_id, requirements, mode, _, deadline, *_ = operation
            start = together.starts[place]
            satisfied = set()
            for (key, threshold), is_satisfied in zip(
                requirements, together.is_satisfied[start : start + len(requirements)], strict=True
            ):
                if is_satisfied:
                    satisfied.add(key)
                else:
                    line = self.lines.get(key) or Watched(key)
                    line.watch(operation_id, threshold)
                    self.lines[key] = line
            self.operations[operation_id] = Pending(deadline, mode, requirements, satisfied)
            self.agenda.add((deadline, operation_id), now)

    def _events(
        self, deadlines: Iterable[tuple[int, str]], registrations: pa.RecordBatch | None, course: Course | None, now: int
    ) -> list[Event]:
        """What is decided one by one, in its order."""
        events: list[Event] = [(at, DEADLINE, operation_id) for at, operation_id in deadlines]
        if registrations is not None:
            for at, operation in zip(registrations.column("at").to_pylist(), operations_of(registrations), strict=True):
                # Without its origin if it has none: such tuples can be compared.
                events.append((at, REGISTRATION, operation[:-1] if operation.origin else operation[:-2]))
                if operation.deadline <= now:
                    events.append((operation.deadline, DEADLINE, operation.operation_id))
                else:
                    self.agenda.add((operation.deadline, operation.operation_id), now)
        if course is not None:
            places, thresholds = self._thresholds(registrations, course)
            keys = course.keys.to_pylist()
            events += [(at, SIGNAL, keys[key], value) for key, at, value in course.decisive(places, thresholds)]
        events.sort()
        return events

    def _thresholds(self, registrations: pa.RecordBatch | None, course: Course) -> tuple[Numbers, Numbers]:
        """Those that are waited for, or will be, and the places of their keys in `course`."""
        keys: list[int] = []
        lengths: list[int] = []
        awaited: list[int] = []
        for place, key in enumerate(course.keys.to_pylist()):
            if (line := self.lines.get(key)) is not None:
                for segment in line.segments:
                    keys.append(place)
                    lengths.append(len(segment))
                    awaited += segment
        places, thresholds = np.repeat(np.array(keys, np.int64), lengths), np.array(awaited, np.int64)
        if registrations is not None:
            places = np.append(places, course.places(registrations.column("keys").flatten()))
            thresholds = np.append(thresholds, registrations.column("thresholds").flatten().to_numpy())
        return places, thresholds

    def _decide(self, events: list[Event]) -> None:
        """Decides on events in their order; on those of one instant together."""
        touched: dict[str, None] = {}
        for at, instant in groupby(events, _at):
            deadlines = []
            for event in instant:
                if event[1] == SIGNAL:
                    self._rise(event[2], event[3], touched)
                elif event[1] == REGISTRATION:
                    self._watch(Operation(*event[2]), touched)
                else:
                    deadlines.append(event[2])
            for operation_id in touched:
                self._complete(operation_id, at)
            touched.clear()
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
        self._decisions.append(Decision(outcome, operation_id, at, satisfied))

    def _unwatch(self, key: str, operation_id: str) -> None:
        line = self.lines.get(key)
        assert line is not None
        line.unwatch(operation_id)
        if line.value is UNKNOWN and not line.waiters:
            del self.lines[key]
        else:
            self.lines[key] = line


def _are_sound(operations: pa.RecordBatch, now: int) -> Any:
    """For each row, whether it is certain that something can be decided on it."""
    is_sound = _have_all(operations, ("operation_id", "registered_at", "deadline"))
    is_sound &= pc.is_in(operations.column("mode"), value_set=pa.array(MODES)).to_numpy(zero_copy_only=False)
    is_sound &= operations.column("keys").value_lengths().fill_null(0).to_numpy() > 0
    if any(operations.column(name).flatten().null_count for name in ("keys", "thresholds")):
        is_sound &= [all(None not in pair for pair in pairs) for pairs in pairs_of(operations)]
    registered_at, deadline = (operations.column(name).fill_null(0).to_numpy() for name in ("registered_at", "deadline"))
    return is_sound & (deadline >= registered_at) & (deadline > now)


def _have_all(rows: pa.RecordBatch, names: Iterable[str]) -> Any:
    """For each row, whether it has all of these values and no problem."""
    has_all = np.ones(rows.num_rows, bool)
    for name in names:
        if rows.column(name).null_count:
            has_all &= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
    if "problem" in rows.schema.names:
        has_all &= rows.column("problem").is_null().to_numpy(zero_copy_only=False)
    return has_all
