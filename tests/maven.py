"""Jars from Maven Central, downloaded by Maven, and cached in `~/.cache/purgatory/maven` (or under
`XDG_CACHE_HOME`), a folder for each list of jars."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
MAVEN_TIMEOUT: Final = 1200.0
"""Seconds: for a Maven that hangs. A busy machine takes minutes."""
ALONE: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class Unavailable(Exception):
    """Something that pip cannot install is missing and cannot be downloaded. The message names it,
    and how to install it."""


def jars(*coordinates: str, alone: bool = False) -> list[Path]:
    """The files of artifacts, each `group:artifact:version`, and unless `alone` of their
    dependencies. Raises `Unavailable` if there is no Maven, or it cannot download them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(repr((coordinates, alone)).encode()).hexdigest()
    name = f"{coordinates[0].replace(':', '-')}-{digest[:12]}"
    folder = cache / "purgatory" / "maven" / name
    if not folder.is_dir():
        _fetch(coordinates, alone, folder)
    return sorted(folder.glob("*.jar"))


def _fetch(coordinates: tuple[str, ...], alone: bool, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("needs Maven, to get jars: apt-get install maven")
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{ALONE if alone else ''}</dependency>"
        for group, artifact, version in (each.split(":") for each in coordinates)
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        project, found = Path(scratch, "pom.xml"), Path(scratch, "jars")
        project.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>purgatory</groupId>"
            "<artifactId>jars</artifactId><version>1</version>"
            f"<dependencies>{wanted}</dependencies></project>"
        )
        command = [maven, "-B", "-q", "-f", str(project), f"{PLUGIN}:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={found}"]
        what, pipes = ", ".join(coordinates), {"capture_output": True, "text": True}
        try:
            run = subprocess.run(command, **pipes, check=False, timeout=MAVEN_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not get {what} in {MAVEN_TIMEOUT:.0f} s") from None
        if run.returncode:
            errors = (line for line in run.stdout.splitlines() if "ERROR" in line)
            raise Unavailable(
                f"Maven does not get {what}: {next(errors, run.stderr.strip())[:300]}"
            )
        try:
            found.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise  # otherwise another process was faster
