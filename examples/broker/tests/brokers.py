"""The broker and Kafka itself, as processes that are started and stopped in the same way."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from kafka_server import kafka_server

EXAMPLE: Final = Path(__file__).parents[1]
ENVIRONMENT: Final = {  # the same purgatory as here
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)]),
}
KINDS: Final = ("ours", "Kafka")
TIMEOUT: Final = 120.0  # seconds; for hangs


@contextmanager
def program(
    *options: str, log: int | IO[str] | None = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Our broker in a process of its own, and its address, until the end of the block.

    Args:
        options: of its command line; the port is any that is free, unless they name one.
        log: for the standard error.
    """
    command = [sys.executable, "-m", "purgatory_broker", "--port", "0", *options]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            assert words[:2] == ["listening", "on"], words
            yield process, words[2]
        finally:
            process.kill()


@contextmanager
def running(kind: str, log: IO[str] | None = None) -> Iterator[str]:
    """The address of a new and empty broker until the end of the block.

    Args:
        kind: of `KINDS`.
        log: a file for the log of our broker; without one it is written to the standard error.

    Raises:
        Unavailable: Kafka's jars are not available.
    """
    if kind == "ours":
        with program(log=log) as (_, address):
            yield address
    else:
        with (
            tempfile.TemporaryDirectory(prefix="purgatory-") as folder,
            kafka_server(Path(folder, "kafka")) as server,
        ):
            yield server.address
