"""toxiproxy, which the functional tests of sarama talk to: ports that lead to a broker, and that
can be made to fail."""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from brokers import TIMEOUT, is_free
from golang import compiled
from maven import Unavailable

CONTROL: Final = 8474
"""Where it takes orders over HTTP: its own default."""
MODULE: Final = "github.com/Shopify/toxiproxy/v2"


@contextmanager
def proxies(ports: Sequence[int], broker: str, control: int = CONTROL) -> Iterator[None]:
    """Until the end of the block all these ports of this machine lead to the broker, as proxies
    `kafka1` and so on.

    Raises:
        Unavailable: there is no Go, toxiproxy cannot be downloaded, or a port is taken.
    """
    if taken := [str(port) for port in (control, *ports) if not is_free(port)]:
        raise Unavailable(
            f"toxiproxy needs the ports {', '.join(taken)} of this machine, which are taken"
        )
    program = compiled(f"{MODULE}/cmd/server", f"{MODULE}@v2.5.0")
    with tempfile.TemporaryDirectory(prefix="purgatory-") as folder:
        config = Path(folder, "proxies.json")
        names = {f"kafka{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports, 1)}
        wanted = [
            {"name": name, "listen": at, "upstream": broker, "enabled": True}
            for name, at in names.items()
        ]
        config.write_text(json.dumps(wanted))
        with subprocess.Popen(
            [program, "-port", str(control), "-config", config],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                deadline = time.monotonic() + TIMEOUT
                while any(is_free(port) for port in (control, *ports)):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError("toxiproxy does not start")
                    time.sleep(0.01)
                yield
            finally:
                process.kill()
