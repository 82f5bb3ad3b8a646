"""Forms of addresses, on real servers; what is refused is in `test_arguments`."""

import asyncio
import socket
import subprocess

import pytest
from ports import free_port
from relay_proxy import Proxy
from relay_waits import pair
from requirements import need, unavailable
from servers import TIMEOUT, NatsServer, served

from purgatory import RelayUnavailable
from purgatory.relay import Relay
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
async def test_cluster_with_ipv6_is_used(tmp_path, ipv6, announced):
    with served("cluster", tmp_path, "--bind", "127.0.0.1", ipv6, *announced) as redis:
        await check(redis.url.replace("127.0.0.1", f"[{ipv6}]"))


async def test_options_of_address_leave_the_relays_own(tmp_path):
    options = "decode_responses=True&protocol=3&encoding=utf-16&socket_timeout=0.01&client_name=a"
    with served("redis", tmp_path) as redis:
        async with Relay(f"{redis.url}?{options}", timeout=TIMEOUT) as relay:
            assert await relay.bump("ä") == 1
            assert await relay.version("ä") == 1
            assert b"name=a " in redis.ask("CLIENT", "LIST")


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
    finally:
        server.kill()
