"""The program `simulate`: what Spark's tasks replay is what a replay in this process sees, and the words say what is so."""

import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import test_report as report
from pyspark.sql import SparkSession

from purgatory.journal import OPERATIONS
from purgatory.pipeline._command_line import main
from purgatory.pipeline.simulate import _command
from purgatory.pipeline.simulate._replay import Recorded, Replay, Setting, replay
from purgatory.pipeline.simulate._trials import Trial, recommendation

NOON = 1_767_268_800_000_000


def run_of_a_server(seed: int, count: int = 300) -> list[Recorded]:
    chance, rows, now = random.Random(seed), [], NOON
    for number in range(count):
        now += int(chance.expovariate(1) * 50_000)
        keys = [f"k{key}" for key in chance.sample(range(9), chance.randint(1, 2))]
        wait, timeout = chance.expovariate(1), chance.choice((0.5, 2.0))
        completed = wait < timeout
        ended = now + int(min(wait, timeout) * 1e6) + (0 if completed else 700)
        outcome, ended_by = ("completed", keys[0]) if completed else ("expired", None)
        rows.append(Recorded(number, keys, now, ended, timeout, outcome, ended_by, False))
    return rows


def write(folder: Path, runs: dict[str, list[Recorded]]) -> None:
    (folder / "operations").mkdir(parents=True)
    rows = [
        {**row._asdict(), "run_id": run_id, "purgatory": "p", "kind": "Fetch", "attempts": 2}
        for run_id, run in runs.items()
        for row in run
    ]
    rows.append({**rows[0], "run_id": "c", "ended_at": None, "outcome": None})  # its end was never written
    rows.append(rows[0])  # a copy
    columns = {field.name: pa.array([row[field.name] for row in rows], to_plain(field.type)) for field in OPERATIONS}
    pq.write_table(pa.table(columns).cast(OPERATIONS), folder / "operations" / "1.parquet")


