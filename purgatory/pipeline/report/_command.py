"""``python -m purgatory.pipeline report``: which timeouts are wrong, which keys are hot, which triggers were forgotten, and how
many operations were waiting at the worst moment.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from purgatory._programs import Program
from purgatory.pipeline._executor import Executor, local, on_spark
from purgatory.pipeline._reading import size
from purgatory.pipeline._session import add_master_option, spark_session
from purgatory.pipeline.report._findings import findings, seconds, set_apart, share
from purgatory.pipeline.report._make import STEPS, make_tables
from purgatory.pipeline.report._page import page
from purgatory.pipeline.report._summary import Summary

HERE: Final = "here"
"""As `--master`: the tasks run in this process."""
BYTES_HERE: Final = 256 * 1024 * 1024
"""So much of Parquet is read in this process in about the time in which Spark starts and reads it."""
SET_APART: Final = 3
"""The exit status if files or rows could not be read: 2 means that the arguments are wrong."""
SETTINGS: Final = {
    # Java only hands out tasks here: what would make it fast takes longer than it saves.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journals", nargs="+", metavar="JOURNAL", help="a directory that a journal was written to")
    parser.add_argument("--out", required=True, metavar="DIR", help="for report.html, tables and rejected rows")
    add_master_option(parser)
    parser.epilog = (
        f"Journals of up to {BYTES_HERE >> 20} MiB are read in this process, as with --master {HERE}, if --master does not say "
        f"otherwise. The exit status is {SET_APART} if files or rows could not be read: `reconciliation` tells which, and why."
    )


def run(options: argparse.Namespace) -> int:
    """Makes the tables and the page, and prints a summary."""
    console = Console(highlight=False)
    start = time.monotonic()
    with _steps(console, options.verbose) as step:
        step("starting")
        with _workers(options) as executor:
            summary = make_tables(executor, options.journals, options.out, step)
        step("the page")
        said = findings(summary)
        file = Path(options.out) / "report.html"
        file.write_text(page(f"Purgatory report: {', '.join(options.journals)}", said, summary), "utf-8")
    _print(console, summary, [each.text for each in said])
    took = f"{time.monotonic() - start:.1f} s."
    console.print(f"\n{took} Tables are in {options.out}/tables, the report is {file}", markup=False, soft_wrap=True)
    return SET_APART if set_apart(summary) else 0


@contextmanager
def _workers(options: argparse.Namespace) -> Iterator[Executor]:
    """Who does the tasks: this process where that is quick, otherwise Spark."""
    is_free = options.master is None and "SPARK_REMOTE" not in os.environ
    if options.master == HERE or (is_free and size(local, options.journals) <= BYTES_HERE):
        yield local
    else:
        session = spark_session("purgatory report", options.master, SETTINGS, verbose=options.verbose)
        with session as spark, on_spark(spark) as executor:
            yield executor


class _Steps:
    """Shows what is done, and with `verbose` how long each step took."""

    def __init__(self, console: Console, progress: Progress, *, verbose: bool) -> None:
        self._console, self._progress, self._verbose = console, progress, verbose
        self._bar = progress.add_task("", total=STEPS + 1)  # one for the page
        self._what, self._since = "", time.monotonic()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if self._verbose and self._what:
            self._console.print(f"{now - self._since:7.2f} s  {self._what}")
        self._progress.update(self._bar, description=what, advance=1 if self._what else 0)
        self._what, self._since = what, now


@contextmanager
def _steps(console: Console, verbose: bool) -> Iterator[_Steps]:
    columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        steps = _Steps(console, progress, verbose=verbose)
        yield steps
        steps("")


def _print(console: Console, summary: Summary, said: list[str]) -> None:
    table = Table(title="Timeouts", title_justify="left")
    for name in ("purgatory", "kind"):
        table.add_column(name)
    for name in ("operations", "expired", "timeout", "for 1 %", "for 0.1 %"):
        table.add_column(name, justify="right")
    for line in summary.timeouts[:20]:
        answers = [
            "not answerable" if line[name] is None else seconds(line[name])
            for name in ("timeout_1_percent", "timeout_01_percent")
        ]
        rate = "" if line["expiry_rate"] is None else share(line["expiry_rate"])
        timeout = "" if line["timeout_max_s"] is None else seconds(line["timeout_max_s"])
        table.add_row(line["purgatory"], line["kind"], f"{line['operations']:,}", rate, timeout, *answers)
    console.print(table)
    for each in said:
        console.print(f"- {each}", markup=False)


PROGRAM = Program("report", "Reads journals and tells what is wrong with timeouts, keys and triggers.", add_arguments, run)
