"""New operations, decided all at once: when each of their thresholds was reached is known, and the rest is arithmetic.

    order 7 waits from 12:00:05 to 12:01:00    for all of    "paid" reached at 12:00:20, "stock" reached before
                                               completed     at 12:00:20, the later one

It holds for operations of which no other of the same id is known, and whose keys differ.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline.streaming._course import NEVER, Course, Numbers
from purgatory.pipeline.streaming._events import COMPLETED, DECISIONS, EXPIRED

pc: Final[Any] = pyarrow.compute  # its functions are made when it is imported, unseen by type checkers

BEFORE = np.iinfo(np.int64).min
"""When a threshold was reached that the key had reached before this stretch of time."""


@dataclass(slots=True)
class Together:
    """What becomes of new operations, up to an instant.

    Attributes:
        decisions: with the columns of `DECISIONS`.
        ended: places of those that have completed, and whose deadline is ahead.
        waiting: places of those that wait on.
        is_satisfied: for each requirement, in their order.
        starts: for each operation the place of its first requirement, and in the end that after the last.
    """

    operations: pa.RecordBatch
    decisions: pa.RecordBatch
    completed: int
    expired: int
    ended: Numbers
    waiting: Numbers
    is_satisfied: Any
    starts: Numbers


def decide_together(operations: pa.RecordBatch, course: Course | None, known: dict[str, int | None], now: int) -> Together:
    """What becomes of operations by the watermark `now`.

    Args:
        operations: a batch with the columns of `REGISTRATIONS`, sound, due at `now`, each id once, each with different keys.
        course: the signals since the last watermark; `None` if there are none.
        known: the values that all their keys had then; `None` for those that had none.

    Cost: O(n log n) in numpy, about a microsecond for each.
    """
    keys, thresholds = operations.column("keys").flatten(), operations.column("thresholds").flatten().to_numpy()
    lengths = operations.column("keys").value_lengths().to_numpy()
    starts = np.concatenate(([0], np.cumsum(lengths)))
    at, deadline = operations.column("at").to_numpy(), operations.column("deadline").to_numpy()
    instants = _reached(keys, thresholds, course, known)
    needs_all = pc.equal(operations.column("mode"), "all").to_numpy(zero_copy_only=False)
    first, last = np.minimum.reduceat(instants, starts[:-1]), np.maximum.reduceat(instants, starts[:-1])
    holds_at = np.maximum(np.where(needs_all, last, first), at)
    is_completed = holds_at <= deadline
    is_decided = is_completed | (deadline <= now)
    decided_at = np.where(is_completed, holds_at, deadline)
    is_satisfied = instants <= np.repeat(decided_at, lengths)
    outcome = pa.DictionaryArray.from_arrays(pa.array(np.where(is_completed, 0, 1)), pa.array([COMPLETED, EXPIRED]))
    columns = {
        "outcome": outcome.cast(pa.string()),
        "operation_id": operations.column("operation_id"),
        "decided_at": pa.array(decided_at),
        "satisfied_keys": _satisfied(keys, is_satisfied, starts),
    }
    made = [columns[field.name] if field.name in columns else pa.nulls(len(at), field.type) for field in DECISIONS]
    decisions = pa.RecordBatch.from_arrays(made, schema=DECISIONS)
    return Together(
        operations,
        decisions if is_decided.all() else decisions.filter(pa.array(is_decided)),
        int(is_completed.sum()),
        int((is_decided & ~is_completed).sum()),
        np.flatnonzero(is_completed & (deadline > now)),
        np.flatnonzero(~is_decided),
        is_satisfied,
        starts,
    )


def _reached(keys: pa.Array, thresholds: Numbers, course: Course | None, known: dict[str, int | None]) -> Numbers:
    """When each threshold was reached."""
    coded = keys.dictionary_encode()
    names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    is_known = np.array([known[name] is not None for name in names])
    values = np.array([known[name] or 0 for name in names], np.int64)
    if course is None:
        instants = np.full(len(thresholds), NEVER)
    else:
        instants = course.reached(course.places(coded.dictionary)[codes], thresholds)
    instants[is_known[codes] & (thresholds <= values[codes])] = BEFORE
    return instants


def _satisfied(keys: pa.Array, is_satisfied: Any, starts: Numbers) -> pa.Array:
    """For each operation a list of its satisfied keys."""
    ends = np.concatenate(([0], np.cumsum(is_satisfied)))[starts]
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), keys.filter(pa.array(is_satisfied)))


def have_different_keys(operations: pa.RecordBatch) -> Any:
    """For each operation, whether none of its keys is there twice."""
    keys = operations.column("keys").flatten().dictionary_encode()
    owners = np.repeat(np.arange(operations.num_rows), operations.column("keys").value_lengths().to_numpy())
    pairs = np.sort(owners * max(len(keys.dictionary), 1) + keys.indices.to_numpy())
    differ = np.ones(operations.num_rows, bool)
    differ[pairs[1:][np.diff(pairs) == 0] // max(len(keys.dictionary), 1)] = False
    return differ
