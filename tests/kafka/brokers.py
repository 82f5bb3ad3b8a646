"""The broker of `examples/broker` and Kafka itself, as processes that are started, measured and
stopped in the same way."""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kafka_server import AS_SHIPPED, kafka_server

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "broker"
ENVIRONMENT: Final = {  # the same purgatory as here
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)]),
}
KINDS: Final = ("ours", "Kafka")
TIMEOUT: Final = 120.0
API_VERSIONS: Final = struct.pack(">hhih", 18, 0, 1, -1)
"""A request in version 0, by a client without a name. Every broker responds to it."""


@dataclass(frozen=True)
class Running:
    """A broker that runs."""

    kind: str
    address: str
    pid: int
    seconds: float
    """From its start to its first response."""

    def cpu(self) -> float:
        """Processor time so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Its resident memory, in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )


@contextmanager
def running(
    kind: str,
    *options: str,
    settings: str = "",
    log: IO[str] | None = None,
    port: int = 0,
    advertised: str = "",
) -> Iterator[Running]:
    """A new and empty broker until the end of the block.

    Args:
        kind: of `KINDS`.
        options: of our broker's command line.
        settings: lines for Kafka's configuration.
        log: a file for the log of our broker; without one it is written to the standard error.
        port: where it listens; 0 is any that is free.
        advertised: `host:port` where clients are to connect; without it, where it listens.

    Raises:
        Unavailable: Kafka's jars are not available.
    """
    with tempfile.TemporaryDirectory(prefix="purgatory-") as folder:
        began = time.monotonic()
        if kind == "Kafka":
            settings += f"advertised.listeners=PLAINTEXT://{advertised}\n" if advertised else ""
            with kafka_server(Path(folder, "kafka"), AS_SHIPPED, settings, port) as server:
                assert server.process is not None
                request_versions(server.address)
                yield Running(kind, server.address, server.process.pid, time.monotonic() - began)
            return
        command = [sys.executable, "-m", "purgatory_broker", "--port", str(port), *options]
        command += ["--advertise", advertised] if advertised else []
        with subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("listening on "), line
                address = line.split()[2].rstrip(",")
                request_versions(address)
                yield Running(kind, address, process.pid, time.monotonic() - began)
            finally:
                process.kill()


def is_free(port: int) -> bool:
    """Whether nothing listens there on this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def request_versions(address: str) -> bytes:
    """A broker's response to an ApiVersions request."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT) as client:
        client.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
        response = client.makefile("rb")
        return response.read(int.from_bytes(response.read(4)))
