"""The query: from streams of operations and signals to a stream of outcomes."""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from purgatory.pipeline.streaming._packing import (
    COUNTS,
    OUTPUT,
    PACKED,
    PACKED_OUTPUT,
    PACKED_SIGNALS,
    pack_operations,
    pack_signals,
    unpack_decisions,
)
from purgatory.pipeline.streaming._processor import ShardProcessor, send_code_to_workers
from purgatory.pipeline.streaming._timekeeper import INPUTS, OBSERVED_DUE, OBSERVED_INPUTS

OPERATIONS: Final = StructType(
    [
        StructField("operation_id", StringType()),
        StructField(
            "requirements",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("threshold", LongType())])
            ),
        ),
        StructField("mode", StringType()),
        StructField("registered_at", TimestampType()),
        StructField("deadline", TimestampType()),
    ]
)
"""The operations, which wait. `mode` is `all` or `any`."""
SIGNALS: Final = StructType(
    [
        StructField("key", StringType()),
        StructField("value", LongType()),
        StructField("at", TimestampType()),
    ]
)
"""The signals: a key has reached a value."""
TICKS: Final = StructType([StructField("at", TimestampType()), StructField("input", StringType())])
"""A tick moves the event time of an input, `operations` or `signals`, to its instant; of both if
`input` is null or missing. So deadlines can pass though the input is silent."""
ORIGIN: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
    ]
)
"""The position of a record in Kafka. Both streams may have these columns, together with `problem`:
the reason why the record could not be read, a string, or null. A row with a problem becomes `late`,
with this reason."""
OUTCOMES: Final = StructType(
    [
        StructField("outcome", StringType()),
        StructField("operation_id", StringType()),
        StructField("decided_at", TimestampType()),
        StructField("satisfied_keys", ArrayType(StringType())),
        StructField("reason", StringType()),
        StructField("key", StringType()),
        StructField("at", TimestampType()),
        *ORIGIN,
    ]
)
"""`outcome` is `completed`, `expired` or `late`. If it is `late`, `reason` has the reason why
nothing was decided, `at` the instant of the registration or of the signal, `key` the key of the
signal, and the columns of `ORIGIN` the position of the record in Kafka."""
OBSERVATION: Final = "purgatory_outcomes"
"""The observed metrics in the progress of a query: `registered`, `completed`, `expired`, `late` and
`late_signals` of a batch, null without any; and for each called shard the time of its next
decision. See `OBSERVED_INPUTS` for the metrics of the inputs."""
LONG_DIGITS: Final = 18
"""Decimals with up to this many digits fit into a `bigint`."""
END_OF_TIME: Final = 253_402_300_800_000_000
"""The end of the year 9999, in microseconds. Beyond that neither Python nor Spark can show an
instant."""
YEAR_1: Final = -62_135_596_800_000_000
"""The start of the year 1, in microseconds since 1970."""
WATERMARK_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
"""With `max` the input that is ahead moves event time, and the other input's rows become late."""
TOPIC_COLUMNS: Final = (*ORIGIN.names, "problem")


