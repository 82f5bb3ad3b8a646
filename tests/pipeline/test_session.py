"""The session: Java is looked for before Spark needs it; the master is the one given by the
user."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from purgatory.pipeline import _session
from purgatory.pipeline._session import SparkUnavailable, check_java, spark_session


def fake_java(home: Path, prints: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("prints", "complaint"),
    [
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('java version "21" 2023-09-19', None),
        ('java version "1.8.0_392"', "is Java 8"),
        ('openjdk version "11.0.2"', "is Java 11"),
        ("hello", "does not report"),
    ],
)
def test_old_java_is_refused_with_advice(
    prints: str, complaint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, prints)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if complaint is None:
        check_java()
        return
    with pytest.raises(SparkUnavailable, match=complaint) as error, spark_session("x", "local[1]"):
        pass

    assert "openjdk-17" in str(error.value)


def test_a_missing_java_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"no java on the PATH.*openjdk-17"):
        check_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"does not run.*openjdk-17"):
        check_java()


class Builder(MagicMock):
    """Records the settings of a session."""

    def called(self, name: str) -> list[str]:
        return [call.args[0] for call in getattr(self, name).call_args_list]

    @property
    def settings(self) -> dict[str, str]:
        return dict(call.args for call in self.config.call_args_list)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """A session is built with this, in an environment without a configuration."""
    builder = Builder()
    for name in ("appName", "master", "remote", "config"):
        getattr(builder, name).return_value = builder
    monkeypatch.setattr(_session, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(_session, "check_java", lambda: None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    return builder


@pytest.mark.parametrize("given", [None, "local[3]"])
def test_master_is_local_where_nothing_else_names_one(given: str | None, built: Builder) -> None:
    with spark_session("test", given):
        pass

    assert built.called("master") == [given or "local[*]"]
    assert built.settings["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize(
    "place", ["PYSPARK_GATEWAY_PORT", "MASTER", "PYSPARK_SUBMIT_ARGS", "defaults", "--conf"]
)
def test_master_of_spark_submit_and_configuration_counts(
    place: str, built: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "PYSPARK_GATEWAY_PORT": "4242",
        "MASTER": "yarn",
        "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    }
    if place in values:
        monkeypatch.setenv(place, values[place])
    elif place == "--conf":
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.master=yarn pyspark-shell")
    else:
        (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.master   yarn\n")

    with spark_session("test"):
        pass

    assert built.called("master") == built.called("remote") == []
    assert not built.settings.keys() & {"spark.driver.host", "spark.driver.memory"}


def test_configured_memory_counts_more_than_ours(built: Builder, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory=9g\n")

    with spark_session("test", None, {"spark.driver.memory": "1g"}):
        pass

    assert built.called("master") == ["local[*]"] and "spark.driver.memory" not in built.settings


def test_connect_of_the_environment_counts(built: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")

    with spark_session("test"):
        pass

    assert (built.called("master"), built.called("remote")) == ([], ["sc://host"])
