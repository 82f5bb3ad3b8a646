"""What the benchmark tells: where it was run, how far it is, a table at the end, and JSON."""

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

from purgatory.bench._cases import Case, Outcome, Verdict

SECONDS_BETWEEN_REFRESHES = 0.2
VERDICT_STYLES: dict[Verdict, str] = {"met": "green", "missed": "bold red", "no target": "dim", "not measured": "yellow"}


def environment() -> dict[str, str | int | None]:
    """Where the figures come from."""
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
    """A console for tables with many columns, which does not cut them off where the output goes to a file."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 120)
    return console


class RowProgress:
    """A progress bar for one row at a time, drawn only when a row asks for its next round.

    rich would redraw from a thread of its own; its work would land in what is being measured.
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
        """Yield 0 … `rounds` - 1."""
        for number in range(rounds):
            self._progress.update(self._row, total=rounds, completed=number)
            if time.monotonic() >= self._refreshed_at + SECONDS_BETWEEN_REFRESHES:
                self._progress.refresh()
                self._refreshed_at = time.monotonic()
            yield number


def write_report(console: Console, file: Path | None, report: dict[str, Any]) -> None:
    """Writes the JSON, if it was asked for, and says so."""
    if file is not None:
        file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
        console.print(f"written to {file}")


def figures_table(outcomes: Sequence[Outcome], title: str, caption: str) -> Table:
    """One line for each outcome: medians, and the quartiles of the figure that is judged."""
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
    for outcome in outcomes:
        target = "" if outcome.target is None else f"{outcome.target:g}"
        table.add_row(outcome.case.name, outcome.loop_name, *_figures(outcome), target, _styled(outcome.verdict))
    return table


def legend_table(cases: Iterable[Case]) -> Table:
    """What the rows of `figures_table` do."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "ours", "theirs"):
        table.add_column(heading)
    for case in cases:
        table.add_row(case.name, case.work, case.against)
    return table


def outcome_line(outcome: Outcome, seconds: float) -> str:
    """What is printed as soon as a row is done."""
    figure = _figures(outcome)[2]
    label = f"{outcome.case.name} on {outcome.loop_name}"
    reason = f": {outcome.reason}" if outcome.reason else ""
    return f"{label:<24}{figure:>12}   {_styled(outcome.verdict)}{reason}   [dim]{seconds:.1f} s[/]"


def _styled(verdict: Verdict) -> str:
    return f"[{VERDICT_STYLES[verdict]}]{verdict}[/]"


def _figures(outcome: Outcome) -> tuple[str, str, str, str, str]:
    """Ours, the other, the figure, its quartiles, and the figure with the loop turns that clean up."""
    if outcome.measured is None:
        return "", "", "", "", ""
    case, bare, settled = outcome.case, outcome.measured.bare, outcome.measured.settled
    return (
        _number(bare.ours.median, case.cost_unit) if bare.theirs else "",
        _number(bare.theirs.median, case.cost_unit) if bare.theirs else "",
        _number(bare.figure.median, case.unit),
        f"{_number(bare.figure.low)}–{_number(bare.figure.high)}" if bare.figure.low < bare.figure.high else "",
        _number(settled.figure.median, case.unit) if settled else "",
    )


def _number(value: float, unit: str = "") -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def as_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data; spreads are ``{"median", "low", "high"}``, low and high being the quartiles."""
    case, measured = outcome.case, outcome.measured
    return {
        "name": case.name,
        "work": case.work,
        "against": case.against or None,
        "loop": outcome.loop_name,
        "unit": case.unit,
        "cost_unit": case.cost_unit,
        "bare": measured and dataclasses.asdict(measured.bare),
        "settled": measured and measured.settled and dataclasses.asdict(measured.settled),
        "target": outcome.target,
        "verdict": outcome.verdict,
        "reason": outcome.reason or None,
    }
