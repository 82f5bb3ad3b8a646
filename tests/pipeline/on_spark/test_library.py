"""`purgatory.pipeline.spark`: DataFrames in, DataFrames out, on a session that stays as it was."""

import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from journals import Found, account, assert_tables_equal, check, damage, random_operations, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from streams import JAVA_FOR_TESTS

from purgatory.pipeline.report._queries import TABLES
from purgatory.pipeline.spark import read_journal, report
from purgatory.pipeline.spark._journal import FOLDERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def collected(made: Any) -> dict[str, list[Any]]:
    return {
        name: [Found(row) for row in getattr(made, name).toArrow().to_pylist()] for name in TABLES
    }


def state_of(session: SparkSession) -> tuple[Any, ...]:
    """The settings, views and cached tables of a session."""
    settings = {row.key: row.value for row in session.sql("SET").collect()}
    views = sorted(table.name for table in session.catalog.listTables())
    cached = session.sparkContext._jsc.sc().getPersistentRDDs().size()
    return settings, views, cached


@pytest.fixture
def journal(tmp_path: Path) -> tuple[str, list[Any], list[Any]]:
    rng = random.Random(23)
    rows, checks = random_operations(rng, 600), [check(second) for second in range(20)]
    place = tmp_path / "journal"
    write(place, "operations", "a", rows[:400])
    write(place, "operations", "b", [*rows[300:], *rows[:3]])
    damage(write(place, "operations", "bad", rows[:100]), "zeroed")
    write(place, "checks", "x", [*checks, *checks[:4]])
    return str(place), rows, checks


def test_report_leaves_the_session_as_it_was(spark, journal):
    place, rows, checks = journal
    session = spark.newSession()
    session.conf.set("spark.sql.sources.useV1SourceList", "")
    session.range(1).createOrReplaceTempView("operations")
    before = state_of(session)

    read = read_journal(session, place)
    made = report(read.operations, read.checks, read)
    found = collected(made)

    assert_tables_equal(found, rows, checks)
    for name in ("outcomes", "keys", "pending"):
        plan = getattr(made, name)._jdf.queryExecution().executedPlan().toString()
        assert "Python" not in plan and "Arrow" not in plan, name
    assert [Path(file).name for file in read.damaged] == ["bad.parquet"]
    counts = account(found["reconciliation"])
    assert counts["operations", "files unreadable"] == 1
    assert counts["operations", "duplicates dropped"] == 103
    assert counts["checks", "duplicates dropped"] == 4
    assert state_of(session) == before
    assert session.table("operations").columns == ["id"]
    assert session.range(3).count() == 3


def test_any_dataframes_make_the_same_tables(spark, journal):
    _, rows, checks = journal
    operations = frame(spark, rows, FOLDERS["operations"])
    seconds = frame(spark, checks, FOLDERS["checks"])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = collected(report(operations, seconds))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert_tables_equal(found, rows, checks)
    assert account(found["reconciliation"])["operations", "files"] == 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda rows: rows.drop("keys"), "'keys' is missing"),
        (
            lambda rows: rows.withColumn("started_at", F.col("started_at").cast("string")),
            "'started_at' must be timestamp, got string",
        ),
    ],
)
def test_wrong_columns_are_refused(change, complaint, spark):
    with pytest.raises(ValueError, match=complaint):
        report(change(frame(spark, [], FOLDERS["operations"])), frame(spark, [], FOLDERS["checks"]))


def test_spark_connect_makes_the_same_tables(program, journal, tmp_path):
    place, rows, checks = journal
    code = f"""
import pickle
from pyspark.sql import SparkSession
from purgatory.pipeline.spark import read_journal, report
spark = SparkSession.builder.remote("local[2]").getOrCreate()
read = read_journal(spark, "file://{place}")
made = report(read.operations, read.checks, read)
tables = {{name: getattr(made, name).toArrow().to_pylist() for name in {TABLES!r}}}
pickle.dump(tables, open({str(tmp_path / "tables")!r}, "wb"))
spark.stop()
"""
    environment = {**os.environ, **JAVA_FOR_TESTS, "PYSPARK_PYTHON": sys.executable}
    program("-c", code, env=environment, timeout=900)

    made = pickle.loads((tmp_path / "tables").read_bytes())
    found = {name: [Found(row) for row in lines] for name, lines in made.items()}
    assert_tables_equal(found, rows, checks)
    assert account(found["reconciliation"])["operations", "files unreadable"] == 1


def frame(spark: SparkSession, rows: list[Any], schema: Any) -> DataFrame:
    names = [field.name for field in schema]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
