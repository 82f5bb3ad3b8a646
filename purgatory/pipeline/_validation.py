"""Validates the rows of a journal: an invalid row is rejected, with the first reason that applies."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

pc: Final[Any] = pyarrow.compute  # its functions are made when it is imported, unseen by type checkers

OUTCOMES: Final = ("completed", "expired", "cancelled")
YEARS: Final = "is not between the years 1970 and 9999"
END_OF_TIME: Final = 253_402_300_800_000_000
"""The end of the year 9999, in microseconds. Beyond that neither Python nor Spark can show an instant."""


def rejections(rows: pa.Table, folder: str) -> tuple[npt.NDArray[np.int8], list[str]]:
    """For each row the index of the reason for which it is rejected, or -1; and the list of reasons.

    Args:
        rows: with the columns and types that `_rows.TYPES` has for the folder.
    """
    rules = _operation_rules(rows) if folder == "operations" else _check_rules(rows)
    found = np.full(rows.num_rows, -1, np.int8)
    for number, (_, broken) in enumerate(rules):
        is_broken = np.asarray(pc.fill_null(broken, False))
        if is_broken.any():
            found[is_broken & (found < 0)] = number
    return found, [reason for reason, _ in rules]


def _missing(rows: pa.Table, *names: str) -> list[tuple[str, Any]]:
    return [(f"{name} is missing", pc.is_null(rows[name])) for name in names if rows[name].null_count]


def _operation_rules(rows: pa.Table) -> list[tuple[str, Any]]:
    started, ended, timeout = _micros(rows["started_at"]), _micros(rows["ended_at"]), rows["timeout_s"]
    has_start, has_end = pc.is_valid(started), pc.is_valid(ended)
    outcome = rows["outcome"].cast(pa.string())
    has_outcome = pc.is_valid(outcome)
    is_known = pc.is_in(outcome, value_set=pa.array(OUTCOMES))
    return [
        *_missing(rows, "run_id", "purgatory", "kind", "operation_id", "keys", "attempts", "missed_trigger"),
        ("a key is missing", _has_null(rows["keys"])),
        ("operation_id is negative", pc.less(rows["operation_id"], 0)),
        ("unknown outcome", pc.and_(has_outcome, pc.invert(is_known))),
        ("an end without an outcome", pc.and_(has_end, pc.invert(has_outcome))),
        ("an outcome without an end", pc.and_(pc.invert(has_end), has_outcome)),
        ("neither start nor end", pc.and_(pc.invert(has_end), pc.invert(has_start))),
        (f"started_at {YEARS}", _beyond(started)),
        (f"ended_at {YEARS}", _beyond(ended)),
        ("ended before it started", pc.less(ended, started)),
        (
            "timeout_s is no number of seconds",
            pc.or_(pc.invert(pc.is_finite(timeout)), pc.less(timeout, 0.0)),
        ),
    ]


def _check_rules(rows: pa.Table) -> list[tuple[str, Any]]:
    return [
        *_missing(rows, *rows.column_names),
        (f"second {YEARS}", _beyond(_micros(rows["second"]))),
        ("a negative count", pc.less(pc.min_element_wise(rows["checks"], rows["tried"], rows["completed"]), 0)),
        ("more completed than tried", pc.greater(rows["completed"], rows["tried"])),
    ]


def _micros(instants: Any) -> Any:
    return pc.cast(instants, pa.int64())


def _beyond(micros: Any) -> Any:
    return pc.or_(pc.less(micros, 0), pc.greater_equal(micros, END_OF_TIME))


def _has_null(lists: pa.ChunkedArray) -> pa.Array:
    """Whether each list contains a null."""
    has = np.zeros(len(lists), bool)
    items = pc.list_flatten(lists)
    if items.null_count:
        parents = pc.list_parent_indices(lists).to_numpy()
        has[parents[np.asarray(pc.is_null(items))]] = True
    return pa.array(has)
