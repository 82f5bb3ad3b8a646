"""What `burst` and `memory` have in common: they measure each design at each size."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from purgatory.bench._cases import QUICK_DIVISOR, LoopName
from purgatory.bench._measure import Unmeasurable
from purgatory.bench._options import add_common_options, add_plot_option, choose_loop
from purgatory.bench._report import RowProgress, environment, wide_console, write_report
from purgatory.bench.rivals._designs_option import add_designs_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, random=False)
    choose_loop(parser)
    add_designs_option(parser)
    add_plot_option(parser)


def run_sizes(
    options: argparse.Namespace,
    program: str,
    parts: Sequence[str],
    sizes: Sequence[int],
    measured: Callable[[LoopName, str, str, int], Any],
    table: Callable[[Sequence[Any], bool], Table],
    draw: Callable[[dict[str, Any], Path], Path],
) -> int:
    """Measures each part of a program for each size and design, prints the table, writes the JSON and draws the plot.

    Args:
        program: the name of the program.
        parts: what is measured; each part is one call of `measured` for each size and design.
        measured: takes a loop, a part, the name of a design and a size, and returns the figures as a dataclass.
        table: makes the table that is printed, of all figures; the flag says whether the run was a quick one.
        draw: draws a report into a directory, and returns the file.
    """
    console = wide_console()
    where = environment()
    if options.quick:
        sizes = [size // QUICK_DIVISOR for size in sizes]
    console.print(f"{program}: {', '.join(f'{size:,}' for size in sizes)} requests in each of {len(options.designs)} designs")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    figures: list[Any] = []
    progress = RowProgress(console)
    with progress.shown():
        for loop_name in options.loops:
            for part in parts:
                progress.start(f"{part} on {loop_name}")
                todo = [(size, design) for size in sizes for design in options.designs if size <= design.most]
                for step in progress.track(len(todo)):
                    size, design = todo[step]
                    try:
                        figures.append(measured(loop_name, part, design.name, size))
                    except Unmeasurable as error:
                        console.print(f"{part} of {size:,} in {design.name}: {error}")
    console.print(table(figures, options.quick))
    report = {"program": program, "environment": where, "quick": options.quick, "runs": [asdict(each) for each in figures]}
    write_report(console, options.json, report)
    if options.plot:
        console.print(f"drawn: {draw(report, options.plot)}")
    return 0
