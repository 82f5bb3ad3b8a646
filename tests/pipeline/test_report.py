"""The report: its tables equal a simple program's, for any journal, and all omissions are
reported."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import (
    START,
    account,
    assert_tables_equal,
    check,
    dirty_journal,
    operation,
    random_checks,
    random_files,
    random_operations,
    rejected,
    report,
    table,
    tables,
    write,
)

from purgatory.journal import FOLDERS
from purgatory.pipeline import _session
from purgatory.pipeline._command_line import main
from purgatory.pipeline.report import _tables
from purgatory.pipeline.report._data import data


def test_dirty_journal_is_reported_without_its_faults(tmp_path, monkeypatch):
    monkeypatch.setattr("purgatory.pipeline._rows.BATCH_BYTES", 5_000)
    journal, out = tmp_path / "journal *{1,2}[1]?", tmp_path / "out [1]*"
    write(tmp_path / "journal x1 1x", "operations", "decoy", [operation(1)])
    rows, checks = dirty_journal(journal)

    report(journal, out)

    found = tables(out)
    assert_tables_equal(found, rows, checks)
    counts = account(found["reconciliation"])
    last = {row["run_id"]: row["operation_id"] for row in rows}
    assert counts == {
        ("operations", "files"): 18,
        ("operations", "files unreadable"): 7,
        ("operations", "files passed over"): 1,
        ("operations", "rows read"): 2534,
        ("operations", "rows rejected"): 15,
        ("operations", "duplicates dropped"): 1019,
        ("operations", "rows accepted"): 1500,
        ("operations", "ids missing"): 5000 + last["coarse"] + last["coarser"] + 2 - 1500,
        ("checks", "files"): 3,
        ("checks", "rows read"): 610,
        ("checks", "rows rejected"): 3,
        ("checks", "duplicates dropped"): 7,
        ("checks", "rows accepted"): 600,
    }
    [tail] = [row for row in found["reconciliation"] if "was killed" in (row.reason or "")]
    assert tail["count"] == 5000 - last["fine"] - 1
    reasons = {row.reason for row in found["reconciliation"] if row.what == "files unreadable"}
    for expected in (
        "foreign.parquet: column run_id is int64, not string",
        "naive.parquet: column ended_at is timestamp[us], not timestamp[us, tz=UTC]",
        "twice.parquet: has the column run_id more than once",
        "part 3#a%20b.parquet: cannot be read as Parquet: ",
    ):
        assert any(expected in reason and "\n" not in reason for reason in reasons)
    apart = rejected(out, "operations")
    wrong = [row for row in apart if row.file == f"{journal}/operations/wrong *[1].parquet"]
    assert sorted(row.operation_id for row in wrong) == [10_000 + number for number in range(10)]
    assert Counter(row.reason for row in apart) == {
        "unknown outcome": 3,
        "ended before it started": 1,
        "an outcome without an end": 2,
        "an end without an outcome": 1,
        "timeout_s is no number of seconds": 2,
        "purgatory is missing": 1,
        "neither start nor end": 1,
        "a key is missing": 1,
        "ended_at is not between the years 1970 and 9999": 3,
    }


@given(st.integers(0, 10**9).map(random.Random))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_of_any_journal_match_naive_program(tmp_path, rng):
    rows, files = random_files(rng)
    with TemporaryDirectory(dir=tmp_path) as folder:
        for number, some in enumerate(files):
            write(Path(folder, "journal"), "operations", f"{number}", some)

        report(Path(folder, "journal"), Path(folder, "out"))

        found = tables(Path(folder, "out"))
        assert_tables_equal(found, rows, [])
        counts = account(found["reconciliation"])
    assert counts["operations", "rows accepted"] == len(rows)
    assert counts["operations", "rows read"] == sum(map(len, files))


def test_usual_timeouts_of_a_kind_are_counted_apart(tmp_path):
    def some(kind: str, timeout: float | None, count: int, expired: int) -> list[dict[str, Any]]:
        ends = ["expired"] * expired + ["completed"] * (count - expired)
        return [{"kind": kind, "timeout_s": timeout, "outcome": each} for each in ends]

    jitter = [line for each in range(300) for line in some("Jitter", 25 + each / 100, 1, 0)]
    made = [
        *some("Poll", 2.0, 100, 50), *some("Poll", 15.0, 50, 1), *some("Poll", None, 5, 0),
        *some("Poll", 0.5, 1, 0), *some("Fetch", 30.0, 100, 0), *jitter,
    ]  # fmt: skip
    rows = [operation(number, **columns) for number, columns in enumerate(made)]
    write(tmp_path / "journal", "operations", "one", rows)

    lines = report(tmp_path / "journal", tmp_path / "out").lines["limits_in_order"]

    assert [tuple(line.values()) for line in lines] == [
        ("letters", "Poll", None, 5, 0.0),
        ("letters", "Poll", 2.0, 100, 0.5),
        ("letters", "Poll", 15.0, 50, 0.02),
    ]


def test_answered_asynchronous_conditions_are_not_in_vain(tmp_path):
    """A check of such a condition completes nothing itself."""
    rows = [operation(number, ended_by="key" if number % 4 else None) for number in range(40)]
    checks = [check(1, checks=40, tried=40, completed=0)]
    write(tmp_path / "journal", "operations", "one", rows)
    write(tmp_path / "journal", "checks", "one", checks)

    lines = report(tmp_path / "journal", tmp_path / "out").lines

    [hot] = lines["hot_keys_in_order"]
    assert (hot["tried"], hot["completed"], hot["false_wakeups"]) == (40, 30, 10)
    assert sum(line["completed"] for line in lines["hot_times"]) == 30


PARTITIONED: Any = {
    "operations": {"purgatory": pa.string(), "missed_trigger": pa.bool_()},
    "checks": {"key": pa.string()},
}


def partitioned(tmp_path: Path, rng: random.Random) -> tuple[Path, list[Any], list[Any]]:
    """A journal in folders that are named by columns, as Spark and Hive name them; its rows."""
    rows, checks = random_operations(rng, 200), random_checks(rng)
    for row in (*rows, *checks):
        row["purgatory"] = {"letters": "a/b=c %é"}.get(row["purgatory"], row["purgatory"])
    for folder, each in (("operations", rows), ("checks", checks)):
        file = write(tmp_path, folder, "all", each)
        columns = pa.schema([*PARTITIONED[folder].items()])
        pq.write_to_dataset(
            pq.read_table(file), tmp_path / "journal" / folder,
            partition_cols=columns.names,
        )  # fmt: skip
    return tmp_path / "journal", rows, checks


def test_columns_in_names_of_folders_are_read(tmp_path):
    journal, rows, checks = partitioned(tmp_path, random.Random(1))

    report(journal, tmp_path / "out")

    assert_tables_equal(tables(tmp_path / "out"), rows, checks)


def test_journal_partitioned_by_an_instant_is_refused(tmp_path, capsys):
    write(
        tmp_path / "journal", "operations", "ended_at=2026-03-01 12%3A00%3A00/one", [operation(1)]
    )

    assert program(tmp_path / "journal", tmp_path / "out") == 1

    assert "'operations' is partitioned by 'ended_at'" in capsys.readouterr().err


def program(journal: Path, out: Path) -> int:
    return main(["report", str(journal), "--out", str(out)])


FREIREICH = "6 6 6 -6 7 -9 10 -10 -11 13 16 -17 -19 -20 22 23 -25 -32 -32 -34 -35"
"""Weeks of remission under 6-mercaptopurine, from Freireich et al. (1963); negative where it lasted
longer than observed."""
PRINTED = {
    6: (0.857, 0.0764), 7: (0.807, 0.0869), 10: (0.753, 0.0963), 13: (0.690, 0.1068),
    16: (0.627, 0.1141), 22: (0.538, 0.1282), 23: (0.448, 0.1346),
}  # fmt: skip
"""Survival by week, and Greenwood's standard error, as in textbooks."""


