"""Decides on all new operations at once: given when each of their thresholds was reached, the rest
is arithmetic.

    order 7 waits from 12:00:05 to 12:01:00    for all of    "paid" reached at 12:00:20, "stock"
                                                             reached before
                                               completed     at 12:00:20, the later one

This works for operations whose ids are new and whose keys are distinct.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline.streaming._events import COMPLETED, DECISIONS, EXPIRED
from purgatory.pipeline.streaming._value_history import NEVER, Int64Array, ValueHistory

pc: Final[Any] = (
    pyarrow.compute
)  # its functions are made when it is imported, unseen by type checkers

BEFORE = np.iinfo(np.int64).min
"""In place of an instant: the threshold was reached before the last watermark."""


@dataclass(slots=True)
class BatchDecisions:
    """The decisions on new operations, up to a watermark.

    Attributes:
        decisions: with the columns of `DECISIONS`.
        ended: indexes of operations that have completed, with a deadline after the watermark.
        waiting: indexes of operations that keep waiting.
        is_satisfied: of all requirements of all operations.
        starts: for each operation the index of its first requirement; at the end the number of
            requirements.
    """

    operations: pa.RecordBatch
    decisions: pa.RecordBatch
    completed: int
    expired: int
    ended: Int64Array
    waiting: Int64Array
    is_satisfied: Any
    starts: Int64Array


def decide_batch(
    operations: pa.RecordBatch, history: ValueHistory | None, known: dict[str, int | None], now: int
) -> BatchDecisions:
    """Decides on operations up to the watermark `now`.

    Args:
        operations: a batch with the columns of `REGISTRATIONS`, valid, due at `now`, with different
            ids, each with distinct keys.
        history: the signals since the last watermark; `None` if there are none.
        known: the value that each of their keys had then, or `None`.

    Cost: O(n log n) in numpy, about a microsecond for each.
    """
    keys, thresholds = (
        operations.column("keys").flatten(),
        operations.column("thresholds").flatten().to_numpy(),
    )
    lengths = operations.column("keys").value_lengths().to_numpy()
    starts = np.concatenate(([0], np.cumsum(lengths)))
    at, deadline = operations.column("at").to_numpy(), operations.column("deadline").to_numpy()
    instants = _reached(keys, thresholds, history, known, np.repeat(at, lengths))
    needs_all = pc.equal(operations.column("mode"), "all").to_numpy(zero_copy_only=False)
    first, last = (
        np.minimum.reduceat(instants, starts[:-1]),
        np.maximum.reduceat(instants, starts[:-1]),
    )
    holds_at = np.maximum(np.where(needs_all, last, first), at)
    is_completed = holds_at <= deadline
    is_decided = is_completed | (deadline <= now)
    decided_at = np.where(is_completed, holds_at, deadline)
    is_satisfied = instants <= np.repeat(decided_at, lengths)
    outcome = pa.DictionaryArray.from_arrays(
        pa.array(np.where(is_completed, 0, 1)), pa.array([COMPLETED, EXPIRED])
    )
    columns = {
        "outcome": outcome.cast(pa.string()),
        "operation_id": operations.column("operation_id"),
        "decided_at": pa.array(decided_at),
        "satisfied_keys": _satisfied(keys, is_satisfied, starts),
    }
    made = [
        columns[field.name] if field.name in columns else pa.nulls(len(at), field.type)
        for field in DECISIONS
    ]
    decisions = pa.RecordBatch.from_arrays(made, schema=DECISIONS)
    return BatchDecisions(
        operations,
        decisions if is_decided.all() else decisions.filter(pa.array(is_decided)),
        int(is_completed.sum()),
        int((is_decided & ~is_completed).sum()),
        np.flatnonzero(is_completed & (deadline > now)),
        np.flatnonzero(~is_decided),
        is_satisfied,
        starts,
    )


def _reached(
    keys: pa.Array,
    thresholds: Int64Array,
    history: ValueHistory | None,
    known: dict[str, int | None],
    since: Int64Array,
) -> Int64Array:
    """The instant at which each threshold was reached, or `BEFORE` or `NEVER`."""
    coded = keys.dictionary_encode()
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    is_known = np.array([known[name] is not None for name in names])
    values = np.array([known[name] or 0 for name in names], np.int64)
    if history is None:
        instants = np.full(len(thresholds), NEVER)
    else:
        indexes = history.key_indexes(coded.dictionary)[codes]
        instants = history.reached_at(indexes, thresholds, since)
    instants[is_known[codes] & (thresholds <= values[codes])] = BEFORE
    return instants


def _satisfied(keys: pa.Array, is_satisfied: Any, starts: Int64Array) -> pa.Array:
    """For each operation the list of its satisfied keys."""
    ends = np.concatenate(([0], np.cumsum(is_satisfied)))[starts]
    return pa.ListArray.from_arrays(
        pa.array(ends.astype(np.int32)), keys.filter(pa.array(is_satisfied))
    )


def have_distinct_keys(operations: pa.RecordBatch) -> Any:
    """For each operation, whether its keys are distinct."""
    keys = operations.column("keys").flatten().dictionary_encode()
    owners = np.repeat(
        np.arange(operations.num_rows), operations.column("keys").value_lengths().to_numpy()
    )
    pairs = np.sort(owners * max(len(keys.dictionary), 1) + keys.indices.to_numpy())
    is_distinct = np.ones(operations.num_rows, bool)
    is_distinct[pairs[1:][np.diff(pairs) == 0] // max(len(keys.dictionary), 1)] = False
    return is_distinct
