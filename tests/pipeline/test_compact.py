"""Compaction: the same rows in fewer files, after all interruptions, and beside writers and
readers."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from journals import (
    account,
    assert_tables_equal,
    check,
    damage,
    random_operations,
    report,
    table,
    tables,
    write,
)

from purgatory.pipeline import _reading, _rows
from purgatory.pipeline import compact as program
from purgatory.pipeline._command_line import main
from purgatory.pipeline._reading import read_journals
from purgatory.pipeline.compact import DAY, compact, duration
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._queries import Query

NOW = 1_775_000_000.0
NOON = NOW // DAY * DAY - DAY // 2
"""Of the day before."""


def small_files(
    journal: Path, count: int = 12, rows_of_file: int = 5, at: float = NOON
) -> list[dict[str, Any]]:
    rows = random_operations(random.Random(11), count * rows_of_file)
    for number in range(count):
        some = rows[number * rows_of_file : (number + 1) * rows_of_file]
        file = write(journal, "operations", f"run-{number:06}", some)
        os.utime(file, (at + number, at + number))
        file = write(
            journal, "checks", f"run-{number:06}", [check(number), check(number, key="other")]
        )
        os.utime(file, (at + number, at + number))
    return rows


def rows_read(journal: Path) -> int:
    """How many operations a report reads, none of them twice."""
    counts = Query(
        "show",
        "counts",
        "SELECT count(*) AS rows, count(DISTINCT operation_id) AS operations FROM operations",
    )
    with DuckDB.opened() as engine:
        read_journals(engine, [str(journal)])
        [found] = engine.run(counts, "")
    assert found["rows"] == found["operations"]
    return int(found["rows"])


def test_report_is_the_same_after_compaction(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    rows = small_files(journal)
    report(journal, tmp_path / "before")

    done = compact(str(journal), 3600, now=NOW)

    assert {folder: (each.compacted, each.made) for folder, each in done.items()} == {
        "operations": (12, 1),
        "checks": (12, 1),
    }
    for folder in ("operations", "checks"):
        [file] = (journal / folder).iterdir()
        assert file.name.startswith("compacted-") and file.stat().st_mtime == NOON + 11
    report(journal, tmp_path / "after")
    assert_tables_equal(
        tables(tmp_path / "after"),
        rows,
        [check(n, key=key) for n in range(12) for key in ("key", "other")],
    )
    for name in ("outcomes", "keys", "pending", "survival", "timeouts"):
        before, after = (
            sorted(map(str, table(tmp_path / when, name))) for when in ("before", "after")
        )
        assert before == after
    assert set(pq.read_table(journal / "operations")["operation_id"].to_pylist()) == set(range(60))
    assert compact(str(journal), 3600, now=NOW)["operations"].made == 0


def test_young_files_stay_and_join_later(tmp_path: Path) -> None:
    small_files(tmp_path, at=NOW - 3605)  # of the first six the age is above an hour

    assert compact(str(tmp_path), 3600, now=NOW)["operations"].compacted == 5
    assert len([*(tmp_path / "operations").iterdir()]) == 8
    assert compact(str(tmp_path), 3600, now=NOW + 100)["operations"].compacted == 8
    assert len([*(tmp_path / "operations").iterdir()]) == 1
    assert rows_read(tmp_path) == 60


def test_old_files_are_deleted_by_day(tmp_path: Path) -> None:
    small_files(tmp_path, at=NOON)
    late = write(tmp_path, "operations", "late", random_operations(random.Random(1), 3))
    os.utime(late, (NOON + 3 * DAY, NOON + 3 * DAY))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "old").write_text("7\n")
    os.utime(tmp_path / "runs" / "old", (NOON, NOON))
    compact(str(tmp_path), 3600, now=NOW)

    assert compact(str(tmp_path), 3600, keep=DAY, now=NOON + DAY)["operations"].deleted == 0
    assert compact(str(tmp_path), 3600, keep=DAY, now=NOON + DAY + 12)["operations"].deleted == 1
    assert [path.name for path in (tmp_path / "operations").iterdir()] == ["late.parquet"]
    assert [*(tmp_path / "runs").iterdir()] == []


def test_a_damaged_file_is_left_alone_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_files(tmp_path, at=NOON - 300 * DAY)
    bad = write(tmp_path, "operations", "run-000003", random_operations(random.Random(2), 500))
    damage(bad, "zeroed")
    os.utime(bad, (NOON - 300 * DAY,) * 2)

    assert main(["compact", str(tmp_path), "--older-than", "1h"]) == 3

    said = capsys.readouterr().out
    assert (
        "operations: merged files: 11 became 1" in said
        and f"left alone: {bad}: cannot be read as Parquet" in said
    )
    assert len([*(tmp_path / "operations").iterdir()]) == 2 and bad.exists()
    assert main(["compact", str(tmp_path), "--older-than", "1h"]) == 3


def test_young_files_are_reported_as_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_files(tmp_path, at=time.time() - 60)

    assert main(["compact", str(tmp_path), "--older-than", "1h"]) == 0

    said = capsys.readouterr().out
    assert "operations: no files to merge that are older than 3,600 s\n" in said


class Killed(BaseException):
    """Ends a compaction as a kill would: nothing runs after it."""


def steps_until(death: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `death` changes of the file system happen, and no more."""
    left = [death]

    def dying(function: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **options)

        return step

    for name in ("rename", "unlink", "open", "fchmod", "utime", "fsync"):
        monkeypatch.setattr(program.os, name, dying(getattr(os, name)))
    yield


