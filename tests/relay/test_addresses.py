"""Forms of addresses, on real servers."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from relay_proxy import Proxy
from requirements import unavailable
from servers import TIMEOUT, nats_server, postgres_server, redis_server, until

from purgatory.relay import Relay

pytestmark = pytest.mark.slow


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


def test_address_with_ipv6_is_used(run: Runner, server: Any, ipv6: str) -> None:
    async def main() -> None:
        async with Proxy(server, ipv6).serving() as url:
            assert "://[::1]:" in url or "@[::1]:" in url
            relay = await check(url)
            assert "://[::1]:" in repr(relay)

    run(main)


@pytest.mark.parametrize("announced", [[], ["--cluster-announce-ip", "::1"]])
def test_cluster_with_ipv6_is_used(
    run: Runner, tmp_path: Path, ipv6: str, announced: list[str]
) -> None:
    options = ("--cluster-enabled", "yes", "--bind", "127.0.0.1", ipv6, *announced)
    with redis_server(tmp_path, *options) as redis:
        redis.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        until(lambda: b"cluster_state:ok" in redis.ask("CLUSTER", "INFO"))
        run(lambda: check(redis.url.replace("127.0.0.1", f"[{ipv6}]")))
