"""A Redis or a PostgreSQL for `python examples/orders_workers.py --demo`, which the demo may
kill."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

KINDS = ("redis", "postgresql")


class OwnStore:
    """A server that is started, killed and started again with the data on its disk.

    Args:
        kind: one of `KINDS`.
        folder: for its data. It listens on a free port of the loopback address.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.kind, self.data = kind, folder / kind
        self.data.mkdir()
        self.user = None
        if kind == "redis":
            self.url = f"redis://127.0.0.1:{self.port}/0"
            options = [
                "--dir",
                str(self.data),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                "always",
            ]
            self.command = [
                program("redis-server"),
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                *options,
            ]
        else:
            self.url = f"postgresql://demo@127.0.0.1:{self.port}/postgres"
            if os.getuid() == 0:  # whom it does not serve
                self.user = "nobody"
                shutil.chown(self.data, self.user)
                folder.chmod(0o711)
            make = [
                program("initdb"),
                "-D",
                str(self.data),
                "-U",
                "demo",
                "-A",
                "trust",
                "-E",
                "UTF8",
            ]
            subprocess.run(make, check=True, capture_output=True, user=self.user)
            # The server finds its own files by where it is, not by a link to it.
            options = [
                "-p",
                str(self.port),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ]
            self.command = [
                str(Path(program("postgres")).resolve()),
                "-D",
                str(self.data),
                *options,
            ]
        self.start()

    def start(self) -> None:
        """Starts it, and returns when it listens. Leftovers of its killed processes may make the
        first tries fail."""
        for _ in range(100):
            self.process = subprocess.Popen(
                self.command,
                user=self.user,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while self.process.poll() is None:
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", self.port)) == 0:
                        return
                time.sleep(0.05)
            time.sleep(0.1)
        raise SystemExit(f"{self.command[0]} does not start: try {' '.join(self.command)}")

    def kill(self) -> None:
        """Kills the server."""
        self.process.kill()
        self.process.wait()


def program(name: str) -> str:
    """The path of a program, which Debian does not have on the PATH for PostgreSQL.

    Raises:
        SystemExit: PostgreSQL is not installed.
    """
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None
    )
    if found is None:
        raise SystemExit(
            f"{name} is not installed: apt-get install "
            f"{'redis-server' if 'redis' in name else 'postgresql'}"
        )
    return found
