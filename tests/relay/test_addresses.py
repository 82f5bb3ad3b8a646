"""Forms of addresses, on real servers; what is refused is in `test_arguments`."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from ports import free_port
from relay_proxy import Proxy
from relay_waits import bumped, pair
from requirements import need, unavailable
from servers import TIMEOUT, NatsServer, served

from purgatory import RelayUnavailable
from purgatory.relay import Relay, _connection, blocking
from purgatory.relay._store import open_store

pytestmark = pytest.mark.slow


@pytest.fixture
def ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        unavailable("needs IPv6 on the loopback interface")
    return "::1"


@pytest.fixture(scope="module", params=["redis", "postgresql", "nats"])
def server(request, tmp_path_factory):
    with served(request.param, tmp_path_factory.mktemp("addresses")) as server:
        yield server


async def check(url: str) -> None:
    """Writes through one relay, and waits in another."""
    async with pair(url, prefix="addresses") as (here, there):
        version = await here.bump("a")
        assert await there.wait("a", version - 1) >= version


async def test_each_form_of_address_is_used(server, ipv6):
    async with Proxy(server, ipv6).serving() as url:
        assert "://[::1]:" in url or "@[::1]:" in url
        assert "://[::1]:" in repr(Relay(url))
        await check(url)
    if "redis" not in server.url:  # several hosts, of which the first one is dead
        await check(server.url.replace("127.0.0.1", f"127.0.0.1:{free_port()},127.0.0.1"))


@pytest.mark.parametrize("announced", [[], ["--cluster-announce-ip", "::1"]])
@pytest.mark.parametrize("host", ["[::1]", "127.0.0.2"])
async def test_cluster_is_used_at_its_address(tmp_path, ipv6, host, announced):
    own = host.strip("[]")
    announced = [word.replace(ipv6, own) for word in announced]
    with served("cluster", tmp_path, "--bind", "127.0.0.1", own, *announced) as redis:
        url = redis.url.replace("127.0.0.1", host)
        await check(url)
        async with Relay(url, timeout=TIMEOUT):
            assert redis.ask("CLIENT", "LIST").count(b"laddr=127.0.0.1:") == 1  # this one


async def test_options_of_address_leave_the_relays_own(tmp_path):
    options = "decode_responses=True&protocol=3&encoding=utf-16&socket_timeout=0.01&client_name=a"
    with served("redis", tmp_path) as redis:
        async with Relay(f"{redis.url}?{options}", timeout=TIMEOUT) as relay:
            assert await relay.bump("ä") == 1
            assert await relay.version("ä") == 1
            assert b"name=a " in redis.ask("CLIENT", "LIST")


# Passwords that change


class Changing:
    """A password, and a server that takes it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.value, self.asked = kind, folder, "first", 0

    async def __call__(self) -> str:
        self.asked += 1
        return self.value

    def configure(self, server: Any) -> None:
        """Has the server take the present value only."""
        if self.kind == "redis":
            server.ask("ACL", "SETUSER", "app", "reset")
            rights = ("on", f">{self.value}", "allkeys", "allchannels", "+@all")
            server.ask("ACL", "SETUSER", "app", *rights)
        elif self.kind == "postgresql":
            verb = "CREATE" if self.value == "first" else "ALTER"
            server.run(f"{verb} ROLE app LOGIN SUPERUSER PASSWORD '{self.value}'")
            (server.data / "pg_hba.conf").write_text(
                "host all app all scram-sha-256\nhost all all all trust\n"
            )
            server.run("SELECT pg_reload_conf()")
        else:
            settings = self.folder / "settings"
            settings.write_text(f"authorization {{ user: app, password: {self.value} }}\n")


@contextmanager
def limited(kind: str, folder: Path, *options: str) -> Iterator[Any]:
    """A server with these options; NATS has its settings in a file."""
    with ExitStack() as stack:
        if kind == "nats":
            server: Any = NatsServer(folder)
            server.command += ["--config", str(folder / "settings")]
            stack.callback(server.end)
            server.start()
        else:
            server = stack.enter_context(served(kind, folder))
            if options:
                server.kill()
                server.command += options
                server.start()
        yield server


@pytest.mark.parametrize("kind", ["redis", "postgresql", "nats"])
async def test_password_is_asked_for_at_each_connection(tmp_path, kind):
    password = Changing(kind, tmp_path)
    if kind == "nats":
        password.configure(None)
    with limited(kind, tmp_path) as server:
        if kind != "nats":
            password.configure(server)
        url = server.url.replace("://tester@", "://").replace("://", "://app@")
        async with Relay(url, password=password, timeout=TIMEOUT, resync=1.0) as relay:
            assert await relay.bump("a") == 1
            asked, password.value = password.asked, "second"
            assert asked >= 2
            password.configure(server)
            if kind == "nats":
                server.kill()
                await asyncio.to_thread(server.start)
            else:
                server.end_relays()
            await bumped(relay, "b")
            assert password.asked > asked
        with blocking.Relay(url, password=lambda: password.value, timeout=TIMEOUT) as relay:
            relay.bump("a")
        with pytest.raises(RelayUnavailable, match="no password: ZeroDivisionError"):
            await Relay(url, password=lambda: 1 // 0, timeout=0.5).__aenter__()


async def served_client(kind: str, port: int) -> asyncio.StreamWriter:
    """A connection that Redis or NATS has answered: it may still count an earlier one."""
    greeting = b'CONNECT {"verbose":false}\r\nPING\r\n' if kind == "nats" else b"PING\r\n"
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(OSError):
            writer.write(greeting)
            while line := await reader.readline():
                if b"PONG" in line:
                    return writer
        writer.close()


LIMITS = ("max_connections=4", "superuser_reserved_connections=0", "max_wal_senders=0")
FULL = {
    "redis": (["--maxclients", "1"], "max number of clients reached"),
    "postgresql": ([word for each in LIMITS for word in ("-c", each)], "too many clients already"),
    "nats": ([], "maximum connections exceeded"),
}


@pytest.mark.parametrize("kind", FULL)
async def test_full_server_is_told_in_its_words(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(_connection, "LAST_WORDS_TIMEOUT", TIMEOUT)
    options, words = FULL[kind]
    (tmp_path / "settings").write_text("max_connections: 1")
    with limited(kind, tmp_path, *options) as server:
        held: list[Any] = []
        try:
            for _ in range(4 if kind == "postgresql" else 1):
                if kind == "postgresql":
                    held.append(await asyncpg.connect(server.url))
                    continue
                held.append(await served_client(kind, server.port))
            for _ in range(5):
                store = open_store(server.url, "test")
                with pytest.raises(RelayUnavailable, match=words):
                    await store.open()
                await store.close()
        finally:
            for each in held:
                closing = each.close()
                if closing is not None:
                    await closing


async def test_tls_is_used_or_refused(tmp_path, monkeypatch):
    openssl = need("openssl", "needs openssl: apt-get install openssl")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    making = [openssl, *command.split(), *names]
    await asyncio.to_thread(subprocess.run, making, check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with served("nats", tmp_path) as plain:
        url = plain.url.replace("nats://", "tls://user:secret@")
        with pytest.raises(RelayUnavailable, match="the server offers no TLS; use nats://"):
            await open_store(url, "test").open()
    server = NatsServer(tmp_path)
    server.command += ["--tls", "--tlscert", str(certificate), "--tlskey", str(key)]
    try:
        server.start()
        await check(server.url.replace("nats://", "tls://"))
        monkeypatch.delenv("SSL_CERT_FILE")
        await check(f"{server.url.replace('nats://', 'tls://')}?tls_ca={certificate}")
    finally:
        server.kill()
