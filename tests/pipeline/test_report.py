"""The report: its tables equal those of a simple program, whatever the journal is like, and nothing is left out in silence."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.journal import CHECKS, FOLDERS, OPERATIONS
from purgatory.pipeline import synth
from purgatory.pipeline._command_line import main
from purgatory.pipeline._spread import here
from purgatory.pipeline.report import _command, _make, _survival

START = datetime(2026, 3, 1, 11, 59, 50, tzinfo=UTC)
Row = dict[str, Any]


def operation(number: int, **columns: Any) -> Row:
    return {
        "run_id": "run",
        "purgatory": "letters",
        "kind": "Poll",
        "operation_id": number,
        "keys": ["key"],
        "started_at": START,
        "ended_at": START + timedelta(seconds=1),
        "timeout_s": 1.0,
        "outcome": "completed",
        "attempts": 2,
        "ended_by": "key",
        "missed_trigger": False,
    } | columns


def check(second: int, **columns: Any) -> Row:
    return {
        "run_id": "run",
        "purgatory": "letters",
        "key": "key",
        "second": START + timedelta(seconds=second),
        "checks": 1,
        "tried": 3,
        "completed": 1,
        "part": 0,
    } | columns


def write(journal: Path, folder: str, name: str, rows: list[Row]) -> Path:
    file = journal / folder / f"{name}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    nullable = pa.schema([field.with_nullable(True) for field in FOLDERS[folder]])
    pq.write_table(pa.Table.from_pylist(rows, nullable), file)
    return file


def random_operations(rng: random.Random, count: int) -> list[Row]:
    """With ties, since all times are multiples of 100 ms in two of three runs, and what may be missing missing."""
    rows = []
    for number in range(count):
        run = rng.choice(["coarse", "coarser", "fine"])
        grain = {"coarse": 100_000, "coarser": 1_000_000, "fine": 1}[run]
        start = rng.randrange(90_000_000) // grain * grain
        timeout = rng.choice([200_000, 1_000_000, 30_000_000])
        wait = min(int(rng.lognormvariate(12.5, 1.5)) // grain * grain, timeout)
        outcome = "expired" if wait == timeout else rng.choices(["completed", "cancelled"], [20, 1])[0]
        ends = rng.random() > 0.002
        begins = not ends or rng.random() > 0.002
        rows.append(
            operation(
                number,
                run_id=run,
                purgatory=rng.choice(["letters", "parcels"]),
                kind=rng.choice(["Poll", "Join", "Fetch"]),
                keys=[f"key-{rng.randrange(20)}" for _ in range(rng.randrange(1, 4))],
                started_at=START + timedelta(microseconds=start) if begins else None,
                ended_at=START + timedelta(microseconds=start + wait) if ends else None,
                outcome=outcome if ends else None,
                timeout_s=timeout / 1e6,
                missed_trigger=rng.random() < 0.01,
            )
        )
    return rows


def random_checks(rng: random.Random) -> list[Row]:
    return [
        check(
            second,
            purgatory=purgatory,
            key=f"key-{key}",
            checks=3,
            tried=(tried := rng.randrange(9)),
            completed=rng.randint(0, tried),
        )
        for second in range(60)
        for purgatory in ("letters", "parcels")
        for key in range(18, 23)
    ]


class Found(dict):
    """A row of a table; its columns are attributes, too."""

    __getattr__ = dict.__getitem__


def table(out: Path, name: str) -> list[Any]:
    return [Found(row) for row in pq.read_table(out / "tables" / name).to_pylist()]


def tables(out: Path) -> dict[str, list[Any]]:
    return {name: table(out, name) for name in _make.TABLES}


def account(rows: list[Any]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row.folder, row.what] += row["count"]
    return counts


def assert_tables_equal(found: dict[str, list[Any]], rows: list[Row], checks: list[Row]) -> None:
    """To the last row and, where a number is a quotient, to the last bits."""
    rows = oracle.with_times(rows)
    outcomes = {
        (row.purgatory, row.kind, oracle.micros(row.minute) // 60_000_000): (
            row.started, row.completed, row.expired, row.cancelled, row.expiry_rate,
            row.wait_p50, row.wait_p90, row.wait_p99, row.wait_p999, row.wait_max,
        )
        for row in found["outcomes"]
    }  # fmt: skip
    assert_close(outcomes, oracle.outcomes(rows))
    keys = {
        (row.purgatory, row.key): (row.operations, row.checks, row.tried, row.completed, row.false_wakeups, row.missed_triggers)
        for row in found["keys"]
    }
    assert keys == oracle.keys(rows, checks)
    pending = {
        (row.purgatory, oracle.micros(row.second) // 1_000_000 + later): (row.pending_max, row.pending_mean)
        for row in found["pending"]
        for later in range(row.seconds)
    }
    assert_close(pending, oracle.pending(rows))
    expected = oracle.curves(rows)
    assert_survival_equals(found["survival"], expected)
    assert_timeouts_equal(found["timeouts"], expected, rows)


def assert_close(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        for is_, should_be in zip(found[name], values, strict=True):
            assert is_ == (None if should_be is None else pytest.approx(should_be, rel=1e-12, abs=1e-12)), name


def three_digits_up(wait: int) -> int:
    step = 10 ** max(len(str(wait)) - 3, 0)
    return -(-wait // step) * step


def assert_survival_equals(found: list[Any], expected: dict) -> None:
    points = {
        (row.purgatory, row.kind, round(row.timeout_s * 1e6)): (row.at_risk, row.expiry_rate, row.standard_error)
        for row in found
    }
    last = {
        (*name, three_digits_up(wait)): (at_risk, float(rate), error)
        for name, curve in expected.items()
        for wait, at_risk, rate, error in curve
    }
    assert points.keys() == last.keys()
    for name, (at_risk, rate, error) in last.items():
        found_at_risk, found_rate, found_error = points[name]
        assert found_at_risk == at_risk, name
        assert found_rate == pytest.approx(rate, rel=1e-9, abs=1e-12), name
        assert found_error == (None if error is None else pytest.approx(error, rel=1e-9)), name


def assert_timeouts_equal(found: list[Any], expected: dict, rows: list[Row]) -> None:
    counts = Counter((row["purgatory"], row["kind"], row["outcome"]) for row in rows)
    assert {(row.purgatory, row.kind) for row in found} == {(row["purgatory"], row["kind"]) for row in rows}
    for row in found:
        name = (row.purgatory, row.kind)
        assert (row.completed, row.expired, row.cancelled, row.without_end) == tuple(
            counts[*name, outcome] for outcome in ("completed", "expired", "cancelled", None)
        )
        for answer, words, rate in (
            (row.timeout_1_percent, row.answer_1_percent, 0.01),
            (row.timeout_01_percent, row.answer_01_percent, 0.001),
        ):
            waits = [wait / 1e6 for wait, _, left, _ in expected.get(name, []) if left <= rate]
            assert answer == (waits[0] if waits else None)
            assert words == ("answered" if waits else "not answerable from this data")


def test_the_tables_equal_a_simple_programs_on_a_hundred_thousand_operations(tmp_path: Path) -> None:
    rng = random.Random(4)
    rows, checks = random_operations(rng, 100_000), random_checks(rng)
    journal = tmp_path / "journal"
    for number in range(3):
        write(journal, "operations", f"run-{number}", rows[number * 40_000 : (number + 1) * 40_000])
    # A file that was copied, a row that was written before its end was known, and what cannot be right.
    write(journal, "operations", "copied", rows[:30_000])
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
    ]
    write(journal, "operations", "wrong", wrong)
    write(journal, "operations", "empty", [])
    whole = write(journal, "operations", "cut", rows[:100])
    whole.write_bytes(whole.read_bytes()[:-100])
    write(journal, "operations", "zero", []).write_bytes(b"")
    pq.write_table(pa.table({"run_id": ["x"]}), journal / "operations" / "foreign.parquet")
    write(journal, "checks", "run-0", checks)
    write(journal, "checks", "copied", checks[:7])
    write(journal, "checks", "wrong", [check(1, tried=0), check(2, checks=-1), check(3, key=None)])
    (journal / "runs").mkdir()
    (journal / "runs" / "fine").write_text(f"{100_007:020}\n")  # it was killed; most of its operations are in files

    _make.make_tables(here, [str(journal)], str(tmp_path / "out"))

    found = tables(tmp_path / "out")
    assert_tables_equal(found, rows, checks)
    counts = account(found["reconciliation"])
    assert counts["operations", "files"] == 10
    assert counts["operations", "files unreadable"] == 3
    assert counts["operations", "rows read"] == 130_009
    assert counts["operations", "rows rejected"] == len(wrong)
    assert counts["operations", "duplicates dropped"] == 30_001
    assert counts["operations", "rows accepted"] == 100_000
    ids = [max(row["operation_id"] for row in rows if row["run_id"] == run) + 1 for run in ("coarse", "coarser")]
    assert counts["operations", "ids missing"] == sum(ids) + 100_007 - 100_000
    [tail] = [row["count"] for row in found["reconciliation"] if row.reason and "was killed" in row.reason]
    assert tail == 100_007 - 1 - max(row["operation_id"] for row in rows if row["run_id"] == "fine")
    assert (counts["checks", "rows accepted"], counts["checks", "duplicates dropped"], counts["checks", "rows rejected"]) == (
        600,
        7,
        3,
    )
    reasons = {row.reason for row in found["reconciliation"] if row.what == "files unreadable"}
    assert any("has no column purgatory" in reason for reason in reasons)
    rejected = [Found(row) for row in pq.read_table(tmp_path / "out" / "rejected" / "operations").to_pylist()]
    assert sorted(row.operation_id for row in rejected) == [row["operation_id"] for row in wrong]
    assert {row.reason for row in rejected} == {
        "unknown outcome", "ended before it started", "an outcome without an end", "an end without an outcome",
        "timeout_s is no number of seconds", "purgatory is missing", "neither start nor end",
    }  # fmt: skip
    assert all(row.file.endswith("wrong.parquet") for row in rejected)


FREIREICH = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
"""Weeks of remission under 6-mercaptopurine, from Freireich et al. (1963); negative where it lasted longer than observed."""
MAINTAINED = [9, 13, -13, 18, 23, -28, 31, 34, -45, 48, -161]
"""Weeks to relapse of acute myelogenous leukaemia under maintenance, from Miller (1981)."""


KNOWN = {
    # survival by week, and Greenwood's standard error as it is printed in textbooks
    "6-MP": (
        FREIREICH,
        {
            6: (6 / 7, 0.0764),
            7: (6 / 7 * 16 / 17, 0.0869),
            10: (6 / 7 * 16 / 17 * 14 / 15, 0.0963),
            13: (6 / 7 * 16 / 17 * 14 / 15 * 11 / 12, 0.1068),
            16: (6 / 7 * 16 / 17 * 14 / 15 * 10 / 12, 0.1141),
            22: (6 / 7 * 16 / 17 * 14 / 15 * 10 / 12 * 6 / 7, 0.1282),
            23: (6 / 7 * 16 / 17 * 14 / 15 * 10 / 12 * 5 / 7, 0.1346),
        },
    ),
    "AML": (
        MAINTAINED,
        {
            9: (10 / 11, 0.0867),
            13: (9 / 11, 0.1163),
            18: (9 / 11 * 7 / 8, 0.1397),
            23: (9 / 11 * 6 / 8, 0.1526),
            31: (9 / 11 * 6 / 8 * 4 / 5, 0.1642),
            34: (9 / 11 * 6 / 8 * 3 / 5, 0.1627),
            48: (9 / 11 * 6 / 8 * 3 / 5 / 2, 0.1535),
        },
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_survival_curves_are_those_of_the_literature(name: str) -> None:
    weeks, printed = KNOWN[name]
    wait, is_end = np.abs(weeks) * 1_000_000, (np.array(weeks) > 0).astype(int)

    curve = _survival.thinned(_survival.curve(wait, np.ones(len(weeks), int), is_end))
    found = {row["timeout_s"]: row for row in pa.table(curve).to_pylist()}

    assert found.keys() == set(map(abs, weeks))
    for week, (share, error) in printed.items():
        assert found[week]["expiry_rate"] == pytest.approx(share, abs=1e-9)
        assert found[week]["standard_error"] == pytest.approx(error, abs=6e-5)


def test_a_second_run_over_a_grown_journal_says_what_one_run_over_all_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_the_tests_session(monkeypatch, spark)
    rows = random_operations(random.Random(5), 600)
    journal, out = tmp_path / "journal", tmp_path / "out"
    (journal / "operations").mkdir(parents=True)
    assert main(["report", str(journal), "--out", str(out)]) == 0
    assert "There is nothing to report on" in capsys.readouterr().out

    write(journal, "operations", "run-0", rows[:300])
    write(journal, "operations", "run-1", rows[300:])
    assert main(["report", str(journal), "--out", str(out), "--master", "spark://its.own"]) == 0

    assert_tables_equal(tables(out), rows, [])


class Page(HTMLParser):
    """What a page would load, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_report_finds_what_was_planted_and_opens_without_a_network(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_the_tests_session(monkeypatch, spark)
    journal, out = str(tmp_path / "journal"), tmp_path / "out"

    assert main(["synth", "--operations", "20000", "--out", journal]) == 0
    assert main(["report", journal, "--out", str(out)]) == 0

    page = Page()
    page.feed((out / "report.html").read_text("utf-8"))
    text = " ".join(page.text)
    assert all(each.startswith(("data:", "#")) for each in page.loads)
    printed = " ".join(capsys.readouterr().out.split())
    for said in (
        "Of 'Join' in 'synth'",
        "not answerable from this data",
        "Nobody had called check_and_complete for 'forgotten' in 'synth'",
        "The hottest key is 'key-0' in 'synth'",
        "operations were pending in 'synth'",
    ):
        assert said in text and said in printed
    assert "Of 'Fetch'" not in text and "Of 'Produce'" not in text
    assert [row.key for row in table(out, "keys") if row.missed_triggers > 0] == ["forgotten"]


def use_the_tests_session(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    from contextlib import nullcontext

    for program in (_command, synth):
        monkeypatch.setattr(program, "spark_session", lambda *_, **__: nullcontext(spark))


def test_synth_makes_the_same_journal_for_the_same_seed_and_in_the_schema_of_a_journal(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = [synth.operations(spark, 500, seed).collect() for seed in (1, 1, 2)]

    assert made[0] == made[1] != made[2]
    operations = synth.operations(spark, 500)
    operations.write.parquet(str(tmp_path / "operations"))
    synth.checks(operations).write.parquet(str(tmp_path / "checks"))
    for folder, schema in (("operations", OPERATIONS), ("checks", CHECKS)):
        read = pq.read_table(tmp_path / folder).schema
        assert [(field.name, field.type) for field in read] == [(field.name, field.type) for field in schema]


def test_a_directory_without_a_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert line == f"cannot read {str(tmp_path)!r} as a journal: it has no folder 'operations'"
    assert not (tmp_path / "out" / "tables").exists()
