"""Clients that are not Python's, unmodified, as processes: Java's own from Maven, kafkajs from npm.
For Go see `golang`.

They are cached in `~/.cache/purgatory` (or under `XDG_CACHE_HOME`).
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from maven import Unavailable, jars

FOLDER: Final = Path(__file__).parent
JAVA_CLIENTS: Final = ("3.9.2", "4.3.1")
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)
KAFKAJS: Final = "kafkajs@2.2.4"
TIMEOUT: Final = 200.0


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory"


def java_command(program: str, client: str = JAVA_CLIENTS[-1]) -> list[str]:
    """The command of a Java program of this folder.

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
    path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{client}", LOGGING)))
    return [command, "-XX:TieredStopAtLevel=1", *LOG_OPTIONS, "-cp", path, str(FOLDER / program)]


def java(program: str, *arguments: str, client: str = JAVA_CLIENTS[-1]) -> str:
    """Runs a Java program of this folder, and returns its output.

    Raises:
        Unavailable: there is no Java with a compiler, or the client cannot be downloaded.
        RuntimeError: it failed.
    """
    return _output(*java_command(program, client), *arguments)


def kafkajs_command(program: str) -> list[str]:
    """The command of a program of this folder in Node, with kafkajs.

    Raises:
        Unavailable: there is no Node or npm, or npm cannot download kafkajs.
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
    return ["env", f"NODE_PATH={folder / 'node_modules'}", node, str(FOLDER / program)]


def kafkajs(program: str, *arguments: str) -> str:
    """Runs a program of this folder in Node, with kafkajs, and returns its output.

    Raises:
        Unavailable: there is no Node or npm, or npm cannot download kafkajs.
        RuntimeError: it failed.
    """
    return _output(*kafkajs_command(program), *arguments)


def _output(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if run.returncode:
        raise RuntimeError(run.stdout + run.stderr)
    return run.stdout
