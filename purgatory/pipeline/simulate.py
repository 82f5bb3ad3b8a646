"""``python -m purgatory.pipeline simulate``: how other ticks, wheel sizes and timeouts would have done on a journal's traffic.

Each run of each purgatory was one wheel, and is replayed as one, so that nothing is lost by dividing the work: a task of
Spark is one of them with one setting. Their operations are first written in the order of their starts, a file for each.
With ``--shards`` a run is divided further, by the first key of each operation: then buckets and bursts are those of a
shard, and it is said how many operations have other keys elsewhere.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import astuple
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZipFile, ZipInfo

import pyarrow as pa
import pyarrow.dataset
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import purgatory
from purgatory.pipeline._program import Program, add_master_option
from purgatory.pipeline._reading import NoJournal, read
from purgatory.pipeline._replay import Setting
from purgatory.pipeline._session import spark_session
from purgatory.pipeline._settings import COLUMNS, Outcome, draw, recommendation, table

RESULTS: Final = (
    "tick double, wheel_size long, timeout double, operations long, callbacks long, empty_callbacks long, moves long, "
    "largest_bucket long, largest_burst long, expired long, lateness map<long, long>, latest double, cpu_seconds double, "
    "different long, differences array<struct<run_id string, operation_id long, recorded string, replayed string, why string>>"
)
DIFFERENCES: Final = (
    "tick double, wheel_size long, timeout double, run_id string, operation_id long, recorded string, replayed string, "
    "why string"
)


def numbers(text: str) -> list[float]:
    """What a list like ``0.001,0.01`` stands for."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers, as 0.001,0.01 is") from None
    if not all(0 < number < float("inf") for number in found):
        raise argparse.ArgumentTypeError(f"{text!r} has a number that is not positive")
    return found


def sizes(text: str) -> list[int]:
    """What a list like ``20,64`` stands for."""
    if not all(part.isdecimal() and int(part) >= 2 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers of at least 2, as 20,64 is")
    return [int(part) for part in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="the directory of a journal")
    parser.add_argument("--out", required=True, metavar="DIR", help="where tables and plots go")
    parser.add_argument("--tick", type=numbers, default=[0.001], metavar="SECONDS,…", help="ticks to try (default: 0.001)")
    parser.add_argument("--wheel-size", type=sizes, default=[512], metavar="N,…", help="wheel sizes to try (default: 512)")
    parser.add_argument(
        "--timeout", type=numbers, default=[], metavar="SECONDS,…", help="timeouts to try, besides those in the journal"
    )
    parser.add_argument(
        "--lateness", type=float, default=0.01, metavar="SECONDS", help="how late 99 %% may expire at most (default: 0.01)"
    )
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="divide each run by key (default: it is whole)")
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    timeouts = [None, *options.timeout]
    settings = [Setting(tick, size, timeout) for timeout in timeouts for tick in options.tick for size in options.wheel_size]
    with spark_session("purgatory simulate", options.master) as spark:
        try:
            outcomes = simulate(spark, options.journal, options.out, settings, options.shards)
        except NoJournal as error:
            print(error, file=sys.stderr)
            return 1
        except ValueError as error:
            print(f"cannot simulate {options.journal}: {error}", file=sys.stderr)
            return 1
    print(table(outcomes))
    print(recommendation(outcomes, options.lateness))
    draw(outcomes, options.out)
    return 0


def simulate(spark: SparkSession, journal: str, out: str, settings: list[Setting], shards: int = 1) -> list[Outcome]:
    """Replays a journal with each of `settings`, and writes the tables ``settings`` and ``differences``.

    Raises:
        NoJournal: there is no journal.
        ValueError: no operation of it can be replayed.
    """
    folder = f"{out.rstrip('/')}/replay"
    source = read(spark, [journal], "operations")
    operations = _operations(source.accepted, shards)
    ordered = operations.repartition("unit").sortWithinPartitions("unit", "started_at", "operation_id")
    ordered.write.mode("overwrite").partitionBy("unit").parquet(folder)
    units = [row.unit for row in spark.read.parquet(folder).select("unit").distinct().collect()]
    if not units:
        raise ValueError("it has no operation with a start, an end and keys")
    print(f"replaying {len(units)} wheel{'s'[: len(units) > 1]} with {len(settings)} settings", flush=True)
    tasks = [(unit, *setting) for unit in units for setting in settings]
    rows = spark.createDataFrame(tasks, "unit string, tick double, wheel_size long, timeout double").repartition(len(tasks))
    with TemporaryDirectory() as code:  # workers may ask for it until the tasks have ended
        _send_package(spark, Path(code))
        results = rows.mapInArrow(partial(_replays, folder=folder), RESULTS).collect()
    outcomes = [Outcome.of(setting, [row for row in results if _setting(row) == setting]) for setting in settings]
    _write_tables(spark, out, outcomes, results)
    read_at_all = sum(each.count for each in source.account if each.what == "rows read")
    if left_out := read_at_all - outcomes[0].operations:
        print(f"{left_out:,} rows of the journal are not replayed: they are broken, copies, or lack a start, an end or keys")
    for each in source.account:
        if each.what == "files unreadable":
            print(f"not read: {each.reason}")
    if shards > 1:
        apart = operations.where("elsewhere").count()
        print(f"{apart:,} operations have keys in other shards: whom a check of those would have tried is not counted")
    return outcomes


