"""The query: from streams of operations and signals to a stream of outcomes."""

from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from purgatory.pipeline.streaming import _rows
from purgatory.pipeline.streaming._processor import ShardProcessor, send_code_to_workers
from purgatory.pipeline.streaming._rows import (
    COUNTS,
    DECISIONS,
    PACKED,
    PACKED_OUTPUT,
    RECEIVED_OPERATIONS,
    RECEIVED_SIGNALS,
    pack,
    unpack,
)
from purgatory.pipeline.streaming._timekeeper import INPUTS, OBSERVED_DUE, OBSERVED_INPUTS

_TEXT, _WHOLE, _INSTANT = pa.string(), pa.int64(), pa.timestamp("us", "UTC")


def _schema(*columns: tuple[str, pa.DataType]) -> T.StructType:
    return from_arrow_schema(pa.schema(columns))


_REQUIREMENT: Final = pa.struct([("key", _TEXT), ("threshold", _WHOLE)])
OPERATIONS: Final = _schema(
    ("operation_id", _TEXT),
    ("requirements", pa.list_(_REQUIREMENT)),
    ("mode", _TEXT),
    ("registered_at", _INSTANT),
    ("deadline", _INSTANT),
)
"""The operations, which wait. `mode` is `all` or `any`."""
SIGNALS: Final = _schema(("key", _TEXT), ("value", _WHOLE), ("at", _INSTANT))
"""The signals: a key has reached a value."""
TICKS: Final = _schema(("at", _INSTANT), ("input", _TEXT))
"""A tick moves the event time of an input, `operations` or `signals`, to its instant; of both if
`input` is null or missing. So deadlines can pass though the input is silent."""
ORIGIN: Final = _schema(*_rows.ORIGIN)
"""The position of a record in Kafka. Both streams may have these columns, together with `problem`:
the reason why the record could not be read, a string, or null. A row with a problem becomes `late`,
with this reason."""
OUTCOMES: Final = _schema(
    *((name, _INSTANT if name in ("decided_at", "at") else type_) for name, type_ in _rows.DECIDED)
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
BITS_32: Final = 2**32 - 1
WATERMARK_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
"""Setting of Spark. With `max` the input that is ahead moves event time, and the other input's rows
become late."""
TOPIC_COLUMNS: Final = _schema(*_rows.ORIGIN, _rows.PROBLEM)


def outcomes(
    operations: DataFrame,
    signals: DataFrame,
    *,
    shards: int = 2,
    delay: float = 10.0,
    forget_after: float | None = None,
    at_once: bool = False,
    ticks: DataFrame | None = None,
) -> DataFrame:
    """Decides on `operations`: in the end each has one outcome.

    Write it in append mode, with a checkpoint, to a sink that keeps each batch once, such as
    Spark's files: see `check_out` for those. The state must be kept in RocksDB: set
    `spark.sql.streaming.stateStore.providerClass` in the session. It holds the operations that
    wait, the ids of ended ones until their deadlines, and the value of every key, once for each
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
        at_once: whether an operation completes as soon as its signals are read, in the order of
            arrival, and not when the watermark has passed them. That is never taken back, even if
            earlier signals come later. Operations still expire with the watermark.
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
    if ticks is not None:
        if "input" not in ticks.columns:
            ticks = ticks.withColumn("input", F.lit(None).cast("string"))
        ticks = _columns("ticks", ticks, TICKS).withColumnRenamed("at", "event_time")
    watermark = f"{round(delay * 1000)} milliseconds"
    waits, events = (
        _with_event_time(name, _columns(name, stream, schema), instant, ticks).withWatermark(
            "event_time", watermark
        )
        for name, stream, schema, instant in (
            (INPUTS[0], operations, OPERATIONS, "registered_at"),
            (INPUTS[1], signals, SIGNALS, "at"),
        )
    )
    labels = _shard_labels(shards)
    owners = _operation_rows(waits, labels).unionByName(_signal_rows(events, labels))
    decided = owners.groupBy("shard").transformWithState(
        ShardProcessor(shards, forget_micros, at_once), PACKED_OUTPUT, "append", "eventTime"
    )
    next_due = (
        F.max(F.when(F.col("shard") == label, F.col("due"))).alias(f"{OBSERVED_DUE}{label}")
        for label in labels
    )
    decided = decided.observe(OBSERVATION, *(F.sum(name).alias(name) for name in COUNTS), *next_due)
    unpacked = decided.mapInArrow(partial(unpack, schema=DECISIONS), from_arrow_schema(DECISIONS))
    instants = {name: F.timestamp_micros(name) for name in ("decided_at", "at")}
    return unpacked.withColumns(instants)


def _columns(name: str, stream: DataFrame, schema: T.StructType) -> DataFrame:
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
        if field.dataType == T.TimestampType():
            # Python has no instants beyond these years, and no watermark could follow the last one.
            micros = F.unix_micros(column)
            column = F.when((micros >= YEAR_1) & (micros < END_OF_TIME), column)
        columns.append(column.alias(field.name))
    is_of_topic = set(TOPIC_COLUMNS.names) <= set(stream.columns)
    for field in TOPIC_COLUMNS:
        column = F.col(field.name) if is_of_topic else F.lit(None)
        columns.append(column.cast(field.dataType).alias(field.name))
    return stream.select(*columns)


def _cast(column: Column, expected: T.DataType) -> Column:
    """Casts by the names of fields, not by their positions."""
    if isinstance(expected, T.ArrayType) and isinstance(
        fields := expected.elementType, T.StructType
    ):
        return F.transform(
            column,
            lambda each: F.struct(*(each[f.name].cast(f.dataType).alias(f.name) for f in fields)),
        )
    return column.cast(expected)


def _is_lossless(found: T.DataType, expected: T.DataType) -> bool:
    """Whether each value of a type can be cast to another type without loss."""
    if isinstance(expected, T.StructType):
        return isinstance(found, T.StructType) and all(
            field.name in found.names and _is_lossless(found[field.name].dataType, field.dataType)
            for field in expected
        )
    if isinstance(expected, T.ArrayType):
        return isinstance(found, T.ArrayType) and _is_lossless(
            found.elementType, expected.elementType
        )
    whole = isinstance(found, T.IntegralType) or (
        isinstance(found, T.DecimalType) and found.scale == 0
    )
    if isinstance(expected, T.StringType):
        return whole or isinstance(found, T.StringType)
    if isinstance(expected, T.LongType):
        return whole and not (isinstance(found, T.DecimalType) and found.precision > LONG_DIGITS)
    return isinstance(found, T.TimestampType | T.TimestampNTZType)


def _with_event_time(
    name: str, stream: DataFrame, instant: str, ticks: DataFrame | None
) -> DataFrame:
    """Adds the event time of each row, and the ticks of an input. A row that could not be read does
    not move the watermark."""
    event_time = F.when(F.col("problem").isNull(), F.col(instant))
    events = stream.withColumns({"event_time": event_time, "is_tick": F.lit(False)}).observe(
        OBSERVED_INPUTS[name],
        F.count(F.lit(1)).alias("rows"),
        F.max(F.unix_millis("event_time")).alias("newest"),
    )
    if ticks is None:
        return events
    # Filtered here, since above the watermark Spark would push the filter below it.
    mine = ticks.where(F.coalesce(F.col("input"), F.lit(name)) == name)
    mine = mine.select("event_time", F.lit(True).alias("is_tick"))
    return events.unionByName(mine, allowMissingColumns=True)


def _shard_labels(shards: int) -> list[int]:
    """The names of the shards: numbers that Spark hashes into different partitions, if there are as
    many partitions as shards."""
    labels: dict[int, int] = {}
    for label in range(32 * shards + 32):
        labels.setdefault(spark_hash(label) % shards, label)
    return [labels[partition] for partition in sorted(labels)]


def spark_hash(number: int) -> int:
    """Spark's `hash` of an int: Murmur3 with the seed 42. A job of Spark for it costs seconds at
    the start of a stream."""
    mixed = number * 0xCC9E2D51 & BITS_32
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & BITS_32
    mixed ^= 42
    mixed = ((mixed << 13 | mixed >> 19) & BITS_32) * 5 + 0xE6546B64 & BITS_32
    mixed ^= 4  # the length
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & BITS_32
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & BITS_32
    mixed ^= mixed >> 16
    return mixed - (mixed >> 31 << 32)


def _operation_rows(operations: DataFrame, labels: list[int]) -> DataFrame:
    columns = {
        "keys": F.col("requirements.key"),
        "thresholds": F.col("requirements.threshold"),
        "registered_at": F.unix_micros("registered_at"),
        "deadline": F.unix_micros("deadline"),
        "shard": _owner("operation_id", labels),
    }
    rows = operations.withColumns(columns).select("is_tick", "shard", *RECEIVED_OPERATIONS.names)
    return rows.mapInArrow(partial(pack, are_signals=False), PACKED)


def _signal_rows(signals: DataFrame, labels: list[int]) -> DataFrame:
    columns = {"at": F.unix_micros("at"), "reporter": _owner("key", labels)}
    rows = signals.withColumns(columns).select("is_tick", *RECEIVED_SIGNALS.names)
    packed = rows.mapInArrow(partial(pack, are_signals=True), PACKED)
    return packed.withColumn("shard", F.explode(F.lit(labels)))


def _owner(column: str, labels: list[int]) -> Column:
    return F.element_at(
        F.lit(labels), (F.pmod(F.xxhash64(column), F.lit(len(labels))) + 1).cast("int")
    )
