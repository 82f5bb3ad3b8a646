"""How many operations were pending, second by second. The numbers are exact, however many operations overlap.

Each operation gives two events: +1 when it starts, -1 when it ends. If one starts in the microsecond in which another ends,
both were pending in it. A running sum over all events of a purgatory would be the work of a single task. So the sum is taken
in two steps: first within each second, which many tasks do in parallel, then over the seconds, which are few.

    events 3.2 s +1, 3.7 s +1, 5.1 s -1     second 3: base 0, peak 2, mean 0.8 + 0.3
                                            second 4: no event, base 2, peak 2, mean 2
                                            second 5: base 2, peak 2, mean 2 - 0.9
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory.pipeline.report._tables import SECOND


def pending(operations: DataFrame) -> DataFrame:
    """For each purgatory and each second in which any operation was pending: the most at any instant, and the mean.

    An operation whose start is not known counts from the first instant of its run, one without an end until the last.

    Args:
        operations: as `prepared` returns them.
    """
    return _with_quiet_seconds(_on_their_base(_by_second(_events(operations))))


def _events(operations: DataFrame) -> DataFrame:
    start = F.coalesce("started", "run_start")
    end = F.coalesce("ended", "run_end")
    # Within an instant starts come before ends.
    deltas = F.array(F.struct(start.alias("at"), F.lit(1).alias("delta")), F.struct(end.alias("at"), F.lit(-1).alias("delta")))
    events = operations.select("purgatory", F.explode(deltas).alias("event")).select("purgatory", "event.*")
    return events.select("purgatory", F.expr(f"at DIV {SECOND}").alias("second"), F.expr(f"at % {SECOND}").alias("at"), "delta")


def _by_second(events: DataFrame) -> DataFrame:
    """For each second with events, counted from zero: the change, the peak on the way, and the weight for the mean."""
    in_order = Window.partitionBy("purgatory", "second").orderBy("at", F.desc("delta"))
    so_far = F.sum("delta").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return (
        events.withColumn("so_far", so_far)
        .groupBy("purgatory", "second")
        .agg(
            F.sum("delta").alias("change"),
            F.max("so_far").alias("peak"),
            F.sum(F.col("delta") * (SECOND - F.col("at"))).alias("weight"),
        )
    )


def _on_their_base(seconds: DataFrame) -> DataFrame:
    """Adds how many operations were pending when the second began, and the next second that has events."""
    over_seconds = Window.partitionBy("purgatory").orderBy("second")
    before = F.coalesce(F.sum("change").over(over_seconds.rowsBetween(Window.unboundedPreceding, -1)), F.lit(0))
    return seconds.withColumns({"base": before, "next": F.lead("second").over(over_seconds)})


def _with_quiet_seconds(seconds: DataFrame) -> DataFrame:
    """Adds the seconds in which operations were pending, but none started or ended."""
    busy = seconds.select(
        "purgatory",
        F.timestamp_seconds("second").alias("second"),
        (F.col("base") + F.greatest("peak", F.lit(0))).alias("pending_max"),
        (F.col("base") + F.col("weight") / SECOND).alias("pending_mean"),
    )
    left = F.col("base") + F.col("change")
    quiet = seconds.withColumn("left", left).filter("left > 0 AND next > second + 1")
    each = quiet.select("purgatory", "left", F.explode(F.sequence(F.col("second") + 1, F.col("next") - 1)).alias("second"))
    filled = each.select(
        "purgatory",
        F.timestamp_seconds("second").alias("second"),
        F.col("left").alias("pending_max"),
        F.col("left").cast("double").alias("pending_mean"),
    )
    return busy.unionByName(filled)
