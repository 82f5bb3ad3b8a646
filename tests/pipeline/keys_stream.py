"""Runs `stream` on keys that are used once, with and without `--forget-after`, and shows how large
the state is after each quarter.

    python tests/pipeline/keys_stream.py --folder DIR [--keys 1000000] [--forget-after 300]
    python tests/pipeline/keys_stream.py --without-spark

Each order waits for its own key, which is signalled a minute later. A quarter is an hour of event
time. Without Spark one shard is called as Spark calls it, in batches of a minute.
"""

import argparse
import contextlib
import io
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from orders import OPERATIONS, SIGNALS
from profile_stream import Handle, Times
from pyspark.sql import SparkSession

from purgatory.pipeline._session import spark_session
from purgatory.pipeline.streaming import reconcile
from purgatory.pipeline.streaming._command import SETTINGS, add_arguments
from purgatory.pipeline.streaming._events import to_stream
from purgatory.pipeline.streaming._job import Job
from purgatory.pipeline.streaming._processor import ShardProcessor

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUARTERS = 4
FILES = 6
"""In each quarter."""


def write(folder: Path, quarter: int, keys: int) -> None:
    size = keys // QUARTERS // FILES
    step = timedelta(hours=1) / FILES / size
    for file in range(quarter * FILES, (quarter + 1) * FILES):
        numbers = range(file * size, (file + 1) * size)
        at = [START + number * step for number in numbers]
        operations = {
            "operation_id": [f"order-{number}" for number in numbers],
            "requirements": [[{"key": f"paid-{number}", "threshold": 1}] for number in numbers],
            "mode": ["all"] * size,
            "registered_at": at,
            "deadline": [each + timedelta(minutes=10) for each in at],
        }
        signals = {
            "key": [f"paid-{number}" for number in numbers],
            "value": [1] * size,
            "at": [each + timedelta(minutes=1) for each in at],
        }
        for name, rows, schema in (
            ("operations", operations, OPERATIONS),
            ("signals", signals, SIGNALS),
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(rows, schema=schema), folder / name / f"{file:05}.parquet")


def state_bytes(spark: SparkSession, checkpoint: str) -> int:
    total = 0
    for name, column in (("lines", "entries"), ("operations", "entries"), ("agenda", "events")):
        state = spark.read.format("statestore").option("stateVarName", name).load(checkpoint)
        size = state.selectExpr(f"sum(length(user_map_value.{column})) AS size")
        total += size.collect()[0].size or 0
    return total


def without_spark(keys: int, forget_after: float | None) -> None:
    shard = ShardProcessor(1, None if forget_after is None else round(forget_after * 1e6))
    shard.init(Handle())  # type: ignore[arg-type]
    state = (shard._operations, shard._queues, shard._event_queue)
    size, minute = keys // QUARTERS // 60, 60_000_000
    began = time.process_time()
    for batch in range(QUARTERS * 60):
        at = [(batch + 1) * minute + number * minute // size for number in range(size)]
        names = range(batch * size, (batch + 1) * size)
        operations = {
            "operation_id": [f"order-{number}" for number in names],
            "keys": [[f"paid-{number}"] for number in names],
            "thresholds": [[1]] * size,
            "mode": ["all"] * size,
            "registered_at": at,
            "deadline": [each + 10 * minute for each in at],
        }
        signals = {
            "key": [f"paid-{number}" for number in names],
            "value": [1] * size,
            "at": [each + minute for each in at],
            "reporter": pa.array([0] * size, pa.int32()),
        }
        rows = [
            (0, are_signals, to_stream(pa.RecordBatch.from_pydict(each)))
            for are_signals, each in ((False, operations), (True, signals))
        ]
        list(shard._run(0, iter(rows), Times((batch + 1) * minute)))
        if (batch + 1) % 60 == 0:
            total = sum(len(value[1]) for each in state for value in each.values())
            print(
                f"{'keeping' if forget_after is None else 'forgetting':10}  "
                f"{(batch + 1) * size:9,} keys used   state {total / 2**20:6.1f} MiB   "
                f"{time.process_time() - began:5.1f} s of CPU",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--forget-after", default="300")
    options = parser.parse_args()
    if options.without_spark:
        without_spark(options.keys, float(options.forget_after))
        without_spark(options.keys, None)
        return
    program = argparse.ArgumentParser()
    add_arguments(program)
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": "2"}
    with spark_session("keys", "local[2]", settings) as spark:
        for forget in (["--forget-after", options.forget_after], []):
            folder = options.folder / ("forgetting" if forget else "keeping")
            names = ("operations", "signals", "out", "checkpoint")
            places = [part for name in names for part in (f"--{name}", str(folder / name))]
            more = ["--shards", "2", "--files-per-batch", "1", "--available-now", *forget]
            for quarter in range(QUARTERS):
                write(folder, quarter, options.keys)
                began = time.monotonic()
                with contextlib.redirect_stdout(io.StringIO()):
                    Job(spark, program.parse_args([*places, *more]), threading.Event()).run()
                seconds = time.monotonic() - began
                account = reconcile(str(folder / "checkpoint"), spark)
                print(
                    f"{folder.name:10}  {account.registered:9,} keys used   state "
                    f"{state_bytes(spark, str(folder / 'checkpoint')) / 2**20:6.1f} MiB   "
                    f"{account.completed:9,} completed, {account.missing} missing   "
                    f"{seconds:4.0f} s, "
                    f"load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