def outcomes(
    operations: DataFrame,
    signals: DataFrame,
    *,
    shards: int = 4,
    delay: float = 10.0,
    forget_after: float | None = None,
    ticks: DataFrame | None = None,
) -> DataFrame:
    """Decides on `operations`: in the end each has one outcome.

    Write it in append mode, with a checkpoint, to a sink that keeps each batch once, such as
    Spark's files: see `check_out` for those. The state must be kept in RocksDB: set
    `spark.sql.streaming.stateStore.providerClass` in the session. It holds the operations that
    wait, the ids of the others until their deadlines, and the value of every key, once for each
    shard.

    Args:
        operations: a stream of `OPERATIONS`.
        signals: a stream of `SIGNALS`.
        shards: how many owners there are, at least 1. Each uses one core at most and receives every
            signal, so more shards than cores only cost. It is best to have as many shards as
            `spark.sql.shuffle.partitions`: then each has its own partition. The number stays the
            same for the life of a checkpoint: see `check_shards`.
        delay: how far out of order rows may be in event time, in seconds, zero or more. The
            watermark is so far behind the newest row of a stream, and of the two streams the one
            that is behind counts. Outcomes wait for the watermark.
        forget_after: how long the value of a key counts after its last signal, in seconds of event
            time, a microsecond or more; None for ever. Afterwards the key is forgotten.
        ticks: a stream of `TICKS`, or none. See `read_ticks`.

    Returns:
        A stream of `OUTCOMES`.

    Raises:
        ValueError: a DataFrame is not streaming, lacks a column, or has a column of another type;
            a number is out of bounds; or the session's
            `spark.sql.streaming.multipleWatermarkPolicy` is not `min`.
    """
    policy = operations.sparkSession.conf.get(WATERMARK_POLICY, "min")
    if policy != "min":
        raise ValueError(
            f"{WATERMARK_POLICY} must be min, got {policy}: rows of the input that is behind "
            "would be late"
        )
    if shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards!r}")
    if not 0 <= delay < float("inf"):
        raise ValueError(f"delay must be zero or more seconds, got {delay!r}")
    if forget_after is not None and not 1e-6 <= forget_after < float("inf"):
        raise ValueError(f"forget_after must be a positive number of seconds, got {forget_after!r}")
    forget_micros = None if forget_after is None else round(forget_after * 1_000_000)
    send_code_to_workers()
    waits = _events(INPUTS[0], _columns(INPUTS[0], operations, OPERATIONS), "registered_at")
    events = _events(INPUTS[1], _columns(INPUTS[1], signals, SIGNALS), "at")
    if ticks is not None:
        if "input" not in ticks.columns:
            ticks = ticks.withColumn("input", F.lit(None).cast("string"))
        times = _columns("ticks", ticks, TICKS).withColumnRenamed("at", "event_time")
        waits, events = _with_ticks(waits, times, INPUTS[0]), _with_ticks(events, times, INPUTS[1])
    labels = _shard_labels(operations.sparkSession, shards)
    watermark = f"{round(delay * 1000)} milliseconds"
    rows = _operation_rows(waits.withWatermark("event_time", watermark), labels).unionByName(
        _signal_rows(events.withWatermark("event_time", watermark), labels)
    )
    owners = rows.select("shard", "are_signals", "events").groupBy("shard")
    decided = owners.transformWithState(
        ShardProcessor(shards, forget_micros), PACKED_OUTPUT, "append", "eventTime"
    )
    next_due = (
        F.max(F.when(F.col("shard") == label, F.col("due"))).alias(f"{OBSERVED_DUE}{label}")
        for label in labels
    )
    decided = decided.observe(OBSERVATION, *(F.sum(name).alias(name) for name in COUNTS), *next_due)
    return decided.mapInArrow(unpack_decisions, OUTPUT).select(
        "outcome",
        "operation_id",
        F.timestamp_micros("decided_at").alias("decided_at"),
        "satisfied_keys",
        "reason",
        "key",
        F.timestamp_micros("at").alias("at"),
        *ORIGIN.names,
    )


def _columns(name: str, stream: DataFrame, schema: StructType) -> DataFrame:
    """The columns of `schema`, cast if that is lossless; raises `ValueError` otherwise.

    Instants outside the years 1 to 9999 become null.
    """
    if not stream.isStreaming:
        raise ValueError(f"{name} must be a streaming DataFrame, from readStream")
    columns = []
    for field in schema:
        if field.name not in stream.columns:
            raise ValueError(f"{name} lacks the column {field.name!r}, got {stream.columns}")
        found = stream.schema[field.name].dataType
        if not _is_lossless(found, field.dataType):
            expected = field.dataType.simpleString()
            raise ValueError(
                f"{name}: the column {field.name!r} must be {expected}, got {found.simpleString()}"
            )
        column = F.col(field.name)
        column = column if found == field.dataType else _cast(column, field.dataType)
        if field.dataType == TimestampType():
            # Python has no instants beyond these years, and no watermark could follow the last one.
            micros = F.unix_micros(column)
            column = F.when((micros >= YEAR_1) & (micros < END_OF_TIME), column)
        columns.append(column.alias(field.name))
    return stream.select(*columns, *_topic_columns(stream))


