"""Each program names the extra that it lacks, and needs no more than that extra."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., subprocess.CompletedProcess[str]]
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
def test_missing_package_error_names_its_extra(
    program_name: str, missing: str, extra: str, program: Program
) -> None:
    code = WITHOUT.format(missing=[missing], arguments=[program_name, "--help"])

    failed = program("-c", code, status=1)

    assert failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith(f"cannot run {program_name!r}: {missing} is not installed; ")
    assert f"pip install '.[{extra}]'" in line


def test_a_report_needs_neither_spark_nor_java(program: Program, tmp_path: Path) -> None:
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


def test_the_help_needs_nothing(program: Program) -> None:
    said = program(
        "-c",
        WITHOUT.format(
            missing=("duckdb", "pyarrow", "rich", "plotly", *SPARK), arguments=["--help"]
        ),
    ).stdout

    assert all(name in said for name in ("compact", "report", "stream", "synth"))
