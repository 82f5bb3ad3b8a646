"""The data of the page's script: columns of numbers, as small as they can be.

A row of `timeline`, `waits` or `lateness` counts operations of one group (a purgatory and kind, as
a place in ``groups``) and one run (a place in ``runs``). If that makes too many rows for a page,
rows count operations of all runs, and the page has no choice of runs.

Waits are counted in steps, ten to a power of ten, with edges at 1, 1.2, 1.5, 2 and so on. Timeouts
usually have such lengths, so the page shows exactly what such a timeout would have given. A *cell*
is one step of one group and run in one span of the page's time. If there are too many cells, spans
are joined, two by two, until they fit: times get coarser, waits do not. Operations that began
outside the page's time are in span -1.

    1,000,000 waits of 20 ms to 2 s, 4 kinds, 240 spans    at most 4 x 240 x 20 = 19,200 cells
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from purgatory.pipeline.report._findings import LEFT_OUT, Finding
from purgatory.pipeline.report._queries import EDGES, SECOND, Line, Summary

GROUPS: Final = 60
"""Limit of groups on a page. The smaller groups are merged into one more, without a curve."""
OTHERS: Final = "the others"
ROWS: Final = 20_000
"""The most rows of a timeline by run."""
FINE: Final = 6
"""The largest groups, whose curves have timeouts of three digits; other curves have two."""
DIGITS: Final = 5
"""The significant digits of numbers on the page."""
MILLISECOND: Final = 1000
"""In microseconds."""

WAITS: Final = ("completed", "others", "open")
"""The counts of waits: `others` expired or were cancelled; the end of `open` ones was not
written."""
LATENESS: Final = ("expired",)
MOST_CELLS: Final = {WAITS: 40_000, LATENESS: 20_000}
"""Limits of cells on a page, by the name of their count."""

Cells = dict[tuple[int, int, int, int], list[int]]
"""The counts of each group, run, place and step."""
Columns = dict[str, list[Any]]


def data(findings: list[Finding], summary: Summary) -> dict[str, Any]:
    """All that the page shows, for JSON."""
    largest = sorted(summary.timeouts_in_order, key=lambda line: -line["operations"])
    place = {
        (line["purgatory"], line["kind"]): min(number, GROUPS)
        for number, line in enumerate(largest)
    }
    if len(largest) > GROUPS:
        largest = [
            *largest[:GROUPS],
            dict.fromkeys(largest[0]) | {"purgatory": OTHERS, "kind": OTHERS},
        ]
    groups = [(line["purgatory"], line["kind"]) for line in largest]
    has_runs = len({line["run"] for line in summary.timeline}) > 1 and len(summary.timeline) <= ROWS
    window = summary.window

    return {
        "findings": [
            {"text": each.text, "place": each.place, "purgatory": each.purgatory, "kind": each.kind}
            for each in findings
        ],
        "groups": groups,
        "runs": [*summary.runs, OTHERS] if has_runs else [],
        "window": {
            "start": window.start / MILLISECOND,
            "width": window.width / MILLISECOND,
            "count": window.count,
        },
        "timeouts": [_shown(line) for line in largest],
        "timeline": _timeline(summary.timeline, place, has_runs),
        "edges": EDGES,
        "waits": packed(summary.wait_steps, WAITS, place, has_runs=has_runs),
        "lateness": packed(summary.lateness_steps, LATENESS, place, has_runs=has_runs),
        "curves": _curves(summary, place, has_runs),
        "pending": _pending(summary, {name for name, _ in groups}),
        "keys": _keys(summary.hot_keys_in_order, summary.hot_times, -(-SECOND // window.width)),
        "missed": _keys(summary.missed_keys_in_order, summary.missed_times, 1),
        "minutes": [_shown(line) for line in summary.worst_minutes],
        "read": [
            {
                **{name: line[name] for name in ("folder", "reason", "count")},
                "what": LEFT_OUT.get(line["what"], ("", line["what"]))[1],
            }
            for line in summary.account
            if line["count"] or line["what"] not in LEFT_OUT
        ],
    }


def _timeline(lines: list[Line], place: dict[tuple[str, str], int], has_runs: bool) -> Columns:
    """The lines as columns; runs are added up if the page does not show single runs."""
    by = ["group", "run", "place"]
    others = [
        name for name in (lines[0] if lines else {}) if name not in (*by, "purgatory", "kind")
    ]
    sums: dict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0] * len(others))
    for line in lines:
        key = (
            place[line["purgatory"], line["kind"]],
            line["run"] if has_runs else 0,
            line["place"],
        )
        for number, name in enumerate(others):
            sums[key][number] += line[name]
    columns: Columns = {name: [key[number] for key in sums] for number, name in enumerate(by)}
    return columns | {
        name: [values[number] for values in sums.values()] for number, name in enumerate(others)
    }


def _curves(
    summary: Summary, place: dict[tuple[str, str], int], has_runs: bool
) -> list[dict[str, Any]]:
    """The survival curves: `run` is -1 for all runs."""
    of_groups: dict[tuple[str, str, int], list[Line]] = defaultdict(list)
    for line in summary.survival_in_order:
        of_groups[line["purgatory"], line["kind"], -1].append(line)
    for line in summary.curves_of_runs if has_runs else ():
        of_groups[line["purgatory"], line["kind"], line["run"]].append(line)
    curves = []
    for (purgatory, kind, run), lines in of_groups.items():
        group = place[purgatory, kind]
        if group < GROUPS:
            points = _two_digits(lines) if run < 0 and group >= FINE else lines
            curves.append({"group": group, "run": run, **_curve(points)})
    return curves


def _curve(lines: Iterable[Line]) -> Columns:
    names = ("timeout_s", "at_risk", "expiry_rate", "standard_error")
    return {name: [_rounded(line[name]) for line in lines] for name in names}


def _two_digits(lines: list[Line]) -> list[Line]:
    """The last line of each two digits of the timeout."""
    last = {f"{line['timeout_s']:.1e}": line for line in lines}
    return [*last.values()]


def _pending(summary: Summary, purgatories: set[str]) -> dict[str, Columns]:
    found: dict[str, Columns] = {}
    for line in summary.points:
        if line["purgatory"] in purgatories:
            columns = found.setdefault(line["purgatory"], {"place": [], "most": [], "mean": []})
            columns["place"].append(line["place"])
            columns["most"].append(line["most"])
            columns["mean"].append(_rounded(line["area"] * SECOND / summary.window.width))
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
