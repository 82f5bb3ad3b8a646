"""``python -m purgatory.pipeline stream``: decides on operations and signals as they come in, or on all that is there.

What it is told by signals of the operating system waits until the batch at hand has ended. Killed in the middle of one, it
goes on from its checkpoint, and the batch is done again: what of it was written before does not count, for who reads the
outcomes with Spark.
"""

import argparse
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from purgatory.pipeline._program import Program, add_master_option
from purgatory.pipeline._session import spark_session
from purgatory.pipeline.streaming import (
    EPOCH,
    OPERATIONS,
    SIGNALS,
    TICKS,
    ShardsChanged,
    check_shards,
    newest_event,
    outcomes,
    reconcile,
    write_ticks,
)

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine takes its time
}
STOP_PATIENCE: Final = 60.0
"""How long a batch may take to end, in seconds, when the program is asked to stop."""
STARTS: Final = 5
"""How often a query is started at most, on a machine that is too busy to start a worker in time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", required=True, metavar="DIR", help="a folder of operations, or a Kafka topic")
    parser.add_argument("--signals", required=True, metavar="DIR", help="a folder of signals, or a Kafka topic")
    parser.add_argument("--out", required=True, metavar="DIR", help="where outcomes go: a folder of Parquet, by outcome")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="where the state is kept; one for each --out")
    parser.add_argument("--available-now", action="store_true", help="decide all that is due by the newest event, and end")
    parser.add_argument(
        "--format", choices=("parquet", "json", "kafka"), default="parquet", help="of both inputs (default: %(default)s)"
    )
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="of Kafka; values are JSON objects")
    parser.add_argument("--packages", metavar="NAMES", help="for Kafka: org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0, say")
    parser.add_argument("--shards", type=int, default=4, metavar="N", help="owners of operations (default: %(default)s)")
    parser.add_argument(
        "--delay", type=float, default=10.0, metavar="SECONDS", help="how far out of order events may be (default: %(default)s)"
    )
    parser.add_argument(
        "--every", type=float, default=0.0, metavar="SECONDS", help="begin a batch so often (default: when one has ended)"
    )
    parser.add_argument("--files-per-batch", type=int, metavar="N", help="read at most so many files of each input in a batch")
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(options.shards)}
    if options.packages:
        settings["spark.jars.packages"] = options.packages
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with spark_session("purgatory stream", options.master, settings) as spark:
        try:
            return Job(spark, options, stop).run()
        except (ShardsChanged, ValueError, PySparkException) as error:
            print(f"cannot stream: {_brief(error)}", file=sys.stderr)
            return 1


def _brief(error: Exception) -> str:
    """What went wrong; Spark adds its plans and stack traces to that."""
    lines = str(error).splitlines()
    raised = [line for line in lines if "ShardsChanged" in line]
    return raised[-1] if raised else lines[0]


@dataclass
class Job:
    """One run of the program."""

    spark: SparkSession
    options: argparse.Namespace
    stop: threading.Event

    def run(self) -> int:
        """Until there is nothing left, or someone says stop; the exit status."""
        options, spark = self.options, self.spark
        check_shards(spark, options.checkpoint, options.shards)
        operations, signals = self._read(options.operations, OPERATIONS), self._read(options.signals, SIGNALS)
        ticks = f"{options.checkpoint.rstrip('/')}/ticks"
        last = self._last(ticks)
        decided = outcomes(
            operations,
            signals,
            shards=options.shards,
            delay=options.delay,
            ticks=spark.readStream.schema(TICKS).parquet(ticks),
        )
        self._decide(decided)
        newest = newest_event(spark, options.checkpoint)
        if newest is None:
            print("nothing has come in yet")
            return 0
        if options.available_now and not self.stop.is_set():
            # The watermark is behind the newest event: a tick takes it there.
            tick = newest + timedelta(seconds=options.delay, milliseconds=1)
            if last is None or last < tick:
                write_ticks(spark, ticks, tick)
                self._decide(decided)
        print(reconcile(options.checkpoint, spark))
        print(f"stopped; start again to go on from {options.checkpoint}" if self.stop.is_set() else f"done: {options.out}")
        return 0

    def _last(self, ticks: str) -> datetime | None:
        """The last tick that was written; makes the folder if it is not there."""
        try:
            latest = self.spark.read.schema(TICKS).parquet(ticks).agg(F.unix_micros(F.max("at"))).collect()[0][0]
        except AnalysisException:
            write_ticks(self.spark, ticks)
            return None
        return None if latest is None else EPOCH + timedelta(microseconds=latest)

    def _read(self, where: str, schema: StructType) -> DataFrame:
        options = self.options
        reader = self.spark.readStream
        if options.format == "kafka":
            if options.bootstrap_servers is None:
                raise ValueError("--format kafka needs --bootstrap-servers")
            reader = reader.format("kafka").option("subscribe", where).option("startingOffsets", "earliest")
            stream = reader.option("kafka.bootstrap.servers", options.bootstrap_servers).load()
            return stream.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")
        if options.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", options.files_per_batch)
        return reader.schema(schema).format(options.format).load(where)

    def _decide(self, decided: DataFrame) -> None:
        """Runs the query; again if a worker was too slow to start, for which Spark allows ten seconds."""
        for left in reversed(range(STARTS)):
            try:
                return self._follow(decided)
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error) or self.stop.is_set() or not left:
                    raise
                print("a Python worker was too slow to start; once more, from the checkpoint", flush=True)
        return None

    def _follow(self, decided: DataFrame) -> None:
        """Tells of each batch until the query ends; ends it, between two batches, when someone says stop."""
        options, told = self.options, -1
        writer = decided.writeStream.format("parquet").partitionBy("outcome").outputMode("append")
        writer = writer.option("checkpointLocation", options.checkpoint).option("path", options.out)
        if options.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(options.every * 1000)} milliseconds")
        query = writer.start()
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]  # which takes fractions of a second
            told = _tell(query, told)
            if self.stop.is_set():
                _await_batch(query)
                query.stop()
                break
        _tell(query, told)


def _await_batch(query: StreamingQuery) -> None:
    """Waits until the batch at hand has ended, if there is one."""
    patience, before = time.monotonic() + STOP_PATIENCE, query.lastProgress
    batch = before and before["batchId"]
    while query.status["isTriggerActive"] and time.monotonic() < patience:
        if (now := query.lastProgress) and now["batchId"] != batch:
            break
        time.sleep(0.05)


def _tell(query: StreamingQuery, told: int) -> int:
    """Prints what was done since batch `told`; the last batch."""
    for progress in query.recentProgress:
        if progress["batchId"] > told and "addBatch" in progress["durationMs"]:
            told = progress["batchId"]
            print(_in_words(progress), flush=True)
    return told


def _in_words(progress: Any) -> str:
    rows = sum(source["numInputRows"] for source in progress["sources"])  # what Spark Connect does not sum up
    seconds = progress["durationMs"]["triggerExecution"] / 1000
    state = progress["stateOperators"][0]
    return (
        f"batch {progress['batchId']}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f}/s); "
        f"watermark {progress['eventTime'].get('watermark', 'none yet')}; "
        f"state {state['numRowsTotal']:,} rows, {state['memoryUsedBytes'] / 2**20:.1f} MiB"
    )


PROGRAM: Final = Program(
    name="stream", summary="Decides on streams of operations and signals, exactly once.", add_arguments=add_arguments, run=run
)
