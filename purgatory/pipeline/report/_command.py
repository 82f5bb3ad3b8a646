"""``python -m purgatory.pipeline report``: which timeouts are wrong, which keys are hot, which triggers were forgotten, and how
many operations were waiting at the worst moment.
"""

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from purgatory._programs import Program
from purgatory.pipeline._reading import NoJournal
from purgatory.pipeline._session import add_master_option, spark_session
from purgatory.pipeline.report._findings import findings, seconds, share
from purgatory.pipeline.report._make import STEPS, make_tables
from purgatory.pipeline.report._page import page
from purgatory.pipeline.report._plots import plots
from purgatory.pipeline.report._summary import Summary, summarise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journals", nargs="+", metavar="JOURNAL", help="a directory that a journal was written to")
    parser.add_argument("--out", required=True, metavar="DIR", help="for report.html, tables and rejected rows")
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    """Makes the tables and the page, and prints a summary."""
    console = Console(highlight=False)
    start = time.monotonic()
    columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting Spark", total=STEPS + 1)  # one for the page

        def step(what: str) -> None:
            progress.update(bar, description=what, advance=1)

        with spark_session("purgatory report", options.master) as spark:
            try:
                waits = make_tables(spark, options.journals, options.out, step)
            except NoJournal as error:
                console.print(str(error), style="red")
                return 1
            step("the page")
            summary = summarise(lambda name: spark.read.parquet(f"{options.out}/tables/{name}"), waits)
    said = findings(summary)
    file = Path(options.out) / "report.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(f"Purgatory report: {', '.join(options.journals)}", said, plots(summary), summary), "utf-8")
    _print(console, summary, said)
    console.print(f"\n{time.monotonic() - start:.0f} s. Tables are in {options.out}/tables, the report is {file}")
    return 0


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
