"""The query: from streams of operations and signals to a stream of outcomes."""

import re
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from purgatory.pipeline.streaming._processor import OUTPUT, PACKED, Deciding, pack_operations, pack_signals, ship

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
"""The operations, which wait. `mode` is `all` or `any`."""
SIGNALS: Final = StructType(
    [StructField("key", StringType()), StructField("value", LongType()), StructField("at", TimestampType())]
)
"""The signals: a key has reached a value."""
TICKS: Final = StructType([StructField("at", TimestampType())])
"""A tick moves the event time of both streams to its instant, so that the last deadlines of idle streams can pass."""
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
"""`outcome` is `completed`, `expired` or `late`. If it is `late`, then `reason` says why nothing was decided; `at` is the
instant of the registration or of the signal, and `key` is that of the signal."""


def outcomes(
    operations: DataFrame, signals: DataFrame, *, shards: int = 4, delay: float = 10.0, ticks: DataFrame | None = None
) -> DataFrame:
    """What becomes of `operations`: in the end each has one row.

    Write it in append mode, with a checkpoint, to a sink that keeps each batch once, such as Spark's files. The state must be
    kept in RocksDB: set `spark.sql.streaming.stateStore.providerClass` in the session. It holds the operations that wait, the
    ids of the others until their deadlines, and the value of every key, once for each shard.

    Args:
        operations: a stream of `OPERATIONS`.
        signals: a stream of `SIGNALS`.
        shards: how many owners there are, at least 1. Each uses one core at most and hears of every signal, so more shards
            than cores only cost. It is best to have as many shards as `spark.sql.shuffle.partitions`: then each has its own
            partition. The number stays the same for the life of a checkpoint: see `check_shards`.
        delay: how far out of order rows may be in event time, in seconds, zero or more. The watermark is so far behind the
            newest row of a stream, and of the two streams the one that is behind counts. Outcomes wait for the watermark.
        ticks: a stream of `TICKS`, or none.

    Returns:
        A stream of `OUTCOMES`.

    Raises:
        ValueError: a DataFrame is not streaming, lacks a column, or has a column of another type; or a number is out of bounds.
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
    """The columns of `schema`, with narrower integers widened; or a `ValueError` that says what is wrong."""
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
    """The names of the shards: numbers that Spark hashes into different partitions, if there are as many partitions as
    shards."""
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
