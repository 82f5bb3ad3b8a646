"""What expiry rate each timeout would have given.

An operation that expired after 2 s might have completed after 3 s, or never. We only know that its wait is longer than 2 s: it
is *censored*. If we left it out, long timeouts would look better than they are; if we took it for completed, short ones would.
The estimator of Kaplan and Meier (1958) uses just what is known. Take each wait t after which some operations completed: n
operations had waited at least so long, and d of them completed then. The share that would still be waiting is

    S(t) = product of (1 - d / n) over the waits up to t        what a timeout of t would have let expire
    SE(t) = S(t) * sqrt(sum of d / (n * (n - d)))               Greenwood (1926)

Cancelled operations and those without an end are censored, too. Beyond the longest wait nothing is known. If S has not fallen
to 1 % by then, this data cannot tell which timeout would let 1 % expire.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from purgatory.pipeline.report._tables import SECOND

RATES: Final = {"timeout_1_percent": 0.01, "timeout_01_percent": 0.001}
ROUNDING: Final = 1e-12
NOT_ANSWERABLE: Final = "not answerable from this data"


def curves(operations: DataFrame) -> DataFrame:
    """The Kaplan-Meier curve of each purgatory and kind, at each wait that occurred, in microseconds.

    Args:
        operations: as `prepared` returns them. Those whose start is not known are left out, as their wait is not known.

    Returns:
        purgatory, kind, wait, at_risk, expiry_rate, standard_error (null where the rate is zero): a row for each different
        wait. For a person see `thinned`.
    """
    waits = operations.filter("started IS NOT NULL").select(
        "purgatory",
        "kind",
        F.coalesce("wait", F.col("run_end") - F.col("started")).alias("wait"),
        F.coalesce(F.col("outcome") == "completed", F.lit(False)).alias("is_end"),
    )
    counts = waits.groupBy("purgatory", "kind", "wait").agg(
        F.count("*").alias("operations"), F.count_if("is_end").alias("ends")
    )
    of_kind = Window.partitionBy("purgatory", "kind").orderBy(F.desc("wait"))
    at_risk = counts.withColumn("at_risk", F.sum("operations").over(of_kind.rowsBetween(Window.unboundedPreceding, 0)))
    up_to = Window.partitionBy("purgatory", "kind").orderBy("wait").rowsBetween(Window.unboundedPreceding, 0)
    left = F.col("at_risk") - F.col("ends")
    # A sum of logarithms, because Spark has no running product as exact. The rate is zero only at the end, when none is left.
    steps = at_risk.withColumns(
        {
            "log_step": F.when(left > 0, F.log1p(-F.col("ends") / F.col("at_risk"))).otherwise(0.0),
            "variance_step": F.when(left > 0, F.col("ends") / (F.col("at_risk").cast("double") * left)).otherwise(0.0),
        }
    )
    rate = F.when(left > 0, F.exp(F.sum("log_step").over(up_to))).otherwise(0.0)
    error = F.when(left > 0, rate * F.sqrt(F.sum("variance_step").over(up_to)))
    return steps.select("purgatory", "kind", "wait", "at_risk", rate.alias("expiry_rate"), error.alias("standard_error"))


def thinned(curves: DataFrame) -> DataFrame:
    """The curves at timeouts of three digits, such as 1.23 s or 45.6 s: at most 900 points for each power of ten."""
    step = F.pow(F.lit(10), F.greatest(F.length(F.col("wait").cast("string")) - 3, F.lit(0))).cast("long")
    rounded_up = F.ceil(F.col("wait") / step) * step
    latest = [F.max_by(name, "wait").alias(name) for name in ("at_risk", "expiry_rate", "standard_error")]
    return (
        curves.withColumn("timeout", rounded_up)
        .groupBy("purgatory", "kind", "timeout")
        .agg(*latest)
        .select(
            "purgatory",
            "kind",
            (F.col("timeout") / SECOND).alias("timeout_s"),
            *[F.col(c) for c in ("at_risk", "expiry_rate", "standard_error")],
        )
    )


def timeouts(operations: DataFrame, curves: DataFrame) -> DataFrame:
    """For each purgatory and kind: how its operations ended, and which timeouts would have let 1 % and 0.1 % expire.

    Args:
        operations: as `prepared` returns them.
        curves: what `curves` made of them.
    """
    group = ["purgatory", "kind"]
    counts = operations.groupBy(*group).agg(
        F.count("*").alias("operations"),
        *(F.count_if(F.col("outcome") == outcome).alias(outcome) for outcome in ("completed", "expired", "cancelled")),
        F.count_if(F.col("outcome").isNull()).alias("without_end"),
        F.count_if(F.col("started").isNull()).alias("without_start"),
        F.count_if("missed_trigger").alias("missed_triggers"),
        F.min("timeout_s").alias("timeout_min_s"),
        F.max("timeout_s").alias("timeout_max_s"),
    )
    reached = curves.groupBy(*group).agg(
        (F.max("wait") / SECOND).alias("longest_wait_s"),
        F.min("expiry_rate").alias("least_expiry_rate"),
        F.max_by("standard_error", "wait").alias("its_standard_error"),
        *(
            (F.min(F.when(F.col("expiry_rate") <= rate + ROUNDING, F.col("wait"))) / SECOND).alias(name)
            for name, rate in RATES.items()
        ),
    )
    rate = F.col("expired") / (F.col("completed") + F.col("expired") + F.col("cancelled"))
    answers = {
        name.replace("timeout", "answer"): F.when(F.col(name).isNull(), NOT_ANSWERABLE).otherwise("answered") for name in RATES
    }
    return counts.join(reached, group, "left").withColumns({"expiry_rate": rate, **answers})