def _cast(column: Column, expected: DataType) -> Column:
    """Casts by the names of fields, not by their positions."""
    if isinstance(expected, ArrayType) and isinstance(fields := expected.elementType, StructType):
        return F.transform(
            column,
            lambda each: F.struct(*(each[f.name].cast(f.dataType).alias(f.name) for f in fields)),
        )
    return column.cast(expected)


def _is_lossless(found: DataType, expected: DataType) -> bool:
    """Whether each value of a type can be cast to another type without loss."""
    if isinstance(expected, StructType):
        return isinstance(found, StructType) and all(
            field.name in found.names and _is_lossless(found[field.name].dataType, field.dataType)
            for field in expected
        )
    if isinstance(expected, ArrayType):
        return isinstance(found, ArrayType) and _is_lossless(
            found.elementType, expected.elementType
        )
    whole = isinstance(found, IntegralType) or (isinstance(found, DecimalType) and found.scale == 0)
    if isinstance(expected, StringType):
        return whole or isinstance(found, StringType)
    if isinstance(expected, LongType):
        return whole and not (isinstance(found, DecimalType) and found.precision > LONG_DIGITS)
    return isinstance(found, TimestampType | TimestampNTZType)


def _events(name: str, stream: DataFrame, instant: str) -> DataFrame:
    """Adds the event time of each row. A row that could not be read does not move the watermark."""
    event_time = (
        F.when(F.col("problem").isNull(), F.col(instant))
        if _topic_columns(stream)
        else F.col(instant)
    )
    events = stream.withColumns({"event_time": event_time, "is_tick": F.lit(False)})
    return events.observe(
        OBSERVED_INPUTS[name],
        F.count(F.lit(1)).alias("rows"),
        F.max(F.unix_millis("event_time")).alias("newest"),
    )


def _with_ticks(events: DataFrame, ticks: DataFrame, name: str) -> DataFrame:
    # Filtered here, since above the watermark Spark would push the filter below it.
    mine = ticks.where(F.coalesce(F.col("input"), F.lit(name)) == name).select(
        "event_time", F.lit(True).alias("is_tick")
    )
    return events.unionByName(mine, allowMissingColumns=True)


def _shard_labels(spark: SparkSession, shards: int) -> list[int]:
    """The names of the shards: numbers that Spark hashes into different partitions, if there are as
    many partitions as shards."""
    numbers = spark.range(32 * shards + 32).select(F.col("id").cast("int").alias("label"))
    partition = F.pmod(F.hash("label"), F.lit(shards))
    chosen = (
        numbers.groupBy(partition.alias("partition"))
        .agg(F.min("label").alias("label"))
        .orderBy("partition")
        .collect()
    )
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
        *_topic_columns(operations),
    )
    return rows.mapInArrow(pack_operations, PACKED)


def _signal_rows(signals: DataFrame, labels: list[int]) -> DataFrame:
    columns = (
        "key",
        "value",
        F.unix_micros("at").alias("at"),
        _owner("key", labels).alias("reporter"),
        *_topic_columns(signals),
    )
    rows = signals.select("is_tick", *columns)
    return rows.mapInArrow(pack_signals, PACKED_SIGNALS).select(
        "*", F.explode(F.lit(labels)).alias("shard")
    )


def _topic_columns(stream: DataFrame) -> tuple[str, ...]:
    return TOPIC_COLUMNS if set(TOPIC_COLUMNS) <= set(stream.columns) else ()


def _owner(column: str, labels: list[int]) -> Column:
    return F.element_at(
        F.lit(labels), (F.pmod(F.xxhash64(column), F.lit(len(labels))) + 1).cast("int")
    )
