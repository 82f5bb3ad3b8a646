"""Ctrl-C: one line and the exit status 130, whenever it comes, and nothing is left running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from requirements import unavailable
from test_report import operation, write

from purgatory.pipeline import _command_line
from purgatory.pipeline._command_line import main
from purgatory.pipeline._session import SparkUnavailable, check_java

PATIENCE = 100.0
MOMENTS = ("pyspark", "pyarrow.lib", "purgatory.pipeline.synth")
"""Modules whose import has just ended."""


@contextmanager
def started(*arguments: str, python: tuple[str, ...] = ()) -> "Iterator[subprocess.Popen[str]]":
    """A program in a process group of its own, as a terminal starts it. At the end nothing of it is left."""
    command = [sys.executable, *python, "-m", "purgatory.pipeline", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
            deadline = time.monotonic() + PATIENCE
            process.wait(PATIENCE)
            while left := processes(process.pid):
                assert time.monotonic() < deadline, left
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def processes(session: int) -> str:
    """The commands that run in a session."""
    return subprocess.run(["ps", "-s", str(session), "-o", "args="], capture_output=True, text=True, check=False).stdout


def arguments(program: str, folder: Path) -> list[str]:
    for name in ("operations", "signals"):
        (folder / name).mkdir(exist_ok=True)
    return {
        "compact": ["compact", f"{folder}"],
        "report": ["report", f"{folder}", "--out", f"{folder}/out", "--master", "local[1]"],
        "simulate": ["simulate", f"{folder}", "--out", f"{folder}/out", "--master", "local[1]"],
        "stream": [
            *("stream", "--operations", f"{folder}/operations", "--signals", f"{folder}/signals", "--format", "json"),
            *("--out", f"{folder}/out", "--checkpoint", f"{folder}/checkpoint", "--master", "local[1]"),
        ],
        "synth": ["synth", "--operations", "1000", "--out", f"{folder}/synth", "--master", "local[1]"],
    }[program]


@pytest.mark.parametrize("module", MOMENTS)
def test_ctrl_c_during_the_imports_ends_it_with_one_line(module: str, tmp_path: Path) -> None:
    with started(*arguments("compact", tmp_path), python=("-X", "importtime")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == module:
                os.killpg(process.pid, signal.SIGINT)
                break
        said = [line for line in process.stderr if not line.startswith("import time:")]

    assert (process.returncode, said) == (130, ["interrupted\n"])


@pytest.mark.parametrize(("program", "seconds"), [("synth", 0.0), ("simulate", 1.0), ("stream", 2.0)])
def test_ctrl_c_while_spark_starts_ends_it_with_one_line(program: str, seconds: float, tmp_path: Path) -> None:
    try:
        check_java()
    except SparkUnavailable as error:
        unavailable(str(error))
    write(tmp_path, "operations", "x", [operation(0)])
    with started(*arguments(program, tmp_path)) as process:
        while process.poll() is None and "java" not in processes(process.pid):
            time.sleep(0.02)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[1]

    assert (process.returncode, said) == (130, "interrupted\n")


@pytest.mark.parametrize("over_it", [None, Py4JNetworkError("Answer from Java side is empty"), AttributeError("no _jsc")])
def test_what_ctrl_c_breaks_on_its_way_out_is_not_told(
    over_it: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            if over_it is not None:
                try:
                    raise OSError("the connection is gone")
                finally:
                    raise over_it

    monkeypatch.setattr(_command_line, "run_program", interrupted)

    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_that_nobody_expected_is_told_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command_line, "run_program", lambda *_: dict[str, int]()["x"])

    with pytest.raises(KeyError):
        main([])


def test_without_pyspark_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import purgatory.pipeline"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert run.returncode == 1
    assert "purgatory.pipeline runs on Spark: pip install 'asyncio-purgatory[spark]'" in run.stderr.splitlines()[-1]