def test_curve_of_the_oracle_is_the_literatures():
    found = oracle.curve((abs(week), week > 0) for week in map(int, FREIREICH.split()))

    steps = {week: (round(float(left), 3), round(error, 4)) for week, _, left, error in found}
    assert {week: steps[week] for week in PRINTED} == PRINTED


def test_eighty_column_terminal_cuts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    long = {"purgatory": "orders of the northern warehouse", "kind": "WaitForPaymentAndStock"}
    rows = [
        operation(number, outcome="expired", ended_by=None, **long)
        for number in range(1_000_000, 1_000_009)
    ]
    write(tmp_path / "journal", "operations", "x", rows)

    assert program(tmp_path / "journal", tmp_path / "out") == 0

    printed = capsys.readouterr().out
    assert "…" not in printed and "? is not answerable from this data" in printed
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 80
    assert "1,000,000 operations with a number but no row, in the folder 'operations'" in " ".join(
        printed.split()
    )


def test_a_directory_without_a_journal_is_refused(tmp_path, capsys):
    assert program(tmp_path, tmp_path / "out") == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line == f"cannot read {str(tmp_path)!r} as a journal: it has no folder 'operations'"
    assert not (tmp_path / "out" / "tables").exists()
    write(tmp_path, "operations", "x", [])
    (tmp_path / "out").write_text("precious")
    assert program(tmp_path, tmp_path / "out") == 1
    expected = f"cannot write to {str(tmp_path / 'out')!r}: Not a directory\n"
    assert capsys.readouterr().err == expected and (tmp_path / "out").read_text() == "precious"


