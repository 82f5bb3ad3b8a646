"""Decides which operations of a stream completed and which expired, exactly once. Without Spark.

A shard owns operations; no other shard decides on them. What it receives waits until the watermark
has passed it. Then all of it is decided at once, in numpy: `History` finds when each threshold was
reached, and the rest is arithmetic.

    received, in this order
        12:00:20  "paid" has reached 1
        12:00:05  order 7 waits until 12:10:05 for all of ("paid", 1), ("stock", 3)
        12:00:02  "stock" has reached 4
    decided, when the watermark has reached 12:00:30
        order 7   "paid" reached at 12:00:20, "stock" before 12:00:05
                  completed at 12:00:20, the later one

So outcomes depend on event time, and not on the order in which the shard received the events. At
one instant signals come first, then registrations, then deadlines: a signal exactly at the deadline
still counts.

With `at_once` an operation completes as soon as it and its signals are received. It still expires
with the watermark, and outcomes depend on the order of arrival.

The id of an operation is kept until its deadline. So a copy that arrives before the deadline is
recognized, and a later copy is too late anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.streaming._history import History
from purgatory.pipeline.streaming._rows import (
    BEFORE,
    COMPLETED,
    DECISIONS,
    EXPIRED,
    LATE,
    MODES,
    NEVER,
    OPERATIONS,
    SIGNALS,
    columns_of,
    filled,
    joined,
    pc,
    selected,
    starts_of,
    where,
)
from purgatory.pipeline.streaming._state import Chunks, Pages, Store

KINDS: Final = ("signals", "operations", "waiting", "ids", "values")
"""The parts of the state of a shard."""


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
        stores: for each of `KINDS`.
        index: `index()` when it was last saved.
        counts: to continue from.
        forget_after: time for which the value of a key counts after its last signal, in
            microseconds; None for ever.
        at_once: whether operations complete before the watermark.
    """

    def __init__(
        self,
        stores: Callable[[str], Store],
        index: dict[str, Any] | None = None,
        counts: Counts | None = None,
        forget_after: int | None = None,
        at_once: bool = False,
    ) -> None:
        self._forget_after, self._at_once = forget_after, at_once
        self.counts = Counts() if counts is None else counts
        known: dict[str, Any] = index or {}
        self._now: int = known.get("now", BEFORE)

        def chunks(kind: str, schema: pa.Schema, order: str) -> Chunks:
            return Chunks(stores(kind), schema, order, dict(known.get(kind, ())))

        self._signals = chunks("signals", SIGNALS, "at")
        self._operations = chunks("operations", OPERATIONS, "at")
        """Operations that are registered after the watermark."""
        self._waiting = chunks("waiting", OPERATIONS, "deadline")
        self._ids = Pages(stores("ids"), self._is_free, known.get("ids"))
        self._values = Pages(stores("values"), self._is_forgotten, known.get("values"))
        self._decisions: list[pa.RecordBatch] = []

    def _is_free(self, deadline: int) -> bool:
        return deadline <= self._now

    def _is_forgotten(self, value: tuple[int, int]) -> bool:
        return self._forget_after is not None and self._now - value[0] > self._forget_after

    # -- receiving

    def register(self, operations: pa.RecordBatch, now: int) -> None:
        """Receives operations while the watermark is at `now`.

        An operation with a deadline after `now` will have an outcome; if it was registered
        before, it starts to wait now. Any other gets the decision `late`, with the reason.

        Args:
            operations: rows with the columns of `RECEIVED_OPERATIONS`.
        """
        self.counts.registered += operations.num_rows
        reasons = _refusals(operations, now)
        is_refused = reasons != None  # noqa: E711  # of each
        self._refuse(where(operations, is_refused), reasons[is_refused])
        operations = _with_distinct_keys(where(operations, ~is_refused))
        if not operations.num_rows:
            return
        registered_at = operations.column("registered_at").to_numpy()
        self.counts.newest = max(self.counts.newest, int(registered_at.max()))
        columns = columns_of(operations, OPERATIONS)
        columns["at"] = np.maximum(registered_at, now)
        starts = starts_of(operations.column("keys"))
        columns["satisfied"] = pa.ListArray.from_arrays(
            pa.array(starts.astype(np.int32)), pa.array(np.zeros(starts[-1], bool))
        )
        self._operations.add(filled(OPERATIONS, operations.num_rows, **columns))

    def signal(self, signals: pa.RecordBatch, now: int, label: int) -> None:
        """Receives signals while the watermark is at `now`: keys have reached values. One from the
        watermark or before is reported as `late`, and counts from now on.

        Args:
            signals: rows with the columns of `RECEIVED_SIGNALS`.
            label: number of this shard, as in the column `reporter`.
        """
        at = signals.column("at").fill_null(0).to_numpy()
        lacks = _lacks(signals, ("key", "value", "at"))
        reasons = np.full(signals.num_rows, None, object)
        reasons[at <= now] = "it is not after the watermark; it counts from there on"
        reasons[lacks] = (
            "it lacks a key, a value or an instant, or that is not between the years 1 and 9999"
        )
        lacks |= _set_problems(reasons, signals)
        is_late = reasons != None  # noqa: E711  # of each
        if not is_late.all():
            self.counts.newest = max(self.counts.newest, int(at[~is_late].max()))
        is_mine = is_late & (signals.column("reporter").fill_null(label).to_numpy() == label)
        late = where(signals, is_mine)
        self.counts.late_signals += late.num_rows
        self._add_late(late, reasons[is_mine])
        columns = columns_of(where(signals, ~lacks), SIGNALS)
        columns["at"] = np.maximum(at[~lacks], now)
        self._signals.add(filled(SIGNALS, len(columns["at"]), **columns))

    def _refuse(self, operations: pa.RecordBatch, reasons: Any) -> None:
        self.counts.late += operations.num_rows
        late = columns_of(operations, DECISIONS) | {"at": operations.column("registered_at")}
        self._add_late(filled(DECISIONS, operations.num_rows, **late), reasons)

    def _add_late(self, rows: pa.RecordBatch, reasons: Any) -> None:
        columns = columns_of(rows, DECISIONS)
        columns |= {"outcome": [LATE] * rows.num_rows, "reason": list(reasons)}
        self._add(filled(DECISIONS, rows.num_rows, **columns))

    def _add(self, decisions: pa.RecordBatch) -> None:
        if decisions.num_rows:
            self._decisions.append(decisions)

    # -- deciding

    def advance_to(self, now: int) -> None:
        """Decides everything up to the watermark `now`, inclusive: no earlier rows are expected any
        more. Cost: a microsecond for each row that is due and each operation that waits, in
        numpy."""
        due = self._signals.take(now)
        operations = self._without_copies(self._operations.take(NEVER if self._at_once else now))
        self._now = now
        received = joined([due, self._signals.all()], SIGNALS) if self._at_once else due
        keys = pc.unique(
            pa.chunked_array([received.column("key"), operations.column("keys").flatten()])
        ).to_pylist()
        known = {key: self._values.get(key) for key in keys}
        before = [(last[0], key, last[1]) for key, last in known.items() if last is not None]
        history = self._history(before, due)
        for key, *last in history.final():
            if known[key] != last:
                self._values[key] = last
        if self._at_once:
            history = self._history(before, received)

        def decide(rows: pa.RecordBatch) -> pa.RecordBatch:
            return self._decide(rows, history, now)

        self._waiting.add(decide(operations))
        self._waiting.revise(decide)

    def _history(self, known: list[tuple[int, str, int]], signals: pa.RecordBatch) -> History:
        if known:
            at, keys, values = zip(*known, strict=True)
            before = filled(SIGNALS, len(known), at=at, key=keys, value=values)
            signals = joined([before, signals], SIGNALS)
        return History(signals, self._forget_after)

    def _without_copies(self, operations: pa.RecordBatch) -> pa.RecordBatch:
        """The operations with an id that is free at their registration. Takes the ids, and refuses
        the other operations."""
        if not operations.num_rows:
            return operations
        ids = operations.column("operation_id").dictionary_encode()
        names, codes = ids.dictionary.to_pylist(), ids.indices.to_numpy()
        taken = [self._ids.get(name) for name in names]
        until = np.array([each or BEFORE for each in taken], np.int64)
        until[until <= self._now] = BEFORE
        at, deadline = (operations.column(name).to_numpy() for name in ("at", "deadline"))
        is_copy = at <= until[codes]
        repeated = np.flatnonzero(np.bincount(codes)[codes] > 1)
        if len(repeated):
            names_of_rows = ("at", "deadline", "mode", "keys", "thresholds")
            rows = operations.take(pa.array(repeated)).select(names_of_rows).to_pylist()
            for place, _ in sorted(
                zip(repeated.tolist(), map(list, map(dict.values, rows)), strict=True),
                key=lambda each: each[1],
            ):  # of operations that differ in nothing else, any may be the first
                is_copy[place] = at[place] <= until[codes[place]]
                if not is_copy[place]:
                    until[codes[place]] = deadline[place]
        until[codes[~is_copy]] = np.maximum(until[codes[~is_copy]], deadline[~is_copy])
        for name, before, last in zip(names, taken, until.tolist(), strict=True):
            if last > self._now and last != before:
                self._ids[name] = last
        reason = "it is a copy: the operation of this id was registered before"
        self._refuse(where(operations, is_copy), [reason] * int(is_copy.sum()))
        return where(operations, ~is_copy)

    def _decide(self, operations: pa.RecordBatch, history: History, now: int) -> pa.RecordBatch:
        """Adds the decisions on operations; returns the undecided ones, with the requirements that
        hold by now: the argument itself if nothing has changed."""
        if not operations.num_rows:
            return operations
        keys = operations.column("keys")
        starts, lengths = starts_of(keys), keys.value_lengths().to_numpy()
        at, deadline = (operations.column(name).to_numpy() for name in ("at", "deadline"))
        thresholds = operations.column("thresholds").flatten().to_numpy()
        held = operations.column("satisfied").flatten().to_numpy(zero_copy_only=False)
        reached = history.reached_at(keys.flatten(), thresholds, np.repeat(at, lengths))
        reached[held] = BEFORE
        needs_all = pc.equal(operations.column("mode"), "all").to_numpy(zero_copy_only=False)
        first, last = (edge.reduceat(reached, starts[:-1]) for edge in (np.minimum, np.maximum))
        holds_at = np.maximum(np.where(needs_all, last, first), at)
        is_completed = holds_at <= deadline
        is_decided = is_completed | (deadline <= now)
        holds = reached <= now
        if not is_decided.any() and (holds == held).all():
            return operations
        decided_at = np.where(is_completed, holds_at, deadline)
        satisfied = selected(keys, reached <= np.repeat(decided_at, lengths), starts)
        decisions = filled(
            DECISIONS,
            operations.num_rows,
            outcome=np.where(is_completed, COMPLETED, EXPIRED).astype(object),
            operation_id=operations.column("operation_id"),
            decided_at=decided_at,
            satisfied_keys=satisfied,
        )
        self._add(where(decisions, is_decided))
        completed = int(is_completed.sum())
        self.counts.completed += completed
        self.counts.expired += int(is_decided.sum()) - completed
        left = operations.set_column(
            operations.schema.get_field_index("satisfied"),
            OPERATIONS.field("satisfied"),
            pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), pa.array(holds)),
        )
        return where(left, ~is_decided)

    # -- between two calls

    def take(self) -> list[pa.RecordBatch]:
        """Takes out the decisions since the last call: batches of `DECISIONS`, none of them
        empty."""
        taken, self._decisions = self._decisions, []
        return taken

    def save(self) -> dict[str, Any]:
        """Writes all changes to the stores; returns their index, for JSON."""
        chunks = (self._signals, self._operations, self._waiting)
        pages = (self._ids, self._values)
        for part in (*chunks, *pages):
            part.save()
        entries = [*(list(part.firsts.items()) for part in chunks), *(part.size for part in pages)]
        return dict(zip(KINDS, entries, strict=True)) | {"now": self._now}

    def next_at(self) -> int | None:
        """When something is to be decided next at the latest; None if nothing waits. Call `save`
        before."""
        operations = [
            at for at in (self._operations.next_at(), self._waiting.next_at()) if at is not None
        ]
        signals = [self._signals.next_at()] if operations else []
        return min((at for at in (*operations, *signals) if at is not None), default=None)


