"""The purgatory over streams: which operations completed and which expired, decided on Spark, exactly once.

    operations                                                      signals
    operation_id  requirements           mode  registered_at deadline   key        value  at
    order-7       [(paid-7, 1), (oak, 3)] all  12:00:05      12:10:05   paid-7     1      12:00:20

    outcomes
    outcome    operation_id  decided_at  satisfied_keys
    completed  order-7       12:00:20    [paid-7, oak]

The value of a key persists and never falls. A requirement holds from the first signal at or before the deadline whose
value reaches the threshold, also one from before the registration. An operation waits for all of its requirements or for
any; what comes first, that or its deadline, is decided as soon as the watermark has come to it, and never otherwise:
outcomes depend on event time alone, not on the order in which rows arrive.

What arrives out of order by less than the delay makes no difference. Beyond that, at or behind the watermark:

- an operation whose deadline is still ahead begins to wait at the watermark; otherwise it is `late`, with the reason;
- a signal is `late`, and counts from the watermark on for whatever is still to be decided;
- a copy of an operation (the same id, before the deadline of the first) is `late`, and the first one stands; an id may be
  used again when its deadline has passed;
- what lacks a column that it needs is `late`.

Operations are divided into shards by their id, and each has one owner, so that nobody has to agree with anybody; every
signal goes to every shard. A hot key therefore is no bottleneck: those who wait for it are spread over all shards.
This is `DelayedProduce` (all partitions have reached the offset) and `DelayedFetch` (any has data) of Kafka's purgatory.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from purgatory.pipeline._processor import OUTPUT, PACKED, Deciding, ShardsChanged, pack_operations, pack_signals, ship

__all__ = [
    "OPERATIONS",
    "OUTCOMES",
    "SIGNALS",
    "TICKS",
    "Reconciliation",
    "ShardsChanged",
    "check_shards",
    "outcomes",
    "reconcile",
]

OPERATIONS: Final = StructType(
    [
        StructField("operation_id", StringType()),
        StructField(
            "requirements",
            ArrayType(StructType([StructField("key", StringType()), StructField("threshold", LongType())])),
        ),
        StructField("mode", StringType()),
        StructField("registered_at", TimestampType()),
        StructField("deadline", TimestampType()),
    ]
)
"""What waits. `mode` is `all` or `any`."""
SIGNALS: Final = StructType(
    [StructField("key", StringType()), StructField("value", LongType()), StructField("at", TimestampType())]
)
"""What happens: a key has reached a value."""
TICKS: Final = StructType([StructField("at", TimestampType())])
"""That event time has come to an instant, on both streams: what lets the last deadlines of idle streams pass."""
OUTCOMES: Final = StructType(
    [
        StructField("outcome", StringType()),
        StructField("operation_id", StringType()),
        StructField("decided_at", TimestampType()),
        StructField("satisfied_keys", ArrayType(StringType())),
        StructField("reason", StringType()),
        StructField("key", StringType()),
        StructField("at", TimestampType()),
    ]
)
"""`outcome` is `completed` or `expired`; or `late`, and then `reason` says why there is none, `key` is that of a signal,
and `at` is its instant or that of the registration."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_BATCH: Final = ("STDS_COMMITTED_BATCH_UNAVAILABLE",)
"""What Spark says of a checkpoint that is not there, or that no batch was committed to."""


