"""The program `simulate`: a replay in Spark's tasks equals one in this process."""

from pathlib import Path
from typing import Any

import journals as report
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from runs import run_of_a_server, write

from purgatory.pipeline._command_line import main
from purgatory.pipeline.simulate._replay import Setting, replay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_run_divided_by_key_replays_and_reports_splits(
    programs_on_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of_a_server(3)
    write(tmp_path / "journal", {"a": run})

    assert (
        main(
            ["simulate", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--shards", "2"]
        )
        == 0
    )

    [row] = pq.read_table(tmp_path / "out" / "settings").to_pylist()
    assert (row["operations"], row["different"]) == (300, 0)
    assert row["expired"] == replay(iter(run), Setting(0.001, 512, None)).expired
    said = capsys.readouterr().out
    assert "replaying 2 wheels with 1 settings" in said
    [apart] = [
        int(line.split()[0]) for line in said.splitlines() if "have keys in other shards" in line
    ]
    assert 0 < apart < sum(len(each.keys) == 2 for each in run)


def test_a_journal_that_is_not_there_is_refused(
    programs_on_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1

    assert f"cannot read '{tmp_path / 'none'}' as a journal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "has_checks"),
    [
        ("no file", True),
        ("no row", False),
        ("no operation that has ended", True),
        ("no operation with keys", False),
    ],
)
def test_journal_without_replayable_runs_is_refused(
    what: str,
    has_checks: bool,
    programs_on_spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "operations").mkdir()
    columns: dict[str, Any] = (
        {"keys": []} if what == "no operation with keys" else {"ended_at": None, "outcome": None}
    )
    if what != "no file":
        report.write(
            tmp_path,
            "operations",
            "x",
            [] if what == "no row" else [report.operation(0, **columns)],
        )
    if has_checks:
        report.write(tmp_path, "checks", "x", [report.check(1)])

    assert main(["simulate", str(tmp_path), "--out", str(tmp_path / "out")]) == 1

    said = capsys.readouterr().err
    assert (
        said == f"cannot simulate {tmp_path}: it has no operation with a start, an end and keys\n"
    )


def test_wheel_with_numeric_name_is_replayed(
    programs_on_spark: SparkSession, tmp_path: Path
) -> None:
    names = programs_on_spark.range(40_000).selectExpr(
        "concat('run-', id) AS run", "hex(xxhash64(run, 'p', 0L)) AS unit"
    )
    found = names.where("unit RLIKE '^[0-9]+E[0-9]+$'").head()
    assert found is not None
    write(tmp_path / "journal", {found.run: run_of_a_server(4, count=20)})

    assert main(["simulate", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]) == 0

    [row] = pq.read_table(tmp_path / "out" / "settings").to_pylist()
    assert (row["operations"], row["different"]) == (20, 0)


def test_folder_name_is_relative_and_no_pattern(
    programs_on_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a{1,2}", {"a": run_of_a_server(5, count=20)})
    monkeypatch.chdir(tmp_path)  # Java and its workers are elsewhere

    assert main(["simulate", "a{1,2}", "--out", "b[odd]*"]) == 0

    [row] = pq.read_table(tmp_path / "b[odd]*" / "settings").to_pylist()
    assert row["operations"] == 20
