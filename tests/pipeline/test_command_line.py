"""The command line: each program names the extra that it lacks, and needs no more; Ctrl-C is one
line, and the exit status 130."""

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
def test_missing_package_error_names_its_extra(program_name, missing, extra, program):
    code = WITHOUT.format(missing=[missing], arguments=[program_name, "--help"])

    failed = program("-c", code, status=1)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith(f"cannot run {program_name!r}: {missing} is not installed; ")
    assert f"pip install '.[{extra}]'" in line


def test_a_report_needs_neither_spark_nor_java(program, tmp_path):
    (tmp_path / "journal" / "operations").mkdir(parents=True)
    arguments = ["report", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]

    made = program("-c", WITHOUT.format(missing=SPARK, arguments=arguments))
    assert "There is nothing to report on" in made.stdout

    refused = program(
        "-c",
        WITHOUT.format(missing=SPARK, arguments=[*arguments, "--master", "local[2]"]),
        status=1,
    )
    assert (
        refused.stderr.startswith("cannot run 'report' on Spark: ")
        and "'.[spark]'" in refused.stderr
    )


def test_the_help_needs_nothing(program):
    said = program(
        "-c",
        WITHOUT.format(
            missing=("duckdb", "pyarrow", "rich", "plotly", *SPARK), arguments=["--help"]
        ),
    ).stdout

    assert all(name in said for name in ("compact", "report", "stream", "synth"))


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


def test_unexpected_error_is_reported_with_traceback(monkeypatch):
    monkeypatch.setattr(_command_line, "_parser", lambda *_: dict[str, int]()["x"])

    with pytest.raises(KeyError):
        main([])