def outcomes(
    operations: DataFrame, signals: DataFrame, *, shards: int = 4, delay: float = 10.0, ticks: DataFrame | None = None
) -> DataFrame:
    """What becomes of `operations`, each of which has one row in the end.

    Write it with the append mode, and a checkpoint, to a sink that keeps each batch once, such as Spark's files. State is
    kept in RocksDB, which the session must be told: `spark.sql.streaming.stateStore.providerClass`. It holds the
    operations that wait, the ids of others until their deadlines, and the value of every key, once for each shard.

    Args:
        operations: a stream of `OPERATIONS`.
        signals: a stream of `SIGNALS`.
        shards: how many owners there are. Each keeps one core busy at most, and hears of every signal: more shards than
            cores only cost. Best is as many as `spark.sql.shuffle.partitions`, each in a partition of its own then. The
            number stays for the life of a checkpoint: see `check_shards`.
        delay: how far out of order rows may be in event time, in seconds. The watermark is this much behind the newest
            row of the stream that has come less far; outcomes wait for it.
        ticks: a stream of `TICKS`.

    Returns:
        A stream of `OUTCOMES`.

    Raises:
        ValueError: a DataFrame is not streaming, lacks a column, or has one of another type; or a number is out of bounds.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, not {shards!r}")
    if not 0 <= delay < float("inf"):
        raise ValueError(f"delay must be zero or more seconds, not {delay!r}")
    ship()
    waits = _columns("operations", operations, OPERATIONS).withColumns(
        {"event_time": F.col("registered_at"), "is_tick": F.lit(False)}
    )
    events = _columns("signals", signals, SIGNALS).withColumns({"event_time": F.col("at"), "is_tick": F.lit(False)})
    if ticks is not None:
        times = _columns("ticks", ticks, TICKS).withColumnRenamed("at", "event_time").withColumn("is_tick", F.lit(True))
        waits = waits.unionByName(times, allowMissingColumns=True)
        events = events.unionByName(times, allowMissingColumns=True)
    labels = _labels(operations.sparkSession, shards)
    watermark = f"{round(delay * 1000)} milliseconds"
    rows = _operation_rows(waits.withWatermark("event_time", watermark), labels).unionByName(
        _signal_rows(events.withWatermark("event_time", watermark), labels)
    )
    owners = rows.select("shard", "are_signals", "events").groupBy("shard")
    return owners.transformWithState(Deciding(shards), OUTPUT, "append", "eventTime").select(
        "outcome",
        "operation_id",
        F.timestamp_micros("decided_at").alias("decided_at"),
        "satisfied_keys",
        "reason",
        "key",
        F.timestamp_micros("at").alias("at"),
    )


def _columns(name: str, stream: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, or a `ValueError` that names what is wrong; narrower integers are widened."""
    if not stream.isStreaming:
        raise ValueError(f"{name} must be a streaming DataFrame, from readStream")
    columns = []
    for field in schema:
        if field.name not in stream.columns:
            raise ValueError(f"{name} lacks the column {field.name!r}: it has {stream.columns}")
        found = stream.schema[field.name].dataType.simpleString()
        expected = field.dataType.simpleString()
        if re.sub(r"\b(tinyint|smallint|int)\b", "bigint", found) != expected:
            raise ValueError(f"{name}: the column {field.name!r} must be {expected}, not {found}")
        columns.append(F.col(field.name).cast(field.dataType))
    return stream.select(*columns)


def _labels(spark: SparkSession, shards: int) -> list[int]:
    """What the shards are called: numbers that fall into different ones of as many partitions."""
    numbers = spark.range(32 * shards + 32).select(F.col("id").cast("int").alias("label"))
    partition = F.pmod(F.hash("label"), F.lit(shards))
    chosen = numbers.groupBy(partition.alias("partition")).agg(F.min("label").alias("label")).orderBy("partition").collect()
    return [row.label for row in chosen]


def _operation_rows(operations: DataFrame, labels: list[int]) -> DataFrame:
    rows = operations.select(
        "is_tick",
        _owner("operation_id", labels).alias("shard"),
        "operation_id",
        F.col("requirements.key").alias("keys"),
        F.col("requirements.threshold").alias("thresholds"),
        "mode",
        F.unix_micros("registered_at").alias("registered_at"),
        F.unix_micros("deadline").alias("deadline"),
    )
    return rows.mapInArrow(pack_operations, PACKED)


def _signal_rows(signals: DataFrame, labels: list[int]) -> DataFrame:
    rows = signals.select("is_tick", "key", "value", F.unix_micros("at").alias("at"), _owner("key", labels).alias("home"))
    return rows.mapInArrow(pack_signals, "are_signals boolean, events binary").select(
        "*", F.explode(F.lit(labels)).alias("shard")
    )


def _owner(column: str, labels: list[int]) -> Column:
    return F.element_at(F.lit(labels), (F.pmod(F.xxhash64(column), F.lit(len(labels))) + 1).cast("int"))


