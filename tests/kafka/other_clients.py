"""Clients that are not Python's, unmodified, as processes: Java's own, kafkajs, franz-go; from Maven, npm and Go.

They are cached in `~/.cache/purgatory` (or where `XDG_CACHE_HOME` says).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from maven import Unavailable, jars

FOLDER: Final = Path(__file__).parent
JAVA_CLIENTS: Final = ("3.9.2", "4.3.1")
KAFKAJS: Final = "kafkajs@2.2.4"
FRANZ_GO: Final = "github.com/twmb/franz-go/pkg/kgo@v1.22.2"
TIMEOUT: Final = 200.0


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory"


def java_command(program: str, client: str = JAVA_CLIENTS[-1]) -> list[str]:
    """What runs a Java program of this folder.

    Args:
        program: its file.
        client: the version of `kafka-clients`.

    Raises:
        Unavailable: there is no Java with a compiler, or the client cannot be downloaded.
    """
    command = shutil.which("java")
    if command is None:
        raise Unavailable("needs Java 17: apt-get install openjdk-17-jdk-headless")
    if "jdk.compiler" not in _output(command, "--list-modules"):
        raise Unavailable("this Java has no compiler: apt-get install openjdk-17-jdk-headless")
    path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{client}")))
    return [command, "-XX:TieredStopAtLevel=1", "-cp", path, str(FOLDER / program)]


def java(program: str, *arguments: str, client: str = JAVA_CLIENTS[-1]) -> str:
    """Runs a Java program of this folder, and returns what it prints.

    Raises:
        Unavailable: as `java_command`.
        RuntimeError: it failed.
    """
    return _output(*java_command(program, client), *arguments)


def go_command(program: str, package: str = FRANZ_GO) -> list[str]:
    """What runs a Go program of this folder, which is compiled on first use.

    Args:
        program: its file.
        package: of the client, with its version.

    Raises:
        Unavailable: there is no Go, or the client cannot be downloaded.
        RuntimeError: the program cannot be compiled.
    """
    go, source = shutil.which("go"), (FOLDER / program).read_bytes()
    if go is None:
        raise Unavailable("needs Go: apt-get install golang")
    compiled = _cache() / "go" / f"{Path(program).stem}-{hashlib.sha256(source + package.encode()).hexdigest()[:12]}"
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=compiled.parent) as scratch:
            Path(scratch, program).write_bytes(source)
            _output(go, "mod", "init", "programs", cwd=scratch)
            try:
                _output(go, "get", package, cwd=scratch)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"Go does not get {package}: {str(error)[:200]}") from error
            _output(go, "build", "-o", "program", program, cwd=scratch)
            Path(scratch, "program").replace(compiled)
    return [str(compiled)]


def kafkajs(program: str, *arguments: str) -> str:
    """Runs a program of this folder in Node, with kafkajs, and returns what it prints.

    Raises:
        Unavailable: there is no Node or npm, or npm cannot download kafkajs.
        RuntimeError: it failed.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Unavailable("needs Node and npm: apt-get install nodejs npm")
    folder = _cache() / "npm"
    if not (folder / "node_modules" / "kafkajs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _output(npm, "install", "--silent", "--prefix", str(folder), KAFKAJS)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"npm does not get {KAFKAJS}: {str(error)[:200]}") from error
    return _output(node, str(FOLDER / program), *arguments, NODE_PATH=str(folder / "node_modules"))


def _output(*command: str, cwd: str | None = None, **variables: str) -> str:
    environment = {**os.environ, **variables}
    run = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if run.returncode:
        raise RuntimeError(run.stdout + run.stderr)
    return run.stdout