def test_checks_count_by_the_second_in_narrow_spans(tmp_path):
    start = START + timedelta(milliseconds=400)
    rows = [
        operation(number, started_at=start, ended_at=start + timedelta(seconds=number + 1))
        for number in range(20)
    ]
    write(tmp_path / "journal", "operations", "x", rows)
    write(tmp_path / "journal", "checks", "x", [check(second) for second in range(-1, 21)])

    shown = report(tmp_path / "journal", tmp_path / "out")

    assert shown.page.window.width == 100_000
    tried = {line["place"]: line["tried"] for line in shown.lines["hot_times"]}
    # the second before the page's time; the second in which it begins; one second after the other
    assert tried == {-1: 3} | dict.fromkeys([0, *range(6, 206, 10)], 3)
    [hot] = data([], shown)["keys"]
    assert hot["spans"] == 10


def test_synth_is_deterministic_and_uses_journal_schema(tmp_path):
    journals = [tmp_path / f"it's {number}" for number in range(3)]
    for journal, seed in zip(journals, (1, 1, 2), strict=True):
        for _ in range(2):  # it replaces what is there
            synth = ["synth", "--operations", "500", "--out", str(journal), "--seed", str(seed)]
            assert main(synth) == 0

    for folder, schema in FOLDERS.items():
        made = [pq.read_table(journal / folder) for journal in journals]
        rows = [sorted(map(str, table.to_pylist())) for table in made]
        assert rows[0] == rows[1] != rows[2]
        assert [(field.name, field.type) for field in made[0].schema] == [
            (field.name, field.type) for field in schema
        ]
    assert len(pq.read_table(journals[0] / "operations")) == 500


LONG = {
    "a year": {"ended_at": datetime(2027, 3, 1, tzinfo=UTC)},
    "the year 9999": {"ended_at": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)},
    "since 1970": {"started_at": datetime(1970, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("columns", LONG.values(), ids=LONG)
def test_operation_waiting_for_ages_costs_few_rows(columns, tmp_path):
    journal, out = tmp_path / "journal", tmp_path / "out"
    rows = [*(operation(number) for number in range(300)), operation(300, **columns)]
    write(journal, "operations", "x", rows)

    summary = report(journal, out)

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


def test_earlier_report_survives_later_failure(tmp_path, monkeypatch):
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, "operations", "x", [operation(0)])
    assert program(journal, out) == 0
    write(journal, "operations", "y", [operation(1)])

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_tables, "_require_balance", fail)
        assert program(journal, out) == 1
    assert [row.operations for row in table(out, "timeouts")] == [1]
    assert sorted(path.name for path in out.iterdir()) == ["rejected", "report.html", "tables"]

    assert program(journal, out) == 0
    assert [row.operations for row in table(out, "timeouts")] == [2]


def test_report_deletes_no_foreign_files(tmp_path, capsys):
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, "operations", "x", [operation(0)])
    assert program(journal, out) == program(journal, out) == 0
    (out / "tables" / "mine.txt").write_text("precious")
    capsys.readouterr()

    assert program(journal, out) == 1

    printed = (
        f"cannot write to {str(out)!r}: 'mine.txt' in its folder 'tables' is not of a report\n"
    )
    assert capsys.readouterr().err == printed
    assert (out / "tables" / "mine.txt").read_text() == "precious"
    assert sorted(path.name for path in out.iterdir()) == ["rejected", "report.html", "tables"]


@pytest.mark.parametrize("what", ["master", "URI", "session", "Connect"])
def test_spark_runs_for_master_uri_and_session(what, tmp_path, monkeypatch):
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
