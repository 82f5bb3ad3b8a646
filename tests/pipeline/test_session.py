"""The session: that Java is looked for before Spark needs it, and that Spark runs with this Python."""

from pathlib import Path

import pytest

from purgatory.pipeline._session import SparkUnavailable, check_java, spark_session


def fake_java(home: Path, prints: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)


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


def test_a_missing_java_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"no java on the PATH.*openjdk-17"):
        check_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"does not run.*openjdk-17"):
        check_java()
