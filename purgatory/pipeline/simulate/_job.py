"""Distributes the replays over Spark's workers, and writes the tables ``settings`` and ``differences``.

Each run of each purgatory had one wheel, and is replayed as one *unit*, so that dividing the work changes nothing. First the
operations of each unit are written to files, sorted by start; then a task of Spark replays one unit with one setting. With more
than one shard a run is divided further, by the first key of each operation. Buckets and bursts are then those of a shard, and
the program prints how many operations have keys in other shards.
"""

import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from purgatory.pipeline._executor import as_dataframe, on_spark
from purgatory.pipeline._pieces import plain_piece
from purgatory.pipeline._reading import Source, read
from purgatory.pipeline._schemas import OPERATIONS
from purgatory.pipeline._session import literal
from purgatory.pipeline.simulate._replay import Difference, Setting
from purgatory.pipeline.simulate._trials import Trial, columns_of

if TYPE_CHECKING:
    from purgatory.pipeline.simulate._replay import Recorded, Replay

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # see `_replays`

TASKS: Final = f"unit string, {columns_of(Setting)}"
RESULTS: Final = "replayed binary"
"""A pickled tuple: the id of the run, the setting as a plain tuple, and the `Replay`."""
DIFFERENCES: Final = f"{columns_of(Setting)}, run_id string, {columns_of(Difference)}"


def simulate(spark: SparkSession, journal: str, out: str, settings: list[Setting], shards: int = 1) -> list[Trial]:
    """Replays a journal with each of `settings`, and writes the tables ``settings`` and ``differences`` to `out`.

    Raises:
        NoJournal: there is no journal.
        ValueError: the journal has no operation that can be replayed.
    """
    out = str(Path(out).absolute())
    work = Path(out, ".work")
    try:
        with on_spark(spark) as executor:
            source = read(executor, [journal], ["operations"], str(work))["operations"]
            return _simulated(spark, source, out, settings, shards)
    finally:
        rmtree(work, ignore_errors=True)


def _simulated(spark: SparkSession, source: Source, out: str, settings: list[Setting], shards: int) -> list[Trial]:
    folder = f"{out}/replay"
    operations = _operations(as_dataframe(spark, plain_piece, source.pieces, OPERATIONS), shards)
    ordered = operations.repartition("unit").sortWithinPartitions("unit", "started_at", "operation_id")
    ordered.write.mode("overwrite").partitionBy("unit").parquet(folder)
    # With a schema, since there may be no file, and since the name of a unit may look like a number.
    units = [row.unit for row in spark.read.schema("unit string").parquet(literal(folder)).distinct().collect()]
    if not units:
        raise ValueError("it has no operation with a start, an end and keys")
    print(f"replaying {len(units)} wheel{'s'[: len(units) > 1]} with {len(settings)} settings", flush=True)
    replays = _replay_all(spark, [(unit, *setting) for unit in units for setting in settings], folder)
    trials = [Trial.of(setting, [seen for _, of, seen in replays if of == setting]) for setting in settings]
    _write_tables(spark, out, trials, replays)
    read_at_all = sum(each.count for each in source.account if each.what == "rows read")
    if left_out := read_at_all - trials[0].seen.operations:
        print(f"{left_out:,} rows of the journal are not replayed: they are broken, copies, or lack a start, an end or keys")
    for each in source.account:
        if each.what == "files unreadable":
            print(f"not read: {each.reason}")
    if shards > 1:
        apart = operations.where("elsewhere").count()
        print(f"{apart:,} operations have keys in other shards: checks of those keys do not try them here")
    return trials


def _operations(accepted: DataFrame, shards: int) -> DataFrame:
    """The operations that can be replayed, each with its unit."""

    def shard_of(key: Column) -> Column:
        return F.pmod(F.xxhash64(key), F.lit(shards))

    first = shard_of(F.element_at("keys", 1))
    return accepted.where("started_at IS NOT NULL AND ended_at IS NOT NULL AND size(keys) > 0").select(
        F.hex(F.xxhash64("run_id", "purgatory", first)).alias("unit"),
        F.exists("keys", lambda key: shard_of(key) != first).alias("elsewhere"),
        "run_id",
        "operation_id",
        "keys",
        F.unix_micros("started_at").alias("started_at"),
        F.unix_micros("ended_at").alias("ended_at"),
        "timeout_s",
        "outcome",
        "ended_by",
        "missed_trigger",
    )


def _write_tables(spark: SparkSession, out: str, trials: list[Trial], replays: list[tuple[str, Setting, "Replay"]]) -> None:
    table = spark.createDataFrame([trial.row() for trial in trials], Trial.columns())
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/settings")
    different = [(*setting, run_id, *each) for run_id, setting, seen in replays for each in seen.differences]
    table = spark.createDataFrame(different, DIFFERENCES)
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/differences")


# -- the workers


def _replay_all(spark: SparkSession, tasks: list[tuple[Any, ...]], folder: str) -> list[tuple[str, Setting, "Replay"]]:
    """For each task: the id of its run, its setting, and the result."""
    rows = spark.createDataFrame(tasks, TASKS).repartition(len(tasks))
    results = rows.mapInArrow(partial(_replays, folder=folder), RESULTS).collect()
    found = (pickle.loads(row.replayed) for row in results)
    return [(run_id, Setting(*setting), seen) for run_id, setting, seen in found]


def _replays(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Runs the tasks; one row of `RESULTS` for each. On a worker our code cannot be imported earlier."""
    from purgatory.pipeline.simulate._replay import Recorded, Setting, replay  # noqa: PLC0415  (see above)

    def recorded(unit: Any) -> Iterator["Recorded"]:
        for batch in unit.to_batches(columns=list(Recorded._fields), batch_size=10_000):
            yield from map(Recorded, *(column.to_pylist() for column in batch.columns))

    for batch in batches:
        for task in batch.to_pylist():
            unit = pyarrow.dataset.dataset(f"{folder}/unit={task.pop('unit')}", format="parquet")
            run_id = unit.head(1, columns=["run_id"])["run_id"][0].as_py()
            setting = Setting(**task)
            seen = replay(recorded(unit), setting)
            yield pa.RecordBatch.from_pydict({"replayed": [pickle.dumps((run_id, tuple(setting), seen))]})
