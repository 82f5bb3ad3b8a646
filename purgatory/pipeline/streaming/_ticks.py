"""Ticks in a folder of the checkpoint: writes them while inputs are silent, and reads them as a
stream.

The folder is a source with offsets like any other: Spark records which files belong to a batch
before it runs, so a restarted query repeats a batch with the same ticks. Files that a batch has
read are deleted.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from purgatory.pipeline._remote import Hadoop
from purgatory.pipeline._session import literal
from purgatory.pipeline.streaming._checkpoint import EPOCH, due_of_shards
from purgatory.pipeline.streaming._outcomes import TICKS
from purgatory.pipeline.streaming._timekeeper import Timekeeper

MIN_LOOK_INTERVAL: Final = 0.2
MAX_LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at the progress of a query: the fewer, the less an idle query costs."""
IDLE: Final = 60.0
"""The default of `idle`: a producer that writes a file a minute, or a client of Kafka that retries
a request after its timeout of 30 s, is silent for up to this long."""

NEVER: Final = float("inf")
"""An `idle` after which no input is idle."""


def read_ticks(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The stream of ticks that `keep_time` writes: the argument `ticks` of `outcomes`.

    Args:
        checkpoint: checkpoint of the query. The ticks are in its folder `ticks`, which is created.
    """
    folder = folder_of(checkpoint)
    _write(spark, folder, [])
    reader = spark.readStream.schema(TICKS).option("cleanSource", "delete")
    return reader.parquet(literal(folder))


def folder_of(checkpoint: str) -> str:
    """The folder of the ticks of a checkpoint."""
    return f"{checkpoint.rstrip('/')}/ticks"


def write_ticks(spark: SparkSession, folder: str, *instants: datetime) -> None:
    """Adds ticks for both inputs to a folder of Parquet files, which a stream of `TICKS` can read.
    Without ticks it creates the folder.

    Args:
        instants: aware datetimes. The watermark will be behind the latest by the delay.
    """
    _write(spark, folder, [(instant, None) for instant in instants])


def _write(spark: SparkSession, folder: str, rows: Sequence[tuple[datetime, str | None]]) -> None:
    if is_remote():  # in one file, which is in one batch
        spark.createDataFrame(rows, TICKS).coalesce(1).write.mode("append").parquet(folder)
        return
    # Spark would start a job, which costs seconds at the start of a stream.
    storage = Hadoop(spark)
    storage.make(folder)
    if rows:
        at, inputs = zip(*rows, strict=True)
        columns = [pa.array(at, pa.timestamp("us", "UTC")), pa.array(inputs, pa.string())]
        file = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, names=TICKS.names), file)
        name = f"{uuid4()}.parquet"
        storage.write(f"{folder}/.{name}", file.getvalue().to_pybytes())
        storage.move(f"{folder}/.{name}", f"{folder}/{name}")


class Ticker:
    """Writes ticks for the silent inputs of a running query.

    Args:
        query: a query on `outcomes`, with the ticks of `read_ticks`.
        checkpoint: checkpoint of the query.
        idle: seconds of silence after which an input is idle; None for never.
        delay: argument of `outcomes`, in seconds.
        reads_all: whether each batch reads all rows that are there.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: StreamingQuery,
        checkpoint: str,
        *,
        idle: float | None,
        delay: float,
        reads_all: bool = False,
    ) -> None:
        self._spark = spark
        self._query = query
        self._folder = folder_of(checkpoint)
        due = due_of_shards(self._spark, checkpoint)
        self.timekeeper = Timekeeper(
            self._folder, idle=idle, delay=delay, reads_all=reads_all, due=due
        )
        self._last = (-1, "")

    def look(self) -> list[Any]:
        """Writes the ticks that are needed, and returns the progress since the last look. Cost: a
        call of Java if there is none, a small job of Spark for each tick."""
        found = self.take_progress()
        if ticks := self.timekeeper.take_ticks(round(time.time() * 1000)):
            rows = [(EPOCH + timedelta(milliseconds=at), name) for name, at in ticks.items()]
            _write(self._spark, self._folder, rows)
        return found

    def seconds_to_look(self) -> float:
        """How long to wait before the next look: until a tick may be needed, within bounds."""
        if (at := self.timekeeper.next_tick_at()) is None:
            return MAX_LOOK_INTERVAL
        return min(max(at / 1000 - time.time(), MIN_LOOK_INTERVAL), MAX_LOOK_INTERVAL)

    def take_progress(self) -> list[Any]:
        """The progress since the last look."""
        if (latest := self._query.lastProgress) is None or _key(latest) == self._last:
            return []
        if latest["batchId"] == self._last[0] and "addBatch" not in latest["durationMs"]:
            found = [latest]  # any before it found no rows, too; reading all recent ones is slow
        else:
            found = [each for each in self._query.recentProgress if _key(each) > self._last]
            found.sort(key=_key)
        for progress in found:
            self.timekeeper.update(progress)
            self._last = _key(progress)
        return found


def _key(progress: Any) -> tuple[int, str]:
    """The order in which progress was made."""
    return progress["batchId"], progress["timestamp"]


def keep_time(
    query: StreamingQuery,
    checkpoint: str,
    *,
    idle: float = IDLE,
    delay: float = 10.0,
    reads_all: bool = False,
    spark: SparkSession | None = None,
) -> None:
    """Waits for the end of a query on `outcomes`, as `query.awaitTermination()`, and advances event
    time while inputs are silent.

    Args:
        query: a query with the ticks of `read_ticks(spark, checkpoint)`.
        checkpoint: checkpoint of the query.
        idle: seconds. An input without rows for this long, and without rows left to be read,
            follows the clock, `idle` behind. Sources must have their offsets in the progress of
            the query, as Spark's sources do.
        delay: argument of `outcomes`, in seconds.
        reads_all: whether each batch reads all rows that are there: no source has an option such as
            `maxFilesPerTrigger`. Then answers are earlier while signals are silent.
        spark: the session; by default the active one.

    Raises:
        StreamingQueryException: the query has failed.
        ValueError: `idle` is not a positive number of seconds.

    While no rows arrive, Spark updates the progress every
    `spark.sql.streaming.noDataProgressEventInterval`, 10 s by default, so ticks may be late by
    that. The program `stream` sets it to 1 s.
    """
    spark = spark or SparkSession.active()
    idle = check_idle(idle)
    ticker = Ticker(spark, query, checkpoint, idle=idle, delay=delay, reads_all=reads_all)
    while not query.awaitTermination(ticker.seconds_to_look()):  # type: ignore[arg-type]  # it takes fractions of a second
        ticker.look()


def check_idle(idle: float) -> float:
    """The same number, if it can be `idle`."""
    if not 0 < idle < float("inf"):
        raise ValueError(f"idle must be a positive number of seconds, got {idle!r}")
    return idle