def test_kill_at_any_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = 0
    for death in range(1000):
        journal = tmp_path / f"{death}"
        small_files(journal, count=4)
        with monkeypatch.context() as patched:
            for _ in steps_until(death, patched):
                try:
                    compact(str(journal), 3600, now=NOW)
                    is_killed = False
                except Killed:
                    is_killed = True
        deaths += is_killed
        assert rows_read(journal) == 20
        compact(str(journal), 3600, now=NOW)
        assert rows_read(journal) == 20
        assert [len([*(journal / folder).iterdir()]) for folder in ("operations", "checks")] == [
            1,
            1,
        ]
        if not is_killed:
            break
    assert deaths > 15


@pytest.mark.slow
def test_repeated_kills_lose_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    small_files(journal, count=300)
    chance = random.Random(12)
    command = [sys.executable, "-m", "purgatory.pipeline", "compact", str(journal)]
    code = (
        "import sys; from purgatory.pipeline import compact; print('ready', flush=True); "
        "sys.stdin.readline();"
        f"compact.compact({str(journal)!r}, 3600, now={NOW})"
    )
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as killed:
            assert killed.stdin is not None and killed.stdout is not None
            killed.stdout.readline()
            killed.stdin.write(b"\n")
            killed.stdin.flush()
            time.sleep(chance.uniform(0, 0.3))
            killed.send_signal(signal.SIGKILL)
        assert rows_read(journal) == 1500
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    assert run.stderr == ""
    assert rows_read(journal) == 1500


def test_report_during_compaction_reads_rows_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each listing and each file that is read, a compaction gets so far."""
    rows_of, list_files = _rows.rows_of, _reading.list_files
    for moment in range(6):
        for progress in (4, 6, 7, 8, 9, 10, 1000):
            journal = tmp_path / f"{moment}-{progress}"
            small_files(journal, count=4)
            calls = iter(range(1000))

            def beside(function: Any) -> Any:
                def step(*arguments: Any) -> Any:
                    if next(calls) == moment:
                        with monkeypatch.context() as patched:
                            for _ in steps_until(progress, patched):
                                with suppress(Killed):
                                    compact(str(journal), 3600, now=NOW)
                    return function(*arguments)

                return step

            with monkeypatch.context() as patched:
                patched.setattr(_rows, "rows_of", beside(rows_of))
                patched.setattr(_reading, "list_files", beside(list_files))
                assert rows_read(journal) == 20, (moment, progress)


def test_overtaken_listing_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files(tmp_path, count=4)
    list_files = _reading.list_files

    def overtaken(*where: Any) -> tuple[dict[str, int], list[str]]:
        """Has seen neither a file that is deleted already nor its replacement."""
        monkeypatch.setattr(_reading, "list_files", list_files)
        found, others = list_files(*where)
        delete = program.Folder.delete
        monkeypatch.setattr(
            program.Folder, "delete", lambda folder, names: delete(folder, [*names][:1])
        )
        compact(str(tmp_path), 3600, now=NOW)
        return dict([*found.items()][1:]), others

    monkeypatch.setattr(_reading, "list_files", overtaken)

    assert rows_read(tmp_path) == 20


def test_two_compactions_do_not_run_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_files(tmp_path)
    with program._exclusively(tmp_path):
        assert main(["compact", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"cannot compact {str(tmp_path)!r}: another compaction of it is running\n"
    )
    assert main(["compact", str(tmp_path)]) == 0


def test_replaced_file_is_counted_but_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    rows = small_files(journal)
    with monkeypatch.context() as patched:
        patched.setattr(program.Folder, "delete", lambda *_: 0)
        compact(str(journal), 3600, now=NOW)
    assert len([*(journal / "operations").iterdir()]) == 13

    report(journal, out)

    counts = account(table(out, "reconciliation"))
    assert (counts["operations", "files"], counts["operations", "files compacted"]) == (1, 12)
    assert counts["operations", "rows read"] == len(rows)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1.5h", 5400), ("30d", 30 * DAY)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w", "1 h", "٣h"])
def test_what_is_no_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["compact", "journal", f"--older-than={text}"])
    assert error.value.code == 2 and "expected a duration such as 90s" in capsys.readouterr().err


def test_a_directory_without_a_journal_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"cannot compact {str(tmp_path)!r}: it has no folder 'operations'\n"
    )
    assert [*tmp_path.iterdir()] == []
