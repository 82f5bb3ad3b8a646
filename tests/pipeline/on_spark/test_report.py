"""The report on Spark: its tables equal those of DuckDB."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import (
    Row,
    account,
    assert_tables_equal,
    check,
    damage,
    operation,
    random_files,
    random_operations,
    report,
    table,
    tables,
    write,
)
from pyspark.sql import SparkSession

from purgatory.pipeline._command_line import main
from purgatory.pipeline.report._queries import TABLES
from purgatory.pipeline.report._spark import Spark
from purgatory.pipeline.report._tables import make_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def dirty_journal(journal: Path, rows: list[Row], checks: list[Row]) -> None:
    """A journal with each fault that a file or a row may have."""
    for place in range(4):
        write(journal, "operations", f"part {place}#a%20b", rows[place * 500 : place * 500 + 500])
    damage(journal / "operations" / "part 3#a%20b.parquet", "zeroed")
    write(journal, "operations", "compacted-x", rows[:1000])
    write(journal, "operations", "copied", rows[:7])
    write(journal, "operations", "day=2026-11-25/part 0#a", rows[7:14])
    write(
        journal,
        "operations",
        "wrong",
        [operation(10_000, outcome="vanished"), operation(10_001, keys=["a", None])],
    )
    write(journal, "operations", "empty", [])
    write(journal, "operations", "zero", []).write_bytes(b"")
    pq.write_table(pa.table({"operation_id": ["x"]}), journal / "operations" / "foreign.parquet")
    (journal / "operations" / "text.parquet").write_text("no Parquet")
    (journal / "operations" / "notes.txt").write_text("no file of a journal")
    like_a_journal = pq.read_table(
        write(journal, "operations", "wide", [operation(10_003, outcome="lost")])
    )
    wide = like_a_journal.schema.field("attempts").with_type(pa.int32())
    schema = like_a_journal.schema.set(like_a_journal.column_names.index("attempts"), wide)
    pq.write_table(like_a_journal.cast(schema), journal / "operations" / "wide.parquet")
    pq.write_table(
        like_a_journal.drop_columns("timeout_s"), journal / "operations" / "narrow.parquet"
    )
    write(journal, "checks", "x", checks)
    write(journal, "checks", "wrong", [check(1, tried=0), check(2, key=None)])
    (journal / "runs").mkdir()
    (journal / "runs" / "fine").write_text(f"{5000:020}\n")


@pytest.mark.parametrize("place", ["", "file://"])
def test_spark_sets_apart_what_duckdb_does(place: str, spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal * {1,2}"
    rows = random_operations(random.Random(9), 2000)
    checks = [check(second, key=f"key-{second % 7}") for second in range(50)]
    dirty_journal(journal, rows, checks)

    shown = report(journal, tmp_path / "duckdb")
    with Spark.on(spark) as engine:
        shown_by_spark = make_tables(engine, [f"{place}{journal}"], str(tmp_path / "spark"))

    assert_tables_equal(tables(tmp_path / "spark"), rows[:1500], checks)
    counts = account(table(tmp_path / "spark", "reconciliation"))
    assert counts["operations", "files unreadable"] == 4
    assert counts["operations", "duplicates dropped"] == 1014
    for name in TABLES:
        assert ordered(table(tmp_path / "spark", name)) == ordered(
            table(tmp_path / "duckdb", name), place, journal
        ), name
    for name in ("operations", "checks"):
        rejected = [
            pq.read_table(tmp_path / engine / "rejected" / name).to_pylist()
            for engine in ("spark", "duckdb")
        ]
        assert ordered(rejected[0]) == ordered(rejected[1], place, journal) != []
    assert shown_by_spark.page == shown.page
    for name, lines in shown_by_spark.lines.items():
        assert ordered(lines) == ordered(shown.lines[name], place, journal), name


@given(st.integers(0, 10**9).map(random.Random))
@settings(
    max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_tables_of_any_journal_equal_duckdbs(
    spark: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    rows, files = random_files(rng)
    with TemporaryDirectory(dir=tmp_path) as folder:
        journal = Path(folder, "journal")
        for number, some in enumerate(files):
            write(journal, "operations", f"{number}", some)

        report(journal, Path(folder, "duckdb"))
        with Spark.on(spark) as engine:
            make_tables(engine, [str(journal)], f"{folder}/spark")

        found = tables(Path(folder, "spark"))
        assert_tables_equal(found, rows, [])
        for name, expected in tables(Path(folder, "duckdb")).items():
            assert ordered(found[name]) == ordered(expected), name


def ordered(rows: list[Row], place: str = "", journal: Path = Path("/")) -> list[str]:
    """The rows as text, in one order. Of quotients twelve digits count: sums depend on the order in
    which they are added. Files are named as Spark names them."""
    texts = (
        str([f"{value:.12g}" if isinstance(value, float) else value for value in row.values()])
        for row in rows
    )
    return sorted(text.replace(f"{journal}/", f"{place}{journal}/") for text in texts)


def test_unreadable_location_is_reported_in_one_line(
    programs_on_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "nosuch://host/journal", "--out", str(tmp_path / "out")]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot list 'nosuch://host/journal/runs': No FileSystem for scheme")
