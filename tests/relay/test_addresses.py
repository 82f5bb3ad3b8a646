"""Forms of addresses, on real servers."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from ports import free_port
from relay_proxy import Proxy
from requirements import need, unavailable
from servers import TIMEOUT, NatsServer, nats_server, postgres_server, redis_server, until

from purgatory import RelayUnavailable
from purgatory.relay import Relay, blocking
from purgatory.relay._address import check_address, hosts_of, without_password
from purgatory.relay._store import open_store

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("url", "known", "hosts", "shown"),
    [
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0", ["[::1]:6379"], "redis://[::1]:6379/0"),
        ("redis://u:p@[::1]/0", "redis://u:p@[::1]/0", ["[::1]"], "redis://[::1]/0"),
        ("nats://[::1]:4222", "nats://[::1]:4222", ["[::1]:4222"], "nats://[::1]:4222"),
        ("postgresql://[::1]:5/d", "postgresql://[::1]:5/d", ["[::1]:5"], "postgresql://[::1]:5/d"),
        ("Valkey://h:1/0", "redis://h:1/0", ["h:1"], "Valkey://h:1/0"),
        ("valkeys://h", "rediss://h", ["h"], "valkeys://h"),
        ("unix:///s?db=1", "unix:///s?db=1", [""], "unix:///s"),
        ("postgres://u:p@h/d", "postgresql://u:p@h/d", ["h"], "postgres://h/d"),
        ("postgresql+asyncpg://h/d", "postgresql://h/d", ["h"], "postgresql+asyncpg://h/d"),
        ("tls://h:4222", "tls://h:4222", ["h:4222"], "tls://h:4222"),
        (
            "redis+sentinel://u:p@a:1,b:2/main/3?sentinel_password=x",
            "redis://u:p@a:1,b:2/main/3?sentinel_password=x",
            ["a:1", "b:2"],
            "redis+sentinel://a:1,b:2/main/3",
        ),
        ("nats://u:p@a:1,b", "nats://u:p@a:1,b", ["a:1", "b"], "nats://a:1,b"),
        (
            "postgresql://[::1]:5,[::2]/d",
            "postgresql://[::1]:5,[::2]/d",
            ["[::1]:5", "[::2]"],
            "postgresql://[::1]:5,[::2]/d",
        ),
    ],
)
def test_address_is_understood(url: str, known: str, hosts: list[str], shown: str) -> None:
    assert check_address(url, takes_several_hosts=True) == known
    assert hosts_of(known) == hosts
    assert without_password(url) == shown
    assert repr(open_store(url, "test").address) == repr(shown)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("redis://::1:6379/0", r"an IPv6 address must be written in brackets$"),
        ("valkey://user:of/secret@host/0", "user and password must be written with %2F"),
        ("redis://a:1,b:2/0", "'redis://a:1,b:2/0': expected one host, got 2"),
        ("redis://user:secret@a:1,b:2/0", "'redis://a:1,b:2/0': expected one host, got 2"),
        ("nats://a:1,nats://b:2", r"several hosts as in nats://host1:1234,host2:1234"),
        ("nats://u:secret@a:1,nats://u:secret@b:2", r"several hosts as in nats://host1"),
        ("postgresql://a:secret,b/d", "the port must be a number"),
        ("redis://host/0?no_such_option=secret", r"wrong name or value, one of no_such_option"),
        ("redis://host/0?port=secret", "redis://host/0: .* wrong name or value, one of port"),
        ("redis+sentinel://u:secret@a:1,b:2", r"the service after the hosts, redis\+sentinel://"),
        ("postgresql+psycopg://host/d", "must begin with .*postgresql://"),
    ],
)
def test_malformed_address_is_refused(url: str, match: str) -> None:
    for kind in (Relay, blocking.Relay):
        with pytest.raises(ValueError, match=match) as raised:
            kind(url)
        assert "secret" not in str(raised.value)


@pytest.fixture
def ipv6() -> str:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        unavailable("needs IPv6 on the loopback interface")
    return "::1"


@pytest.fixture(scope="module", params=["redis", "postgresql", "nats"])
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("addresses")
    if request.param == "postgresql":
        with postgres_server() as server:
            yield server
    else:
        with {"redis": redis_server, "nats": nats_server}[request.param](folder) as server:
            yield server


async def check(url: str, **options: Any) -> Relay:
    """Writes through one relay, and waits in another."""
    options = {"prefix": "addresses", "timeout": TIMEOUT, **options}
    async with Relay(url, **options) as here, Relay(url, **options) as there:
        version = await here.bump("a")
        assert await there.wait("a", version - 1) >= version
        return here


@slow
def test_address_with_ipv6_is_used(run: Runner, server: Any, ipv6: str) -> None:
    async def main() -> None:
        async with Proxy(server, ipv6).serving() as url:
            assert "://[::1]:" in url or "@[::1]:" in url
            relay = await check(url)
            assert "://[::1]:" in repr(relay)

    run(main)


@slow
@pytest.mark.parametrize("announced", [[], ["--cluster-announce-ip", "::1"]])
def test_cluster_with_ipv6_is_used(
    run: Runner, tmp_path: Path, ipv6: str, announced: list[str]
) -> None:
    options = ("--cluster-enabled", "yes", "--bind", "127.0.0.1", ipv6, *announced)
    with redis_server(tmp_path, *options) as redis:
        redis.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until(lambda: b"cluster_state:ok" in redis.ask("CLUSTER", "INFO"))
        run(lambda: check(redis.url.replace("127.0.0.1", f"[{ipv6}]")))


@slow
def test_dead_host_is_passed_over(run: Runner, server: Any) -> None:
    here = f"127.0.0.1:{server.port}"
    if "redis" not in server.url:
        run(lambda: check(server.url.replace(here, f"127.0.0.1:{free_port()},{here}")))


@slow
@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("valkey", "redis"),
        ("postgres", "postgresql"),
        ("postgresql+asyncpg", "postgresql"),
        ("NATS", "nats"),
    ],
)
def test_further_scheme_is_used(run: Runner, server: Any, scheme: str, kind: str) -> None:
    if server.url.startswith(kind):
        run(lambda: check(server.url.replace(kind, scheme)))


@slow
def test_options_of_address_leave_the_relays_own(run: Runner, tmp_path: Path) -> None:
    options = "decode_responses=True&protocol=3&encoding=utf-16&socket_timeout=0.01&client_name=a"
    with redis_server(tmp_path) as redis:

        async def main() -> None:
            async with Relay(f"{redis.url}?{options}", timeout=TIMEOUT) as relay:
                assert await relay.bump("ä") == 1
                assert await relay.version("ä") == 1
                assert b"name=a " in redis.ask("CLIENT", "LIST")

        run(main)


@slow
def test_tls_is_used_or_refused(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openssl = need("openssl", "needs openssl: apt-get install openssl")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *command.split(), *names], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def refused(url: str) -> None:
        with pytest.raises(RelayUnavailable, match="the server offers no TLS; use nats://"):
            await open_store(url, "test").open()

    with nats_server(tmp_path) as plain:
        run(lambda: refused(plain.url.replace("nats://", "tls://user:secret@")))
    server = NatsServer(tmp_path)
    server.command += ["--tls", "--tlscert", str(certificate), "--tlskey", str(key)]
    try:
        server.start()
        run(lambda: check(server.url.replace("nats://", "tls://")))
    finally:
        server.kill()
