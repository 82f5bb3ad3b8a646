"""Relays on servers of Redis of which another one takes over: a cluster, and Sentinels."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import relay_waits as waits
from loops import Runner
from ports import free_port
from redis.crc import key_slot
from relay_waits import bumped, knows, set_timeout
from servers import TIMEOUT, RedisServer, Server, redis_server, until

from purgatory.relay import Relay

pytestmark = pytest.mark.slow


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[list[RedisServer], RedisServer]]:
    """Three primaries, the first with the relay's keys, and a replica of the first one."""
    with ExitStack() as stack:
        servers = []
        for name in "abcd":
            (folder / name).mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
            servers.append(stack.enter_context(redis_server(folder / name, *options)))
        *primaries, replica = servers
        ranges = [(0, 5_460), (5_461, 10_921), (10_922, 16_383)]
        ranges.sort(key=lambda slots: key_slot(b"{purgatory}:versions") not in range(*slots))
        for number, (server, slots) in enumerate(zip(primaries, ranges, strict=True), 1):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number))
            assert server.ask("CLUSTER", "ADDSLOTSRANGE", *map(str, slots)) == b"+OK\r\n"
        for server in servers[1:]:
            server.ask("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port), str(servers[0].bus))
        until(lambda: all(knows_all(server) for server in servers))
        name = servers[0].ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()
        until(lambda: replica.ask("CLUSTER", "REPLICATE", name) == b"+OK\r\n")
        until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        until(lambda: all(has_replica(server) for server in primaries))
        yield primaries, replica


def knows_all(server: RedisServer) -> bool:
    info = server.ask("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:4" in info


def has_replica(server: RedisServer) -> bool:
    return b"slave" in server.ask("CLUSTER", "NODES")


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[list[RedisServer], list[Server]]]:
    """A primary and its replica, and three Sentinels that know them as `main`."""
    with ExitStack() as stack:
        servers = []
        for name in "ab":
            (folder / name).mkdir()
            servers.append(stack.enter_context(redis_server(folder / name)))
        primary, replica = servers
        replica.ask("REPLICAOF", "127.0.0.1", str(primary.port))
        until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        watchers: list[Server] = []
        for number in range(3):
            port = free_port()
            settings = folder / f"sentinel{number}.conf"
            settings.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor main 127.0.0.1 {primary.port} 2\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 10000\n"
            )
            command = [primary.command[0], str(settings), "--sentinel"]
            watchers.append(Server(command, port).start())
            stack.callback(watchers[-1].kill)
        until(lambda: all(knows_others(watcher) for watcher in watchers))
        yield servers, watchers


def asked(server: Server, *words: str) -> bytes:
    return RedisServer.ask(server, *words)  # type: ignore[arg-type]


def knows_others(watcher: Server) -> bool:
    found = asked(watcher, "SENTINEL", "MASTER", "main")
    return b"num-other-sentinels\r\n$1\r\n2\r\n" in found and b"num-slaves\r\n$1\r\n1\r\n" in found


async def follows(
    url: str,
    take_over: Callable[[], object],
    is_silent: bool = False,
) -> None:
    """Checks that open relays follow their keys to another server. A silent server is noticed by a
    probe only, so that takes the relays' own times."""
    resync = 1.0 if is_silent else TIMEOUT
    async with (
        Relay(url, resync=resync, timeout=TIMEOUT) as here,
        Relay(url, resync=resync, timeout=TIMEOUT) as there,
    ):
        assert await there.bump("a") == 1
        assert await there.deliver("a", b"value", ttl=10 * TIMEOUT)
        waiting = asyncio.create_task(here.wait("b", 0))
        await knows(here, "b")
        epoch = here.epoch
        if is_silent:
            await set_timeout(here, 2.0)
            await set_timeout(there, 2.0)
        await asyncio.to_thread(take_over)
        begun = time.monotonic()
        assert await bumped(there, "a") > 1
        print("seconds to the first bump:", round(time.monotonic() - begun, 2))
        await waiting  # with the version when the new epoch began
        again = asyncio.create_task(here.wait("c", 0))
        assert await bumped(there, "c") == await again
        print("... and to the first wait that it ended:", round(time.monotonic() - begun, 2))
        assert await here.receive("a", TIMEOUT) == b"value"
        await waits.until(lambda: here.epoch == there.epoch != epoch)


@pytest.mark.parametrize("named", ["killed", "living"])
@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_relay_follows_keys_of_a_cluster(
    run: Runner, tmp_path: Path, named: str, fault: str
) -> None:
    with cluster(tmp_path) as (primaries, replica):

        def take_over() -> None:
            primaries[0].kill() if fault == "killed" else primaries[0].pause()
            assert replica.ask("CLUSTER", "FAILOVER", "TAKEOVER") == b"+OK\r\n"

        url = primaries[named == "living"].url
        run(lambda: follows(url, take_over, is_silent=fault == "paused"))


@pytest.mark.parametrize("fault", ["killed", "planned"])
def test_relay_follows_the_server_of_sentinels(run: Runner, tmp_path: Path, fault: str) -> None:
    with sentinels(tmp_path) as (servers, watchers):

        def take_over() -> None:
            watchers[0].kill()
            if fault == "killed":
                servers[0].kill()
            else:
                asked(watchers[1], "SENTINEL", "FAILOVER", "main")
            until(lambda: b"role:master" in servers[1].ask("INFO", "replication"))

        hosts = ",".join(f"127.0.0.1:{watcher.port}" for watcher in watchers)
        run(lambda: follows(f"redis+sentinel://{hosts}/main/0", take_over))
