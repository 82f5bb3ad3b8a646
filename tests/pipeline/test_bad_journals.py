"""Damaged files and rows are set apart and counted, with name and reason; all others are
reported."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import journals
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import (
    Row,
    account,
    assert_tables_equal,
    check,
    damage,
    operation,
    random_operations,
    table,
    tables,
    write,
)

from purgatory.pipeline import _session
from purgatory.pipeline._command_line import main
from purgatory.pipeline.report import _tables


def report(journal: Path, out: Path) -> int:
    return main(["report", str(journal), "--out", str(out)])


def test_damaged_row_group_sets_whole_file_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("purgatory.pipeline._rows.BATCH_BYTES", 20_000)
    rows = random_operations(random.Random(7), 4000)
    journal, out = tmp_path / "journal", tmp_path / "out"
    for name, part in (("bad", rows[:3000]), ("good", rows[3000:])):
        file = write(journal, "operations", name, part)
        pq.write_table(pq.read_table(file), file, row_group_size=500)
    damage(journal / "operations" / "bad.parquet", "zeroed")

    assert report(journal, out) == 3

    assert_tables_equal(tables(out), rows[3000:], [])
    counted = table(out, "reconciliation")
    assert account(counted)["operations", "rows read"] == 1000
    bad = f"{journal}/operations/bad.parquet"
    [reason] = [row.reason for row in counted if row.what == "files unreadable"]
    assert reason.startswith(f"{bad}: cannot be read as Parquet: ") and "\n" not in reason
    printed = capsys.readouterr()
    assert f"Cannot be read: {bad}" in printed.out.replace("\n", "") and printed.err == ""


@pytest.mark.parametrize("name", ["a*b", "a{1,2}", "a[1]", "a?b", "a b%20c\\d ä:1#2"])
def test_a_path_is_no_pattern(name: str, tmp_path: Path) -> None:
    journal, out = tmp_path / name, tmp_path / "out" / name
    for decoy in ("axb", "a1", "a2"):
        write(tmp_path / decoy, "operations", "x", [operation(number) for number in range(9)])
    write(journal, "operations", name, [operation(0), operation(1, outcome="lost")])
    write(journal, "checks", name, [check(1)])

    assert report(journal, out) == 3

    counts = account(table(out, "reconciliation"))
    assert (counts["operations", "rows read"], counts["operations", "rows accepted"]) == (2, 1)
    [rejected] = pq.read_table(out / "rejected" / "operations").to_pylist()
    assert rejected["file"] == f"{journal}/operations/{name}.parquet"


LONG = {
    "a year": {"ended_at": datetime(2027, 3, 1, tzinfo=UTC)},
    "the year 9999": {"ended_at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)},
    "since 1970": {"started_at": datetime(1970, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("columns", LONG.values(), ids=LONG)
def test_operation_waiting_for_ages_costs_few_rows(columns: Row, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    rows = [*(operation(number) for number in range(300)), operation(300, **columns)]
    write(journal, "operations", "x", rows)

    summary = journals.report(journal, out)

    [line] = table(out, "timeouts")
    assert (line.operations, line.completed) == (301, 301)
    waited = max(row["ended_at"] for row in rows) - min(row["started_at"] for row in rows)
    assert line.longest_wait_s == pytest.approx(waited.total_seconds())
    spans = sorted(table(out, "pending"), key=lambda row: row.second)
    assert len(spans) < 10 and spans[0].second == min(row["started_at"] for row in rows)
    for span, following in pairwise(spans):
        assert span.second + timedelta(seconds=span.seconds) == following.second
    assert max(row.pending_max for row in spans) == 301
    # The page shows the two seconds in which everything else happened.
    assert summary.page.window.width * summary.page.window.count < 4_000_000


def test_instants_that_no_calendar_has_are_rejected(tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    file = write(journal, "operations", "x", [operation(number) for number in range(4)])
    rows = pq.read_table(file)
    place = rows.column_names.index("ended_at")
    end = pa.array([1 << 62, -1, 253_402_300_800_000_000, None]).cast(rows.schema[place].type)
    pq.write_table(rows.set_column(place, "ended_at", end), file)

    assert report(journal, out) == 3

    counted = (row for row in table(out, "reconciliation") if row.what == "rows rejected")
    assert {row.reason: row["count"] for row in counted} == {
        "ended_at is not between the years 1970 and 9999": 3,
        "an outcome without an end": 1,
    }


def test_earlier_report_survives_later_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, "operations", "x", [operation(0)])
    assert report(journal, out) == 0
    write(journal, "operations", "y", [operation(1)])

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_tables, "_check_balance", fail)
        assert report(journal, out) == 1
    assert [row.operations for row in table(out, "timeouts")] == [1]
    assert sorted(path.name for path in out.iterdir()) == ["rejected", "report.html", "tables"]

    assert report(journal, out) == 0
    assert [row.operations for row in table(out, "timeouts")] == [2]


@pytest.mark.parametrize("folder", ["tables", "rejected"])
def test_report_deletes_no_foreign_files(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, "operations", "x", [operation(0)])
    assert report(journal, out) == report(journal, out) == 0
    (out / folder / "mine.txt").write_text("precious")
    capsys.readouterr()

    assert report(journal, out) == 1

    printed = (
        f"cannot write to {str(out)!r}: 'mine.txt' in its folder {folder!r} is not of a report\n"
    )
    assert capsys.readouterr().err == printed
    assert (out / folder / "mine.txt").read_text() == "precious"
    assert sorted(path.name for path in out.iterdir()) == ["rejected", "report.html", "tables"]


@pytest.mark.parametrize("what", ["master", "URI", "session", "Connect"])
def test_spark_runs_for_master_uri_and_session(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, "operations", "x", [operation(0)])
    asked = []

    def spark_session(*settings: Any, **_: Any) -> None:
        asked.append(settings)
        raise OSError("not here")

    monkeypatch.setattr(_session, "spark_session", spark_session)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert main(["report", str(journal), "--out", str(out)]) == 0
    assert asked == []

    if what == "session":
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    if what == "Connect":
        monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    place = f"file://{journal}" if what == "URI" else str(journal)
    master = ["--master", "local[2]"] if what == "master" else []
    assert main(["report", place, "--out", str(out), *master]) == 1
    assert len(asked) == 1
