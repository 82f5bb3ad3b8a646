"""From what the loop has noted to the rows of the journal, a column at a time. Runs on the writer's thread.

A note is not an object: its fields follow one another in a flat list. A hundred thousand small tuples would be as many
objects for the garbage collector to look through, on the loop's thread as on any other.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from purgatory import Cause, Ended, OperationState
from purgatory.journal._schema import CHECKS, INSTANT, OPERATIONS

MICROSECONDS: Final = 1_000_000

ENDED: Final = Ended._fields
"""What the loop notes of an operation: the event as it comes, but for an exception, which would keep alive what it holds."""
CHECKED: Final = ("key", "tried", "completed", "at")
"""What the loop notes of a check."""
CHECKS_NOTED: Final = CHECKS.remove(CHECKS.get_field_index("part"))
"""The columns that are known before the file is."""

BY_A_TRY: Final = {Cause.FIRST_TRY, Cause.KEY, Cause.DEADLINE}
"""What ends an operation by a try."""

pc: Final[Any] = pyarrow.compute  # its functions are made when it is imported, unseen by type checkers

log: Final = logging.getLogger("purgatory.journal")

pa.array([])  # the first one imports pandas, where it is there; at the end of a program, when rows may be made, it could not


class Rows:
    """Makes rows of what was noted.

    Args:
        run_id: names the run.
        key_of: what stands in the journal for a key.
    """

    def __init__(self, run_id: str, key_of: Callable[[Any], str]) -> None:
        self.run_id = run_id
        self.purgatory = ""
        self.epoch = 0.0
        """What to add to the loop's clock to have seconds since 1970."""
        self._key_of = key_of
        self._key_of_failed = False

    def of_operations(self, notes: Sequence[Any], first_id: int) -> pa.Table:
        """The rows of the operations noted, numbered from `first_id`."""
        _, kinds, keys, started, ended, timeouts, states, causes, by, failed, missed, *_ = _columns(notes, ENDED)
        completed = [state is OperationState.COMPLETED for state in states]
        by_a_try = [cause in BY_A_TRY for cause in causes]
        columns = {
            **self._names(len(kinds)),
            "kind": kinds,
            "operation_id": range(first_id, first_id + len(kinds)),
            "keys": self._texts_of(keys),
            "started_at": self._instants(pa.array(started, pa.float64())),
            "ended_at": self._instants(pa.array(ended, pa.float64())),
            "timeout_s": timeouts,
            "outcome": [state._value_ for state in states],
            "attempts": [tries + (last and done) for tries, last, done in zip(failed, by_a_try, completed, strict=True)],
            "ended_by": [self._text(key) if cause is Cause.KEY else None for key, cause in zip(by, causes, strict=True)],
            "missed_trigger": missed,
        }
        return _table(columns, OPERATIONS)

    def of_checks(self, notes: Sequence[Any]) -> pa.Table:
        """The rows of the checks noted, without `part`; those of one key and second are still to be added up."""
        keys, tried, completed, at = _columns(notes, CHECKED)
        columns = {
            **self._names(len(keys)),
            "key": [self._text(key) for key in keys],
            "second": pc.floor_temporal(self._instants(pa.array(at, pa.float64())), unit="second"),
            "checks": pa.repeat(1, len(keys)),
            "tried": tried,
            "completed": completed,
        }
        return _table(columns, CHECKS_NOTED)

    def _names(self, count: int) -> dict[str, pa.Array]:
        return {"run_id": pa.repeat(self.run_id, count), "purgatory": pa.repeat(self.purgatory, count)}

    def _instants(self, times: pa.Array) -> pa.Array:
        """Instants on the loop's clock in UTC; two that are in order stay so."""
        microseconds = pc.round(pc.multiply(pc.add(times, self.epoch), MICROSECONDS))
        return pc.cast(pc.cast(microseconds, pa.int64()), INSTANT)

    def _texts_of(self, keys: Sequence[tuple[Hashable, ...]]) -> pa.Array:
        offsets = pa.array(accumulate(map(len, keys), initial=0), pa.int32())
        texts = pa.array([self._text(key) for several in keys for key in several], pa.string())
        return pa.ListArray.from_arrays(offsets, texts)

    def _text(self, key: Hashable) -> str:
        try:
            text = self._key_of(key)
            if not isinstance(text, str):
                raise TypeError(f"key_of returned {type(text).__name__}, not str")
            return text
        except Exception as error:
            # The key may be private, so its type alone is shown instead.
            if not self._key_of_failed:
                self._key_of_failed = True
                log.error("key_of failed for a key, which is journalled as its type, %s: %s", type(key).__name__, type(error))
            return f"<{type(key).__name__}>"


def added_up(checks: list[pa.Table]) -> pa.Table:
    """One row for each key and second, still without `part`."""
    names = ["run_id", "purgatory", "key", "second"]
    sums = pa.concat_tables(checks).group_by(names).aggregate([(name, "sum") for name in ("checks", "tried", "completed")])
    sums = sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
    return sums.select(CHECKS_NOTED.names).cast(CHECKS_NOTED)


def of_part(checks: pa.Table, part: int) -> pa.Table:
    """The rows as they are in the file with this number."""
    return checks.append_column("part", pa.repeat(part, len(checks))).cast(CHECKS)


def _columns(notes: Sequence[Any], fields: Sequence[str]) -> list[Sequence[Any]]:
    """The fields of notes that follow one another."""
    return [notes[position :: len(fields)] for position in range(len(fields))]


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
