"""Journals with a hostile writer in their folders: nothing outside them is changed."""

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import check, operation, random_operations, write

from purgatory.journal import OPERATIONS
from purgatory.pipeline import _session
from purgatory.pipeline import compact as program
from purgatory.pipeline._command_line import main
from purgatory.pipeline._files import REPLACES, Local, replaced_by, run_counters
from purgatory.pipeline._programs import SparkUnavailable, without_secrets
from purgatory.pipeline.compact import compact

OLD = 1_700_000_000.0
NOW = OLD + 10_000


def old_files(journal: Path, count: int = 2, mode: int = 0o644) -> list[Path]:
    files = []
    for number in range(count):
        file = write(
            journal, "operations", f"run-{number}", random_operations(random.Random(number), 3)
        )
        file.chmod(mode)
        os.utime(file, (OLD, OLD))
        files.append(file)
    return files


def compacted_file(journal: Path, replaces: Any) -> Path:
    """A file whose footer names others, as any writer of the folder can make it."""
    file = journal / "operations" / "compacted-1.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = replaces if isinstance(replaces, str) else json.dumps(replaces)
    pq.write_table(OPERATIONS.with_metadata({REPLACES: text.encode()}).empty_table(), file)
    os.utime(file, (OLD, OLD))
    return file


@pytest.mark.parametrize(
    "name_of",
    [
        lambda precious: f"../../{precious.name}",
        str,
        lambda precious: f"../operations/../../{precious.name}",
        lambda precious: f"..\\..\\{precious.name}",
    ],
)
def test_footer_with_a_path_deletes_nothing(
    tmp_path: Path, name_of: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_text("mine")
    old_files(tmp_path / "journal")
    file = compacted_file(tmp_path / "journal", ["run-0.parquet", name_of(precious)])

    assert main(["compact", str(tmp_path / "journal")]) == 3

    assert precious.read_text() == "mine"
    assert f"left alone: {file}: cannot be read as Parquet: {REPLACES.decode()} must list" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "replaces", ["{}", "[1]", "[[]]", '"run-0.parquet"', "[" * 100_000, "nonsense", '["\\u0000"]']
)
def test_footer_without_names_leaves_all_files(tmp_path: Path, replaces: str) -> None:
    old_files(tmp_path, 1)
    file = compacted_file(tmp_path, replaces)

    assert list(compact(str(tmp_path), 3600, now=NOW)["operations"].damaged) == [str(file)]
    assert len([*(tmp_path / "operations").iterdir()]) == 2


