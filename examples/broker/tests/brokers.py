"""The broker and Kafka itself, as processes that are started and stopped in the same way."""

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from kafka_server import AS_SHIPPED, kafka_server

EXAMPLE: Final = Path(__file__).parents[1]
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
        if kind == "Kafka":
            settings += f"advertised.listeners=PLAINTEXT://{advertised}\n" if advertised else ""
            with kafka_server(Path(folder, "kafka"), AS_SHIPPED, settings, port) as server:
                request_versions(server.address)
                yield Running(kind, server.address)
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
                yield Running(kind, address)
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