def _refusals(operations: pa.RecordBatch, now: int) -> Any:
    """For each operation why it cannot be decided on when the watermark is at `now`; None if it
    can."""
    reasons = np.full(operations.num_rows, None, object)
    registered_at, deadline = (
        operations.column(name).fill_null(0).to_numpy() for name in ("registered_at", "deadline")
    )
    keys = operations.column("keys")
    reasons[deadline <= now] = "its deadline is not after the watermark"
    reasons[deadline < registered_at] = "its deadline is before its registration"
    if any(operations.column(name).flatten().null_count for name in ("keys", "thresholds")):
        pairs = operations.select(["keys", "thresholds"]).to_pylist()
        lacks = [None in (*(each["keys"] or ()), *(each["thresholds"] or ())) for each in pairs]
        reasons[lacks] = "a requirement lacks its key or its threshold"
    reasons[keys.value_lengths().fill_null(0).to_numpy() == 0] = "it requires nothing"
    modes = operations.column("mode").to_pylist()
    for place, mode in enumerate(modes):
        if mode not in MODES:
            reasons[place] = f"its mode is {mode!r}, and neither 'all' nor 'any'"
    reasons[_lacks(operations, ("operation_id", "registered_at", "deadline"))] = (
        "it lacks an id, an instant of registration or a deadline, or one is not between the "
        "years 1 and 9999"
    )
    _set_problems(reasons, operations)
    return reasons


