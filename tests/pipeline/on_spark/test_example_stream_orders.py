"""The example of the stream: it prints the output in its docstring."""

import runpy
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "stream_orders.py"


def test_it_prints_what_its_docstring_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")  # in which collected instants are shown
    example = runpy.run_path(str(EXAMPLE))
    shown = example["__doc__"].partition("    after the first")

    example["show"](spark)

    expected = dedent((shown[1] + shown[2]).partition("\n\n")[0])
    assert capsys.readouterr().out.strip() == expected.strip()
