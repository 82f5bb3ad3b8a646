"""The command line: each program names the extra that it lacks, and needs no more; Ctrl-C is one
line, and the exit status 130."""

import os
import subprocess
import sys

import pytest
from py4j.protocol import Py4JNetworkError

from purgatory.pipeline import _command_line
from purgatory.pipeline._command_line import main

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))  # importing these fails from here on
from purgatory.pipeline._command_line import main
sys.exit(main({arguments!r}))
"""
SPARK = ("pyspark", "py4j", "uvicorn")


@pytest.fixture
def without(program):
    """Runs a command line where some packages are missing."""

    def run(missing, *arguments, status=0):
        return program("-c", WITHOUT.format(missing=missing, arguments=[*arguments]), status=status)

    return run


@pytest.mark.parametrize(
    ("program_name", "missing", "extra"),
    [
        ("report", "duckdb", "report"),
        ("report", "rich", "report"),
        ("report", "plotly", "report"),
        ("compact", "pyarrow", "journal"),
        ("stream", "pyspark", "spark"),
        ("synth", "duckdb", "report"),
    ],
)
def test_missing_package_error_names_its_extra(program_name, missing, extra, without):
    failed = without([missing], program_name, "--help", status=1)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith(f"cannot run {program_name!r}: {missing} is not installed; ")
    assert f"pip install '.[{extra}]'" in line


def test_a_report_needs_neither_spark_nor_java(without, tmp_path):
    (tmp_path / "journal" / "operations").mkdir(parents=True)
    arguments = ["report", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]

    assert "There is nothing to report on" in without(SPARK, *arguments).stdout

    refused = without(SPARK, *arguments, "--master", "local[2]", status=1).stderr
    assert refused.startswith("cannot run 'report' on Spark: ") and "'.[spark]'" in refused


def test_the_help_needs_nothing(without):
    said = without(("duckdb", "pyarrow", "rich", "plotly", *SPARK), "--help").stdout

    assert all(name in said for name in ("compact", "report", "stream", "synth"))


REFUSED = {
    "expected a duration such as 90s": [
        ["compact", "journal", f"--older-than={text}"]
        for text in ("", "1", "h", "-1h", "1w", "1 h", "٣h")
    ],
    "'-5' is not a whole number, zero or more": [["synth", "--operations=-5", "--out=journal"]],
    "a positive number of seconds": [
        ["stream", f"--idle={text}"] for text in ("0", "-1", "nan", "inf", "soon", "")
    ],
    "is not HOST:PORT of this machine": [
        ["stream", f"--serve={where}"]
        for where in (
            *("0.0.0.0:9109", "10.0.0.7:9109", "example.org:9109"),
            "9109",
            "127.0.0.1:",
            "127.0.0.1:65536",
        )
    ],
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_malformed_option_is_refused(complaint, capsys):
    for arguments in REFUSED[complaint]:
        with pytest.raises(SystemExit) as error:
            main(arguments)
        assert error.value.code == 2 and complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "over_it", [None, Py4JNetworkError("Answer from Java side is empty"), AttributeError("no _jsc")]
)
def test_errors_caused_by_ctrl_c_are_not_reported(over_it, monkeypatch, capsys):
    def interrupted(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            if over_it is not None:
                try:
                    raise OSError("the connection is gone")
                finally:
                    raise over_it

    monkeypatch.setattr(_command_line, "_parser", interrupted)

    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


class FromJava(Exception):
    """An exception with the text of py4j's."""

    __module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("trace", "reason"),
    [
        ("java.io.FileNotFoundException: File file:/gone does not exist.", "File file:/gone does not exist"),
        ("java.lang.NullPointerException", "java.lang.NullPointerException"),
        (
            "org.apache.spark.SparkException: Job aborted.\n\tat a.B.c(B.java:7)\n"
            "Caused by: java.io.IOException: x\nCaused by: java.io.IOException: No space left",
            "Job aborted: No space left",
        ),
        ("a.B: why\nCaused by: a.C: why", "why"),
    ],
)  # fmt: skip
def test_error_of_java_has_its_reason(trace, reason, monkeypatch, capsys):
    def failing(*_: object) -> None:
        raise FromJava(f"An error occurred while calling o120.load.\n: {trace}")

    monkeypatch.setattr(_command_line, "_parser", failing)

    assert main([]) == 1
    assert capsys.readouterr().err == f"{reason}\n"


def test_report_is_printed_in_any_encoding(tmp_path):
    (tmp_path / "journal" / "operations").mkdir(parents=True)
    arguments = ["report", str(tmp_path / "journal"), "--out", str(tmp_path / "bücher")]
    done = subprocess.run(
        [sys.executable, "-m", "purgatory.pipeline", *arguments],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"b?cher" in done.stdout


def test_unexpected_error_is_reported_with_traceback(monkeypatch):
    monkeypatch.setattr(_command_line, "_parser", lambda *_: dict[str, int]()["x"])

    with pytest.raises(KeyError):
        main([])
