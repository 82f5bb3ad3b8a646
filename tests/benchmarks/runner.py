"""Measures the cases of a program one after the other, and shows the results."""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from benchmarks.cases import Case, Result, Setting, run_on
from benchmarks.measure import Unmeasurable
from benchmarks.report import (
    as_json,
    legend_table,
    opened_console,
    result_line,
    results_table,
    write_report,
)


def run_cases(
    options: argparse.Namespace,
    program: str,
    cases: Sequence[Case],
    caption: Callable[[], str],
    details: Callable[[], dict[str, Any]],
) -> int:
    """Measures the cases on the chosen loops, prints the tables, and writes the JSON; returns the
    exit status.

    Args:
        options: `loops`, `seed`, `quick` and `json`, as `add_common_options` reads them.
        caption: the text below the table; called when everything is measured.
        details: further parts of the JSON, besides the rows; called when everything is measured.
    """
    console = opened_console(f"{program}: {len(cases)} rows on {' and '.join(options.loops)}")
    results: list[Result] = []
    for case, loop_name in product(cases, options.loops):
        setting = Setting(loop_name, random.Random(options.seed), options.quick, range)
        start = time.monotonic()
        results.append(measure(case, setting))
        console.print(result_line(results[-1], time.monotonic() - start))
    console.print(legend_table(cases))
    console.print(results_table(results, f"purgatory, {program}", caption(), options.quick))
    write_report(
        console, options, program, seed=options.seed, **details(), rows=list(map(as_json, results))
    )
    return 0


def measure(case: Case, setting: Setting) -> Result:
    """Measures a case on a new loop of its kind, unless a package that it needs is missing."""
    try:
        return Result(case, setting.loop_name, run_on(setting.loop_name, case.measure(setting)))
    except (ImportError, Unmeasurable) as error:
        return Result(case, setting.loop_name, None, str(error))
