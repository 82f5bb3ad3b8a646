"""A server as a process on a port of its own, which a test may end and start again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, build_opener

from ports import free_port

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the same purgatory as here
    "no_proxy": "127.0.0.1",
}


class ServerProcess:
    """The server of a Python program, which a `with` block starts in `folder`, and kills in the
    end; `{port}` in its arguments stands for the port, and `ready` is answered when it is ready."""

    last = signal.SIGKILL
    """The signal that ends it with the block."""
    pipes: Mapping[str, Any] = {}

    def __init__(self, *arguments: object, ready: str, folder: Path, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[Any] | None = None
        self._command = [sys.executable, *(str(each).format(port=self.port) for each in arguments)]
        path = os.pathsep.join([str(folder), ENVIRONMENT["PYTHONPATH"]])
        self._ready, self._folder = ready, folder
        self._environment = ENVIRONMENT | {"PYTHONPATH": path} | environment

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self.last)

    def start(self) -> str:
        """Starts it, waits until it is ready, and returns the first answer."""
        options = {"cwd": self._folder, "env": self._environment, **self.pipes}
        self.process = subprocess.Popen(self._command, **options)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                return self.get(self._ready)
            except OSError:
                time.sleep(0.05)
        self.end(signal.SIGKILL)
        raise AssertionError("the server does not answer")

    def get(self, path: str) -> str:
        """The answer to a request of a path; an `OSError` unless its status is 200."""
        with build_opener(ProxyHandler({})).open(f"{self.url}/{path}", timeout=TIMEOUT) as answer:
            return str(answer.read().decode())

    def end(self, number: int) -> None:
        """Ends it by a signal; without effect if it has not been started again."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(TIMEOUT)
            self.process = None
