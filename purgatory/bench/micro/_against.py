"""``micro --against PATH``: an older checkout and this one in turns, row by row, and what has become of each.

Each checkout has a process of its own, in which the rows of this one are measured. A round of one is followed by a round of the
other, so whatever else the machine does affects both. In each round a row also measures what it compares with, such as the
loop's own timers: where two runs of that differ, so do the machine's moods, and the change of the figure is the fairer one.
"""

import argparse
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from purgatory.bench._cases import QUICK_DIVISOR, Case, LoopName
from purgatory.bench._measure import Measured
from purgatory.bench._report import environment, number, wide_console, write_report

HERE = Path(__file__).resolve().parents[3]


class Side:
    """The process that measures a checkout."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self._process = Popen(
            [sys.executable, str(Path(__file__).with_name("_side.py")), str(checkout)], stdin=PIPE, stdout=PIPE
        )
        self.answer: Measured | str | None = None
        """`None` while it asks for its next round."""

    def tell(self, message: object) -> None:
        """Lets it go on, until it asks again or has an answer."""
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
    """Measures the cases on both checkouts, prints the table and writes the JSON; returns the exit status."""
    console = wide_console()
    where = environment()
    console.print(f"micro: {len(cases)} rows on {' and '.join(options.loops)}, {options.against} in turns with {HERE}")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    rows = [measure(case, loop_name, options, console) for case in cases for loop_name in options.loops]
    console.print(table(rows, options.quick))
    head = {"program": "micro", "against": str(options.against), "environment": where, "seed": options.seed}
    write_report(console, options.json, {**head, "quick": options.quick, "rows": rows})
    return 0


def measure(case: Case, loop_name: LoopName, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """A row on both checkouts, each in a new process, as plain data."""
    sides = [Side(options.against), Side(HERE)]
    try:
        for side in sides:
            side.tell((loop_name, options.seed, options.quick, pickle.dumps(case.measure)))
        while any(side.answer is None for side in sides):
            for side in sides:
                if side.answer is None:
                    side.tell("go on")
    finally:
        for side in sides:
            side.close()
    row = compared(case, loop_name, sides[0].answer, sides[1].answer)
    told = row["reason"] or f"{number(row['after'] / row['before'])} of what it was"
    console.print(f"{case.name} on {loop_name}: {told}", markup=False)
    return row


def compared(case: Case, loop_name: LoopName, before: Measured | str | None, after: Measured | str | None) -> dict[str, Any]:
    """The medians of both, and of their figures where these are ratios to something else."""
    row: dict[str, Any] = {"name": case.name, "loop": loop_name, "unit": case.cost_unit, "reason": None}
    answers = {"before": before, "after": after}
    reasons = [f"not measured {when}: {answer}" for when, answer in answers.items() if not isinstance(answer, Measured)]
    if reasons:
        return {**row, "reason": "; ".join(reasons)}
    for when, answer in answers.items():
        assert isinstance(answer, Measured)
        row[when] = answer.bare.ours.median
        row[f"{when}_figure"] = answer.bare.figure.median if answer.bare.theirs else None
    return row


def table(rows: Sequence[dict[str, Any]], quick: bool) -> Table:
    """A line for each row: the costs, their ratio, and the figures, which compare with something else."""
    caption = "Medians. after/before: of the costs, and of the ratios to what the row compares with."
    if quick:
        caption += f"\nQUICK: done with one {QUICK_DIVISOR}th of everything; these figures prove nothing."
    result = Table(
        title="micro, before and after", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("row", "loop"):
        result.add_column(heading, no_wrap=True)
    for heading in ("before", "after", "after/before", "ratio before", "ratio after", "after/before"):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row["reason"]:
            result.add_row(row["name"], row["loop"], "not measured")
            continue
        cells = [number(row["before"], row["unit"]), number(row["after"], row["unit"]), number(row["after"] / row["before"])]
        if row["before_figure"] is not None:
            cells += [number(row["before_figure"]), number(row["after_figure"])]
            cells += [number(row["after_figure"] / row["before_figure"])]
        result.add_row(row["name"], row["loop"], *cells)
    return result
