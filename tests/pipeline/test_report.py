"""The report: its tables equal a simple program's, for any journal, and all omissions are
reported."""

import random
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import (
    START,
    Found,
    account,
    assert_tables_equal,
    check,
    operation,
    random_checks,
    random_files,
    random_operations,
    report,
    tables,
    write,
)

from purgatory.journal import FOLDERS
from purgatory.pipeline._command_line import main
from purgatory.pipeline.report._data import data


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_tables_equal_those_of_a_simple_program(count: int, tmp_path: Path) -> None:
    rng = random.Random(4)
    rows, checks = random_operations(rng, count), random_checks(rng)
    journal = tmp_path / "journal"
    for number in range(3):
        write(
            journal,
            "operations",
            f"run-{number}",
            rows[number * count // 3 : (number + 1) * count // 3],
        )
    # A file that was copied, a row that was written before its end was known, and what cannot be
    # right.
    copies = rows[: count // 3]
    write(journal, "operations", "copied", copies)
    ended = next(row for row in rows if row["ended_at"] and row["started_at"])
    write(journal, "operations", "earlier", [ended | {"ended_at": None, "outcome": None}])
    wrong = [
        operation(1_000_001, outcome="vanished"),
        operation(1_000_002, ended_at=START - timedelta(seconds=1)),
        operation(1_000_003, ended_at=None),
        operation(1_000_004, outcome=None),
        operation(1_000_005, timeout_s=float("nan")),
        operation(1_000_006, timeout_s=-1.0),
        operation(1_000_007, purgatory=None),
        operation(1_000_008, started_at=None, ended_at=None, outcome=None),
        operation(1_000_009, keys=["a", None]),
    ]
    write(journal, "operations", "wrong", wrong)
    write(journal, "operations", "empty", [])
    whole = write(journal, "operations", "cut", rows[:100])
    whole.write_bytes(whole.read_bytes()[:-100])
    write(journal, "operations", "zero", []).write_bytes(b"")
    pq.write_table(pa.table({"run_id": [1]}), journal / "operations" / "foreign.parquet")
    text = write(journal, "operations", "text", [operation(1, purgatory="XXXX")])
    text.write_bytes(text.read_bytes().replace(b"XXXX", b"\xff\xfe\xff\xfe"))
    write(journal, "operations", "day=2026-11-25/hour=7/part-0", rows[:7])
    (journal / "operations" / "day=2026-11-25" / "notes.txt").write_text("no file of a journal")
    write(journal, "operations", "_temporary/part-0", [operation(1_000_010)])
    write(journal, "checks", "run-0", checks)
    write(journal, "checks", "copied", checks[:7])
    write(journal, "checks", "wrong", [check(1, tried=0), check(2, checks=-1), check(3, key=None)])
    (journal / "runs").mkdir()
    (journal / "runs" / "fine").write_text(
        f"{count + 7:020}\n"
    )  # it was killed; most of its operations are in files

    report(journal, tmp_path / "out")

    found = tables(tmp_path / "out")
    assert_tables_equal(found, rows, checks)
    counts = account(found["reconciliation"])
    assert counts["operations", "files"] == 12
    assert counts["operations", "files unreadable"] == 4
    assert counts["operations", "files passed over"] == 1
    assert counts["operations", "rows read"] == count + len(copies) + 8 + len(wrong)
    assert counts["operations", "rows rejected"] == len(wrong)
    assert counts["operations", "duplicates dropped"] == len(copies) + 8
    assert counts["operations", "rows accepted"] == count
    ids = [
        max(row["operation_id"] for row in rows if row["run_id"] == run) + 1
        for run in ("coarse", "coarser")
    ]
    assert counts["operations", "ids missing"] == sum(ids) + 7
    [tail] = [
        row["count"] for row in found["reconciliation"] if row.reason and "was killed" in row.reason
    ]
    assert tail == count + 7 - 1 - max(
        row["operation_id"] for row in rows if row["run_id"] == "fine"
    )
    assert (
        counts["checks", "rows accepted"],
        counts["checks", "duplicates dropped"],
        counts["checks", "rows rejected"],
    ) == (
        600,
        7,
        3,
    )
    reasons = {row.reason for row in found["reconciliation"] if row.what == "files unreadable"}
    assert any("column run_id is int64, not string" in reason for reason in reasons)
    rejected = [
        Found(row)
        for row in pq.read_table(tmp_path / "out" / "rejected" / "operations").to_pylist()
    ]
    assert sorted(row.operation_id for row in rejected) == [row["operation_id"] for row in wrong]
    assert {row.reason for row in rejected} == {
        "unknown outcome", "ended before it started", "an outcome without an end",
        "an end without an outcome",
        "timeout_s is no number of seconds", "purgatory is missing", "neither start nor end",
        "a key is missing",
    }  # fmt: skip
    assert all(row.file.endswith("wrong.parquet") for row in rejected)


@given(st.integers(0, 10**9).map(random.Random))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tables_of_any_journal_match_naive_program(tmp_path: Path, rng: random.Random) -> None:
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


FREIREICH = [
    6,
    6,
    6,
    -6,
    7,
    -9,
    10,
    -10,
    -11,
    13,
    16,
    -17,
    -19,
    -20,
    22,
    23,
    -25,
    -32,
    -32,
    -34,
    -35,
]
"""Weeks of remission under 6-mercaptopurine, from Freireich et al. (1963); negative where it lasted
longer than observed."""
PRINTED = {
    6: (0.857, 0.0764), 7: (0.807, 0.0869), 10: (0.753, 0.0963), 13: (0.690, 0.1068),
    16: (0.627, 0.1141), 22: (0.538, 0.1282), 23: (0.448, 0.1346),
}  # fmt: skip
"""Survival by week, and Greenwood's standard error, as in textbooks."""


def test_curve_of_the_oracle_is_the_literatures() -> None:
    found = oracle.curve((abs(week), week > 0) for week in FREIREICH)

    steps = {week: (round(float(left), 3), round(error, 4)) for week, _, left, error in found}
    assert {week: steps[week] for week in PRINTED} == PRINTED


def test_eighty_column_terminal_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = {"purgatory": "orders of the northern warehouse", "kind": "WaitForPaymentAndStock"}
    rows = [
        operation(number, outcome="expired", ended_by=None, **long)
        for number in range(1_000_000, 1_000_009)
    ]
    write(tmp_path / "journal", "operations", "x", rows)

    assert main(["report", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]) == 0

    printed = capsys.readouterr().out
    assert "…" not in printed and "? is not answerable from this data" in printed
    assert max(map(len, printed.split("\n\n")[0].splitlines())) <= 80
    assert "1,000,000 operations with a number but no row, in the folder 'operations'" in " ".join(
        printed.split()
    )


def test_a_directory_without_a_journal_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line == f"cannot read {str(tmp_path)!r} as a journal: it has no folder 'operations'"
    assert not (tmp_path / "out" / "tables").exists()
    write(tmp_path, "operations", "x", [])
    (tmp_path / "out").write_text("precious")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    expected = f"cannot write to {str(tmp_path / 'out')!r}: Not a directory\n"
    assert capsys.readouterr().err == expected and (tmp_path / "out").read_text() == "precious"


def test_checks_count_by_the_second_in_narrow_spans(tmp_path: Path) -> None:
    start = START + timedelta(milliseconds=400)
    rows = [
        operation(number, started_at=start, ended_at=start + timedelta(seconds=number + 1))
        for number in range(20)
    ]
    write(tmp_path / "journal", "operations", "x", rows)
    write(tmp_path / "journal", "checks", "x", [check(second) for second in range(-1, 20)])

    shown = report(tmp_path / "journal", tmp_path / "out")

    assert shown.page.window.width == 100_000
    tried = {line["place"]: line["tried"] for line in shown.lines["hot_times"]}
    # the second before the page's time; the second in which it begins; one second after the other
    assert tried == {-1: 3} | dict.fromkeys([0, *range(6, 196, 10)], 3)
    [hot] = data([], shown)["keys"]
    assert hot["spans"] == 10


def test_synth_is_deterministic_and_uses_journal_schema(tmp_path: Path) -> None:
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


def test_synth_refuses_a_negative_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["synth", "--operations=-5", "--out", str(tmp_path / "journal")])
    assert "'-5' is not a whole number, zero or more" in capsys.readouterr().err
    assert not (tmp_path / "journal").exists()
