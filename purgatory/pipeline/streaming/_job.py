"""One run of the program ``stream``: reads the inputs, runs the query, reports each batch."""

import argparse
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, IntegralType, LongType, StructField, StructType

from purgatory.metrics import StreamMeter
from purgatory.pipeline._files import first_line
from purgatory.pipeline._session import literal
from purgatory.pipeline.streaming._checkpoint import (
    EPOCH,
    Reconciliation,
    check_out,
    check_shards,
    due_of_shards,
    newest_event,
    overdue,
    reconcile,
)
from purgatory.pipeline.streaming._dashboard import dashboard, meter_of, update_meter
from purgatory.pipeline.streaming._outcomes import OPERATIONS, OUTCOMES, SIGNALS, outcomes
from purgatory.pipeline.streaming._ticks import (
    IDLE,
    NEVER,
    Ticker,
    folder_of,
    read_ticks,
    write_ticks,
)
from purgatory.pipeline.streaming._timekeeper import StreamTime, Timekeeper
from purgatory.pipeline.streaming._topics import Kafka

EMPTY: Final = Reconciliation(0, 0, 0, 0, 0, 0)
COUNT_INTERVAL: Final = 10.0
"""Seconds between two counts of overdue operations, at least."""
STOP_TIMEOUT: Final = 60.0
"""Seconds to wait for the current batch when the program is asked to stop."""
SEND_INTERVAL: Final = 1.0
"""Seconds between two batches of sending to a topic, at least: for each batch Spark lists all
files."""
MAX_FILE_AGE: Final = "36500d"
"""How much older than the newest file a file may be. By default Spark silently ignores files that
are a week older."""
MAX_STARTS: Final = 5
"""Starts of a query, if the machine is too busy to start a Python worker in time."""


