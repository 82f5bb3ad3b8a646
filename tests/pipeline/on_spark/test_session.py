"""The output of programs that start Spark by themselves."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from java import JAVA_FOR_TESTS
from journals import operation, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
Program = Callable[..., subprocess.CompletedProcess[str]]


def test_spark_output_reaches_terminal_only_on_request(program: Program, tmp_path: Path) -> None:
    write(tmp_path / "journal", "operations", "x", [operation(0)])
    out = ("--out", tmp_path / "out", "--master", "local[1]")
    environment = {**os.environ, **JAVA_FOR_TESTS}
    report = ("-m", "purgatory.pipeline", "report", tmp_path / "journal", *out)

    quiet = program(*report, env=environment, timeout=600)
    verbose = program(*report, "--verbose", env=environment, timeout=600)

    assert quiet.stderr == ""
    assert not [line for line in quiet.stdout.splitlines() if "WARN" in line or "INFO" in line]
    assert "log4j" in verbose.stderr
    assert [line.split(maxsplit=2)[2] for line in verbose.stdout.splitlines()[:3]] == [
        "starting", "reading", "tables",
    ]  # fmt: skip


def test_failed_spark_start_is_reported_in_one_line(program: Program, tmp_path: Path) -> None:
    write(tmp_path / "journal", "operations", "x", [operation(0)])
    report = ("-m", "purgatory.pipeline", "report", tmp_path / "journal", "--out", tmp_path / "out")
    failed = program(*report, "--master", "nonsense", status=1, timeout=600)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert (
        line.startswith("cannot start Spark on nonsense: ")
        and "Master must either be yarn or start with" in line
    )
