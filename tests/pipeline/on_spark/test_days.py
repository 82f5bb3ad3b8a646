"""Reports by day: ten runs, each for a new day, give the same as one run over ten days."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from journals import Row, check, operation, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from purgatory.pipeline._schemas import CHECKS, OPERATIONS
from purgatory.pipeline.spark import add_days, read_journal, report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = 10


def rows_of_days() -> tuple[list[Row], list[Row]]:
    """Operations of which one in ten is pending over midnight, and checks."""
    rng = random.Random(37)
    rows = []
    for number in range(40 * (DAYS + 1)):
        day, over = divmod(number, 40)
        wait = min(int(rng.lognormvariate(13, 1.5)), 30_000_000)
        ended = MIDNIGHT + timedelta(days=day, seconds=rng.randrange(40, 200))
        if over < 4:
            ended = MIDNIGHT + timedelta(days=day, microseconds=rng.randrange(wait + 1))
        rows.append(
            operation(
                number,
                kind=rng.choice(["Poll", "Join"]),
                keys=[f"key-{rng.randrange(5)}"],
                started_at=ended - timedelta(microseconds=wait),
                ended_at=ended,
                outcome="expired" if wait == 30_000_000 else "completed",
            )
        )
    checks = [check(second * 7200, key=f"key-{second % 5}") for second in range(12 * DAYS)]
    return rows, checks


def collected(frame: DataFrame, *names: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {
        tuple(row[name] for name in names): tuple(
            value for name, value in row.items() if name not in names
        )
        for row in frame.toArrow().to_pylist()
    }


def test_ten_runs_equal_one_over_ten_days(spark: SparkSession, tmp_path: Path) -> None:
    rows, checks = rows_of_days()
    operations, checked = frame(spark, rows, OPERATIONS), frame(spark, checks, CHECKS)

    for day in range(1, DAYS + 1):
        until = (MIDNIGHT + timedelta(days=day)).date()
        by_day = add_days(operations, checked, str(tmp_path / "days"), until=until)
        assert len([*(tmp_path / "days" / "keys").iterdir()]) == day

    last = MIDNIGHT + timedelta(days=DAYS)
    ended = [row for row in rows if row["ended_at"] < last]
    before = [row for row in checks if row["second"] < last]
    at_once = report(frame(spark, ended, OPERATIONS), frame(spark, before, CHECKS))
    outcomes, keys, survival = (
        [collected(getattr(made, name), *columns) for made in (by_day, at_once)]
        for name, columns in (
            ("outcomes", ("purgatory", "kind", "minute")),
            ("keys", ("purgatory", "key")),
            ("survival", ("purgatory", "kind", "timeout_s")),
        )
    )
    assert outcomes[0] == outcomes[1] != {} and keys[0] == keys[1] != {}
    over_midnight = [row for row in ended if row["started_at"].date() < row["ended_at"].date()]
    assert len(over_midnight) > DAYS
    # The order of completions and other ends within a bin is lost.
    assert survival[0].keys() == survival[1].keys()
    for name, (at_risk, rate, error) in survival[1].items():
        assert survival[0][name][0] >= at_risk, name
        assert survival[0][name][1] == pytest.approx(rate, abs=0.001), name
        assert survival[0][name][2] == (error and pytest.approx(error, abs=0.001)), name


def test_computed_day_is_not_computed_again(spark: SparkSession, tmp_path: Path) -> None:
    rows, _ = rows_of_days()
    write(tmp_path / "journal", "operations", "x", rows[:120])
    journal = read_journal(spark, str(tmp_path / "journal"))
    folder = tmp_path / "days"
    add_days(journal.operations, journal.checks, str(folder))
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.parquet")}

    again = add_days(journal.operations, journal.checks, str(folder))

    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.parquet")} == before
    assert {path.name for path in (folder / "waits").iterdir()} == {
        "day=2026-03-01",
        "day=2026-03-02",
    }
    assert again.keys.count() == 5


def test_journal_without_a_whole_day_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", "operations", "x", rows_of_days()[0][:40])
    journal = read_journal(spark, str(tmp_path / "journal"))

    with pytest.raises(ValueError, match="no whole day before 2026-03-01"):
        add_days(journal.operations, journal.checks, str(tmp_path / "days"))

    assert not (tmp_path / "days").exists()


def frame(spark: SparkSession, rows: list[Row], schema: StructType) -> DataFrame:
    names = [field.name for field in schema]
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
