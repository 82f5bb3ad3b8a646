"""Reads journals: gives the rows that can be trusted, and accounts for all the others.

    files -> readable files -> rows read = rejected, each with a reason + duplicates + accepted

Nothing is skipped in silence: a row that is not accepted is counted in the account.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from purgatory.journal import FOLDERS as ARROW_FOLDERS
from purgatory.journal import RUNS
from purgatory.pipeline import _files
from purgatory.pipeline._schemas import FOLDERS

cloudpickle.register_pickle_by_value(_files)  # type: ignore[no-untyped-call]  # executors may not have this package

IDENTITY: Final = {"operations": ["run_id", "operation_id"], "checks": ["run_id", "purgatory", "key", "second"]}
OUTCOMES: Final = ("completed", "expired", "cancelled")
SOURCE: Final = "file"


class NoJournal(Exception):
    """There is no journal where one should be."""


@dataclass(frozen=True, slots=True)
class Account:
    """One line of the account: how many rows or files of a folder there were, of what, and why."""

    folder: str
    what: str
    reason: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Source:
    """One folder of all journals, read."""

    accepted: DataFrame
    rejected: DataFrame
    """With the columns `reason` and `file`."""
    account: list[Account]


def read(spark: SparkSession, journals: Sequence[str], folder: str) -> Source:
    """Reads one folder of the journals.

    Raises:
        NoJournal: a journal has no folder `operations`.
    """
    schema = FOLDERS[folder]
    paths = list(_paths(spark, journals, folder))
    looked_at = _look_at(spark, paths, folder)
    readable = [path for path, _, reason in looked_at if reason is None]
    rows = _rows(spark, readable, schema).withColumn("reason", _reason(folder))

    counts = rows.groupBy(SOURCE, "reason").count().collect()  # a line for each file and reason
    account = [
        Account(folder, "files", None, len(paths)),
        *(Account(folder, "files unreadable", f"{path}: {reason}", 1) for path, _, reason in looked_at if reason),
        Account(folder, "rows in readable files", None, sum(count or 0 for _, count, reason in looked_at if reason is None)),
        Account(folder, "rows read", None, sum(row["count"] for row in counts)),
    ]
    reasons = sorted({row.reason for row in counts if row.reason is not None})
    account += [
        Account(folder, "rows rejected", reason, sum(row["count"] for row in counts if row.reason == reason))
        for reason in reasons
    ]
    valid = rows.filter("reason IS NULL").select(*schema.names)
    accepted, duplicates = _without_duplicates(valid, IDENTITY[folder])
    account += [
        Account(folder, "duplicates dropped", None, duplicates),
        Account(folder, "rows accepted", None, sum(row["count"] for row in counts if row.reason is None) - duplicates),
    ]
    return Source(accepted, rows.filter("reason IS NOT NULL"), account)


def _paths(spark: SparkSession, journals: Sequence[str], folder: str) -> Iterator[str]:
    """The names of all files, sorted within each journal."""
    for journal in dict.fromkeys(journals):
        listing = spark.read.format("binaryFile").option("pathGlobFilter", "*.parquet")
        try:
            # This only lists the files: none is read, and empty ones are in the list.
            found = [unquote(file) for file in listing.load(f"{journal.rstrip('/')}/{folder}").inputFiles()]
        except PySparkException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            if folder == "operations":
                raise NoJournal(f"cannot read {journal!r} as a journal: it has no folder 'operations'") from None
            found = []
        yield from sorted(found)


def tallies(spark: SparkSession, journals: Sequence[str]) -> DataFrame:
    """How many operations have ended in each run that goes on, was killed, or could not write all of its rows.

    Returns:
        run_id, ended: one row for each such run.
    """
    run_id = F.element_at(F.split("_metadata.file_path", "/"), -1)
    found = spark.createDataFrame([], "run_id string, ended long")
    for journal in dict.fromkeys(journals):
        try:
            lines = spark.read.text(f"{journal.rstrip('/')}/{RUNS}")
            lines.inputFiles()  # Spark Connect looks for the path only when it is asked for something
        except PySparkException as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
        else:
            found = found.unionByName(lines.select(run_id.alias("run_id"), F.col("value").cast("long").alias("ended")))
    return found


def _look_at(spark: SparkSession, paths: list[str], folder: str) -> list[tuple[str, int | None, str | None]]:
    """For each file: its name, how many rows its footer counts, and why it cannot be read (`None` if it can)."""
    if not paths:
        return []
    wanted = {field.name: _files.type_name(field.type) for field in ARROW_FOLDERS[folder]}

    files = spark.createDataFrame([(path,) for path in paths], "path string")
    return sorted(
        (row.path, row.rows, row.reason)
        for row in files.mapInArrow(partial(_files.footers, wanted=wanted), _files.FOOTERS).collect()
    )


def _rows(spark: SparkSession, paths: list[str], schema: StructType) -> DataFrame:
    """The rows of the files. A file that is damaged after its first rows gives those before the damage."""
    if not paths:
        return spark.createDataFrame([], StructType([*schema.fields, StructField(SOURCE, StringType())]))
    reader = spark.read.schema(schema).option("ignoreCorruptFiles", "true")
    return reader.parquet(*paths).select(*schema.names, F.col("_metadata.file_path").alias(SOURCE))


def _reason(folder: str) -> Column:
    """Why a row is rejected; null if it is accepted."""
    rules = _operation_rules() if folder == "operations" else _check_rules()
    return F.coalesce(*(F.when(broken, F.lit(reason)) for reason, broken in rules))


def _operation_rules() -> list[tuple[str, Column]]:
    started, ended, outcome, timeout = F.col("started_at"), F.col("ended_at"), F.col("outcome"), F.col("timeout_s")
    needed = ("run_id", "purgatory", "kind", "operation_id", "keys", "attempts", "missed_trigger")
    return [
        *((f"{name} is missing", F.col(name).isNull()) for name in needed),
        ("unknown outcome", ~outcome.isin(*OUTCOMES)),
        ("an end without an outcome", ended.isNotNull() & outcome.isNull()),
        ("an outcome without an end", ended.isNull() & outcome.isNotNull()),
        ("neither start nor end", ended.isNull() & started.isNull()),
        ("ended before it started", ended < started),
        ("timeout_s is no number of seconds", F.isnan(timeout) | (timeout < 0) | (timeout == float("inf"))),
    ]


def _check_rules() -> list[tuple[str, Column]]:
    needed = FOLDERS["checks"].names
    return [
        *((f"{name} is missing", F.col(name).isNull()) for name in needed),
        ("a negative count", F.least("checks", "tried", "completed") < 0),
        ("more completed than tried", F.col("completed") > F.col("tried")),
    ]


def _without_duplicates(rows: DataFrame, identity: list[str]) -> tuple[DataFrame, int]:
    """One row for each identity, and how many other rows there were.

    Of several rows we keep the one with the most columns filled; among equals, the one whose text sorts last. Mostly there
    are no duplicates at all, so only the identities are searched for them.
    """
    repeated = rows.groupBy(*identity).count().filter("count > 1").persist(StorageLevel.DISK_ONLY)
    surplus = repeated.agg(F.coalesce(F.sum(F.col("count") - 1), F.lit(0)).alias("surplus")).collect()[0].surplus
    if not surplus:
        return rows, 0
    filled = sum((F.col(name).isNotNull().cast("int") for name in rows.columns), F.lit(0))
    best_first = Window.partitionBy(*identity).orderBy(filled.desc(), F.to_json(F.struct(*rows.columns)).desc())
    lone = rows.join(repeated, identity, "left_anti")
    chosen = rows.join(repeated, identity, "left_semi").withColumn("place", F.row_number().over(best_first)).filter("place = 1")
    kept = lone.unionByName(chosen.drop("place")).select(*rows.columns)
    return kept.persist(StorageLevel.DISK_ONLY), surplus