@dataclass
class Job:
    """One run of the program, with its options. `stop` is set when it is asked to stop."""

    spark: SparkSession
    options: argparse.Namespace
    stop: threading.Event
    meter: StreamMeter | None = None
    """Updated after each batch, if the dashboard is served."""
    _has_read: bool = False
    """Whether a batch has ended."""
    _time: StreamTime | None = None
    """The event time after the last look."""
    _overdue: int = 0
    _count_again_at: float = 0.0
    """When overdue operations are counted again at the earliest."""

    def run(self) -> int:
        """Decides until nothing is left or until it is asked to stop; returns the exit status."""
        options, spark = self.options, self.spark
        if options.available_now and options.idle is not None:
            raise ValueError("with --available-now there is no --idle: the run ends with the rows")
        if options.out_topic:  # Spark would read uncommitted files as outcomes
            _require_name("--out with --out-topic", options.out)
        if options.format != "kafka":  # Spark would read each file several times
            _require_name("--operations", options.operations)
            _require_name("--signals", options.signals)
        check_shards(spark, options.checkpoint, options.shards)
        check_out(options.out, options.checkpoint, spark)
        if options.serve is None:
            return self._run()
        name = options.checkpoint.rstrip("/").rpartition("/")[2]
        self.meter = meter_of(name, spark, options.checkpoint)
        with dashboard(self.meter, options.serve) as url:
            print(f"look at {url}; metrics are at {url}metrics", flush=True)
            return self._run()

    def _run(self) -> int:
        options, spark = self.options, self.spark
        operations = self._read(options.operations, OPERATIONS)
        signals = self._read(options.signals, SIGNALS)
        decided = outcomes(
            operations,
            signals,
            shards=options.shards,
            delay=options.delay,
            forget_after=options.forget_after,
            at_once=options.at_once,
            ticks=read_ticks(spark, options.checkpoint),
        )
        self._decide(decided)
        newest = newest_event(spark, options.checkpoint) if options.available_now else None
        if newest is not None and not self.stop.is_set():
            # The watermark is behind the newest event: a tick moves it there, unless an earlier run
            # has done so.
            due = due_of_shards(spark, options.checkpoint).values()
            newest_ms = -(-(newest - EPOCH) // timedelta(milliseconds=1))
            if self._has_read or any(at is not None and at <= newest_ms for at in due):
                tick = newest + timedelta(seconds=options.delay, milliseconds=1)
                write_ticks(spark, folder_of(options.checkpoint), tick)
                self._decide(decided)
        account = self._reconcile()
        if account == EMPTY:
            print("no rows yet")
            return 0
        print(account)
        if self._time is not None and not options.available_now:
            late = overdue(spark, options.checkpoint, datetime.now(UTC)) if account.pending else 0
            print(self._time.describe(time.time(), late))
        print(
            f"stopped; start again to continue from {options.checkpoint}"
            if self.stop.is_set()
            else f"done: {options.out}"
        )
        return 0

    def _reconcile(self) -> Reconciliation:
        try:
            return reconcile(self.options.checkpoint, self.spark)
        except ValueError:
            return EMPTY  # it was asked to stop before the first batch was committed

    def _read(self, where: str, schema: StructType) -> DataFrame:
        options = self.options
        if options.format == "kafka":
            return self._kafka().read(self.spark, where, schema)
        if options.format == "parquet":
            schema = _types_of(self.spark, where, schema)
        reader = self.spark.readStream.option("maxFileAge", MAX_FILE_AGE)
        if options.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", options.files_per_batch)
        return reader.schema(schema).format(options.format).load(where)

    def _reads_all(self) -> bool:
        """Whether each batch reads all rows that are there."""
        options = self.options
        limits = (options.files_per_batch, options.records_per_batch)
        others = (name.lower() for name, _ in options.kafka_option)
        return limits == (None, None) and not any("pertrigger" in name for name in others)

    def _kafka(self) -> Kafka:
        options = self.options
        if options.bootstrap_servers is None:
            raise ValueError("topics need --bootstrap-servers")
        return Kafka(
            options.bootstrap_servers, options.records_per_batch, dict(options.kafka_option)
        )

    def _decide(self, decided: DataFrame) -> None:
        """Runs the query; runs it again if a Python worker needed more than the ten seconds that
        Spark allows for its start."""
        for start in range(1, MAX_STARTS + 1):
            try:
                self._follow(decided)
                return
            except StreamingQueryException as error:
                is_slow = "failed to connect back" in str(error)
                if not is_slow or self.stop.is_set() or start == MAX_STARTS:
                    raise
            text = "a Python worker was too slow to start; restarting from the checkpoint"
            print(text, flush=True)

    def _follow(self, decided: DataFrame) -> None:
        """Reports each batch until the query ends. If asked to stop, ends the query between two
        batches."""
        options = self.options
        writer = decided.writeStream.format("parquet").partitionBy("outcome").outputMode("append")
        query = self._start(writer.option("path", options.out), options.checkpoint, options.every)
        idle = None if options.available_now or options.idle == NEVER else options.idle or IDLE
        ticker = Ticker(
            self.spark,
            query,
            options.checkpoint,
            idle=idle,
            delay=options.delay,
            reads_all=self._reads_all(),
        )
        sending = self._send() if options.out_topic and not options.available_now else None
        try:
            while not query.awaitTermination(ticker.seconds_to_look()):  # type: ignore[arg-type]  # it takes fractions of a second
                self._report(ticker.look())
                self._tell_time(ticker.timekeeper)
                if sending is not None and not sending.isActive:
                    query.stop()
                    sending.awaitTermination()  # raises its error
                if self.stop.is_set():
                    _await_batch(query)
                    query.stop()
                    break
        finally:
            self._report(ticker.take_progress())
            self._time = ticker.timekeeper.now()
            if sending is not None:
                sending.stop()  # even if the query has failed: both may be started again
        if options.out_topic and options.available_now and not self.stop.is_set():
            self._send().awaitTermination()

    def _send(self) -> StreamingQuery:
        """Starts to send committed outcomes from the files to the topic."""
        options = self.options
        # The partition column comes last, where Spark puts it. Elsewhere it would be confused with
        # another one while there is no folder.
        outcome, *others = OUTCOMES
        committed = self.spark.readStream.schema(StructType([*others, outcome])).parquet(
            options.out
        )
        writer = self._kafka().writer(committed, options.out_topic)
        return self._start(
            writer, f"{options.checkpoint.rstrip('/')}/sent", max(options.every, SEND_INTERVAL)
        )

    def _start(self, writer: DataStreamWriter, checkpoint: str, every: float) -> StreamingQuery:
        writer = writer.option("checkpointLocation", checkpoint)
        if self.options.available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(every * 1000)} milliseconds").start()

    def _report(self, progress: list[Any]) -> None:
        """Prints a line for each batch, and with `--verbose` another one with its steps."""
        for each in progress:
            if "addBatch" in each["durationMs"]:
                self._has_read = True
                print(_describe(each), flush=True)
                if self.options.verbose:
                    print(_steps(each), flush=True)
                if self.meter is not None:
                    update_meter(self.meter, each)

    def _tell_time(self, timekeeper: Timekeeper) -> None:
        """Updates the time on the page. Counts overdue operations if there may be some, in at most
        one twentieth of the time."""
        if self.meter is None:
            return
        began, due = time.time(), timekeeper.next_due
        if due is None or due > began * 1000 or not self.meter.statistics().pending:
            self._overdue = 0
        elif began >= self._count_again_at:
            self._overdue = overdue(self.spark, self.options.checkpoint, datetime.now(UTC))
            cost = time.time() - began
            self._count_again_at = began + max(COUNT_INTERVAL, 20 * cost)
        known, next_due = timekeeper.now(), None if due is None else due / 1000
        held, since = known.held_back_by, known.silent_since
        self.meter.looked(
            next_due=next_due, held_back_by=held, silent_since=since, overdue=self._overdue
        )