def test_lock_that_is_a_link_keeps_its_target(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    old_files(tmp_path / "journal")
    (tmp_path / "journal" / program.LOCK).symlink_to(precious)

    with pytest.raises(OSError, match=r"expected a regular file, got something else: .*compacting"):
        compact(str(tmp_path / "journal"), 3600, now=NOW)

    assert precious.read_text() == "mine"


def test_lock_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    old_files(tmp_path)
    os.mkfifo(tmp_path / program.LOCK)

    with pytest.raises(OSError, match="expected a regular file, got something else"):
        compact(str(tmp_path), 3600, now=NOW)


def test_lock_with_content_is_not_truncated(tmp_path: Path) -> None:
    old_files(tmp_path)
    (tmp_path / program.LOCK).write_text("mine")

    compact(str(tmp_path), 3600, now=NOW)

    assert (tmp_path / program.LOCK).read_text() == "mine"


@pytest.mark.parametrize("is_there_at_once", [True, False])
def test_link_at_the_new_file_is_not_followed(
    tmp_path: Path, is_there_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, journal = tmp_path / "precious", tmp_path / "journal"
    precious.write_text("mine")
    names = [path.name for path in old_files(journal)]
    name = f".compacted-{program.sha256(chr(0).join(names).encode()).hexdigest()[:16]}"
    link = journal / "operations" / f"{name}.parquet.partial"
    delete = program.Folder.delete

    def plant(folder: program.Folder, names: Any) -> int:
        count = delete(folder, names)
        if not link.is_symlink():
            link.symlink_to(precious)
        return count

    if is_there_at_once:
        link.symlink_to(precious)
        assert compact(str(journal), 3600, now=NOW)["operations"].made == 1
    else:
        monkeypatch.setattr(program.Folder, "delete", plant)
        with pytest.raises(FileExistsError):
            compact(str(journal), 3600, now=NOW)
        assert len([*(journal / "operations").glob("run-*")]) == 2
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("folder", ["operations", "runs"])
def test_folder_that_is_a_link_is_refused(tmp_path: Path, folder: str) -> None:
    other, journal = tmp_path / "other", tmp_path / "journal"
    old_files(other)
    old_files(journal)
    if folder == "operations":
        (journal / folder).rename(tmp_path / "away")
    (journal / folder).symlink_to(other / "operations")

    with pytest.raises(OSError, match="expected a folder, got something else"):
        compact(str(journal), 3600, keep=3600, now=NOW)

    assert len([*(other / "operations").iterdir()]) == 2


def replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name("away"))
    path.symlink_to(target)


def run_before(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Has `action` run before the first call of a function of the program."""
    function, pending = getattr(program, name), [action]

    def after_action(*given: Any) -> Any:
        if pending:
            pending.pop()()
        return function(*given)

    monkeypatch.setattr(program, name, after_action)


def test_folder_swapped_for_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, journal = tmp_path / "other", tmp_path / "journal"
    old_files(other)
    old_files(journal)
    swap = partial(replace_by_link, journal / "operations", other / "operations")
    run_before(monkeypatch, "_groups", swap)
    compact(str(journal), 3600, now=NOW)

    assert sorted(path.name for path in (other / "operations").iterdir()) == [
        "run-0.parquet",
        "run-1.parquet",
    ]


def swap_folder(journal: Path, outside: Path) -> None:
    replace_by_link(journal / "operations", outside.parent)


def swap_by_rename(journal: Path, outside: Path) -> None:
    outside.rename(journal / "operations" / outside.name)


def swap_for_link(journal: Path, outside: Path) -> None:
    (journal / "operations" / outside.name).unlink()
    (journal / "operations" / outside.name).symlink_to(outside)


def swap_for_pipe(journal: Path, outside: Path) -> None:
    (journal / "operations" / outside.name).unlink()
    os.mkfifo(journal / "operations" / outside.name)


@pytest.mark.parametrize("swap", [swap_folder, swap_by_rename, swap_for_link, swap_for_pipe])
@pytest.mark.parametrize("is_large", [False, True])
def test_file_swapped_after_listing_is_not_merged(
    tmp_path: Path,
    swap: Callable[[Path, Path], None],
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = tmp_path / "journal"
    old_files(journal, 3)
    outside = write(tmp_path / "other", "operations", "run-1", [operation(1, kind="secret")])
    os.utime(outside, (OLD, OLD))
    groups = program._groups

    def listed_then_swapped(*given: Any) -> Any:
        found = [*groups(*given)]
        if found:
            swap(journal, outside)
        return found

    monkeypatch.setattr(program, "_groups", listed_then_swapped)
    if is_large:
        monkeypatch.setattr("purgatory.pipeline._rows.SMALL_FILE_BYTES", 0)
    result = compact(str(journal), 3600, now=NOW)["operations"]

    folder = journal / ("away" if swap is swap_folder else "operations")
    [made] = folder.glob("compacted-*")
    kinds = pq.read_table(made, columns=["kind"])["kind"].to_pylist()
    assert "secret" not in kinds and kinds
    assert result.compacted == (3 if swap is swap_folder else 2)
    assert result.damaged == {}


def test_journal_swapped_while_compacting_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, journal = tmp_path / "other", tmp_path / "journal"
    old_files(other)
    old_files(journal)
    run_before(monkeypatch, "_opened_inside", partial(replace_by_link, journal, other))
    compact(str(journal), 3600, keep=3600, now=NOW)

    assert len([*(other / "operations").iterdir()]) == 2


def test_footer_of_a_swapped_file_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, names = tmp_path / "journal", ["run-0.parquet", "run-1.parquet"]
    old_files(journal)
    compacted_file(journal, [])
    forged = compacted_file(tmp_path / "other", names)
    readable = program._readable

    def list_and_swap(folder: program.Folder) -> program.Files:
        found = readable(folder)
        if forged.exists():
            forged.rename(journal / "operations" / forged.name)
        return found

    monkeypatch.setattr(program, "_readable", list_and_swap)
    compact(str(journal), older_than=1e9, now=NOW)

    assert {*names} < {path.name for path in (journal / "operations").iterdir()}


def test_compacted_files_of_another_group_stay_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_files(tmp_path, mode=0o664)
    files = program.Folder.files

    def of_another_group(folder: program.Folder) -> program.Files:
        found = files(folder)
        for name in filter("run-0.parquet".__eq__, found):
            fields = [*found[name]]
            fields[5] += 1
            found[name] = os.stat_result(fields, {"st_mtime_ns": found[name].st_mtime_ns})
        return found

    monkeypatch.setattr(program.Folder, "files", of_another_group)
    compact(str(tmp_path), 3600, now=NOW)

    [file] = (tmp_path / "operations").glob("compacted-*")
    assert file.stat().st_mode & 0o777 == 0o604


def test_files_that_are_links_or_pipes_stay(tmp_path: Path) -> None:
    outside = old_files(tmp_path / "other", 1)[0]
    folder = old_files(tmp_path / "journal")[0].parent
    (folder / "link.parquet").symlink_to(outside)
    os.mkfifo(folder / "pipe.parquet")

    result = compact(str(tmp_path / "journal"), 3600, keep=9000, now=NOW)["operations"]

    assert (result.deleted, result.compacted, result.damaged) == (2, 0, {})
    assert outside.exists()
    assert sorted(path.name for path in folder.iterdir()) == ["link.parquet", "pipe.parquet"]


def test_compacted_file_keeps_permissions_of_its_sources(tmp_path: Path) -> None:
    old_files(tmp_path, mode=0o640)[1].chmod(0o604)

    compact(str(tmp_path), 3600, now=NOW)

    [file] = (tmp_path / "operations").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


ESCAPES = "\x1b]0;owned\x07\x1b[2J\n[/x][link=https://evil.example]\ud7ff\u202e"


def test_report_prints_names_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        operation(number, purgatory=ESCAPES, kind=ESCAPES, keys=[ESCAPES], missed_trigger=True)
        for number in range(3)
    ]
    write(tmp_path / "journal", "operations", "x", rows)
    write(tmp_path / "journal", "checks", "x", [check(1, purgatory=ESCAPES, key=ESCAPES)])
    foreign = pa.table({"run_id": [ESCAPES]})
    pq.write_table(foreign, tmp_path / "journal" / "operations" / "\x1b[2J.parquet")

    assert main(["report", str(tmp_path / "journal"), "--out", str(tmp_path)]) == 3

    printed = capsys.readouterr().out
    assert not {*printed} & {*"\x1b\x07\u202e"}
    assert "[/x]" in printed and "\\x1b[2J.parquet: has no column" in printed
    assert all(line[:2] == "- " for line in printed.splitlines() if "hottest" in line)


def test_compact_prints_names_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old_files(tmp_path)
    file = tmp_path / "operations" / "\x1b[2J.parquet"
    pq.write_table(pa.table({"run_id": pa.array([1], pa.timestamp("us", "\x1b[3J"))}), file)
    os.utime(file, (OLD, OLD))

    assert main(["compact", str(tmp_path)]) == 3

    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\\x1b[2J.parquet: " in printed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot use --master sc://h:15002/;token=abc;use_ssl=true", "sc://h:15002/;token=***;"),
        ("cannot read 'ftp://user:p@ss/w@host/journal' as", "'ftp://user:***@host/journal' as"),
        ("abfss://container@account/journal", "abfss://container@account/journal"),
        ("http://host:9000/a", "http://host:9000/a"),
        ("x?sig=abc&se=1", "x?sig=***&se=1"),
    ],
)
def test_secrets_of_addresses_are_replaced(text: str, expected: str) -> None:
    assert expected in without_secrets(text)
    assert "abc" not in without_secrets(text)


@pytest.mark.parametrize("extra", [[], ["--verbose"]])
def test_errors_name_no_secret(
    tmp_path: Path,
    extra: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old_files(tmp_path)

    def refuse(_: str, master: str, *__: Any, **___: Any) -> None:
        raise SparkUnavailable(f"cannot start Spark on {master}, to write to {out}")

    monkeypatch.setattr(_session, "spark_session", refuse)
    address, out = "sc://localhost/;token=hunter2", "ftp://me:hunter2@localhost/out"

    assert main(["report", str(tmp_path), "--out", out, "--master", address, *extra]) == 1

    printed = capsys.readouterr().err
    assert "hunter2" not in printed and "token=***" in printed and "me:***@localhost" in printed


def test_sparse_run_counter_is_not_read(tmp_path: Path) -> None:
    old_files(tmp_path, 1)
    (tmp_path / "runs").mkdir()
    with (tmp_path / "runs" / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 33)
    contents = ["9" * 20, "1_0", "٣", "-1", "", "0" * 21, "7\n", f"{8:020}\n"]
    for number, content in enumerate(contents):
        (tmp_path / "runs" / str(number)).write_text(content)

    tracemalloc.start()
    assert run_counters(Local(), str(tmp_path)) == {"6": 7, "7": 8}
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_page_at_a_link_keeps_its_target(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    old_files(tmp_path / "journal", 1)
    out = tmp_path / "out"
    out.mkdir()
    for name in ("report.html", "report.html.partial"):
        (out / name).symlink_to(precious)

    assert main(["report", str(tmp_path / "journal"), "--out", str(out)]) == 0

    assert precious.read_text() == "mine"
    assert (out / "report.html").is_file() and not (out / "report.html").is_symlink()


def test_report_ignores_paths_in_a_footer(tmp_path: Path) -> None:
    file = compacted_file(tmp_path, ["../run.parquet"])
    assert replaced_by(str(file)) == []
    with pytest.raises(ValueError, match="must list plain names"), pa.OSFile(str(file)) as source:
        program.replaced_names(source)
