"""Jars are downloaded once; if that fails, the error has the reason."""

from pathlib import Path

import pytest
from maven import Unavailable, jars

CENTRAL = """#!/bin/sh
for argument; do case $argument in -DoutputDirectory=*) folder=${argument#*=};; esac; done
/bin/mkdir "$folder" && /usr/bin/touch "$folder/b.jar" "$folder/a.jar"
"""
OUT_OF_REACH = """#!/bin/sh
echo "[INFO] Scanning"
echo "[ERROR] Could not transfer artifact x:y:pom:1 from central: Connection refused"
exit 1
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a Maven, whose cache is empty."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def install(machine: Path, script: str) -> None:
    maven = machine / "bin" / "mvn"
    maven.write_text(script)
    maven.chmod(0o755)


def test_jars_are_downloaded_once_then_cached(machine: Path) -> None:
    install(machine, CENTRAL)

    got = jars("x:y:1")
    (machine / "bin" / "mvn").unlink()

    assert [each.name for each in got] == ["a.jar", "b.jar"] and all(each.is_file() for each in got)
    assert jars("x:y:1") == got
    with pytest.raises(Unavailable, match="needs Maven"):
        jars("x:y:2")
    with pytest.raises(Unavailable, match="needs Maven"):
        jars("x:y:1", alone=True)


def test_unreachable_maven_central_is_reported_and_nothing_cached(machine: Path) -> None:
    install(machine, OUT_OF_REACH)

    with pytest.raises(
        Unavailable, match=r"does not get x:y:1: \[ERROR\] Could not transfer .* Connection refused"
    ):
        jars("x:y:1")

    assert list((machine / "cache" / "purgatory" / "maven").iterdir()) == []