def _require_name(option: str, folder: str) -> None:
    if literal(folder) != folder:
        raise ValueError(
            f"the name of {option} must have none of * ? [ ] {{ }} and \\, got {folder!r}"
        )


def _types_of(spark: SparkSession, folder: str, schema: StructType) -> StructType:
    """The columns of `schema` with their types in the present Parquet files of a folder, integers
    as the widest. Spark takes them from one file; another type in another file ends the query."""
    try:
        found = spark.read.parquet(folder).schema
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            return schema  # there is no file yet
        raise
    except Py4JJavaError as error:
        raise ValueError(f"cannot read {folder}: {first_line(error)}") from error
    return StructType([_widest(each) for each in found if each.name in schema.names])


def _widest(field: StructField) -> StructField:
    kind = field.dataType
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        kind = ArrayType(StructType([_widest(each) for each in kind.elementType]))
    return StructField(field.name, LongType() if isinstance(kind, IntegralType) else kind)


def _await_batch(query: StreamingQuery) -> None:
    """Waits for the end of the batch at hand, if there is one."""
    deadline, before = time.monotonic() + STOP_TIMEOUT, query.lastProgress
    batch = before and before["batchId"]
    while query.status["isTriggerActive"] and time.monotonic() < deadline:
        if (now := query.lastProgress) and now["batchId"] != batch:
            break
        time.sleep(0.05)


def _describe(progress: Any) -> str:
    rows = sum(
        source["numInputRows"] for source in progress["sources"]
    )  # Spark Connect does not give the sum
    seconds = progress["durationMs"]["triggerExecution"] / 1000
    state = progress["stateOperators"][0]
    return (
        f"batch {progress['batchId']}: {rows:,} rows in {seconds:.1f} s ({rows / seconds:,.0f}/s); "
        f"watermark {progress['eventTime'].get('watermark', 'none yet')}; "
        f"state {state['numRowsTotal']:,} rows, {state['memoryUsedBytes'] / 2**20:.1f} MiB"
    )


def _steps(progress: Any) -> str:
    """How long the steps of a batch took, by Spark's names of them, the longest first."""
    steps = {**progress["durationMs"]}
    del steps["triggerExecution"]
    longest = sorted(steps.items(), key=lambda each: -each[1])
    return "  " + ", ".join(f"{name} {ms / 1000:.2f} s" for name, ms in longest)
