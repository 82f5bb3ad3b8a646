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

from purgatory._observer import DEADLINE, NOTHING, Among
from purgatory._state import COMPLETED
from purgatory._watchers import Watched
from purgatory.journal._schema import CHECKS, INSTANT, OPERATIONS

MICROSECONDS: Final = 1_000_000

ENDED: Final = ("kind", "keys", "timeout", "when", "ended", "state", "cause", "retries", "started")
"""What the loop notes of an operation, on the loop's clock: nothing that keeps the operation alive.

- `when`: its deadline, also infinite; `None` if it has none, or ended before it was watched.
- `started`: `None` where it follows from deadline and timeout, or the operation ended at once.
"""
CHECKED: Final = ("key", "tried", "completed", "at")
"""What the loop notes of a check, unless it tried one operation and completed it: then that one's note tells it all."""

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
        kinds, watched, timeouts, whens, ended_, states, causes, retries, started = _columns(notes, ENDED)
        timeout, when, ended = pa.array(timeouts, pa.float64()), pa.array(whens, pa.float64()), pa.array(ended_, pa.float64())
        start = pc.coalesce(pa.array(started, pa.float64()), pc.min_element_wise(pc.subtract(when, timeout), ended), ended)
        start = pc.if_else(pc.is_null(pc.coalesce(timeout, when)), start, pc.min_element_wise(start, ended))
        allowed = pc.coalesce(timeout, pc.max_element_wise(pc.subtract(when, start), 0.0, skip_nulls=False))
        columns = {
            **self._names(len(kinds)),
            "kind": [kind.__qualname__ for kind in kinds],
            "operation_id": range(first_id, first_id + len(kinds)),
            "keys": self._texts_of(watched),
            "started_at": self._instants(start),
            "ended_at": self._instants(ended),
            "timeout_s": pc.if_else(pc.is_finite(allowed), allowed, None),
            "outcome": [state._value_ for state in states],
            "attempts": [1 + again + (cause is not NOTHING) for again, cause in zip(retries, causes, strict=True)],
            "ended_by": [self._cause(cause) for cause in causes],
            "missed_trigger": [cause is DEADLINE and state is COMPLETED for cause, state in zip(causes, states, strict=True)],
        }
        return _table(columns, OPERATIONS)

    def of_checks_of_one(self, notes: Sequence[Any]) -> pa.Table:
        """The rows of the checks that are not noted by themselves, as each tried one operation and completed it."""
        _, _, _, _, at, _, causes, _, _ = _columns(notes, ENDED)
        alone = [(cause, 1, 1, when) for cause, when in zip(causes, at, strict=True) if _is_key(cause)]
        return self.of_checks([field for note in alone for field in note])

    def of_checks(self, notes: Sequence[Any]) -> pa.Table:
        """The rows of the checks noted; those of one key and second are still to be added up."""
        keys, tried, completed, at = _columns(notes, CHECKED)
        columns = {
            **self._names(len(keys)),
            "key": [self._text(key) for key in keys],
            "second": pc.floor_temporal(self._instants(pa.array(at, pa.float64())), unit="second"),
            "checks": pa.repeat(1, len(keys)),
            "tried": tried,
            "completed": completed,
        }
        return _table(columns, CHECKS)

    def _names(self, count: int) -> dict[str, pa.Array]:
        return {"run_id": pa.repeat(self.run_id, count), "purgatory": pa.repeat(self.purgatory, count)}

    def _instants(self, times: pa.Array) -> pa.Array:
        """Instants on the loop's clock in UTC; two that are in order stay so."""
        microseconds = pc.round(pc.multiply(pc.add(times, self.epoch), MICROSECONDS))
        return pc.cast(pc.cast(microseconds, pa.int64()), INSTANT)

    def _texts_of(self, watched: Sequence[Watched]) -> pa.Array:
        keys = [each if type(each) is tuple else (each,) for each in watched]
        offsets = pa.array(accumulate(map(len, keys), initial=0), pa.int32())
        texts = pa.array([self._text(key) for several in keys for key in several], pa.string())
        return pa.ListArray.from_arrays(offsets, texts)

    def _cause(self, cause: Hashable) -> str | None:
        if _is_key(cause):
            return self._text(cause)
        return self._text(cause.key) if type(cause) is Among else None

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
    """One row for each key and second."""
    names = ["run_id", "purgatory", "key", "second"]
    sums = pa.concat_tables(checks).group_by(names).aggregate([(name, "sum") for name in ("checks", "tried", "completed")])
    return sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names]).select(CHECKS.names).cast(CHECKS)


def _is_key(cause: Hashable) -> bool:
    return cause is not NOTHING and cause is not DEADLINE and type(cause) is not Among


def _columns(notes: Sequence[Any], fields: Sequence[str]) -> list[Sequence[Any]]:
    """The fields of notes that follow one another."""
    return [notes[position :: len(fields)] for position in range(len(fields))]


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
