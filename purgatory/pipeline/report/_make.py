"""The tables of a report, and the proof that they account for every row.

Everything is computed anew from all journals each time. So after a journal has grown, a second run says what one run over all
of it would have said. What comes back to this process is limited to what a person can look at.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from purgatory.pipeline._reading import Account, read, tallies
from purgatory.pipeline.report import _pending, _survival, _tables
from purgatory.pipeline.report._summary import Line, waits_to_two_digits

STEPS = 9
"""How often `make_tables` says what it does next."""
TABLES = ("outcomes", "keys", "pending", "survival", "timeouts", "reconciliation")


class DoesNotAddUp(Exception):
    """This package has a defect: the tables do not account for every row."""


def make_tables(
    spark: SparkSession, journals: Sequence[str], out: str, step: Callable[[str], None] = lambda _: None
) -> list[Line]:
    """Writes all tables to ``out/tables``, and the rows that were rejected to ``out/rejected``.

    Args:
        step: is told what is done next, `STEPS` times.

    Returns:
        How long operations waited, for the plots: see `waits_to_two_digits`.

    Raises:
        NoJournal: one of the journals does not exist.
        DoesNotAddUp: this package has a defect.
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
    """How many operations a journal has numbered or counted but does not contain, because it dropped or lost them."""
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
    """Makes sure that the counts of all tables add up to the rows that were read."""

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