def _write_tables(spark: SparkSession, out: str, outcomes: list[Outcome], results: list[Row]) -> None:
    table = spark.createDataFrame([astuple(each) for each in outcomes], COLUMNS)
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/settings")
    different = [(*_setting(row), *each) for row in results for each in row.differences]
    table = spark.createDataFrame(different, DIFFERENCES)
    table.coalesce(1).write.mode("overwrite").parquet(f"{out}/differences")


def _setting(row: Row) -> Setting:
    return Setting(row.tick, row.wheel_size, row.timeout)


def _operations(accepted: DataFrame, shards: int) -> DataFrame:
    """What can be replayed."""

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


def _send_package(spark: SparkSession, folder: Path) -> None:
    """Sends our code to the workers, who may not have it installed: the replay uses all of the core."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    package = Path(purgatory.__file__).parent
    sources = {str(path.relative_to(package.parent)): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    # A session refuses another file of a name that it has, so the name and the file follow from the code alone.
    file = folder / f"purgatory-{sha256(repr(sources).encode()).hexdigest()[:12]}.zip"
    with ZipFile(file, "w") as archive:
        for path, content in sources.items():
            archive.writestr(ZipInfo(path), content)
    spark.addArtifacts(str(file), pyfile=True)


def _replays(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Does the tasks: one row of `RESULTS` for each. Where it runs, our code is only there by now."""
    from purgatory.pipeline._replay import Recorded, Setting, replay  # noqa: PLC0415  (see above)

    def recorded(unit: Any) -> Iterator[Recorded]:
        for batch in unit.to_batches(columns=list(Recorded._fields), batch_size=10_000):
            yield from map(Recorded, *(column.to_pylist() for column in batch.columns))

    for batch in batches:
        for task in batch.to_pylist():
            unit = pyarrow.dataset.dataset(f"{folder}/unit={task.pop('unit')}", format="parquet")
            run_id = unit.head(1, columns=["run_id"])["run_id"][0].as_py()
            seen = replay(recorded(unit), Setting(**task))
            result = {name: getattr(seen, name) for name in seen.__slots__}
            result["lateness"] = list(seen.lateness.items())
            names = ("run_id", "operation_id", "recorded", "replayed", "why")
            result["differences"] = [dict(zip(names, (run_id, *each), strict=True)) for each in seen.differences]
            yield pa.RecordBatch.from_pylist([{**task, **result}], _arrow_schema())


def _arrow_schema() -> pa.Schema:
    """`RESULTS`, for pyarrow."""
    texts = dict.fromkeys(("recorded", "replayed", "why"), pa.string())
    counts = ("operations", "callbacks", "empty_callbacks", "moves", "largest_bucket", "largest_burst", "expired")
    return pa.schema(
        {
            "tick": pa.float64(),
            "wheel_size": pa.int64(),
            "timeout": pa.float64(),
            **dict.fromkeys(counts, pa.int64()),
            "lateness": pa.map_(pa.int64(), pa.int64()),
            "latest": pa.float64(),
            "cpu_seconds": pa.float64(),
            "different": pa.int64(),
            "differences": pa.list_(pa.struct({"run_id": pa.string(), "operation_id": pa.int64(), **texts})),
        }
    )


PROGRAM: Final = Program(
    name="simulate",
    summary="Replays a journal with other ticks, wheel sizes and timeouts, and recommends one.",
    add_arguments=add_arguments,
    run=run,
)
