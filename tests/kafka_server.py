"""Kafka itself, for tests: one node in KRaft mode, as a process, which can be stopped, killed and
started again."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from maven import Unavailable, jars
from ports import free_ports

VERSION: Final = "4.3.1"
SERVER: Final = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
SMALL: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The JVM starts quickly."""
CONNECTOR: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.1",
    "org.apache.kafka:kafka-clients:3.9.2",
)
"""Spark's connector. There is none of Spark 4.3 in Maven Central; these run on 4.3 as they are."""
LOGS: Final = [
    f"-Dorg.slf4j.simpleLogger.{each}" for each in ("defaultLogLevel=warn", "showDateTime=true")
]
TIMEOUT: Final = 200.0
"""How long Kafka may take to start or to stop, in seconds: a busy machine needs a part of it."""

SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=100
"""


def connector() -> list[Path]:
    """The jars that Spark needs to read and write topics."""
    return jars(*CONNECTOR, alone=True)


class KafkaServer:
    """One node, whose data and `log` are in `folder`. Raises `Unavailable` without Java or its
    jars."""

    def __init__(self, folder: Path) -> None:
        java = shutil.which("java")
        if java is None:
            raise Unavailable("needs Java 17: apt-get install openjdk-17-jre-headless")
        self.port, controller = free_ports(2)
        self.address = f"127.0.0.1:{self.port}"
        self.log, data, properties = folder / "log", folder / "data", folder / "server.properties"
        data.mkdir(parents=True)
        # What kafka-storage.sh format would write, which takes as long as the start itself.
        meta = "version=1\ncluster.id=cHVyZ2F0b3J5LWthZmthIQ\nnode.id=1\n"
        (data / "meta.properties").write_text(meta)
        own = SETTINGS.format(port=self.port, controller=controller, data=data)
        properties.write_text(own)
        path = ":".join(map(str, jars(*SERVER)))
        self.command = [java, *SMALL, *LOGS, "-cp", path, "kafka.Kafka", str(properties)]

    def start(self) -> Self:
        """Returns when it accepts connections: by then it also handles requests."""
        with self.log.open("ab") as log:
            options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(self.command, **options)
        deadline = time.monotonic() + TIMEOUT
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"Kafka does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends it, and waits for its end. Its data stays."""
        self.process.send_signal(by)
        try:
            self.process.wait(TIMEOUT)
        finally:
            self.process.kill()


@contextmanager
def kafka_server(folder: Path) -> Iterator[KafkaServer]:
    """A node that runs until the end of the block."""
    server = KafkaServer(folder).start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
