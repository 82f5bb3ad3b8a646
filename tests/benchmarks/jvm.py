"""Kafka's own purgatory, on a JVM of its own: ``load --java``.

`LoadOfKafka.java` takes it through the requests that `load` draws for the others. The classes come
from Maven Central; the options of the JVM are from Kafka's start script.
"""

import json
import os
import shutil
import subprocess
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka_server import LOGS, SERVER
from maven import Unavailable, jars

PURGATORIES = ("empty-jvm", "kafka-jvm")
OPTIONS = (
    "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Xmx1G -Xms1G"
)


def command() -> list[str]:
    """The command of the program, without the name of a purgatory. Raises `Unavailable` without a
    compiler of Java, and without Kafka's jars, which Maven downloads once."""
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        raise Unavailable("needs Java 17's compiler: apt-get install openjdk-17-jdk-headless")
    path = os.pathsep.join(map(str, jars(*SERVER)))
    program = str(Path(__file__).with_name("LoadOfKafka.java"))
    return [java, *OPTIONS.split(), *LOGS, "-cp", path, program]


def drive(
    name: str, latencies_ms: Sequence[int], arrivals: Sequence[int], keys: Sequence[int]
) -> dict[str, Any]:
    """The fields of a `DriveResult`. `keys` are the numbers of each request's keys."""
    numbers = array("i", [len(latencies_ms), *latencies_ms, len(arrivals), *arrivals, *keys])
    run = [*command(), name]
    printed = subprocess.run(
        run, input=numbers.tobytes(), stdout=subprocess.PIPE, check=True
    ).stdout
    return dict(json.loads(printed))
