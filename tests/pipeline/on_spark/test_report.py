"""The report on Spark: its tables equal those of DuckDB."""

import re

import pytest
from journals import (
    Row,
    dirty_journal,
    rejected,
    report,
    table,
)

from purgatory.pipeline._command_line import main
from purgatory.pipeline.report._queries import TABLES
from purgatory.pipeline.report._spark import Spark
from purgatory.pipeline.report._tables import make_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_spark_sets_apart_what_duckdb_does(spark, tmp_path):
    journal = tmp_path / "journal *{1,2}[1]?"
    dirty_journal(journal)

    shown = report(journal, tmp_path / "duckdb")
    with Spark.on(spark) as engine:
        shown_by_spark = make_tables(engine, [f"file://{journal}"], str(tmp_path / "spark"))

    for name in TABLES:
        by_spark, by_duckdb = (table(tmp_path / engine, name) for engine in ("spark", "duckdb"))
        assert ordered(by_spark) == ordered(by_duckdb), name
    for name in ("operations", "checks"):
        apart = [rejected(tmp_path / engine, name) for engine in ("spark", "duckdb")]
        assert ordered(apart[0]) == ordered(apart[1]) != []
    assert shown_by_spark.page == shown.page
    for name, lines in shown_by_spark.lines.items():
        assert ordered(lines) == ordered(shown.lines[name]), name


def ordered(rows: list[Row]) -> list[str]:
    """The rows as text, in one order. Of quotients twelve digits count: sums depend on the order in
    which they are added. Spark names files by URIs; each engine finds other damage."""
    texts = []
    for row in rows:
        cells = (f"{each:.12g}" if isinstance(each, float) else str(each) for each in row.values())
        text = "|".join(cells).replace("file://", "")
        texts.append(re.sub("cannot be read as Parquet: [^|]*", "damaged", text))
    return sorted(texts)


def test_unreadable_location_is_reported_in_one_line(programs_on_spark, tmp_path, capsys):
    assert main(["report", "nosuch://host/journal", "--out", str(tmp_path / "out")]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot list 'nosuch://host/journal/runs': No FileSystem for scheme")