def to_plain(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(type_) else type_


@pytest.fixture
def same_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    monkeypatch.setattr(_command, "spark_session", lambda *_, **__: nullcontext(spark))
    return spark


def test_each_setting_does_on_spark_what_it_does_here_and_all_is_told_and_drawn(
    same_session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"a": run_of_a_server(1), "b": run_of_a_server(2)}
    write(tmp_path / "journal", runs)
    settings = [Setting(tick, 20, timeout) for timeout in (None, 1.0) for tick in (0.001, 0.1)]

    out = str(tmp_path / "out")
    options = ["--tick", "0.001,0.1", "--wheel-size", "20", "--timeout", "1", "--lateness", "0.2"]
    assert main(["simulate", str(tmp_path / "journal"), "--out", out, *options]) == 0

    here = {setting: [replay(iter(run), setting) for run in runs.values()] for setting in settings}
    found = pq.read_table(f"{out}/settings").to_pylist()
    assert [(row["tick"], row["wheel_size"], row["operations"]) for row in found] == [
        (setting.tick, setting.wheel_size, 600) for setting in settings
    ]
    for row, seen in zip(found, here.values(), strict=True):
        for name in ("callbacks", "empty_callbacks", "moves", "expired", "different"):
            assert row[name] == sum(getattr(each, name) for each in seen), name
        assert row["largest_bucket"] == max(each.largest_bucket for each in seen)
        assert row["largest_burst"] == max(each.largest_burst for each in seen)
        assert row["late_max"] == max(each.late_max for each in seen)
        assert 0 < row["late_p50"] <= row["late_p99"] <= row["late_max"] <= row["tick"]
    differences = pq.read_table(f"{out}/differences").to_pylist()
    assert len(differences) == found[2]["different"] + found[3]["different"] > 0
    assert {row["why"] for row in differences} == {"the timeout of 1 s came first"}
    said = capsys.readouterr().out
    assert "2 rows of the journal are not replayed" in said
    assert "ends as the journal says for all 600 operations" in said
    assert "Recommended: tick 0.1 s, wheel size 20" in said
    assert f"A timeout of 1 s would have ended {found[2]['expired'] / 600:.2%}" in said
    assert (tmp_path / "out" / "settings.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_divided_by_key_is_replayed_whole_and_what_was_torn_apart_is_told(
    same_session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of_a_server(3)
    write(tmp_path / "journal", {"a": run})

    assert main(["simulate", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--shards", "2"]) == 0

    [row] = pq.read_table(tmp_path / "out" / "settings").to_pylist()
    assert (row["operations"], row["different"]) == (300, 0)
    assert row["expired"] == replay(iter(run), Setting(0.001, 512, None)).expired
    said = capsys.readouterr().out
    assert "replaying 2 wheels with 1 settings" in said
    [apart] = [int(line.split()[0]) for line in said.splitlines() if "have keys in other shards" in line]
    assert 0 < apart < sum(len(each.keys) == 2 for each in run)


def test_a_journal_that_is_not_there_is_refused(
    same_session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1

    assert f"cannot read '{tmp_path / 'none'}' as a journal" in capsys.readouterr().err


@pytest.mark.parametrize("has_checks", [True, False])
@pytest.mark.parametrize("what", ["no file", "no row", "no operation that has ended", "no operation with keys"])
def test_a_journal_of_which_nothing_can_be_replayed_is_refused_in_one_line(
    what: str, has_checks: bool, same_session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "operations").mkdir()
    columns: dict[str, Any] = {"keys": []} if what == "no operation with keys" else {"ended_at": None, "outcome": None}
    if what != "no file":
        report.write(tmp_path, "operations", "x", [] if what == "no row" else [report.operation(0, **columns)])
    if has_checks:
        report.write(tmp_path, "checks", "x", [report.check(1)])

    assert main(["simulate", str(tmp_path), "--out", str(tmp_path / "out")]) == 1

    said = capsys.readouterr().err
    assert said == f"cannot simulate {tmp_path}: it has no operation with a start, an end and keys\n"


def test_a_wheel_whose_name_looks_like_a_number_is_replayed(same_session: SparkSession, tmp_path: Path) -> None:
    names = same_session.range(40_000).selectExpr("concat('run-', id) AS run", "hex(xxhash64(run, 'p', 0L)) AS unit")
    found = names.where("unit RLIKE '^[0-9]+E[0-9]+$'").head()
    assert found is not None
    write(tmp_path / "journal", {found.run: run_of_a_server(4, count=20)})

    assert main(["simulate", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]) == 0

    [row] = pq.read_table(tmp_path / "out" / "settings").to_pylist()
    assert (row["operations"], row["different"]) == (20, 0)


def test_the_name_of_a_folder_is_no_pattern_and_counts_from_here(
    same_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a{1,2}", {"a": run_of_a_server(5, count=20)})
    monkeypatch.chdir(tmp_path)  # Java and its workers are elsewhere

    assert main(["simulate", "a{1,2}", "--out", "b[odd]*"]) == 0

    [row] = pq.read_table(tmp_path / "b[odd]*" / "settings").to_pylist()
    assert row["operations"] == 20


@pytest.mark.parametrize(
    ("option", "complaint"), [("--tick=0", "not positive"), ("--tick=a,b", "list of numbers"), ("--wheel-size=1", "at least 2")]
)
def test_a_setting_out_of_its_bounds_is_refused(option: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", "journal", "--out", "out", option])

    assert complaint in capsys.readouterr().err


def trial(tick: float, late: float, *, callbacks: int = 100, different: int = 0) -> Trial:
    lateness = Counter({round(late / tick * 100): 30})
    return Trial(
        Setting(tick, 512, None),
        Replay(1000, callbacks, moves=50, expired=30, late_max=late, lateness=lateness, different=different),
    )


def test_recommended_is_what_does_least_of_those_that_are_precise_enough() -> None:
    trials = [trial(0.001, 0.001, callbacks=400), trial(0.01, 0.009, callbacks=90), trial(0.1, 0.09, callbacks=9)]

    said = recommendation(trials, 0.01)

    assert "Recommended: tick 0.01 s, wheel size 512. Of the 2 settings that let 99 % expire within 10 ms" in said
    assert "0.090 callbacks and 0.050 moves for each operation, against 0.450 of both with tick 0.001 s" in said


def test_if_nothing_is_precise_enough_or_the_replay_ends_otherwise_it_says_so() -> None:
    said = recommendation([trial(0.1, 0.09, different=7), trial(0.2, 0.19)], 0.01)

    assert "ends otherwise for 7 of 1,000 operations" in said
    assert "nearest is tick 0.1 s, wheel size 512, with 90.00 ms" in said


def test_what_was_seen_of_several_wheels_is_added_up_but_of_maxima_the_greatest_counts() -> None:
    first = Replay(
        10, 3, moves=2, largest_bucket=5, largest_burst=1, expired=3, late_max=0.004, lateness=Counter({1: 2, 40: 1})
    )
    second = Replay(20, 4, moves=1, largest_bucket=2, largest_burst=7, expired=1, late_max=0.009, lateness=Counter({90: 1}))

    both = Trial.of(Setting(0.01, 20, 1.0), [first, second])

    assert (both.seen.operations, both.seen.callbacks, both.seen.moves, both.seen.expired) == (30, 7, 3, 4)
    assert (both.seen.largest_bucket, both.seen.largest_burst, both.seen.late_max) == (5, 7, 0.009)
    assert (both.late(0.5), both.late(0.75), both.late(0.99)) == pytest.approx((0.0001, 0.004, 0.009))
    named = dict(zip([column.split()[0] for column in Trial.columns().split(", ")], both.row(), strict=True))
    assert (named["timeout"], named["largest_burst"], named["late_p99"]) == (1.0, 7, pytest.approx(0.009))
