"""Reads the checkpoint of a query on `outcomes`: its shards, the reconciliation of its operations,
its newest event."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from purgatory.pipeline._remote import storage_of
from purgatory.pipeline.streaming._processor import ShardsChanged, send_code_to_workers
from purgatory.pipeline.streaming._rows import COUNTS, OPERATIONS, unpack

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_BATCH: Final = ("STDS_COMMITTED_BATCH_UNAVAILABLE",)
"""The errors of Spark if there is no checkpoint, or if no batch was committed to it."""
ESCAPED: Final = re.compile(r'[\x00-\x20"#%<>?\[\\\]^`{|}\x7f]')
"""Characters that Spark 4.3 percent-encodes in the name of a checkpoint that it reads state from.
It then looks for a folder with the encoded name, and reports that no batch was committed."""


def check_shards(spark: SparkSession, checkpoint: str, shards: int) -> None:
    """Checks that a query can continue from a checkpoint. Call it before you start the query again.

    With another number of shards, operations would move to owners without their state.
    A checkpoint that does not exist yet, or that no batch was committed to, fits any number.

    Raises:
        ShardsChanged: `checkpoint` was written with another number of shards. The query would fail
            with the same error, but only when a shard notices it.
    """
    for row in _shards(spark, checkpoint):
        if row.shards != shards:
            raise ShardsChanged(
                f"cannot continue from {checkpoint} with {shards} shards: it was written with "
                f"{row.shards}, and operations would change owners; use {row.shards}, or a new "
                "checkpoint"
            )


def check_out(out: str, checkpoint: str, spark: SparkSession | None = None) -> None:
    """Checks that a folder of outcomes has no batch that the query of a checkpoint has not started
    yet.

    Spark numbers the batches of a checkpoint, and skips batches with a number that the folder has
    already. So in a folder that another checkpoint has written to, the first batches of a new one
    would not be decided, and the next would fail without their state.

    Args:
        out: the folder, or its URI.
        checkpoint: a folder, or its URI.
        spark: the session; by default the active one.

    Raises:
        ValueError: the folder has such a batch.
    """
    spark = spark or SparkSession.active()
    written, begun = (
        _last_batch(spark, log) for log in (f"{out}/_spark_metadata", f"{checkpoint}/offsets")
    )
    if written > begun:
        raise ValueError(
            f"the outcomes in {out} are of another checkpoint than {checkpoint}: continue from "
            "that one, or choose another folder for the outcomes"
        )


def _last_batch(spark: SparkSession, log: str) -> int:
    """The number of the last batch in one of Spark's logs; -1 if there is none."""
    names = [name.removesuffix(".compact") for name in storage_of(spark, log).names(log)]
    return max((int(name) for name in names if name.isdecimal()), default=-1)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The counts of all operations that a query has received, from its state after the last
    batch."""

    registered: int
    """Operations that the query has received, copies included."""
    completed: int
    expired: int
    late: int
    pending: int
    """Counted in the state: operations that wait, and operations with a registration ahead of the
    watermark."""
    late_signals: int

    @property
    def missing(self) -> int:
        """Zero; otherwise operations were lost, or decided on twice."""
        return self.registered - self.completed - self.expired - self.late - self.pending

    def __str__(self) -> str:
        verdict = "nothing is missing" if self.missing == 0 else f"{self.missing} are MISSING"
        return (
            f"{self.registered} operations = {self.completed} completed + {self.expired} "
            f"expired + {self.pending} pending + "
            f"{self.late} late: {verdict}; {self.late_signals} late signals"
        )


def reconcile(checkpoint: str, spark: SparkSession | None = None) -> Reconciliation:
    """Accounts for every operation that the query of `checkpoint` has received: registered =
    decided + pending + late.

    Args:
        checkpoint: checkpoint of a query on `outcomes`, which may be running.
        spark: the session; by default the active one.

    Raises:
        ValueError: no batch was committed to `checkpoint`.
    """
    spark = spark or SparkSession.active()
    shards = _shards(spark, checkpoint)
    if not shards:
        raise ValueError(f"cannot reconcile {checkpoint}: no batch was committed to it")
    with _readable(spark, checkpoint) as path:
        rows = F.coalesce(F.sum("user_map_value.rows"), F.lit(0))
        waiting = int(_operations(spark, path).agg(rows).collect()[0][0])
    counts = {name: sum(row[name] for row in shards) for name in COUNTS}
    return Reconciliation(**counts, pending=waiting)


def pending(checkpoint: str, spark: SparkSession | None = None) -> DataFrame:
    """The pending operations after the last committed batch: `operation_id`, `requirements`, `mode`
    and `deadline` as they were received, and `satisfied_keys`, the keys that have reached their
    thresholds.

    Args:
        checkpoint: checkpoint of a query on `outcomes`, which may be running.
        spark: the session; by default the active one.

    Raises:
        ValueError: no batch was committed to `checkpoint`, or its name has a character that Spark
            cannot read the state with.

    Cost: reads the pending operations, some microseconds for each.
    """
    spark = spark or SparkSession.active()
    if found := sorted(set(ESCAPED.findall(checkpoint))):
        raise _unreadable(checkpoint, found)
    if not _shards(spark, checkpoint):
        raise ValueError(f"cannot read {checkpoint}: no batch was committed to it")
    held = "filter(arrays_zip(key, satisfied), each -> each.satisfied).key AS satisfied_keys"
    deadline = "timestamp_micros(deadline) AS deadline"
    return _pending(spark, checkpoint).selectExpr(
        "operation_id", "arrays_zip(key, threshold) AS requirements", "mode", deadline, held
    )


def overdue(spark: SparkSession, checkpoint: str, now: datetime) -> int:
    """Counts the pending operations of a checkpoint that are due before `now`. Cost: reads the
    pending operations."""
    if not _shards(spark, checkpoint):
        return 0
    micros = (now - EPOCH) // timedelta(microseconds=1)
    with _readable(spark, checkpoint) as path:
        return _pending(spark, path).where(F.col("deadline") < micros).count()


def _pending(spark: SparkSession, path: str) -> DataFrame:
    """The pending operations."""
    send_code_to_workers()
    content = _operations(spark, path).select("user_map_value.content")
    rows = content.mapInArrow(partial(unpack, schema=OPERATIONS), from_arrow_schema(OPERATIONS))
    return rows.withColumnsRenamed({"keys": "key", "thresholds": "threshold"})


def _operations(spark: SparkSession, path: str) -> DataFrame:
    """The parts of the state with pending operations."""
    parts = spark.read.format("statestore").option("stateVarName", "parts").load(path)
    return parts.where("user_map_key.kind IN ('operations', 'waiting')")


def newest_event(spark: SparkSession, checkpoint: str) -> datetime | None:
    """The instant of the latest registration or signal that the query of `checkpoint` has received;
    `None` if there is none."""
    newest = max((row.newest for row in _shards(spark, checkpoint)), default=0)
    return EPOCH + timedelta(microseconds=newest) if newest else None


def due_of_shards(spark: SparkSession, checkpoint: str) -> dict[int, int | None]:
    """For each shard of a checkpoint when it has something to decide next, in milliseconds since
    1970; None if nothing waits."""
    return {row.shard: row.timer for row in _shards(spark, checkpoint)}


@contextmanager
def _readable(spark: SparkSession, checkpoint: str) -> Iterator[str]:
    """A name by which Spark can read the state of the checkpoint: if it contains `ESCAPED`, the
    name of a symbolic link to it."""
    if not ESCAPED.search(checkpoint):
        yield checkpoint
        return
    is_local = not is_remote() and str(spark.conf.get("spark.master")).startswith("local")
    if not is_local or ":/" in checkpoint:
        raise _unreadable(checkpoint, sorted(set(ESCAPED.findall(checkpoint))))
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "checkpoint")
        link.symlink_to(Path(checkpoint).absolute())
        yield str(link)


def _unreadable(checkpoint: str, found: list[str]) -> ValueError:
    return ValueError(
        f"Spark cannot read the state of the checkpoint {checkpoint!r}: choose a name without "
        f"{' '.join(map(repr, found))}"
    )


def _shards(spark: SparkSession, checkpoint: str) -> list[Row]:
    """What a checkpoint has of each shard; nothing if no batch was committed to it."""
    state = spark.read.format("statestore").option("stateVarName", "shard")
    try:
        with _readable(spark, checkpoint) as path:
            return state.load(path).select("key.shard", "value.*").collect()
    except PySparkException as error:
        if error.getCondition() in NO_BATCH:
            return []
        raise
