"""How long operations waited and how late they expired, by the time in which they began: what follows the page's zoom.

Waits are counted in steps, ten to a power of ten, which begin at 1, 1.2, 1.5, 2 and so on. These are the lengths that timeouts
have, and of such a timeout the page can tell exactly what it would have given. A *cell* is one step of one group and run in one
span of the window. Where there are too many cells, spans are joined, two by two, until they fit: times get coarser then, and
waits stay as they are. What began outside the window is in the span -1.

    1,000,000 waits of 20 ms to 2 s, 4 kinds, 240 spans    at most 4 x 240 x 20 = 19,200 cells
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from purgatory.pipeline.report._operations import COMPLETED, EXPIRED, Operations
from purgatory.pipeline.report._plan import SECOND, Ints, Plan, coded, summed

EDGES: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""Where the steps of a power of ten begin. The page is told these."""
POWERS: Final = 14
"""So many powers of ten, from a microsecond on; what is longer is in the last step."""
CELLS: Final = 100_000
"""The most that a task returns of a piece."""
SHOWN: Final = {"waits": 40_000, "lateness": 20_000}
"""The most that the page has."""
COUNTS: Final = {"waits": ("completed", "others", "open"), "lateness": ("expired",)}
"""What is counted: `others` expired or were cancelled, and of those that are `open` the end was not written."""
CELL: Final = ["group", "run", "place", "step"]

_BEGINNINGS: Final = np.array([edge * 10**power / 10 for power in range(POWERS) for edge in EDGES])
_FIRST: Final = -6 * len(EDGES)
"""The step of a microsecond: that of a second is 0."""


def steps_of(micros: Ints) -> Ints:
    """The step of each wait; none is below that of a microsecond."""
    return np.searchsorted(_BEGINNINGS, np.maximum(micros, 1), side="right") - 1 + _FIRST


def waits(operations: Operations, plan: Plan) -> pa.Table:
    """purgatory, kind, run, place (a span in which they began), step, shift, and the `COUNTS`.

    2 ** `shift` spans are joined.
    """
    is_known = operations.has_start
    has_end, is_completed = operations.has_end[is_known], operations.outcome[is_known] == COMPLETED
    counts = (is_completed, has_end & ~is_completed, ~has_end)
    return _cells(operations, is_known, plan, operations.wait[is_known], dict(zip(COUNTS["waits"], counts, strict=True)))


def lateness(operations: Operations, plan: Plan) -> pa.Table:
    """The same for how long after its deadline each expired."""
    is_known = (operations.outcome == EXPIRED) & operations.has_start & ~np.isnan(operations.timeout)
    timeout = np.rint(np.minimum(operations.timeout[is_known] * SECOND, 1e18)).astype(np.int64)
    late = np.maximum(operations.wait[is_known] - timeout, 0)
    return _cells(operations, is_known, plan, late, {"expired": np.ones(len(late), bool)})


def _cells(operations: Operations, which: Any, plan: Plan, micros: Ints, counts: dict[str, Any]) -> pa.Table:
    place = plan.window.places(operations.begin[which])
    columns = {
        "group": operations.group[which],
        "run": operations.run[which],
        "place": np.where(place < plan.window.count, place, -1),
        "step": steps_of(micros),
        **{name: each.astype(np.int64) for name, each in counts.items()},
    }
    rows, shift = fitting(summed([pa.table(columns)], CELL), CELLS)
    names = operations.names(rows["group"].to_numpy())
    others = {name: rows[name] for name in rows.column_names if name != "group"}
    return pa.table({**names, **others, "shift": np.full(len(rows), shift)})


def fitting(rows: pa.Table, most: int) -> tuple[pa.Table, int]:
    """Cells, of which spans are joined until there are no more than `most`, or only one span; and how often that was done."""
    shift = 0
    while rows.num_rows > most and np.max(rows["place"].to_numpy()) > 0:
        rows, shift = joined(rows, 1), shift + 1
    return rows, shift


def joined(rows: pa.Table, shift: Any) -> pa.Table:
    """The cells with 2 ** `shift` of their spans as one; -1 stays -1."""
    place = pa.array(rows["place"].to_numpy() >> shift)
    return summed([rows.set_column(rows.column_names.index("place"), "place", place)], CELL)


def packed(name: str, found: list[pa.Table], place_of: Mapping[tuple[str, str], int], *, has_runs: bool) -> dict[str, Any]:
    """What the page is given.

    Args:
        name: ``waits`` or ``lateness``.
        found: what the tasks told.
        place_of: the number that the page has for a purgatory and kind.
        has_runs: whether the page tells runs apart.

    Returns:
        ``width``, how many spans are one; and columns ``group``, ``run``, ``place`` and ``cells``: the step and the counts of
        one cell after the other, in one list.
    """
    counts = COUNTS[name]
    found = [each for each in found if each.num_rows]
    if not found:
        return {"width": 1, "group": [], "run": [], "place": [], "cells": []}
    rows = pa.concat_tables(found)
    (purgatory, purgatories), (kind, kinds) = coded(rows["purgatory"]), coded(rows["kind"])
    numbers = np.array([[place_of.get((one, other), 0) for other in kinds] for one in purgatories], np.int64)
    shift, done = int(np.max(rows["shift"].to_numpy())), rows["shift"].to_numpy()
    columns = {
        "group": numbers[purgatory, kind],
        "run": rows["run"].to_numpy() * has_runs,
        **{each: rows[each] for each in ("place", "step", *counts)},
    }
    cells, more = fitting(joined(pa.table(columns), shift - done), SHOWN[name])
    cells = cells.sort_by([(each, "ascending") for each in CELL])
    keys = [cells[each].to_numpy() for each in CELL[:3]]
    is_first = np.ones(len(cells), bool)
    is_first[1:] = np.any([np.diff(key) != 0 for key in keys], axis=0)
    starts = np.flatnonzero(is_first)
    numbers_of = np.stack([cells[each].to_numpy() for each in ("step", *counts)], axis=1)
    return {
        "width": 1 << (shift + more),
        **{each: key[starts].tolist() for each, key in zip(CELL, keys, strict=False)},
        "cells": [part.ravel().tolist() for part in np.split(numbers_of, starts[1:])],
    }
