"""Distributes the replays over Spark's workers, and writes the tables ``settings`` and
``differences``.

Each run of each purgatory had one wheel, and is replayed as one *unit*, so that dividing the work
changes nothing. A task of Spark has the operations of one unit and replays them with one setting.
With more than one shard a run is divided further, by the first key of each operation. Buckets and
bursts are then counted per shard, and the program prints how many operations have keys in other
shards.
"""

import pickle
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._files import distinct
from purgatory.pipeline._remote import storage_of
from purgatory.pipeline._shown import shown
from purgatory.pipeline._workers import for_workers, send_package
from purgatory.pipeline.simulate._replay import Difference, Replay, Setting, replayed
from purgatory.pipeline.simulate._trials import Trial, columns_of, draw
from purgatory.pipeline.spark._census import accepted, judged
from purgatory.pipeline.spark._journal import read_source

RESULTS: Final = "run_id string, setting int, replayed binary"
"""The columns of `replayed`."""
DIFFERENCES: Final = f"{columns_of(Setting)}, run_id string, {columns_of(Difference)}"
Results = list[tuple[str, Setting, Replay]]
"""The id of a run, a setting, and the results."""


def simulate(
    spark: SparkSession, journal: str, out: str, settings: list[Setting], shards: int = 1
) -> list[Trial]:
    """Replays a journal with each of `settings`. Writes the tables ``settings`` and
    ``differences``, and a plot, to `out`.

    Args:
        journal: a path or a URI.
        out: a folder, or its URI.

    Raises:
        NoJournal: there is no journal.
        ValueError: the journal has no operation that can be replayed.
    """
    [out] = distinct([out])
    source, account = read_source(spark, [journal], ["operations"])
    send_package(spark)
    rows, census = source.rows["operations"], source.censuses["operations"]
    operations = _operations(accepted(judged(rows, "operations"), "operations", census), shards)
    units = operations.select("unit").distinct().count()
    if not units:
        raise ValueError("it has no operation with a start, an end and keys")
    print(f"replaying {units} wheel{'s'[: units > 1]} with {len(settings)} settings", flush=True)
    results = _replay_all(operations, settings)
    trials = [
        Trial.of(setting, [seen for _, of, seen in results if of == setting])
        for setting in settings
    ]
    _write_tables(spark, out, trials, results)
    storage_of(spark, out).write(f"{out}/settings.png", draw(trials))
    if left_out := sum(census.rows.values()) - trials[0].seen.operations:
        print(
            f"{left_out:,} rows of the journal are not replayed: they are broken, copies, or "
            "lack a start, end or keys"
        )
    for file, reason in account.damaged.items():
        print(shown(f"not read: {file}: {reason}"))
    if shards > 1:
        apart = operations.where("elsewhere").count()
        print(
            f"{apart:,} operations have keys in other shards: checks of those keys do not try "
            "them here"
        )
    return trials


def _operations(accepted: DataFrame, shards: int) -> DataFrame:
    """The operations that can be replayed, each with its unit."""

    def shard_of(key: Column) -> Column:
        return F.pmod(F.xxhash64(key), F.lit(shards))

    first = shard_of(F.element_at("keys", 1))
    return accepted.where("started IS NOT NULL AND ended IS NOT NULL AND size(keys) > 0").select(
        F.hex(F.xxhash64("run_id", "purgatory", first)).alias("unit"),
        F.exists("keys", lambda key: shard_of(key) != first).alias("elsewhere"),
        "run_id",
        "operation_id",
        F.expr("IF(missed_trigger, keys, array())").alias("keys"),  # of others it needs none
        F.col("started").alias("started_at"),
        F.col("ended").alias("ended_at"),
        "timeout_s",
        "outcome",
        "ended_by",
        "missed_trigger",
    )


def _replay_all(operations: DataFrame, settings: list[Setting]) -> Results:
    each = F.explode(F.array(*map(F.lit, range(len(settings)))))
    tasks = operations.drop("elsewhere").withColumn("setting", each).groupBy("unit", "setting")
    found = tasks.applyInArrow(
        for_workers(replayed, settings=[tuple(each) for each in settings]), RESULTS
    ).collect()
    return [(row.run_id, settings[row.setting], pickle.loads(row.replayed)) for row in found]


def _write_tables(spark: SparkSession, out: str, trials: list[Trial], results: Results) -> None:
    table = spark.createDataFrame([trial.row() for trial in trials], Trial.columns())
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/settings")
    different = [
        (*setting, run_id, *each) for run_id, setting, seen in results for each in seen.differences
    ]
    table = spark.createDataFrame(different, DIFFERENCES)
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/differences")
