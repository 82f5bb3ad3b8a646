"""How long operations waited and how late they expired, by the time at which they began. The page
filters them by its zoom.

Waits are counted in steps, ten to a power of ten, with edges at 1, 1.2, 1.5, 2 and so on. Timeouts
usually have such lengths, so the page shows exactly what such a timeout would have given. A *cell*
is one step of one group and run in one span of the page's time. If there are too many cells, spans
are joined, two by two, until they fit: times get coarser, waits do not. Operations that began
outside the page's time are in span -1.

    1,000,000 waits of 20 ms to 2 s, 4 kinds, 240 spans    at most 4 x 240 x 20 = 19,200 cells
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

EDGES: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""The first tenths of each step of a power of ten."""
MOST: Final = 79
"""The last step, which has all longer waits, too."""
WAITS: Final = ("completed", "others", "open")
"""The counts of waits: `others` expired or were cancelled; the end of `open` ones was not
written."""
LATENESS: Final = ("expired",)
MOST_CELLS: Final = {WAITS: 40_000, LATENESS: 20_000}
"""Limits of cells on a page, by the name of their count."""

Cells = dict[tuple[int, int, int, int], list[int]]
"""The counts of each group, run, place and step."""


def step_of(lead: str, power: str) -> str:
    """The step of a length, as an expression of SQL; the step of a second is 0.

    Args:
        lead: the first two digits of the length in microseconds.
        power: the exponent of its first digit.
    """
    edges = " + ".join(f"CAST({lead} >= {edge} AS INT)" for edge in EDGES[1:])
    return f"CASE WHEN {lead} IS NOT NULL THEN least(10 * {power} - 60 + {edges}, {MOST}) END"


def packed(
    lines: Iterable[Mapping[str, Any]],
    counts: tuple[str, ...],
    place_of: Mapping[tuple[str, str], int],
    *,
    has_runs: bool,
) -> dict[str, Any]:
    """The cells, for the page's script.

    Args:
        lines: the rows of ``wait_steps`` or ``lateness_steps``.
        counts: the names of the counts, `WAITS` or `LATENESS`.
        place_of: the page's number of a purgatory and kind.
        has_runs: whether the page can show single runs.

    Returns:
        ``width``, the number of spans that are joined; and columns ``group``, ``run``, ``place``
        and ``cells``: the step and the counts of each cell, all in one list.
    """
    cells: Cells = {}
    for line in lines:
        run = line["run"] if has_runs else 0
        cell = (place_of[line["purgatory"], line["kind"]], run, line["place"], line["step"])
        _add(cells, cell, [line[name] for name in counts])
    width = 1
    while len(cells) > MOST_CELLS[counts] and max(place for _, _, place, _ in cells) > 0:
        cells, width = _joined(cells), 2 * width
    found: dict[str, Any] = {"width": width, "group": [], "run": [], "place": [], "cells": []}
    for (group, run, place), of_place in groupby(sorted(cells.items()), lambda cell: cell[0][:3]):
        for name, value in (("group", group), ("run", run), ("place", place)):
            found[name].append(value)
        found["cells"].append(
            [number for (*_, step), numbers in of_place for number in (step, *numbers)]
        )
    return found


def _joined(cells: Cells) -> Cells:
    """The cells with two of their spans as one; -1 stays -1."""
    found: Cells = {}
    for (group, run, place, step), numbers in cells.items():
        _add(found, (group, run, place >> 1, step), numbers)
    return found


def _add(cells: Cells, cell: tuple[int, int, int, int], numbers: list[int]) -> None:
    before = cells.get(cell)
    cells[cell] = (
        numbers
        if before is None
        else [one + other for one, other in zip(before, numbers, strict=True)]
    )
