"""Journals with a hostile writer, and addresses with secrets: what is printed and written."""

import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import check, operation, write

from purgatory.pipeline import _session
from purgatory.pipeline._command_line import main
from purgatory.pipeline._files import Local
from purgatory.pipeline._programs import SparkUnavailable, without_secrets
from purgatory.pipeline._snapshot import Snapshot

ESCAPES = "\x1b]0;owned\x07\x1b[2J\n[/x][link=https://evil.example]\ud7ff\u202e"


def test_report_prints_names_escaped(tmp_path, capsys):
    rows = [
        operation(number, purgatory=ESCAPES, kind=ESCAPES, keys=[ESCAPES], missed_trigger=True)
        for number in range(3)
    ]
    write(tmp_path / "journal", "operations", "x", rows)
    write(tmp_path / "journal", "checks", "x", [check(1, purgatory=ESCAPES, key=ESCAPES)])
    foreign = pa.table({"run_id": [1]})
    pq.write_table(foreign, tmp_path / "journal" / "operations" / "\x1b[2J.parquet")

    assert main(["report", str(tmp_path / "journal"), "--out", str(tmp_path)]) == 3

    printed = capsys.readouterr().out
    assert not {*printed} & {*"\x1b\x07\u202e"}
    assert "[/x]" in printed and "\\x1b[2J.parquet: column run_id is" in printed
    assert all(line[:2] == "- " for line in printed.splitlines() if "hottest" in line)


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
def test_secrets_of_addresses_are_replaced(text, expected):
    assert expected in without_secrets(text)
    assert "abc" not in without_secrets(text)


@pytest.mark.parametrize("extra", [[], ["--verbose"]])
def test_errors_name_no_secret(tmp_path, extra, monkeypatch, capsys):
    write(tmp_path, "operations", "x", [operation(0)])

    def refuse(_: str, master: str, *__: Any, **___: Any) -> None:
        raise SparkUnavailable(f"cannot start Spark on {master}, to write to {out}")

    monkeypatch.setattr(_session, "spark_session", refuse)
    address, out = "sc://localhost/;token=hunter2", "ftp://me:hunter2@localhost/out"

    assert main(["report", str(tmp_path), "--out", out, "--master", address, *extra]) == 1

    printed = capsys.readouterr().err
    assert "hunter2" not in printed and "token=***" in printed and "me:***@localhost" in printed


def test_sparse_run_counter_is_not_read(tmp_path):
    write(tmp_path, "operations", "x", [operation(0)])
    (tmp_path / "runs").mkdir()
    with (tmp_path / "runs" / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 33)
    contents = ["9" * 20, "1_0", "٣", "-1", "", "0" * 21, "7\n", f"{8:020}\n"]
    for number, content in enumerate(contents):
        (tmp_path / "runs" / str(number)).write_text(content)

    tracemalloc.start()
    assert Snapshot.of(lambda _: Local(), [str(tmp_path)]).ended == {"6": 7, "7": 8}
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_page_at_a_link_keeps_its_target(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    write(tmp_path / "journal", "operations", "x", [operation(0)])
    out = tmp_path / "out"
    out.mkdir()
    for name in ("report.html", "report.html.partial"):
        (out / name).symlink_to(precious)

    assert main(["report", str(tmp_path / "journal"), "--out", str(out)]) == 0

    assert precious.read_text() == "mine"
    assert (out / "report.html").is_file() and not (out / "report.html").is_symlink()
