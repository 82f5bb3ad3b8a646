"""Reports by day: each day is computed once, and the sums are merged.

A row belongs to the day (UTC) on which its operation ended, or began if it has no end.

- `outcomes` adds up exactly. All operations that ended in a minute are of one day, so its exact
  percentiles are there; an operation that began before midnight is in two lines of one minute.
- `keys` adds up exactly.
- `survival` is computed from waits by bins, timeouts of three digits: it is Kaplan and Meier's
  estimate for waits that are rounded up to those. `Report.survival` has the waits as they are.
- `pending`, `timeouts` and `reconciliation` do not add up: the most operations at once within a
  second, the exact wait of a quantile, and ids that are missing need all rows.

Copies of a row are found within its day. Rejected rows are in no day.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._session import literal
from purgatory.pipeline.spark._report import Report, report

DAY: Final = 86_400_000_000
"""In microseconds."""
OPERATION: Final = ("ended_at", "started_at")
"""The instants that an operation's day is from: the first that is known."""
BINS: Final = """
SELECT purgatory, kind, bin, count(*) AS n, count_if(outcome = 'completed') AS d
FROM (
  SELECT *, (wait + unit - 1) DIV unit * unit AS bin
  FROM (
    SELECT *, CAST(power(10, greatest(length(CAST(wait AS STRING)) - 3, 0)) AS BIGINT) AS unit
    FROM (SELECT *, till - since AS wait FROM {spans})
  )
) WHERE started IS NOT NULL AND ended IS NOT NULL GROUP BY purgatory, kind, bin
"""
"""How many operations waited up to each timeout of three digits (`n`), and how many of them
completed (`d`)."""
SURVIVAL: Final = """
SELECT purgatory, kind, bin / 1000000 AS timeout_s, at_risk,
  IF(at_risk > d, exp(logarithm), 0D) AS expiry_rate,
  IF(at_risk > d, exp(logarithm) * sqrt(variance), NULL) AS standard_error
FROM (
  SELECT *, sum(IF(at_risk > d, log1p(-d / at_risk), 0D)) OVER up AS logarithm,
    sum(IF(at_risk > d, d / (CAST(at_risk AS DOUBLE) * (at_risk - d)), 0D)) OVER up AS variance
  FROM (
    SELECT *, sum(n) OVER (PARTITION BY purgatory, kind ORDER BY bin DESC) AS at_risk
    FROM (
      SELECT purgatory, kind, bin, sum(n) AS n, sum(d) AS d FROM {days}
      GROUP BY purgatory, kind, bin
    )
  ) WINDOW up AS (PARTITION BY purgatory, kind ORDER BY bin)
)
"""
ENDS: Final = ("started", "completed", "expired", "cancelled")
WAITS: Final = ("wait_p50", "wait_p90", "wait_p99", "wait_p999", "wait_max")
SUMS: Final = ("operations", "checks", "tried", "completed", "missed_triggers", "false_wakeups")


@dataclass(frozen=True, slots=True)
class Days:
    """The tables of all days that were computed. `add_days` makes it."""

    outcomes: DataFrame
    keys: DataFrame
    survival: DataFrame


def add_days(
    operations: DataFrame, checks: DataFrame, folder: str, *, until: date | None = None
) -> Days:
    """Computes the days that `folder` does not have, and merges all days.

    Each table is in a folder of its own, with a partition for each `day`. Delete the partitions of
    a day, and it is computed again.

    Args:
        operations: as for `report`; only the rows of new days are read.
        checks: as for `report`.
        folder: where the tables of days are, a folder or a URI that Spark writes to.
        until: only days before this one; by default before the newest day of `operations`, which
            may be incomplete.

    Raises:
        ValueError: there is no whole day yet.
    """
    spark = operations.sparkSession
    days = sorted(_days_of(operations))
    until = until or (days[-1] if days else None)
    known = _days_in(spark, folder)
    new = [day for day in days if until is not None and day < until and day not in known]
    for day in new:
        ended, checked = _of_day(operations, OPERATION, day), _of_day(checks, ("second",), day)
        _write(report(ended, checked), folder, day)
    if not (known or new):
        raise ValueError(f"cannot make a report by day: there is no whole day before {until}")
    outcomes, keys, waited = (
        spark.read.parquet(literal(f"{folder}/{name}")) for name in ("outcomes", "keys", "waits")
    )
    return Days(_outcomes(outcomes), _keys(keys), _survival(waited))


def _days_of(operations: DataFrame) -> Iterator[date]:
    number = "unix_micros(coalesce(ended_at, started_at)) DIV " + f"{DAY}L"
    found = operations.selectExpr(f"{number} AS day").distinct().where("day IS NOT NULL").collect()
    for row in found:
        with suppress(OverflowError):  # no calendar has it, so its rows are rejected
            yield (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=row.day)).date()


def _days_in(spark: SparkSession, folder: str) -> set[date]:
    """The days that are complete: `waits` is the last table that is written."""
    try:
        waited = spark.read.parquet(literal(f"{folder}/waits"))
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        return set()
    return {row.day for row in waited.select("day").distinct().collect()}


def _of_day(rows: DataFrame, instants: tuple[str, ...], day: date) -> DataFrame:
    first = (day - date(1970, 1, 1)).days * DAY
    instant = F.coalesce(*instants)
    # Spark pushes comparisons of single columns down to Parquet's statistics.
    either = F.lit(False)
    for name in instants:
        either |= _between(F.col(name), first)
    return rows.where(either & _between(instant, first))


def _between(instant: Column, first: int) -> Column:
    low, high = (F.timestamp_micros(F.lit(micros)) for micros in (first, first + DAY))
    return (instant >= low) & (instant < high)


def _write(made: Report, folder: str, day: date) -> None:
    binned = made.outcomes.sparkSession.sql(BINS, spans=made.spans)
    tables = {"outcomes": made.outcomes, "keys": made.keys, "waits": binned.coalesce(1)}
    for name, table in tables.items():
        table.write.mode("overwrite").parquet(f"{folder}/{name}/day={day}")


def _outcomes(days: DataFrame) -> DataFrame:
    return (
        days.groupBy("purgatory", "kind", "minute")
        .agg(
            *(F.sum(name).alias(name) for name in ENDS),
            *(F.max(name).alias(name) for name in WAITS),  # of the one day in which any ended
        )
        .selectExpr(
            *("purgatory", "kind", "minute", *ENDS),
            "expired / nullif(completed + expired + cancelled, 0) AS expiry_rate",
            *WAITS,
        )
    )


def _keys(days: DataFrame) -> DataFrame:
    return days.groupBy("purgatory", "key").agg(*(F.sum(name).alias(name) for name in SUMS))


def _survival(days: DataFrame) -> DataFrame:
    return days.sparkSession.sql(SURVIVAL, days=days)
