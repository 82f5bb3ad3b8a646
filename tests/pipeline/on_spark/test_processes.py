"""Programs as processes: what they print, and Ctrl-C: one line and the exit status 130, whenever it
comes, and nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import streams
from journals import operation, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TIMEOUT = 600.0
"""Seconds in which a program that was interrupted has to be gone, on however busy a machine."""


@contextmanager
def started(*arguments: str, python: tuple[str, ...] = ()) -> "Iterator[subprocess.Popen[str]]":
    """A program in a process group of its own, as a terminal starts it. At the end nothing of it is
    left."""
    command = [sys.executable, *python, "-m", "purgatory.pipeline", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
            deadline = time.monotonic() + TIMEOUT
            process.wait(TIMEOUT)
            while left := processes(process.pid):
                assert time.monotonic() < deadline, left
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def processes(session: int) -> str:
    """The commands that run in a session."""
    return subprocess.run(
        ["ps", "-s", str(session), "-o", "args="], capture_output=True, text=True, check=False
    ).stdout


def arguments(program: str, folder: Path) -> list[str]:
    for name in ("operations", "signals"):
        (folder / name).mkdir(exist_ok=True)
    return {
        "compact": ["compact", f"{folder}"],
        "stream": ["stream", *streams.arguments(folder, "--format=json", "--master=local[1]")],
        "report": ["report", f"{folder}", f"--out={folder / 'report'}", "--master=local[1]"],
    }[program]


@pytest.mark.parametrize(("program", "module"), [("compact", "pyarrow.lib"), ("stream", "pyspark")])
def test_ctrl_c_during_imports_prints_one_line(program, module, tmp_path):
    with started(*arguments(program, tmp_path), python=("-X", "importtime")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                os.killpg(process.pid, signal.SIGINT)
                break
        said = [line for line in process.stderr if not line.startswith("import time:")]

    assert (process.returncode, said) == (130, ["interrupted\n"])


@pytest.mark.parametrize(("program", "seconds"), [("report", 0.0), ("stream", 2.0)])
def test_ctrl_c_while_spark_starts_prints_one_line(program, seconds, tmp_path):
    write(tmp_path, "operations", "x", [operation(0)])
    with started(*arguments(program, tmp_path)) as process:
        while process.poll() is None and "java" not in processes(process.pid):
            time.sleep(0.02)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=TIMEOUT)[1]

    assert (process.returncode, said) == (130, "interrupted\n")


def test_verbose_shows_the_output_of_spark(program, tmp_path):
    write(tmp_path, "operations", "x", [operation(0)])
    report = ("-m", "purgatory.pipeline", *arguments("report", tmp_path), "--verbose")

    said = program(*report, env={**os.environ, **streams.JAVA_FOR_TESTS}, timeout=TIMEOUT)

    assert "log4j" in said.stderr
    assert [line.split(maxsplit=2)[2] for line in said.stdout.splitlines()[:3]] == [
        "starting", "reading", "tables",
    ]  # fmt: skip


def test_failed_spark_start_is_reported_in_one_line(program, tmp_path):
    write(tmp_path, "operations", "x", [operation(0)])
    report = ("-m", "purgatory.pipeline", *arguments("report", tmp_path), "--master=nonsense")

    failed = program(*report, status=1, timeout=TIMEOUT)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith("cannot start Spark on nonsense: ")
    assert "Master must either be yarn or start with" in line
