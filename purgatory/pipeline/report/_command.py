"""``python -m purgatory.pipeline report``: wrong timeouts, hot keys, missed triggers, and the most
operations that were pending at once.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from purgatory._core.arguments import printable
from purgatory._core.errors import how_to_install
from purgatory.pipeline._files import Local, distinct, is_uri
from purgatory.pipeline._programs import add_master_option, has_session, shown, without_secrets
from purgatory.pipeline._snapshot import Snapshot
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._findings import (
    by_timeout,
    findings,
    seconds,
    set_apart,
    share,
    timeouts,
)
from purgatory.pipeline.report._page import page
from purgatory.pipeline.report._queries import Engine, Step, Summary
from purgatory.pipeline.report._tables import make_tables

SET_APART: Final = 3
"""The exit status if files or rows could not be read: 2 means that the arguments are wrong."""
UNKNOWN: Final = "?"
SMALL: Final = 4 * 1024**2
"""The size of a journal in bytes up to which compiling queries costs Spark more than it saves."""
SQL_OF_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
MEDIUM: Final = 48 * 1024**2
"""The size up to which Java's second compiler and its parallel collector cost more than they save:
27 of 94 s of CPU at 1,000,000 operations, 17 MB. At 10,000,000 they save 80 of 280 s."""
JAVA_OF_MEDIUM: Final = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
}
SQL: Final = {
    # A task has many small files.
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.files.openCostInBytes": "64k",
}
SHUFFLE_BYTES: Final = 8 * 1024**2
"""Parquet for each partition of a shuffle, in bytes. Spark merges small partitions."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a directory that a journal was written to, or its URI"
    parser.add_argument("journals", nargs="+", metavar="JOURNAL", help=text)
    text = "for report.html, tables and rejected rows; may be a URI"
    parser.add_argument("--out", required=True, metavar="DIR", help=text)
    add_master_option(parser)
    parser.epilog = (
        f"The exit status is {SET_APART} if files or rows could not be read: the table "
        "'reconciliation' names them, with the reasons."
    )


def run(options: argparse.Namespace) -> int:
    """Makes the tables and the page, and prints a summary."""
    console = Console(highlight=False)
    start = time.monotonic()
    [out] = distinct([options.out])
    with _steps(console, options.verbose) as step:
        step("starting")
        journals = distinct(options.journals)
        with _engine(options, journals) as (engine, snapshot):
            summary = make_tables(engine, journals, out, step, snapshot)
            step("the page")
            said = findings(summary)
            title = without_secrets(f"Purgatory report: {', '.join(options.journals)}")
            content = page(title, said, summary)
            engine.storage(out).write(f"{out}/report.html", content.encode())
    _print(console, summary, [each.text for each in said])
    took = f"{time.monotonic() - start:.1f} s."
    where = f"Tables are in {options.out}/tables, the report is {options.out}/report.html"
    console.print(f"\n{took} {shown(where)}", markup=False, soft_wrap=True)
    return SET_APART if set_apart(summary) else 0


def _needs_spark(options: argparse.Namespace) -> bool:
    """DuckDB is for folders on this machine; Spark for a session, a URI or a master."""
    return (
        options.master is not None
        or has_session()
        or any(map(is_uri, [*options.journals, options.out]))
    )


@contextmanager
def _engine(options: argparse.Namespace, journals: list[str]) -> Iterator[tuple[Engine, Snapshot]]:
    """The engine of the tables, and the files that it shall read."""
    if not _needs_spark(options):
        snapshot = Snapshot.of(lambda _: Local(), journals)
        with DuckDB.opened() as engine:
            yield engine, snapshot
        return
    try:
        from purgatory.pipeline._session import spark_session  # noqa: PLC0415  (DuckDB needs no Spark)
        from purgatory.pipeline.report._spark import Spark  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise OSError(
            f"cannot run 'report' on Spark: {error.name} is not installed; "
            f"{how_to_install('spark')}"
        ) from error
    is_here = not any(map(is_uri, journals))
    known = Snapshot.of(lambda _: Local(), journals) if is_here else None
    java = JAVA_OF_MEDIUM if known is not None and known.bytes <= MEDIUM else {}
    session = spark_session("purgatory report", options.master, java, verbose=options.verbose)
    with session as spark, Spark.on(spark) as on_spark:
        snapshot = known or Snapshot.of(on_spark.storage, journals)
        shuffled = max(snapshot.bytes // SHUFFLE_BYTES, 2)
        settings = SQL | {"spark.sql.shuffle.partitions": str(shuffled)}
        for name, value in (settings | (SQL_OF_SMALL if snapshot.bytes <= SMALL else {})).items():
            spark.conf.set(name, value)
        yield on_spark, snapshot


@contextmanager
def _steps(console: Console, verbose: bool) -> Iterator[Step]:
    """Shows the current step, and with `verbose` how long each step took."""
    current, since = "", time.monotonic()
    with console.status("") as status:

        def step(what: str) -> None:
            nonlocal current, since
            now = time.monotonic()
            if verbose and current:
                console.print(f"{now - since:7.2f} s  {current}")
            status.update(what)
            current, since = what, now

        yield step
        step("")


def _print(console: Console, summary: Summary, said: list[str]) -> None:
    apart = by_timeout(summary)
    table = Table(title="Timeouts", title_justify="left", box=SIMPLE, pad_edge=False)
    table.caption_justify = "left"
    for name in ("purgatory", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("operations", "expired", "timeouts", "for 1 %", "for 0.1 %"):
        table.add_column(name, justify="right", min_width=len(name))
    for line in summary.lines["timeouts_in_order"][:20]:
        known = [line[name] for name in ("timeout_1_percent", "timeout_01_percent")]
        answers = [UNKNOWN if answer is None else seconds(answer) for answer in known]
        if None in known:
            table.caption = f"{UNKNOWN} is not answerable from this data"
        names = (Text(printable(line[name])) for name in ("purgatory", "kind"))
        rate = "" if line["expiry_rate"] is None else share(line["expiry_rate"])
        # a Text, not a str: rich would read [/x] as markup
        table.add_row(*names, f"{line['operations']:,}", rate, timeouts(line, apart), *answers)
    console.print(table)
    for each in said:
        console.print(f"- {printable(each)}", markup=False)
