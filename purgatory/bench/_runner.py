"""Measures the cases of a program one after the other, and shows what was found."""

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from purgatory.bench._cases import QUICK_DIVISOR, Case, Judged, Setting, loop_factory
from purgatory.bench._measure import Unmeasurable
from purgatory.bench._report import (
    RowProgress,
    as_json,
    environment,
    figures_table,
    legend_table,
    row_line,
    wide_console,
    write_report,
)


def run_cases(
    options: argparse.Namespace,
    program: str,
    cases: Sequence[Case],
    caption: Callable[[], str],
    details: Callable[[], dict[str, Any]],
) -> int:
    """Measures the cases on the chosen loops, prints the tables, and writes the JSON; returns the exit status.

    Args:
        options: `loops`, `seed`, `quick` and `json`, as `add_common_options` reads them.
        caption: the text below the table; called when everything is measured.
        details: what the JSON tells besides the rows; called when everything is measured.
    """
    console = wide_console()
    where = environment()
    console.print(f"{program}: {len(cases)} rows on {' and '.join(options.loops)}")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    rows: list[Judged] = []
    progress = RowProgress(console)
    with progress.shown():
        for case in cases:
            for loop_name in options.loops:
                progress.start(f"{case.name} on {loop_name}")
                setting = Setting(loop_name, random.Random(options.seed), options.quick, progress.track)
                start = time.monotonic()
                rows.append(measure(case, setting))
                console.print(row_line(rows[-1], time.monotonic() - start))
    console.print(legend_table(cases))
    text = caption()
    if options.quick:
        text += f"\nQUICK: done with one {QUICK_DIVISOR}th of everything; these verdicts prove nothing."
    console.print(figures_table(rows, title=f"purgatory, {program}", caption=text))
    head = {"program": program, "environment": where, "seed": options.seed, "quick": options.quick, **details()}
    write_report(console, options.json, {**head, "rows": [as_json(row) for row in rows]})
    return 0


def measure(case: Case, setting: Setting) -> Judged:
    """Measures a case on a new loop of its kind."""
    with asyncio.Runner(loop_factory=loop_factory(setting.loop_name)) as runner:
        try:
            return Judged(case, setting.loop_name, runner.run(case.measure(setting)))
        except Unmeasurable as error:
            return Judged(case, setting.loop_name, None, str(error))
