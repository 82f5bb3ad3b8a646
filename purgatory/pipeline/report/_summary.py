"""What the report shows of its tables: no more than a person can look at, however large the tables are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from purgatory.pipeline.report._tables import SECOND

HOT_KEYS: Final = 100
WORST_MINUTES: Final = 50
POINTS: Final = 1_000
"""The most that a line in a plot has."""

Line = dict[str, Any]
"""A row of a table, by the names of its columns."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The lines of the tables that are shown."""

    timeouts: list[Line]
    survival: list[Line]
    waits: list[Line]
    """purgatory, kind, wait_s (to two digits), completed, others: how many operations ended after about this wait."""
    pending: list[Line]
    """purgatory, second, pending_max, pending_mean: for spans of equal length, at most `POINTS` for each purgatory."""
    hot_keys: list[Line]
    missed_keys: list[Line]
    worst_minutes: list[Line]
    reconciliation: list[Line]


def summarise(table: Callable[[str], DataFrame], waits: list[Line]) -> Summary:
    """Collects what is shown.

    Args:
        table: gives a table by its name.
        waits: what `waits_to_two_digits` returned.
    """
    keys = table("keys")
    return Summary(
        timeouts=_lines(table("timeouts").orderBy(F.desc("expired"), "purgatory", "kind")),
        survival=_lines(table("survival").orderBy("purgatory", "kind", "timeout_s")),
        waits=waits,
        pending=_lines(_at_most_points(table("pending"))),
        hot_keys=_lines(keys.orderBy(F.desc("tried"), F.desc("operations"), "purgatory", "key").limit(HOT_KEYS)),
        missed_keys=_lines(
            keys.filter("missed_triggers > 0").orderBy(F.desc("missed_triggers"), "purgatory", "key").limit(HOT_KEYS)
        ),
        worst_minutes=_lines(table("outcomes").orderBy(F.desc("expired"), "minute", "purgatory", "kind").limit(WORST_MINUTES)),
        reconciliation=_lines(table("reconciliation").orderBy("place")),
    )


def waits_to_two_digits(operations: DataFrame) -> list[Line]:
    """How many operations of each purgatory and kind ended after which wait, rounded to two digits.

    Args:
        operations: as `prepared` returns them.
    """
    step = F.pow(F.lit(10), F.greatest(F.length(F.col("wait").cast("string")) - 2, F.lit(0))).cast("long")
    rounded = operations.filter("wait IS NOT NULL").withColumn("wait_s", F.floor(F.col("wait") / step) * step / SECOND)
    counts = rounded.groupBy("purgatory", "kind", "wait_s").agg(
        F.count_if(F.col("outcome") == "completed").alias("completed"),
        F.count_if(F.col("outcome") != "completed").alias("others"),
    )
    return _lines(counts.orderBy("purgatory", "kind", "wait_s"))


def _at_most_points(pending: DataFrame) -> DataFrame:
    """Merges neighbouring seconds until there are at most `POINTS` spans."""
    seconds = pending.withColumn("second", F.unix_seconds("second"))
    spans = seconds.groupBy("purgatory").agg(
        F.min("second").alias("first"), F.ceil((F.max("second") - F.min("second") + 1) / POINTS).alias("span")
    )
    second = F.expr("first + (second - first) DIV span * span")
    joined = seconds.join(F.broadcast(spans), "purgatory").withColumn("second", second)
    points = joined.groupBy("purgatory", "second").agg(
        F.max("pending_max").alias("pending_max"), (F.sum("pending_mean") / F.first("span")).alias("pending_mean")
    )
    return points.select("purgatory", F.timestamp_seconds("second").alias("second"), "pending_max", "pending_mean").orderBy(
        "purgatory", "second"
    )


def _lines(table: DataFrame) -> list[Line]:
    return [row.asDict() for row in table.collect()]
