"""The commands of the programs of `matrix`, with unmodified clients: confluent-kafka, and Java's own
from Maven."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from maven import Unavailable, jars

FOLDER: Final = Path(__file__).parent / "matrix"
JAVA_CLIENTS: Final = ("3.9.2", "4.3.1")
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)
JDK: Final = "Java 17 with its compiler: apt-get install openjdk-17-jdk-headless"
PROGRAMS: Final = {"confluent-kafka": "transform.py", "Java": "ByJava.java"}


def command(client: str, version: str = JAVA_CLIENTS[-1]) -> list[str]:
    """The command of a client's program.

    Args:
        client: of `PROGRAMS`.
        version: of Java's client.

    Raises:
        Unavailable: Java or its compiler is missing, or the client cannot be downloaded.
    """
    file = str(FOLDER / PROGRAMS[client])
    if client != "Java":
        return [sys.executable, file]
    java = shutil.which("java")
    if not java or b"jdk.compiler" not in subprocess.check_output([java, "--list-modules"]):
        raise Unavailable(f"needs {JDK}")
    path = os.pathsep.join(map(str, jars(f"org.apache.kafka:kafka-clients:{version}", LOGGING)))
    return [java, *JAVA_OPTIONS, "-cp", path, file]
