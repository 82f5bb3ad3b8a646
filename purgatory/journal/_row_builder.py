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

from purgatory import Cause, Ended
from purgatory.journal._schema import CHECKS, INSTANT, OPERATIONS

MICROSECONDS: Final = 1_000_000

ENDED_FIELDS: Final = Ended._fields
"""Fields of an operation's record: the event's fields. The exception is replaced by None, since it
would keep other objects alive."""
CHECK_FIELDS: Final = ("purgatory", "key", "tried", "completed", "at")
"""Fields of a check's record."""
CHECKS_WITHOUT_PART: Final = CHECKS.remove(CHECKS.get_field_index("part"))
"""Columns of a check before its file is known."""

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
        self.offsets: dict[str, float] = {}
        """The offsets of the loops' clocks from seconds since 1970, by purgatory. Written by the
        loops' threads."""
        self._key_of = key_of
        self._key_of_failed = False

    def operations(self, records: Sequence[Any], first_id: int) -> pa.Table:
        """Rows of operations, numbered from `first_id`."""
        ended = _columns(records, ENDED_FIELDS)
        names = ended["purgatory"]
        columns = {
            **self._names(names),
            "kind": ended["kind"],
            "operation_id": range(first_id, first_id + len(names)),
            "keys": self._text_lists(ended["keys"]),
            "started_at": self._instants(ended["started_at"], names),
            "ended_at": self._instants(ended["ended_at"], names),
            "timeout_s": ended["timeout"],
            "outcome": [state._value_ for state in ended["state"]],
            "failed_tries": ended["failed_tries"],
            "ended_by": [
                self._text(key) if cause is Cause.KEY else None
                for key, cause in zip(ended["key"], ended["cause"], strict=True)
            ],
            "missed_trigger": ended["missed_trigger"],
        }
        return _table(columns, OPERATIONS)

    def checks(self, records: Sequence[Any]) -> pa.Table:
        """Rows of checks, one for each, without `part`: see `aggregate`."""
        checked = _columns(records, CHECK_FIELDS)
        names, keys = checked["purgatory"], checked["key"]
        columns = {
            **self._names(names),
            "key": [self._text(key) for key in keys],
            "second": pc.floor_temporal(self._instants(checked["at"], names), unit="second"),
            "checks": pa.repeat(1, len(keys)),
            "tried": checked["tried"],
            "completed": checked["completed"],
        }
        return _table(columns, CHECKS_WITHOUT_PART)

    def _names(self, purgatories: Sequence[str]) -> dict[str, Any]:
        return {
            "run_id": pa.repeat(self.run_id, len(purgatories)),
            "purgatory": [encodable(name) for name in purgatories],
        }

    def _instants(self, times: Sequence[float], purgatories: Sequence[str]) -> pa.Array:
        """Converts instants of the loops' clocks to UTC, without changing their order."""
        offsets = pa.array([self.offsets[name] for name in purgatories], pa.float64())
        seconds = pc.add(pa.array(times, pa.float64()), offsets)
        microseconds = pc.round(pc.multiply(seconds, MICROSECONDS))
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


def _columns(records: Sequence[Any], fields: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The columns of a flat list of records."""
    return {name: records[place :: len(fields)] for place, name in enumerate(fields)}


def _table(columns: dict[str, Any], schema: pa.Schema) -> pa.Table:
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
