"""How long operations waited, and what share each timeout would have let expire, after Kaplan and
Meier (1958).

A curve is a product over all waits in order, so one task would have a whole curve. Here waits are
divided into bins: timeouts of three digits, or of two for the curve of a single run. The number at
risk at the beginning of a bin is known from the counts of all bins, which are few. Then each bin is
a window of its own, and its logarithm a sum; the driver adds up the logarithms of bins.
"""

from itertools import groupby
from math import exp, sqrt
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

CURVE: Final = ("purgatory", "kind", "run")
CURVES: Final = (
    "purgatory string, kind string, run int, timeout_s double, at_risk bigint, expiry_rate "
    "double, standard_error double"
)
SLACK: Final = 1e-12
"""Sums of logarithms are not exact."""
LOGARITHM: Final = "sum(CASE WHEN at_risk > d THEN log1p(-d / at_risk) ELSE 0D END)"
VARIANCE: Final = (
    "sum(CASE WHEN at_risk > d THEN d / (CAST(at_risk AS DOUBLE) * (at_risk - d)) ELSE 0D END)"
)


def waits(spans: DataFrame, *, by_run: bool) -> DataFrame:
    """How many operations waited how long (`n`), and how many of them completed then (`d`); of all
    runs as run -1."""
    run = "explode(array(-1, run))" if by_run else "-1"
    digits = "greatest(length(CAST(wait AS STRING)) - IF(run < 0, 3, 2), 0)"
    return (
        spans.where("started IS NOT NULL")
        .selectExpr("purgatory", "kind", f"{run} AS run", "till - since AS wait", "outcome")
        .groupBy(*CURVE, "wait")
        .agg(F.expr("count(*) AS n"), F.expr("count_if(outcome = 'completed') AS d"))
        .withColumn("unit", F.expr(f"CAST(power(10, {digits}) AS BIGINT)"))
        .withColumn("bin", F.expr("(wait + unit - 1) DIV unit * unit"))
        .drop("unit")
    )


def _at_risk(counted: DataFrame, below: DataFrame) -> DataFrame:
    """The waits, with the number of operations that waited at least so long. `below` has that
    number at the beginning of each bin."""
    before = (
        Window.partitionBy(*CURVE, "bin").orderBy("wait").rowsBetween(Window.unboundedPreceding, -1)
    )
    shorter = F.coalesce(F.sum("n").over(before), F.lit(0))
    joined = counted.join(F.broadcast(below), [*CURVE, "bin"])
    return joined.withColumn("at_risk", F.col("below") - shorter)


def curves(counted: DataFrame) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the tables `curves` and `answers` of ``rows.sql``. Two jobs.

    Args:
        counted: `waits`, which are read twice.
    """
    down = (
        Window.partitionBy(*CURVE)
        .orderBy(F.desc("bin"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    below = counted.groupBy(*CURVE, "bin").agg(F.sum("n").alias("n"))
    below = below.withColumn("below", F.sum("n").over(down)).drop("n")
    sums = (
        "max(wait) AS last_wait",
        "max(below) AS below",
        "min(at_risk) AS at_risk",
        "bool_or(at_risk <= d) AS is_end",
        f"{LOGARITHM} AS logarithm",
        f"{VARIANCE} AS variance",
    )
    bins = _at_risk(counted, below).groupBy(*CURVE, "bin").agg(*map(F.expr, sums)).collect()
    bins.sort(key=lambda each: (each.purgatory, each.kind, each.run, each.bin))
    points, answers, crossed = [], [], []
    for name, group in groupby(bins, lambda each: (each.purgatory, each.kind, each.run)):
        logarithm = variance = 0.0
        curve = []
        for each in group:
            before, logarithm, variance = (
                logarithm,
                logarithm + each.logarithm,
                variance + each.variance,
            )
            rate = 0.0 if each.is_end else exp(logarithm)
            error = None if each.is_end else rate * sqrt(variance)
            curve.append((each, before, rate, error))
        points += [
            dict(
                zip(CURVE, name, strict=True),
                timeout_s=each.bin / 1e6,
                at_risk=each.at_risk,
                expiry_rate=rate,
                standard_error=error,
            )
            for each, _, rate, error in curve
        ]
        if name[2] < 0:
            answers.append(
                {
                    "purgatory": name[0],
                    "kind": name[1],
                    "longest_wait_s": curve[-1][0].last_wait / 1e6,
                    "least_expiry_rate": curve[-1][2],
                    "its_standard_error": curve[-1][3],
                }
            )
            for sought in (0.01, 0.001):
                found = next((point for point in curve if point[2] <= sought + SLACK), None)
                if found is not None:
                    crossed.append((*name, found[0].bin, found[0].below, found[1], sought))
    return points, _answered(counted, answers, crossed)


def _answered(
    counted: DataFrame, answers: list[dict[str, Any]], crossed: list[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    """The answers, with the wait at which the curve first comes to 1 % and to 0.1 %: it is sought
    in the bin in which that happens."""
    least: dict[tuple[Any, ...], float] = {}
    if crossed:
        columns = (
            "purgatory string, kind string, run int, bin bigint, below bigint, before double, "
            "sought double"
        )
        bins = counted.sparkSession.createDataFrame(crossed, columns)
        up = (
            "OVER (PARTITION BY purgatory, kind, run, bin, sought ORDER BY wait "
            "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        )
        before = up.replace("CURRENT ROW", "1 PRECEDING")
        found = (
            counted.join(F.broadcast(bins), [*CURVE, "bin"])
            .withColumn("at_risk", F.expr(f"below - coalesce(sum(n) {before}, 0)"))
            .withColumn(
                "rate",
                F.expr(f"CASE WHEN at_risk > d THEN exp(before + {LOGARITHM} {up}) ELSE 0D END"),
            )
            .where(f"rate <= sought + {SLACK}")
            .groupBy("purgatory", "kind", "sought")
            .agg(F.expr("min(wait) AS wait"))
        )
        least = {(row.purgatory, row.kind, row.sought): row.wait / 1e6 for row in found.collect()}
    return [
        line
        | {
            "one_percent": least.get((line["purgatory"], line["kind"], 0.01)),
            "one_per_mille": least.get((line["purgatory"], line["kind"], 0.001)),
        }
        for line in answers
    ]
