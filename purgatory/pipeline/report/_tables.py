"""The tables about outcomes and keys: sums and exact percentiles, by pure functions from DataFrames to DataFrames."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

PERCENTILES: Final = {"wait_p50": 0.5, "wait_p90": 0.9, "wait_p99": 0.99, "wait_p999": 0.999}
SECOND: Final = 1_000_000
"""In microseconds. All times here are integers of microseconds."""


def micros(instant: str) -> Column:
    """Microseconds since 1970."""
    return F.unix_micros(F.col(instant))


def prepared(operations: DataFrame) -> DataFrame:
    """The accepted operations, with their times in microseconds.

    `run_start` and `run_end` are the first and the last instant in any row of the same run. We take it that an operation whose
    start was not written waited from the first instant on, and one whose end was not written until the last.
    """
    bounds = operations.groupBy("run_id").agg(
        F.min(F.least(micros("started_at"), micros("ended_at"))).alias("run_start"),
        F.max(F.greatest(micros("started_at"), micros("ended_at"))).alias("run_end"),
    )
    return operations.join(F.broadcast(bounds), "run_id").select(
        "purgatory",
        "kind",
        "keys",
        "outcome",
        "timeout_s",
        "missed_trigger",
        "run_start",
        "run_end",
        micros("started_at").alias("started"),
        micros("ended_at").alias("ended"),
        (micros("ended_at") - micros("started_at")).alias("wait"),
    )


def outcomes(operations: DataFrame) -> DataFrame:
    """For each purgatory, kind and minute: how many operations started, how many ended and how, and how long those waited.

    Args:
        operations: as `prepared` returns them.
    """
    group = ["purgatory", "kind", "minute"]
    ended = operations.filter("ended IS NOT NULL").withColumn("minute", _minute("ended"))
    ends = ended.groupBy(*group).agg(
        *(F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in ("completed", "expired", "cancelled")),
        F.percentile("wait", F.array(*map(F.lit, PERCENTILES.values()))).alias("percentiles"),
        F.max("wait").alias("longest"),
    )
    started = operations.filter("started IS NOT NULL").withColumn("minute", _minute("started"))
    starts = started.groupBy(*group).agg(F.count("*").alias("started"))
    counts = {name: F.coalesce(name, F.lit(0)).alias(name) for name in ("started", "completed", "expired", "cancelled")}
    return starts.join(ends, group, "full_outer").select(
        *group,
        *counts.values(),
        (F.col("expired") / (F.col("completed") + F.col("expired") + F.col("cancelled"))).alias("expiry_rate"),
        *((F.col("percentiles")[place] / SECOND).alias(name) for place, name in enumerate(PERCENTILES)),
        (F.col("longest") / SECOND).alias("wait_max"),
    )


def _minute(time: str) -> Column:
    return F.timestamp_micros(F.expr(f"{time} DIV {60 * SECOND} * {60 * SECOND}"))


def keys(operations: DataFrame, checks: DataFrame) -> DataFrame:
    """For each purgatory and key: the operations that watched it, and what its checks did.

    Args:
        operations: as `prepared` returns them.
        checks: the accepted ones.
    """
    group = ["purgatory", "key"]
    watched = operations.select("purgatory", F.explode(F.array_distinct("keys")).alias("key"), "missed_trigger")
    watching = watched.groupBy(*group).agg(
        F.count("*").alias("operations"), F.count_if("missed_trigger").alias("missed_triggers")
    )
    checked = checks.groupBy(*group).agg(*(F.sum(name).alias(name) for name in ("checks", "tried", "completed")))
    names = ("operations", "checks", "tried", "completed", "missed_triggers")
    counts = watching.join(checked, group, "full_outer").select(
        *group, *(F.coalesce(name, F.lit(0)).alias(name) for name in names)
    )
    return counts.withColumn("false_wakeups", F.col("tried") - F.col("completed"))
