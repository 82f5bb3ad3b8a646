"""The data of the page's script: columns of numbers, as small as they can be.

A row of `timeline`, `waits` or `lateness` counts operations of one group (a purgatory and kind, as
a place in ``groups``) and one run (a place in ``runs``). If that makes too many rows for a page,
rows count operations of all runs, and the page has no choice of runs.

Waits are counted in steps, ten to a power of ten, with edges at 1, 1.2, 1.5, 2 and so on. Timeouts
usually have such lengths, so the page shows exactly what such a timeout would have given. A *cell*
is one step of one group and run in one span of the page's time. If there are too many cells, spans
are joined, two by two, until they fit: times get coarser, waits do not. Operations that started
outside the page's time are in span -1.

    1,000,000 waits of 20 ms to 2 s, 4 kinds, 240 spans    at most 4 x 240 x 20 = 19,200 cells
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from purgatory.pipeline.report._findings import LEFT_OUT, Finding, by_timeout, timeouts
from purgatory.pipeline.report._queries import EDGES, SECOND, Line, Summary

GROUPS: Final = 60
"""Limit of groups on a page. The smaller groups are merged into one more, without a curve."""
OTHERS: Final = "the others"
ROWS: Final = 20_000
"""The most rows of a timeline by run."""
FINE: Final = 6
"""The largest groups. Their curves have timeouts of three digits, other curves of two."""
DIGITS: Final = 5
"""The significant digits of numbers on the page."""
MILLISECOND: Final = 1000
"""A millisecond in microseconds."""

WAITS: Final = ("completed", "others", "open")
"""The counts of waits: `others` expired or were cancelled; the end of `open` ones was not
written."""
LATENESS: Final = ("expired",)
MOST_CELLS: Final = {WAITS: 40_000, LATENESS: 20_000}
"""Limits of cells on a page, by the name of their count."""

Owner = tuple[int, int]
"""A group and a run."""
Cell = tuple[int, int, int, int]
"""A group, a run, a place and a step."""
Columns = dict[str, list[Any]]


def data(findings: list[Finding], summary: Summary) -> dict[str, Any]:
    """All that the page shows, for JSON."""
    lines, (window, runs) = summary
    apart = by_timeout(summary)
    largest = sorted(lines["timeouts_in_order"], key=lambda line: -line["operations"])
    place = {
        (line["purgatory"], line["kind"]): min(number, GROUPS)
        for number, line in enumerate(largest)
    }
    if len(largest) > GROUPS:
        others = dict.fromkeys(largest[0]) | {"purgatory": OTHERS, "kind": OTHERS}
        largest = [*largest[:GROUPS], others]
    groups = [(line["purgatory"], line["kind"]) for line in largest]
    timeline = lines["timeline"]
    has_runs = len({line["run"] for line in timeline}) > 1 and len(timeline) <= ROWS
    start, width = window.start / MILLISECOND, window.width / MILLISECOND

    def owner(line: Line) -> Owner:
        return place[line["purgatory"], line["kind"]], line["run"] if has_runs else 0

    curves = [{**line, "run": -1} for line in lines["survival_in_order"]]
    account = (
        line | {"what": LEFT_OUT.get(line["what"], ("", line["what"]))[1]}
        for line in lines["account"]
        if line["count"] or line["what"] not in LEFT_OUT
    )
    return {
        "findings": [asdict(each) for each in findings],
        "groups": groups,
        "runs": [*runs, OTHERS] if has_runs else [],
        "window": {"start": start, "width": width, "count": window.count},
        "timeouts": [_shown(line) | {"timeouts": timeouts(line, apart)} for line in largest],
        "are_apart": any(apart[name] for name in groups),
        "timeline": _timeline(timeline, owner),
        "edges": EDGES,
        "waits": _packed(lines["wait_steps"], WAITS, owner),
        "lateness": _packed(lines["lateness_steps"], LATENESS, owner),
        "curves": _curves(curves + (lines["curves_of_runs"] if has_runs else []), place),
        "pending": _pending(lines["points"], {name for name, _ in groups}, window.width),
        "keys": _keys(lines["hot_keys_in_order"], lines["hot_times"], -(-SECOND // window.width)),
        "missed": _keys(lines["missed_keys_in_order"], lines["missed_times"], 1),
        "minutes": [_shown(line) for line in lines["worst_minutes"]],
        "read": [
            {name: line[name] for name in ("folder", "what", "reason", "count")} for line in account
        ],
    }


def _timeline(lines: list[Line], owner: Callable[[Line], Owner]) -> Columns:
    """The lines as columns; lines of one owner and place are added up."""
    by = ("group", "run", "place")
    others = [name for name in lines[0] if name not in (*by, "purgatory", "kind")] if lines else []
    sums: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0] * len(others))
    for line in lines:
        counts = sums[*owner(line), line["place"]]
        for number, name in enumerate(others):
            counts[number] += line[name]
    rows = [(*key, *counts) for key, counts in sums.items()]
    return {name: [row[at] for row in rows] for at, name in enumerate((*by, *others))}


def _curves(lines: list[Line], place: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """The survival curves: `run` is -1 for all runs."""
    of_owners: dict[Owner, list[Line]] = defaultdict(list)
    for line in lines:
        of_owners[place[line["purgatory"], line["kind"]], line["run"]].append(line)
    curves = []
    for (group, run), points in of_owners.items():
        if group < GROUPS:
            shown = _two_digits(points) if run < 0 and group >= FINE else points
            curves.append({"group": group, "run": run, **_curve(shown)})
    return curves


def _curve(lines: Iterable[Line]) -> Columns:
    names = ("timeout_s", "at_risk", "expiry_rate", "standard_error")
    return {name: [_rounded(line[name]) for line in lines] for name in names}


def _two_digits(lines: list[Line]) -> list[Line]:
    """The last line of each two digits of the timeout."""
    last = {f"{line['timeout_s']:.1e}": line for line in lines}
    return [*last.values()]


def _pending(lines: list[Line], purgatories: set[str], width: int) -> dict[str, Columns]:
    found: dict[str, Columns] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["purgatory"] in purgatories:
            columns = found[line["purgatory"]]
            for name in ("place", "most"):
                columns[name].append(line[name])
            columns["mean"].append(_rounded(line["area"] * SECOND / width))
    return found


def _keys(lines: list[Line], times: list[Line], spans: int) -> list[dict[str, Any]]:
    """The keys, each with its columns over time, and the number of spans that a count is of: checks
    are counted by the second."""
    columns: dict[tuple[str, str], Columns] = defaultdict(lambda: defaultdict(list))
    for line in times:
        for name, value in line.items():
            if name not in ("purgatory", "key"):
                columns[line["purgatory"], line["key"]][name].append(value)
    return [
        {**line, "times": columns.get((line["purgatory"], line["key"]), {}), "spans": spans}
        for line in lines
    ]


def _shown(line: Line) -> Line:
    return {
        name: value.timestamp() * 1e3 if name == "minute" else _rounded(value)
        for name, value in line.items()
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _packed(
    lines: Iterable[Line], counts: tuple[str, ...], owner: Callable[[Line], Owner]
) -> dict[str, Any]:
    """The cells, for the page's script.

    Args:
        lines: the rows of ``wait_steps`` or ``lateness_steps``.
        counts: the names of the counts, `WAITS` or `LATENESS`.

    Returns:
        ``width``, the number of spans that are joined; and columns ``group``, ``run``, ``place``
        and ``cells``: the step and the counts of each cell, all in one list.
    """
    cells = _added(
        ((*owner(line), line["place"], line["step"]), [line[name] for name in counts])
        for line in lines
    )
    width = 1
    while len(cells) > MOST_CELLS[counts] and max(place for _, _, place, _ in cells) > 0:
        # Two spans become one; -1 stays -1.
        cells = _added(
            ((group, run, place >> 1, step), numbers)
            for (group, run, place, step), numbers in cells.items()
        )
        width *= 2
    found: dict[str, Any] = {"width": width, "group": [], "run": [], "place": [], "cells": []}
    for of_cell, of_place in groupby(sorted(cells.items()), lambda cell: cell[0][:3]):
        for name, value in zip(("group", "run", "place"), of_cell, strict=True):
            found[name].append(value)
        found["cells"].append(
            [number for (*_, step), numbers in of_place for number in (step, *numbers)]
        )
    return found


def _added(counted: Iterable[tuple[Cell, list[int]]]) -> dict[Cell, list[int]]:
    cells: dict[Cell, list[int]] = {}
    for cell, numbers in counted:
        before = cells.get(cell, [0] * len(numbers))
        cells[cell] = [one + other for one, other in zip(before, numbers, strict=True)]
    return cells
