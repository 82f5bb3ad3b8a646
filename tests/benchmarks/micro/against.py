"""``micro --against PATH``: an older checkout and this one alternately, row by row, and how each
has changed.

Each checkout has a process of its own, in which the rows of this one are measured. A round of one
is followed by a round of the other, so other load on the machine affects both. In each round a
row also measures its baseline, such as the loop's own timers: where two runs of the baseline
differ, so did the load of the machine, and the figure is the fairer comparison.
"""

import argparse
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case, LoopName
from benchmarks.measure import Measured
from benchmarks.process import TESTS
from benchmarks.report import number, opened_console, plain_table, write_report


class Side:
    """The process that measures a checkout."""

    def __init__(self, checkout: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("against_side.py")), str(checkout)]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        self.answer: Measured | str | None = None
        """`None` while the process waits for its next round."""

    def send(self, message: object) -> None:
        """Lets the process continue until its next request or its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
            self.answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            self.answer = "its process has ended"

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def run(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Measures the cases on both checkouts, prints the table and writes the JSON; returns the exit
    status."""
    loops = " and ".join(options.loops)
    console = opened_console(
        f"micro: {len(cases)} rows on {loops}, {options.against} alternately with {TESTS.parent}"
    )
    rows = [
        measure(case, loop_name, options, console) for case in cases for loop_name in options.loops
    ]
    console.print(table(rows, options.quick))
    write_report(
        console, options, "micro", against=str(options.against), seed=options.seed, rows=rows
    )
    return 0


def measure(
    case: Case, loop_name: LoopName, options: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """A row on both checkouts, each in a new process, as plain data."""
    sides = [Side(options.against), Side(TESTS.parent)]
    try:
        for side in sides:
            side.send((loop_name, options.seed, options.quick, pickle.dumps(case.measure)))
        while any(side.answer is None for side in sides):
            for side in sides:
                if side.answer is None:
                    side.send("next round")
    finally:
        for side in sides:
            side.close()
    row = compared(case, loop_name, sides[0].answer, sides[1].answer)
    change = row["reason"] or f"{number(row['after'] / row['before'])} of the earlier cost"
    console.print(f"{case.name} on {loop_name}: {change}", markup=False)
    return row


def compared(
    case: Case, loop_name: LoopName, before: Measured | str | None, after: Measured | str | None
) -> dict[str, Any]:
    """The medians of both, and of their figures where these are ratios to something else."""
    row: dict[str, Any] = {
        "name": case.name,
        "loop": loop_name,
        "unit": case.cost_unit,
        "reason": None,
    }
    answers = {"before": before, "after": after}
    reasons = [
        f"not measured {when}: {answer}"
        for when, answer in answers.items()
        if not isinstance(answer, Measured)
    ]
    if reasons:
        return {**row, "reason": "; ".join(reasons)}
    for when, answer in answers.items():
        assert isinstance(answer, Measured)
        row[when] = answer.bare.ours.median
        row[f"{when}_figure"] = answer.bare.figure.median if answer.bare.theirs else None
    return row


def table(rows: Sequence[dict[str, Any]], quick: bool) -> Table:
    """A line for each row: the costs, their ratio, and the figures, which compare with something
    else."""
    caption = "Medians. after/before: of the costs, and of the ratios to each row's baseline."
    numbers = ("before", "after", "after/before", "ratio before", "ratio after", "after/before")
    result = plain_table("micro, before and after", caption, ("row", "loop"), numbers, quick)
    for row in rows:
        if row["reason"]:
            result.add_row(row["name"], row["loop"], "not measured")
            continue
        cells = [
            number(row["before"], row["unit"]),
            number(row["after"], row["unit"]),
            number(row["after"] / row["before"]),
        ]
        if row["before_figure"] is not None:
            cells += [number(row["before_figure"]), number(row["after_figure"])]
            cells += [number(row["after_figure"] / row["before_figure"])]
        result.add_row(row["name"], row["loop"], *cells)
    return result
