"""``python -m purgatory.pipeline synth``: generates a journal of any size on Spark, with known
facts for a report to find.

The workload is taken from the benchmark of Kafka's purgatory: Poisson arrivals, a
log-normal time to completion (median 20 ms, three quarters within 60 ms), a timeout of 200 ms,
three of a hundred keys for each operation. Two of the four kinds, ``Fetch`` and ``Produce``, have
longer timeouts here, which suit them. These facts are planted:

- a timeout that is too short: ``Join`` takes 200 ms at the median, and expires after 200 ms;
- a hot key: every fourth operation watches ``key-0``, in addition to operations that draw it;
- a key that is never triggered: every operation of ``Forgotten`` watches ``forgotten`` alone, and
  completes at its deadline.

The same arguments give the same journal: all random values are hashes of the row's number and the
seed.
"""

import argparse
from itertools import accumulate
from math import log
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from purgatory.pipeline._programs import add_master_option
from purgatory.pipeline._schemas import CHECKS, OPERATIONS
from purgatory.pipeline._session import spark_session

START: Final = 1_767_225_600_000_000
"""The beginning of 2026, in microseconds."""
RATE: Final = 25_000
"""The number of arrivals per second."""
KEYS: Final = 100
KINDS: Final = {
    # share, median and third quartile of the time to completion, timeout: all in microseconds
    "Fetch": (0.60, 20_000, 60_000, 2_000_000),
    "Produce": (0.29, 20_000, 60_000, 1_000_000),
    "Join": (0.10, 200_000, 400_000, 200_000),
    "Forgotten": (0.01, 0, 0, 200_000),
}
THIRD_QUARTILE: Final = 0.6744897501960817
"""The third quartile of the standard normal distribution."""


def operations(spark: SparkSession, count: int, seed: int = 1) -> DataFrame:
    """The operations of one run."""
    ids = spark.range(count).withColumnRenamed("id", "operation_id")
    drawn = ids.select("operation_id", _arrival(seed).alias("at"), _kind(seed).alias("kind"))
    timed = drawn.withColumns({"needs": _needs(seed), "timeout": _by_kind(3)})
    is_forgotten, expires = F.col("kind") == "Forgotten", F.col("needs") > F.col("timeout")
    waits = F.when(is_forgotten, F.col("timeout")).otherwise(F.least("needs", "timeout"))
    keys = F.when(is_forgotten, F.array(F.lit("forgotten"))).otherwise(_keys(seed))
    by_check = ~is_forgotten & ~expires
    columns = {
        "run_id": F.lit(f"synth-{seed}"),
        "purgatory": F.lit("synth"),
        "kind": F.col("kind"),
        "operation_id": F.col("operation_id"),
        "keys": keys,
        "started_at": F.timestamp_micros("at"),
        "ended_at": F.timestamp_micros(F.col("at") + waits),
        "timeout_s": F.col("timeout") / 1e6,
        "outcome": F.when(~is_forgotten & expires, "expired").otherwise("completed"),
        "attempts": F.lit(2).cast("long"),
        "ended_by": F.when(by_check, keys[0]),
        "missed_trigger": is_forgotten,
    }
    return timed.select(*(column.alias(name) for name, column in columns.items())).to(OPERATIONS)


def checks(operations: DataFrame) -> DataFrame:
    """The checks that ended the operations. Each of them also tried two others in vain."""
    ended = operations.filter("ended_by IS NOT NULL").withColumn(
        "second", F.date_trunc("second", "ended_at")
    )
    counts = ended.groupBy("run_id", "purgatory", F.col("ended_by").alias("key"), "second").agg(
        F.count("*").alias("checks")
    )
    return counts.select(
        "run_id",
        "purgatory",
        "key",
        "second",
        "checks",
        (F.col("checks") * 3).alias("tried"),
        F.col("checks").alias("completed"),
        F.lit(0).cast("long").alias("part"),
    ).to(CHECKS)


def _uniform(seed: int, what: str) -> Column:
    """A number in (0, 1), which depends on the row, the seed and its purpose `what`."""
    return (
        F.pmod(F.xxhash64("operation_id", F.lit(f"{seed} {what}")), F.lit(1 << 52)) + 0.5
    ) / float(1 << 52)


def _normal(seed: int, what: str) -> Column:
    """A normal number of mean 0 and deviation 1, by the transform of Box and Muller."""
    return F.sqrt(-2 * F.log(_uniform(seed, what + " radius"))) * F.cos(
        2 * F.pi() * _uniform(seed, what + " angle")
    )


def _arrival(seed: int) -> Column:
    """Uniform in a span around the time of its row number. Together nearly Poisson, yet each
    depends on its row alone."""
    spread = 100
    return F.lit(START) + F.floor(
        (F.col("operation_id") + spread * _uniform(seed, "arrival")) * (1_000_000 / RATE)
    ).cast("long")


def _kind(seed: int) -> Column:
    *others, last = KINDS
    up_to = accumulate(KINDS[kind][0] for kind in others)
    chosen = F.lit(last)
    for kind, limit in reversed([*zip(others, up_to, strict=True)]):
        chosen = F.when(_uniform(seed, "kind") < limit, kind).otherwise(chosen)
    return chosen


def _by_kind(index: int) -> Column:
    chosen = F.lit(0)
    for kind, figures in KINDS.items():
        chosen = F.when(F.col("kind") == kind, F.lit(figures[index])).otherwise(chosen)
    return chosen.cast("long")


def _needs(seed: int) -> Column:
    """Microseconds to completion: log-normal, given by the median and the third quartile."""
    chosen = F.lit(0.0)
    for kind, (_, median, quartile, _) in KINDS.items():
        if median:
            sigma = log(quartile / median) / THIRD_QUARTILE
            chosen = F.when(
                F.col("kind") == kind, F.exp(_normal(seed, "needs") * sigma) * median
            ).otherwise(chosen)
    return F.ceil(chosen).cast("long")


def _keys(seed: int) -> Column:
    """Three different keys. In every fourth row the first is ``key-0``."""
    first = F.when(F.col("operation_id") % 4 == 0, F.lit(0)).otherwise(
        F.floor(_uniform(seed, "key 1") * KEYS)
    )
    second = first + 1 + F.floor(_uniform(seed, "key 2") * (KEYS // 2 - 1))
    third = first + KEYS // 2 + F.floor(_uniform(seed, "key 3") * (KEYS // 2 - 1))
    return F.array(
        *(
            F.concat(F.lit("key-"), (key % KEYS).cast("long").cast("string"))
            for key in (first, second, third)
        )
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, zero or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", type=_count, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="the journal's directory; its content is replaced",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of everything random (default: %(default)s)",
    )
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the journal."""
    with spark_session("purgatory synth", options.master, verbose=options.verbose) as spark:
        made = operations(spark, options.operations, options.seed)
        made.write.mode("overwrite").parquet(f"{options.out}/operations")
        checks(made).write.mode("overwrite").parquet(f"{options.out}/checks")
    Console(highlight=False).print(f"operations in {options.out}: {options.operations:,}")
    return 0
