"""How long operations waited and how late they expired, by the time in which they began: what follows the page's zoom.

Waits are counted in steps, ten to a power of ten, which begin at 1, 1.2, 1.5, 2 and so on: ``report.sql`` has the step of each
wait. These are the lengths that timeouts have, and of such a timeout the page can tell exactly what it would have given. A
*cell* is one step of one group and run in one span of the page's time. Where there are too many cells, spans are joined, two by
two, until they fit: times get coarser then, and waits stay as they are. What began outside the page's time is in the span -1.

    1,000,000 waits of 20 ms to 2 s, 4 kinds, 240 spans    at most 4 x 240 x 20 = 19,200 cells
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from purgatory.pipeline.report._queries import Line

EDGES: Final = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""Where the steps of a power of ten begin, as in ``report.sql``. The page is told these."""
WAITS: Final = ("completed", "others", "open")
"""What is counted of waits: `others` expired or were cancelled, and of those that are `open` the end was not written."""
LATENESS: Final = ("expired",)
MOST_CELLS: Final = {WAITS: 40_000, LATENESS: 20_000}
"""The most that the page has."""

Cells = dict[tuple[int, int, int, int], list[int]]
"""The counts of each group, run, place and step."""


def packed(
    lines: Iterable[Line], counts: tuple[str, ...], place_of: Mapping[tuple[str, str], int], *, has_runs: bool
) -> dict[str, Any]:
    """What the page is given.

    Args:
        lines: of ``wait_steps`` or ``lateness_steps``.
        counts: what is counted, `WAITS` or `LATENESS`.
        place_of: the number that the page has for a purgatory and kind.
        has_runs: whether the page tells runs apart.

    Returns:
        ``width``, how many spans are one; and columns ``group``, ``run``, ``place`` and ``cells``: the step and the counts of
        one cell after the other, in one list.
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
        found["cells"].append([number for (*_, step), numbers in of_place for number in (step, *numbers)])
    return found


def _joined(cells: Cells) -> Cells:
    """The cells with two of their spans as one; -1 stays -1."""
    found: Cells = {}
    for (group, run, place, step), numbers in cells.items():
        _add(found, (group, run, place >> 1, step), numbers)
    return found


def _add(cells: Cells, cell: tuple[int, int, int, int], numbers: list[int]) -> None:
    before = cells.get(cell)
    cells[cell] = numbers if before is None else [one + other for one, other in zip(before, numbers, strict=True)]
