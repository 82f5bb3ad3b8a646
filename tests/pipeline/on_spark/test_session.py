"""Programs that start Spark by themselves: what they print."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from journals import operation, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Program = Callable[..., subprocess.CompletedProcess[str]]


def test_nothing_of_what_spark_and_its_workers_say_comes_to_the_terminal_unless_it_is_asked_for(
    program: Program, tmp_path: Path
) -> None:
    write(tmp_path / "journal", "operations", "x", [operation(0)])
    out = ("--out", tmp_path / "out", "--master", "local[1]")
    report = ("-m", "purgatory.pipeline", "report", tmp_path / "journal", *out)

    quiet, verbose = program(*report, timeout=600), program(*report, "--verbose", timeout=600)

    assert quiet.stderr == ""
    assert not [line for line in quiet.stdout.splitlines() if "WARN" in line or "INFO" in line]
    assert "log4j" in verbose.stderr
    assert [line.split(maxsplit=2)[2] for line in verbose.stdout.splitlines()[:3]] == [
        "starting", "reading", "judged operations",
    ]  # fmt: skip


def test_a_spark_that_cannot_be_started_is_reported_in_one_line(program: Program, tmp_path: Path) -> None:
    synth = ("-m", "purgatory.pipeline", "synth", "--operations", 100, "--out", tmp_path / "journal")
    failed = program(*synth, "--master", "nonsense", status=1, timeout=600)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith("cannot start Spark on nonsense: ") and "Master must either be yarn or start with" in line
