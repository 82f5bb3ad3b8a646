"""The session: that Java is looked for before Spark needs it, and that Spark runs with this Python."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from requirements import unavailable
from test_report import operation, write

from purgatory.pipeline._session import SparkUnavailable, check_java, spark_session


def fake_java(home: Path, prints: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)


def test_the_session_counts_and_its_workers_run_this_python(spark: SparkSession) -> None:
    def version(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})

    rows = spark.range(1, numPartitions=1).mapInArrow(version, "executable string").collect()

    assert [row.executable for row in rows] == [sys.executable]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "purgatory.pipeline", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)


@pytest.fixture
def java() -> None:
    try:
        check_java()
    except SparkUnavailable as error:
        unavailable(str(error))


@pytest.mark.usefixtures("java")
def test_nothing_of_what_spark_and_its_workers_say_comes_to_the_terminal_unless_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "journal", "operations", "x", [operation(0)])
    report = ("report", f"{tmp_path}/journal", "--out", f"{tmp_path}/out", "--master", "local[1]")

    quiet, verbose = run(*report), run(*report, "--verbose")

    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert not [line for line in quiet.stdout.splitlines() if "WARN" in line or "INFO" in line]
    assert verbose.returncode == 0 and "log4j" in verbose.stderr
    assert [line.split(maxsplit=2)[2] for line in verbose.stdout.splitlines()[:3]] == [
        "starting", "reading", "looking at all rows",
    ]  # fmt: skip


@pytest.mark.usefixtures("java")
def test_a_spark_that_cannot_be_started_is_told_in_one_line(tmp_path: Path) -> None:
    failed = run("synth", "--operations", "100", "--out", f"{tmp_path}/journal", "--master", "nonsense")

    assert failed.returncode == 1 and failed.stdout == ""
    [line] = failed.stderr.splitlines()
    assert line.startswith("cannot start Spark on nonsense: ") and "Master must either be yarn or start with" in line


@pytest.mark.parametrize("prints", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19'])
def test_a_new_enough_java_is_accepted(prints: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, prints)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    check_java()


@pytest.mark.parametrize(
    ("prints", "complaint"),
    [('java version "1.8.0_392"', "is Java 8"), ('openjdk version "11.0.2"', "is Java 11"), ("hello", "does not tell")],
)
def test_an_old_java_is_refused_with_advice(
    prints: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, prints)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=complaint) as error, spark_session("x", "local[1]"):
        pass

    assert "openjdk-17" in str(error.value)


def test_a_missing_java_is_told_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"no java on the PATH.*openjdk-17"):
        check_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"does not run.*openjdk-17"):
        check_java()
