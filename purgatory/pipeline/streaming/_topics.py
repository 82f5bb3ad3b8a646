"""Reads operations and signals from topics of Kafka, and writes outcomes to one.

Offsets are kept in the checkpoint, so each record counts once. A record that cannot be read gets a
row with a `problem`, which becomes `late`, with its topic, partition and offset.

Outcomes are sent to the topic from the files, by a second query with its own checkpoint. The files
have each outcome once. Spark's sink for Kafka has no transactions, so after a kill or an error the
topic may have duplicates: the same record under the same key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

from purgatory.pipeline._files import first_line
from purgatory.pipeline.streaming._outcomes import ORIGIN, OUTCOMES

BROKEN: Final = "_broken"
INSTANT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""To the microsecond; Spark would truncate it."""


@dataclass(frozen=True)
class Kafka:
    """Where topics are, and how they are read and written.

    Args:
        servers: `host:port`, or several with commas between them.
        per_batch: how many records of a topic are read in a batch at most; by default all that are
            there.
        options: options of Spark's Kafka source and sink; names with the prefix `kafka.` are for
            Kafka's own clients.
    """

    servers: str
    per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def read(self, spark: SparkSession, topic: str, schema: StructType) -> DataFrame:
        """A stream of the records of `topic`, from the earliest: the columns of `schema`, `ORIGIN`
        and `problem`.

        Raises:
            ValueError: this Spark has no connector, there is no such topic, or Kafka does not
                answer.
        """
        self._require_topic(spark, topic)
        reader = (
            spark.readStream.format("kafka").options(**self._options()).option("subscribe", topic)
        )
        reader = reader.option("startingOffsets", self.options.get("startingOffsets", "earliest"))
        if self.per_batch is not None:
            reader = reader.option("maxOffsetsPerTrigger", self.per_batch)
        return _parse(reader.load().select("value", *ORIGIN.names), schema)

    def _require_topic(self, spark: SparkSession, topic: str) -> None:
        """Reads one record at most, since a query that fails later ends with a stack trace of
        Java."""
        wanted = {"subscribe": topic, "startingOffsets": "earliest"}
        try:
            spark.read.format("kafka").options(**{**self._options(), **wanted}).load().isEmpty()
        except (PySparkException, Py4JError) as error:
            raise ValueError(self._describe_error(spark, topic, error)) from None

    def _describe_error(self, spark: SparkSession, topic: str, error: Exception) -> str:
        text = str(error)
        if "data source: kafka" in text:
            name = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
            return (
                f"this Spark has no connector to Kafka: add --packages {name}, or --jars with "
                "its files"
            )
        if "UnknownTopicOrPartition" in text:
            return f"Kafka at {self.servers} has no topic {topic!r}"
        if "TimeoutException" in text:
            return f"Kafka at {self.servers} does not answer"
        return f"cannot read topic {topic!r} of Kafka at {self.servers}: {first_line(error)}"

    def writer(self, decided: DataFrame, topic: str) -> DataStreamWriter:
        """Writes outcomes to `topic`, as JSON. The key is the id of the operation; of a late
        signal, its key."""
        value = F.to_json(F.struct(*OUTCOMES.names), {"timestampFormat": INSTANT})
        records = decided.select(
            F.coalesce("operation_id", "key").alias("key"), value.alias("value")
        )
        return records.writeStream.format("kafka").options(**self._options()).option("topic", topic)

    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.servers, **self.options}


def _parse(records: DataFrame, schema: StructType) -> DataFrame:
    wanted = StructType([*schema, StructField(BROKEN, StringType())])
    row = F.from_json(F.col("value").cast("string"), wanted, {"columnNameOfCorruptRecord": BROKEN})
    parsed = records.select(
        row.alias("row"), F.col("value").isNull().alias("is_empty"), *ORIGIN.names
    )
    columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in schema)
    broken = F.col("row").isNull() | F.col(f"row.{BROKEN}").isNotNull()
    problem = F.when(F.col("is_empty"), F.lit("it has no value"))
    problem = problem.when(broken, F.lit(f"it is not JSON with {columns}"))
    return parsed.select("row.*", *ORIGIN.names, problem.alias("problem")).drop(BROKEN)
