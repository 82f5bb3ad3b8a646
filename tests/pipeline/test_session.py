"""The session: Java is looked for before Spark needs it; the master is the one given by the
user."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from purgatory.pipeline import _session
from purgatory.pipeline._session import SparkUnavailable, require_java, spark_session


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
        (None, "does not run"),
    ],
)
def test_old_java_is_refused_with_advice(prints, complaint, tmp_path, monkeypatch):
    if prints is not None:
        fake_java(tmp_path, prints)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if complaint is None:
        require_java()
        return
    with (
        pytest.raises(SparkUnavailable, match=rf"{complaint}.*openjdk-17"),
        spark_session("x", "local[1]"),
    ):
        pass


def test_a_missing_java_is_reported_with_advice(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"no java on the PATH.*openjdk-17"):
        require_java()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A session is built with this, in an environment without a configuration."""
    builder = MagicMock()
    for name in ("appName", "master", "remote", "config"):
        getattr(builder, name).return_value = builder
    monkeypatch.setattr(_session, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(_session, "require_java", lambda: None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name in ("MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    return builder


OURS = {"spark.driver.host", "spark.driver.memory"}
SUBMITTED = "PYSPARK_SUBMIT_ARGS"


@pytest.mark.parametrize(
    ("given", "environment", "defaults", "master", "remote", "settings"),
    [
        (None, {}, "", "local[*]", None, OURS),
        ("local[3]", {}, "", "local[3]", None, OURS),
        (None, {}, "spark.driver.memory=9g\n", "local[*]", None, {"spark.driver.host"}),
        (None, {"PYSPARK_GATEWAY_PORT": "4242"}, "", None, None, set()),
        (None, {"MASTER": "yarn"}, "", None, None, set()),
        (None, {SUBMITTED: "--master yarn pyspark-shell"}, "", None, None, set()),
        (None, {SUBMITTED: "--conf spark.master=yarn pyspark-shell"}, "", None, None, set()),
        (None, {}, "# ours\nspark.master   yarn\n", None, None, set()),
        (None, {"SPARK_REMOTE": "sc://host"}, "", None, "sc://host", None),
    ],
)
def test_master_and_memory_are_ours_by_default(
    given, environment, defaults, master, remote, settings, built, tmp_path, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "spark-defaults.conf").write_text(defaults)

    asked_for = {"spark.driver.memory": "1g"} if "memory" in defaults else {}
    with spark_session("test", given, asked_for):
        pass

    for name, expected in (("master", master), ("remote", remote)):
        asked = [call.args[0] for call in getattr(built, name).call_args_list]
        assert asked == [expected] * (expected is not None)
    made = dict(call.args for call in built.config.call_args_list)
    assert settings is None or made.keys() & OURS == settings
    assert made.get("spark.driver.host", "127.0.0.1") == "127.0.0.1"
