"""One run of the program ``stream``: reads the inputs, runs the query, reports each batch."""

import argparse
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from purgatory.pipeline.streaming._checkpoint import EPOCH, check_shards, newest_event, reconcile, write_ticks
from purgatory.pipeline.streaming._outcomes import OPERATIONS, SIGNALS, TICKS, outcomes

STOP_PATIENCE: Final = 60.0
"""How long we wait for the batch at hand, in seconds, when the program is asked to stop."""
STARTS: Final = 5
"""How often we start a query at most, if the machine is too busy to start a worker in time."""


@dataclass
class Job:
    """One run of the program, with its options. `stop` is set when it is asked to stop."""

    spark: SparkSession
    options: argparse.Namespace
    stop: threading.Event

    def run(self) -> int:
        """Decides until nothing is left or until it is asked to stop; returns the exit status."""
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
        """The last tick that was written, if any. Makes the folder of ticks if it does not exist."""
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
        """Runs the query; runs it again if a Python worker needed more than the ten seconds that Spark allows for its start."""
        for left in reversed(range(STARTS)):
            try:
                return self._follow(decided)
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error) or self.stop.is_set() or not left:
                    raise
                print("a Python worker was too slow to start; once more, from the checkpoint", flush=True)
        return None

    def _follow(self, decided: DataFrame) -> None:
        """Reports each batch until the query ends. If asked to stop, ends the query between two batches."""
        options, told = self.options, -1
        writer = decided.writeStream.format("parquet").partitionBy("outcome").outputMode("append")
        writer = writer.option("checkpointLocation", options.checkpoint).option("path", options.out)
        if options.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(options.every * 1000)} milliseconds")
        query = writer.start()
        while not query.awaitTermination(0.2):  # type: ignore[arg-type]  # it takes fractions of a second
            told = _report(query, told)
            if self.stop.is_set():
                _await_batch(query)
                query.stop()
                break
        _report(query, told)


def _await_batch(query: StreamingQuery) -> None:
    """Waits for the end of the batch at hand, if there is one."""
    patience, before = time.monotonic() + STOP_PATIENCE, query.lastProgress
    batch = before and before["batchId"]
    while query.status["isTriggerActive"] and time.monotonic() < patience:
        if (now := query.lastProgress) and now["batchId"] != batch:
            break
        time.sleep(0.05)


def _report(query: StreamingQuery, told: int) -> int:
    """Prints a line for each batch after the batch `told`; returns the number of the last batch."""
    for progress in query.recentProgress:
        if progress["batchId"] > told and "addBatch" in progress["durationMs"]:
            told = progress["batchId"]
            print(_in_words(progress), flush=True)
    return told


def _in_words(progress: Any) -> str:
    rows = sum(source["numInputRows"] for source in progress["sources"])  # Spark Connect does not give the sum
    seconds = progress["durationMs"]["triggerExecution"] / 1000
    state = progress["stateOperators"][0]
    return (
        f"batch {progress['batchId']}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f}/s); "
        f"watermark {progress['eventTime'].get('watermark', 'none yet')}; "
        f"state {state['numRowsTotal']:,} rows, {state['memoryUsedBytes'] / 2**20:.1f} MiB"
    )