def check_shards(spark: SparkSession, checkpoint: str, shards: int) -> None:
    """Raises `ShardsChanged` if `checkpoint` was written with another number of shards.

    To be called before a query is started again: with another number, operations would have other owners, who know
    nothing of what was before. A query that notices it in a shard fails with the same error. A checkpoint that
    is not there, or that no batch was committed to, is fine.
    """
    state = _state(spark, checkpoint, "shard")
    if state is None:
        return
    row = state.select(F.col("value.shards").alias("shards")).head()
    if row is not None and row.shards != shards:
        raise ShardsChanged(
            f"cannot go on with {shards} shards from {checkpoint}: it was written with {row.shards}, and operations would "
            f"change owners; use {row.shards}, or begin a new checkpoint"
        )


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What became of the operations that a query has heard of, by its state after the last batch."""

    registered: int
    """Operations heard of, copies too."""
    completed: int
    expired: int
    late: int
    pending: int
    """Counted among what is stored: those that wait, and those whose registration is ahead of the watermark."""
    late_signals: int

    @property
    def missing(self) -> int:
        """Zero, or something was lost or doubled."""
        return self.registered - self.completed - self.expired - self.late - self.pending

    def __str__(self) -> str:
        verdict = "nothing is missing" if self.missing == 0 else f"{self.missing} are MISSING"
        return (
            f"{self.registered} operations = {self.completed} completed + {self.expired} expired + {self.pending} pending + "
            f"{self.late} late: {verdict}; {self.late_signals} late signals"
        )


def reconcile(checkpoint: str, spark: SparkSession | None = None) -> Reconciliation:
    """Accounts for every operation that the query of `checkpoint` has heard of: registered = decided + pending + late.

    Args:
        checkpoint: of a query on `outcomes`; it may be running.
        spark: by default the active session.

    Raises:
        ValueError: no batch was committed to `checkpoint`.
    """
    spark = spark or SparkSession.active()
    shards = _state(spark, checkpoint, "shard")
    if shards is None:
        raise ValueError(f"cannot reconcile {checkpoint}: no batch was committed to it")
    names = ["registered", "completed", "expired", "late", "late_signals"]
    counted = shards.agg(*(F.coalesce(F.sum(f"value.{name}"), F.lit(0)).alias(name) for name in names)).first()
    waiting = _sum(spark, checkpoint, "operations", "waiting")
    ahead = _sum(spark, checkpoint, "agenda", "registrations")
    assert counted is not None
    return Reconciliation(**counted.asDict(), pending=waiting + ahead)


def newest_event(spark: SparkSession, checkpoint: str) -> datetime | None:
    """The latest registration or signal that the query of `checkpoint` has heard of; `None` before there is any."""
    shards = _state(spark, checkpoint, "shard")
    if shards is None:
        return None
    newest = shards.agg(F.max("value.newest")).collect()[0][0]
    return EPOCH + timedelta(microseconds=newest) if newest else None


def write_ticks(spark: SparkSession, folder: str, *instants: datetime) -> None:
    """Adds ticks to a folder of Parquet, for a stream of `TICKS`; without any, it makes the folder.

    Args:
        instants: with their time zone. The watermark will be the delay behind the latest.
    """
    spark.createDataFrame([(instant,) for instant in instants], TICKS).coalesce(1).write.mode("append").parquet(folder)


def _state(spark: SparkSession, checkpoint: str, name: str) -> DataFrame | None:
    """A state variable after the last committed batch; `None` if there is none."""
    state = spark.read.format("statestore").option("stateVarName", name)
    try:
        found = state.load(checkpoint)
        found.columns  # noqa: B018  # Spark Connect looks for the checkpoint only when something is asked for
    except PySparkException as error:
        if error.getCondition() in NO_BATCH:
            return None
        raise
    return found


def _sum(spark: SparkSession, checkpoint: str, name: str, column: str) -> int:
    """What a state variable that is a map says in a column of its values, summed up."""
    entries = spark.read.format("statestore").option("stateVarName", name).load(checkpoint)
    return int(entries.agg(F.coalesce(F.sum(f"user_map_value.{column}"), F.lit(0))).collect()[0][0])
