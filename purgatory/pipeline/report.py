"""``python -m purgatory.pipeline report``: which timeouts are wrong, which keys are hot, which triggers were forgotten, how
many were waiting at the worst moment.

Everything is computed anew from all journals each time, so a second run over a journal that has grown says what one run over
all of it says. What comes back to this process is bounded by what a person can look at.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from purgatory.pipeline import _pending, _survival, _tables
from purgatory.pipeline._findings import findings, seconds, share
from purgatory.pipeline._page import page
from purgatory.pipeline._plots import plots
from purgatory.pipeline._program import Program, add_master_option
from purgatory.pipeline._reading import Account, NoJournal, read, tallies
from purgatory.pipeline._session import spark_session
from purgatory.pipeline._summary import Line, Summary, summarise, waits_to_two_digits

STEPS = 10
TABLES = ("outcomes", "keys", "pending", "survival", "timeouts", "reconciliation")


class DoesNotAddUp(Exception):
    """A defect: the tables do not account for every row."""


def make_tables(
    spark: SparkSession, journals: Sequence[str], out: str, step: Callable[[str], None] = lambda _: None
) -> list[Line]:
    """Writes all tables to ``out/tables``, and what was rejected to ``out/rejected``.

    Args:
        step: is told what is done next.

    Returns:
        How long operations waited, for the plots: see `waits_to_two_digits`.

    Raises:
        NoJournal: a journal is not there.
        DoesNotAddUp: a defect.
    """

    def write(name: str, table: DataFrame) -> DataFrame:
        step(name)
        table.write.mode("overwrite").parquet(f"{out}/tables/{name}")
        return spark.read.parquet(f"{out}/tables/{name}")

    step("reading operations")
    operations_source = read(spark, journals, "operations")
    step("reading checks")
    checks_source = read(spark, journals, "checks")
    for folder, source in (("operations", operations_source), ("checks", checks_source)):
        source.rejected.write.mode("overwrite").parquet(f"{out}/rejected/{folder}")

    operations = _tables.prepared(operations_source.accepted)
    outcomes = write("outcomes", _tables.outcomes(operations))
    keys = write("keys", _tables.keys(operations, checks_source.accepted))
    write("pending", _pending.pending(operations))
    curves = _survival.curves(operations).persist(StorageLevel.DISK_ONLY)
    write("survival", _survival.thinned(curves))
    timeouts = write("timeouts", _survival.timeouts(operations, curves))
    curves.unpersist()

    missing = _missing_ids(operations_source.accepted, tallies(spark, journals))
    account = [*operations_source.account, *missing, *checks_source.account]
    _check_balance(account, outcomes, keys, timeouts, checks_source.accepted)
    lines = [(place, *astuple(each)) for place, each in enumerate(account)]
    schema = "place int, folder string, what string, reason string, count long"
    write("reconciliation", spark.createDataFrame(lines, schema).coalesce(1))
    step("waits")
    return waits_to_two_digits(operations)


def _missing_ids(operations: DataFrame, tallies: DataFrame) -> list[Account]:
    """How many operations a journal has counted, but does not have: it dropped or lost them."""
    runs = operations.groupBy("run_id").agg((F.max("operation_id") + 1).alias("ids"), F.count("*").alias("rows"))
    every_run = runs.join(tallies, "run_id", "full_outer").select(
        *(F.coalesce(name, F.lit(0)).alias(name) for name in ("ids", "rows", "ended"))
    )
    [row] = every_run.agg(
        F.coalesce(F.sum(F.col("ids") - F.col("rows")), F.lit(0)).alias("gaps"),
        F.coalesce(F.sum(F.greatest(F.col("ended") - F.col("ids"), F.lit(0))), F.lit(0)).alias("last"),
    ).collect()
    return [
        Account("operations", "ids missing", "dropped, lost, rejected or unreadable", row.gaps),
        Account("operations", "ids missing", "the last of a run that was killed, or that goes on", row["last"]),
    ]


def _check_balance(
    account: list[Account], outcomes: DataFrame, keys: DataFrame, timeouts: DataFrame, checks: DataFrame
) -> None:
    """The counts of all tables add up to the rows that were read."""

    def total(table: DataFrame, *names: str) -> int:
        return int(table.agg(F.coalesce(F.sum(sum((F.col(name) for name in names), F.lit(0))), F.lit(0))).collect()[0][0])

    def counted(folder: str, what: str) -> int:
        return sum(each.count for each in account if (each.folder, each.what) == (folder, what))

    accepted = counted("operations", "rows accepted")
    sides = {
        "rows of timeouts": (total(timeouts, "operations"), accepted),
        "ends in outcomes": (
            total(outcomes, "completed", "expired", "cancelled") + total(timeouts, "without_end"),
            accepted,
        ),
        "starts in outcomes": (total(outcomes, "started") + total(timeouts, "without_start"), accepted),
        "tries in keys": (total(keys, "tried"), total(checks, "tried")),
        **{
            f"{folder} read": (
                sum(counted(folder, what) for what in ("rows accepted", "duplicates dropped", "rows rejected")),
                counted(folder, "rows read"),
            )
            for folder in ("operations", "checks")
        },
    }
    for what, (is_, should_be) in sides.items():
        if is_ != should_be:
            raise DoesNotAddUp(f"{what}: {is_:,}, which should be {should_be:,}; this is a defect of the report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journals", nargs="+", metavar="JOURNAL", help="a directory that a journal was written to")
    parser.add_argument("--out", required=True, metavar="DIR", help="for report.html, tables and rejected rows")
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    """Make the tables, the page, and a summary for the terminal."""
    console = Console(highlight=False)
    start = time.monotonic()
    columns = (BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("starting Spark", total=STEPS)

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