def _lacks(rows: pa.RecordBatch, names: tuple[str, ...]) -> Any:
    """For each row, whether one of these columns is null."""
    lacks = np.zeros(rows.num_rows, bool)
    for name in names:
        lacks |= rows.column(name).is_null().to_numpy(zero_copy_only=False)
    return lacks


def _set_problems(reasons: Any, rows: pa.RecordBatch) -> Any:
    """Replaces the reasons of rows that could not be read; returns which these are."""
    problems = rows.column("problem")
    could_not = problems.is_valid().to_numpy(zero_copy_only=False)
    reasons[could_not] = problems.drop_null().to_pylist()
    return could_not


def _with_distinct_keys(operations: pa.RecordBatch) -> pa.RecordBatch:
    """Operations with each key once. Of several thresholds of a key the highest counts for `all`,
    the lowest for `any`."""
    if not operations.num_rows:
        return operations
    lists = operations.column("keys")
    codes = lists.flatten().dictionary_encode().indices.to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(operations.num_rows), lists.value_lengths().to_numpy())
    if len(np.unique(owners * (codes.max() + 1) + codes)) == len(codes):
        return operations
    columns = {name: operations.column(name) for name in operations.schema.names}
    rows: list[dict[str, Any]] = operations.select(["mode", "keys", "thresholds"]).to_pylist()
    keys, thresholds = [], []
    for row in rows:
        decides = min if row["mode"] == "any" else max
        required: dict[str, Any] = {}
        for key, threshold in zip(row["keys"], row["thresholds"], strict=True):
            required[key] = decides(required.get(key, threshold), threshold)
        keys.append(list(required))
        thresholds.append(list(required.values()))
    columns |= {"keys": keys, "thresholds": thresholds}
    return filled(operations.schema, operations.num_rows, **columns)
