"""The operations of a piece, as arrays of numbers."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from purgatory.pipeline._pieces import read_piece
from purgatory.pipeline._validation import OUTCOMES
from purgatory.pipeline.report._plan import Ints, Plan

pc: Final[Any] = pyarrow.compute
COLUMNS: Final = (
    "run_id", "purgatory", "kind", "keys", "started_at", "ended_at", "timeout_s", "outcome", "missed_trigger",
)  # fmt: skip
COMPLETED, EXPIRED, CANCELLED, NO_END = range(4)
"""What `Operations.outcome` has."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a piece: arrays with a value for each, times in microseconds."""

    purgatories: list[str]
    purgatory: Ints
    """A place in `purgatories`."""
    groups: list[tuple[str, str]]
    group: Ints
    """The purgatory and kind: a place in `groups`."""
    run: Ints
    """A place in `Plan.runs`, or one more for all others."""
    keys: pa.Array
    has_start: Bools
    has_end: Bools
    begin: Ints
    """The start, or the first instant of the run."""
    end: Ints
    """The end, or the last instant of the run."""
    outcome: npt.NDArray[np.int8]
    timeout: npt.NDArray[np.float64]
    """NaN for none."""
    is_missed: Bools

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.group)

    @property
    def wait(self) -> Ints:
        """How long each is known to have waited; for one without an end, until the end of its run."""
        return self.end - self.begin

    def names(self, places: Any) -> dict[str, list[str]]:
        """The columns ``purgatory`` and ``kind`` of some places in `groups`."""
        pairs = [self.groups[place] for place in places]
        return {"purgatory": [each[0] for each in pairs], "kind": [each[1] for each in pairs]}


def load(piece: str, plan: Plan) -> Operations:
    """Reads a piece."""
    rows = read_piece(piece, COLUMNS)
    runs, run = _codes(rows, "run_id")
    purgatories, purgatory = _codes(rows, "purgatory")
    kinds, kind = _codes(rows, "kind")
    pairs, group = np.unique(purgatory * len(kinds) + kind, return_inverse=True)
    shown = {name: place for place, name in enumerate(plan.runs)}
    started, ended = (rows[name].cast(pa.int64()).combine_chunks() for name in ("started_at", "ended_at"))
    has_start, has_end = pc.is_valid(started).to_numpy(False), pc.is_valid(ended).to_numpy(False)
    bounds = np.array([plan.bounds[name] for name in runs], np.int64).reshape(-1, 2)
    outcomes, outcome = _codes(rows, "outcome")
    order = np.array([OUTCOMES.index(name) for name in outcomes] + [NO_END], np.int8)
    return Operations(
        purgatories=purgatories,
        purgatory=purgatory,
        groups=[(purgatories[pair // len(kinds)], kinds[pair % len(kinds)]) for pair in pairs],
        group=group.astype(np.int64),
        run=np.array([shown.get(name, len(plan.runs)) for name in runs], np.int64)[run],
        keys=rows["keys"].chunk(0),
        has_start=has_start,
        has_end=has_end,
        begin=np.where(has_start, pc.fill_null(started, 0).to_numpy(), bounds[run, 0]),
        end=np.where(has_end, pc.fill_null(ended, 0).to_numpy(), bounds[run, 1]),
        outcome=order[outcome],
        timeout=pc.fill_null(rows["timeout_s"], np.nan).to_numpy(),
        is_missed=rows["missed_trigger"].chunk(0).to_numpy(False),
    )


def _codes(rows: pa.Table, name: str) -> tuple[list[str], Ints]:
    """The different texts of a column that a row has, and where in them each row's is; -1 for none."""
    column = rows[name].chunk(0)
    places = pc.fill_null(column.indices, len(column.dictionary)).to_numpy().astype(np.int64)
    used = np.unique(places)
    names = list(column.dictionary.take(pa.array(used[used < len(column.dictionary)])).to_pylist())
    renumbered = np.full(len(column.dictionary) + 1, -1, np.int64)
    renumbered[used[used < len(column.dictionary)]] = np.arange(len(names))
    return names, renumbered[places]
