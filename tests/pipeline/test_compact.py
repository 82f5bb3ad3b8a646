"""Compaction: the same rows in fewer files, after a kill at any step, and beside reports."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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

from purgatory.pipeline import _rows, _snapshot
from purgatory.pipeline import compact as program
from purgatory.pipeline._command_line import main
from purgatory.pipeline.compact import compact

DAY = 86_400
NOON = time.time() // DAY * DAY - 10.5 * DAY
"""Of a day."""
CHECKS = [check(second, part=part) for second in range(4) for part in range(2)]


def small_files(journal: Path, count: int = 4, at: float = NOON) -> list[dict[str, Any]]:
    rows = random_operations(random.Random(11), count * 5)
    for number in range(count):
        write(journal, "operations", f"run-{number}", rows[number * 5 :][:5], at + number)
        write(journal, "checks", f"run-{number}", CHECKS[number * 2 :][:2], at + number)
    return rows


def compact_journal(journal: Path, older_than: float = 3600) -> dict[str, tuple[int, int]]:
    """The merged and the made files of each folder; none of them is damaged."""
    found = {kind: compact(journal / kind, kind, older_than) for kind in ("operations", "checks")}
    assert not any(damaged for _, _, damaged in found.values())
    return {kind: counts[:2] for kind, counts in found.items()}


def assert_reported(journal: Path, rows: list[dict[str, Any]], out: Path) -> int:
    """Reports on a journal, and returns how many rows it has twice."""
    report(journal, out)
    assert_tables_equal(tables(out), rows, CHECKS)
    counts = account(table(out, "reconciliation"))
    return counts["operations", "duplicates dropped"] + counts["checks", "duplicates dropped"]


def test_files_of_a_day_become_one(tmp_path):
    journal = tmp_path / "journal"
    rows = small_files(journal)
    write(journal, "operations", "late", [], NOON + 2 * DAY)
    for number in (2, 3):
        (journal / "operations" / f"run-{number}.parquet").chmod(0o600)

    assert compact_journal(journal) == {"operations": (4, 1), "checks": (4, 1)}

    [file] = (journal / "operations").glob("compacted-*")
    assert file.stat().st_mtime == NOON + 3 and file.stat().st_mode & 0o777 == 0o600
    assert len([*(journal / "operations").iterdir()]) == 2
    assert assert_reported(journal, rows, tmp_path / "out") == 0
    assert compact_journal(journal) == {"operations": (0, 0), "checks": (0, 0)}


def test_young_files_stay_and_join_later(tmp_path):
    noon = time.time() - time.time() % DAY + DAY / 2  # all files are of one day
    small_files(tmp_path, at=noon)
    age = time.time() - noon

    assert compact_journal(tmp_path, age - 2.5)["operations"] == (3, 1)
    assert len([*(tmp_path / "operations").iterdir()]) == 2
    assert compact_journal(tmp_path, age - DAY)["operations"] == (2, 1)


@pytest.mark.parametrize("batch", [_rows.BATCH_BYTES, 20_000])
def test_damaged_file_is_left_alone_and_reported(batch, tmp_path, monkeypatch, capsys):
    small_files(tmp_path)
    bad = write(tmp_path, "operations", "\x1b[2J", random_operations(random.Random(2), 3000))
    damage(bad, "zeroed")
    os.utime(bad, (NOON, NOON))
    monkeypatch.setattr(_rows, "BATCH_BYTES", batch)

    assert main(["compact", str(tmp_path)]) == 3

    said = capsys.readouterr().out
    assert "operations: merged files: 4 became 1\n" in said and "\x1b" not in said
    assert "\\x1b[2J.parquet: cannot be read as Parquet" in said
    assert len([*(tmp_path / "operations").iterdir()]) == 2 and bad.exists()
    assert main(["compact", str(tmp_path)]) == 3
    assert len([*(tmp_path / "operations").iterdir()]) == 2


def test_partial_file_of_a_kill_is_deleted(tmp_path, monkeypatch):
    write(tmp_path, "checks", ".compacted-x", [])
    write(tmp_path, "operations", ".compacted-x", [])
    compact_journal(tmp_path)  # another one may be writing it
    assert (tmp_path / "operations" / ".compacted-x.parquet").exists()

    later = time.time() + 2 * DAY
    monkeypatch.setattr(program.time, "time", lambda: later)
    compact_journal(tmp_path)

    assert [*tmp_path.glob("*/.compacted*")] == []


class Killed(BaseException):
    """Ends a compaction as a kill would: nothing runs after it."""


@contextmanager
def killed_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets so many changes of the file system happen, and no more."""
    left = [steps]

    def dying(function: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **options)

        return step

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink"):
            patched.setattr(program.Path, name, dying(getattr(Path, name)))
        patched.setattr(program, "_sync", dying(program._sync))
        yield


def test_kill_at_any_step_loses_nothing(tmp_path, monkeypatch):
    kills = 0
    for steps in range(100):
        journal = tmp_path / f"{steps}"
        rows = small_files(journal)
        is_killed = True
        with killed_after(steps, monkeypatch), suppress(Killed):
            compact_journal(journal)
            is_killed = False
        assert_reported(journal, rows, tmp_path / "out")
        compact_journal(journal)
        assert_reported(journal, rows, tmp_path / "out")
        assert [len([*(journal / kind).glob("*")]) for kind in ("operations", "checks")] == [1, 1]
        kills += is_killed
        if not is_killed:
            break
    assert kills == 14


def test_report_during_compaction_reads_rows_once(tmp_path, monkeypatch):
    """Before a listing or a file that is read, a compaction gets so far."""
    rows_of, listed = _rows.rows_of, _snapshot.Snapshot._listed
    for moment in range(6):
        for progress in (1, 2, 3, 4, 9, 100):
            journal = tmp_path / f"{moment}-{progress}"
            rows = small_files(journal)
            calls = iter(range(1000))

            def beside(function: Any) -> Any:
                def step(*arguments: Any) -> Any:
                    if next(calls) == moment:
                        with killed_after(progress, monkeypatch), suppress(Killed):
                            compact_journal(journal)
                    return function(*arguments)

                return step

            with monkeypatch.context() as patched:
                patched.setattr(_rows, "rows_of", beside(rows_of))
                patched.setattr(_snapshot.Snapshot, "_listed", beside(listed))
                assert_reported(journal, rows, tmp_path / "out")


def test_second_compaction_leaves_files_of_the_first(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    rows = small_files(journal)
    write_ = program._write

    def overtaken(*arguments: Any) -> dict[str, str]:
        monkeypatch.setattr(program, "_write", write_)
        compact_journal(journal)
        return write_(*arguments)

    monkeypatch.setattr(program, "_write", overtaken)

    assert compact_journal(journal)["operations"] == (0, 0)
    assert assert_reported(journal, rows, tmp_path / "out") == 0


def test_directory_without_journal_is_refused(tmp_path, capsys):
    assert main(["compact", str(tmp_path)]) == 1
    assert (
        capsys.readouterr().err
        == f"cannot compact {str(tmp_path)!r}: it has no folder 'operations'\n"
    )
    assert [*tmp_path.iterdir()] == []
