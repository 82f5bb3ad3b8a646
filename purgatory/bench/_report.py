"""What the benchmark shows: where it runs, how far it is, tables at the end, and JSON."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from purgatory.bench._cases import Case, Judged, Verdict

SECONDS_BETWEEN_REFRESHES = 0.2
VERDICT_STYLES: dict[Verdict, str] = {"met": "green", "missed": "bold red", "no target": "dim", "not measured": "yellow"}


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


def wide_console() -> Console:
    """A console for wide tables. If the output goes to a file, they are not cut off."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console


class RowProgress:
    """A progress bar for one row at a time. It is drawn only when a row asks for its next round.

    rich would draw it from a thread of its own, whose work would count in what is measured.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._row = self._progress.add_task("")
        self._refreshed_at = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress:
            yield

    def start(self, description: str) -> None:
        self._progress.reset(self._row, total=None, description=description)
        self._progress.refresh()

    def track(self, rounds: int) -> Iterator[int]:
        """Yields 0 … `rounds` - 1, and moves the bar."""
        for number in range(rounds):
            self._progress.update(self._row, total=rounds, completed=number)
            if time.monotonic() >= self._refreshed_at + SECONDS_BETWEEN_REFRESHES:
                self._progress.refresh()
                self._refreshed_at = time.monotonic()
            yield number


def write_report(console: Console, file: Path | None, report: dict[str, Any]) -> None:
    """Writes the JSON file, if one was asked for, and says so."""
    if file is not None:
        file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
        console.print(f"written to {file}")


def figures_table(rows: Sequence[Judged], title: str, caption: str) -> Table:
    """A line for each case and loop: medians, the quartiles of the figure, and the verdict."""
    table = Table(
        title=title,
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("row", "loop"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ours", "theirs", "figure", "quartiles", "settled", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        table.add_row(row.case.name, row.loop_name, *_figures(row), target, _styled(row.verdict))
    return table


def legend_table(cases: Iterable[Case]) -> Table:
    """What the rows of `figures_table` mean."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "ours", "theirs"):
        table.add_column(heading)
    for case in cases:
        table.add_row(case.name, case.work, case.against)
    return table


def row_line(row: Judged, seconds: float) -> str:
    """What is printed as soon as a row is done."""
    figure = _figures(row)[2]
    label = f"{row.case.name} on {row.loop_name}"
    reason = f": {row.reason}" if row.reason else ""
    return f"{label:<24}{figure:>12}   {_styled(row.verdict)}{reason}   [dim]{seconds:.1f} s[/]"


def _styled(verdict: Verdict) -> str:
    return f"[{VERDICT_STYLES[verdict]}]{verdict}[/]"


def _figures(row: Judged) -> tuple[str, str, str, str, str]:
    """Ours, theirs, the figure, its quartiles, and the figure with the iterations of the loop that clean up."""
    if row.measured is None:
        return "", "", "", "", ""
    case, bare, settled = row.case, row.measured.bare, row.measured.settled
    return (
        number(bare.ours.median, case.cost_unit) if bare.theirs else "",
        number(bare.theirs.median, case.cost_unit) if bare.theirs else "",
        number(bare.figure.median, case.unit),
        f"{number(bare.figure.low)}–{number(bare.figure.high)}" if bare.figure.low < bare.figure.high else "",
        number(settled.figure.median, case.unit) if settled else "",
    )


def number(value: float, unit: str = "") -> str:
    """Three digits of it, with its unit."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def as_json(row: Judged) -> dict[str, Any]:
    """A row as plain data. A spread is ``{"median", "low", "high"}``, where low and high are the quartiles."""
    case, measured = row.case, row.measured
    return {
        "name": case.name,
        "work": case.work,
        "against": case.against or None,
        "loop": row.loop_name,
        "unit": case.unit,
        "cost_unit": case.cost_unit,
        "bare": measured and dataclasses.asdict(measured.bare),
        "settled": measured and measured.settled and dataclasses.asdict(measured.settled),
        "target": row.target,
        "verdict": row.verdict,
        "reason": row.reason or None,
    }
