"""The output of a program: its machine, its progress, tables at the end, and JSON."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases import Case, Result


def environment() -> dict[str, str | int | None]:
    """The machine and the versions that the figures belong to."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "uvloop": _version("uvloop"),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def opened_console(title: str) -> Console:
    """A console that shows the title and the machine. If the output goes to a file, wide tables
    are not cut off."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)
    console.print(title)
    console.print(
        ", ".join(f"{name} {value}" for name, value in environment().items()), style="dim"
    )
    return console


def write_report(
    console: Console, options: argparse.Namespace, program: str, **figures: Any
) -> dict[str, Any]:
    """The report of a program as plain data. It is written to the JSON file, if one was asked
    for."""
    report = {"program": program, "environment": environment(), "quick": options.quick, **figures}
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
        console.print(f"written to {options.json}")
    return report


def plain_table(
    title: str, caption: str, texts: Sequence[str], numbers: Sequence[str], quick: bool = False
) -> Table:
    """An empty table.

    Args:
        caption: below the table; a quick run is marked there.
        texts: the headings of the first columns, and ...
        numbers: ... of the others, which are aligned to the right.
    """
    if quick:
        caption += "\nQUICK: done with a small part of everything; these figures prove nothing."
    table = Table(
        title=title,
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def results_table(results: Iterable[Result], title: str, caption: str, quick: bool) -> Table:
    """A line for each case and loop: medians, and the quartiles of the figure."""
    numbers = ("ours", "theirs", "figure", "quartiles", "settled")
    table = plain_table(title, caption, ("row", "loop"), numbers, quick)
    for each in results:
        table.add_row(each.case.name, each.loop_name, *_figures(each))
    return table


def legend_table(cases: Iterable[Case]) -> Table:
    """The meaning of the rows of `results_table`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "ours", "theirs"):
        table.add_column(heading)
    for case in cases:
        table.add_row(case.name, case.work, case.against)
    return table


def result_line(result: Result, seconds: float) -> str:
    """The line to print as soon as a row is done."""
    label = f"{result.case.name} on {result.loop_name}"
    figure = escape(result.reason) or _figures(result)[2]
    return f"{label:<24}{figure:>12}   [dim]{seconds:.1f} s[/]"


def _figures(result: Result) -> tuple[str, str, str, str, str]:
    """Ours, theirs, the figure, its quartiles, and the figure with the iterations of the loop that
    clean up."""
    if result.measured is None:
        return "", "", "", "", ""
    case, bare, settled = result.case, result.measured.bare, result.measured.settled
    return (
        number(bare.ours.median, case.cost_unit) if bare.theirs else "",
        number(bare.theirs.median, case.cost_unit) if bare.theirs else "",
        number(bare.figure.median, case.unit),
        f"{number(bare.figure.low)}–{number(bare.figure.high)}"
        if bare.figure.low < bare.figure.high
        else "",
        number(settled.figure.median, case.unit) if settled else "",
    )


def number(value: float, unit: str = "") -> str:
    """Three digits of it, with its unit."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def as_json(result: Result) -> dict[str, Any]:
    """A result as plain data. Of each figure it has ``{"median", "low", "high"}``, where low and
    high are the quartiles."""
    case, measured = result.case, result.measured
    return {
        "name": case.name,
        "work": case.work,
        "against": case.against or None,
        "loop": result.loop_name,
        "unit": case.unit,
        "cost_unit": case.cost_unit,
        "bare": measured and dataclasses.asdict(measured.bare),
        "settled": measured and measured.settled and dataclasses.asdict(measured.settled),
        "reason": result.reason or None,
    }
