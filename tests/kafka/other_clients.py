"""Clients that are not Python's, unmodified: Java's own and kafkajs, downloaded by Maven and npm, and run as processes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from maven import Unavailable, jars

FOLDER: Final = Path(__file__).parent
JAVA_CLIENTS: Final = ("3.9.2", "4.3.1")
KAFKAJS: Final = "kafkajs@2.2.4"
TIMEOUT: Final = 200.0


def java(program: str, *arguments: str, client: str = JAVA_CLIENTS[-1]) -> str:
    """Runs a Java program of this folder, and returns what it prints.

    Args:
        program: its file.
        arguments: for it.
        client: the version of `kafka-clients`.

    Raises:
        Unavailable: there is no Java with a compiler, or the client cannot be downloaded.
        RuntimeError: it failed.
    """
    command = shutil.which("java")
    if command is None:
        raise Unavailable("needs Java 17: apt-get install openjdk-17-jdk-headless")
    if "jdk.compiler" not in _output(command, "--list-modules"):
        raise Unavailable("this Java has no compiler: apt-get install openjdk-17-jdk-headless")
    path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{client}")))
    return _output(command, "-XX:TieredStopAtLevel=1", "-cp", path, str(FOLDER / program), *arguments)


def kafkajs(program: str, *arguments: str) -> str:
    """Runs a program of this folder in Node, with kafkajs, and returns what it prints.

    Raises:
        Unavailable: there is no Node or npm, or npm cannot download kafkajs.
        RuntimeError: it failed.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Unavailable("needs Node and npm: apt-get install nodejs npm")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory" / "npm"
    if not (folder / "node_modules" / "kafkajs").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _output(npm, "install", "--silent", "--prefix", str(folder), KAFKAJS)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"npm does not get {KAFKAJS}: {str(error)[:200]}") from error
    return _output(node, str(FOLDER / program), *arguments, NODE_PATH=str(folder / "node_modules"))


def _output(*command: str, **variables: str) -> str:
    run = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if run.returncode:
        raise RuntimeError(run.stdout + run.stderr)
    return run.stdout
