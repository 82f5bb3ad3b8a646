"""Converts records of the loop to rows of the journal, a column at a time. Runs on the writer's
thread.

The records are in one flat list, field after field. A hundred thousand tuples would be as many
objects for the garbage collector to traverse, on whichever thread it runs.
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

ENDED_FIELDS: Final = Ended._fields
"""Fields of an operation's record: the event's fields. The exception is replaced by None, since it
would keep other objects alive."""
CHECK_FIELDS: Final = ("key", "tried", "completed", "at")
"""Fields of a check's record."""
CHECKS_WITHOUT_PART: Final = CHECKS.remove(CHECKS.get_field_index("part"))
"""Columns of a check before its file is known."""

TRY_CAUSES: Final = {Cause.FIRST_TRY, Cause.KEY, Cause.DEADLINE}
"""Causes of an end during a try of the operation."""

# Its functions are made on import, where type checkers do not see them.
pc: Final[Any] = pyarrow.compute

log: Final = logging.getLogger("purgatory.journal")

# The first array imports pandas, if that is installed. While the interpreter exits, that would
# fail.
pa.array([])


def encodable(text: str) -> str:
    r"""The text with lone surrogates escaped (`\ud800`). They have no encoding in UTF-8, and
    clients can send them in JSON."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class RowBuilder:
    """Converts records to rows.

    Args:
        run_id: identifies the run.
        key_of: returns the journal's text for a key.
    """

    def __init__(self, run_id: str, key_of: Callable[[Any], str]) -> None:
        self.run_id = run_id
        self.purgatory: str | None = None
        """The purgatory's name, once an operation has ended."""
        self.epoch = 0.0
        """The offset of the loop's clock from seconds since 1970."""
        self._key_of = key_of
        self._key_of_failed = False

    def operations(self, records: Sequence[Any], first_id: int) -> pa.Table:
        """Rows of operations, numbered from `first_id`."""
        _, kinds, keys, started, ended, timeouts, states, causes, by, failed, missed, *_ = _columns(
            records, ENDED_FIELDS
        )
        completed = [state is OperationState.COMPLETED for state in states]
        was_tried = [cause in TRY_CAUSES for cause in causes]
        columns = {
            **self._names(len(kinds)),
            "kind": kinds,
            "operation_id": range(first_id, first_id + len(kinds)),
            "keys": self._text_lists(keys),
            "started_at": self._instants(pa.array(started, pa.float64())),
            "ended_at": self._instants(pa.array(ended, pa.float64())),
            "timeout_s": timeouts,
            "outcome": [state._value_ for state in states],
            "attempts": [
                tries + (last and done)
                for tries, last, done in zip(failed, was_tried, completed, strict=True)
            ],
            "ended_by": [
                self._text(key) if cause is Cause.KEY else None
                for key, cause in zip(by, causes, strict=True)
            ],
            "missed_trigger": missed,
        }
        return _table(columns, OPERATIONS)

    def checks(self, records: Sequence[Any]) -> pa.Table:
        """Rows of checks, one for each, without `part`: see `aggregate`."""
        keys, tried, completed, at = _columns(records, CHECK_FIELDS)
        columns = {
            **self._names(len(keys)),
            "key": [self._text(key) for key in keys],
            "second": pc.floor_temporal(self._instants(pa.array(at, pa.float64())), unit="second"),
            "checks": pa.repeat(1, len(keys)),
            "tried": tried,
            "completed": completed,
        }
        return _table(columns, CHECKS_WITHOUT_PART)

    def _names(self, count: int) -> dict[str, pa.Array]:
        return {
            "run_id": pa.repeat(self.run_id, count),
            "purgatory": pa.repeat(encodable(self.purgatory or ""), count),
        }

    def _instants(self, times: pa.Array) -> pa.Array:
        """Converts instants of the loop's clock to UTC, without changing their order."""
        microseconds = pc.round(pc.multiply(pc.add(times, self.epoch), MICROSECONDS))
        return pc.cast(pc.cast(microseconds, pa.int64()), INSTANT)

    def _text_lists(self, keys: Sequence[tuple[Hashable, ...]]) -> pa.Array:
        offsets = pa.array(accumulate(map(len, keys), initial=0), pa.int32())
        texts = pa.array([self._text(key) for group in keys for key in group], pa.string())
        return pa.ListArray.from_arrays(offsets, texts)

    def _text(self, key: Hashable) -> str:
        try:
            text = self._key_of(key)
            if not isinstance(text, str):
                raise TypeError(f"key_of returned {type(text).__name__}, not str")
            return encodable(text)
        except Exception as error:
            # The key may be private, so only its type is shown.
            if not self._key_of_failed:
                self._key_of_failed = True
                log.error(
                    "key_of failed for a key of type %s, which is journalled as its type: %s",
                    type(key).__name__,
                    type(error),
                )
            return encodable(f"<{type(key).__name__}>")


def aggregate(checks: list[pa.Table]) -> pa.Table:
    """Sums rows of checks up by key and second, still without `part`."""
    names = ["run_id", "purgatory", "key", "second"]
    sums = (
        pa.concat_tables(checks)
        .group_by(names)
        .aggregate([(name, "sum") for name in ("checks", "tried", "completed")])
    )
    sums = sums.rename_columns([name.removesuffix("_sum") for name in sums.column_names])
    return sums.select(CHECKS_WITHOUT_PART.names).cast(CHECKS_WITHOUT_PART)


def with_part(checks: pa.Table, part: int) -> pa.Table:
    """The rows with the number of their file."""
    return checks.append_column("part", pa.repeat(part, len(checks))).cast(CHECKS)


def _columns(records: Sequence[Any], fields: Sequence[str]) -> list[Sequence[Any]]:
    """The columns of a flat list of records."""
    return [records[position :: len(fields)] for position in range(len(fields))]


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
