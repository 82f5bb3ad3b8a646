"""What `burst` and `memory` have in common: they measure each implementation at each size. And the
option that chooses some."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from rich.table import Table

from benchmarks.baselines.implementations import BY_NAME, IMPLEMENTATIONS, Named
from benchmarks.cases import QUICK_DIVISOR, LoopName
from benchmarks.measure import Unmeasurable
from benchmarks.options import add_common_options
from benchmarks.report import opened_console, write_report


def add_arguments(parser: argparse.ArgumentParser, random: bool = False) -> None:
    """Adds ``--implementation``, which may be repeated, and the common options. By default all
    implementations are measured."""
    add_common_options(parser, random=random, fastest_loop=True)
    parser.add_argument(
        "--implementation",
        dest="implementations",
        action="append",
        choices=[each.name for each in IMPLEMENTATIONS],
        help="only this one; may be repeated. "
        + "; ".join(f"{each.name}: {each.summary}" for each in IMPLEMENTATIONS),
    )


def chosen(options: argparse.Namespace) -> list[Named]:
    """The implementations to measure, in the order in which they were named."""
    names = options.implementations or [each.name for each in IMPLEMENTATIONS]
    return [BY_NAME[name] for name in dict.fromkeys(names)]


def run_sizes(
    options: argparse.Namespace,
    program: str,
    parts: Sequence[str],
    sizes: Sequence[int],
    measured: Callable[[LoopName, str, str, int], Any],
    table: Callable[[Sequence[Any], bool], Table],
) -> int:
    """Measures each part of a program for each size and implementation, prints the table and writes
    the JSON.

    Args:
        program: the name of the program.
        parts: of the measurement; each part is one call of `measured` for each size and
            implementation.
        measured: takes a loop, a part, the name of an implementation and a size, and returns the
            figures as a dataclass.
        table: makes the table that is printed, of all figures; the flag is true for a
            quick run.
    """
    if options.quick:
        sizes = [sizes[0] // QUICK_DIVISOR, sizes[-1] // QUICK_DIVISOR]
    todo = [(size, each.name) for size in sizes for each in chosen(options)]
    console = opened_console(
        f"{program}: {', '.join(f'{size:,}' for size in sizes)} requests in each implementation"
    )
    figures: list[Any] = []
    for loop_name, part in product(options.loops, parts):
        for size, name in todo:
            console.print(f"{part} of {size:,} in {name} on {loop_name}", style="dim")
            try:
                figures.append(measured(loop_name, part, name, size))
            except Unmeasurable as error:
                console.print(f"{part} of {size:,} in {name}: {error}")
    console.print(table(figures, options.quick))
    write_report(console, options, program, runs=list(map(asdict, figures)))
    return 0
