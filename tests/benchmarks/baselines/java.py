"""Kafka's own purgatory, on a JVM of its own: ``load --java``.

`KafkaLoad.java` takes it through the same requests as `driver` takes the others. A tenth of them
come first and do not count, because the JVM compiles meanwhile. The classes come from Maven
Central, the options of the JVM from Kafka's start script.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Final, Literal

sys.path.append(str(Path(__file__).resolve().parents[2] / "kafka"))
from kafka_server import AS_SHIPPED, VERSION
from maven import Unavailable, jars

from benchmarks.baselines.driver import DriveResult
from benchmarks.baselines.implementations.interface import PAYLOAD_BYTES
from benchmarks.baselines.workload import KEY_SETS, KEYS_PER_REQUEST, TIMEOUT_MS, Workload

NAME: Final = "java"
JARS: Final = (
    f"org.apache.kafka:kafka-server-common:{VERSION}",
    f"org.apache.kafka:kafka-clients:{VERSION}",
)
QUIET: Final = "org.slf4j:slf4j-nop:1.7.36"
PROGRAM: Final = Path(__file__).with_name("KafkaLoad.java")
WARM_UP: Final = 10
"""One of this number of requests is for the warm-up."""


def command() -> list[str]:
    """The command of the program, without its arguments. Downloads the jars, once.

    Raises:
        Unavailable: there is no Java with a compiler, or the jars cannot be downloaded.
    """
    java = shutil.which("java")
    modules = (
        subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True).stdout
        if java
        else ""
    )
    if java is None or "jdk.compiler" not in modules:
        raise Unavailable(
            "needs Java 17 with its compiler: apt-get install openjdk-17-jdk-headless"
        )
    return [java, *AS_SHIPPED, "-cp", os.pathsep.join(map(str, jars(*JARS, QUIET))), str(PROGRAM)]


def drive(workload: Workload, purgatory: Literal["kafka", "empty"]) -> DriveResult:
    """Takes Kafka's purgatory, or an empty one, through all of `workload`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "workload")
        file.write_bytes(_as_bytes(workload))
        run = subprocess.run(
            [*command(), str(file), purgatory], stdout=subprocess.PIPE, text=True, check=True
        )
    printed = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    return DriveResult(
        created_s=float(printed["created_s"]),
        elapsed_s=float(printed["elapsed_s"]),
        cpu_s=float(printed["cpu_s"]),
        max_stall_s=None,
        answered=int(printed["answered"]),
        lateness_s=sorted(int(late) / 1e6 for late in printed["lateness_us"].split()),
        counters={},
    )


def _as_bytes(workload: Workload) -> bytes:
    """The workload as `KafkaLoad.java` reads it."""
    numbers: dict[str, int] = {}
    names = chain.from_iterable(islice(workload.key_sets(), KEY_SETS))
    keys = [numbers.setdefault(name, len(numbers)) for name in names]
    head = (TIMEOUT_MS, PAYLOAD_BYTES, workload.requests // WARM_UP)
    lists = [*workload.arrivals], [*workload.latencies_ms], keys
    return b"".join(
        map(_integers, (head, *((len(each), *each) for each in lists), (KEYS_PER_REQUEST,)))
    )


def _integers(numbers: Iterable[int]) -> bytes:
    values = [*numbers]
    return struct.pack(f">{len(values)}i", *values)
