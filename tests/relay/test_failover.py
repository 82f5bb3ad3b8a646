"""Relays on servers of Redis of which another one takes over: alone, in a cluster, by Sentinels."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import relay_waits as waits
from ports import free_port
from relay_proxy import Proxy
from relay_waits import bumped, pair, set_timeout, started
from servers import TIMEOUT, RedisServer, Server, served, until

pytestmark = pytest.mark.slow


@contextmanager
def sentinels(folder: Path) -> Iterator[tuple[list[RedisServer], list[Server]]]:
    """A primary and its replica, and three Sentinels that know them as `main`. The servers have the
    user `app`, the Sentinels the user `watcher`."""
    with ExitStack() as stack:
        servers = []
        for name in "ab":
            (folder / name).mkdir()
            user = ["--user", "app", "on", ">p", "allkeys", "allchannels", "+@all"]
            servers.append(stack.enter_context(served("redis", folder / name, *user)))
        primary, replica = servers
        replica.ask("REPLICAOF", "127.0.0.1", str(primary.port))
        until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        watchers: list[Server] = []
        for number in range(3):
            port = free_port()
            settings = folder / f"sentinel{number}.conf"
            settings.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\nuser watcher on >s +@all\n"
                f"sentinel monitor main 127.0.0.1 {primary.port} 2\n"
                "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 10000\n"
            )
            command = [primary.command[0], str(settings), "--sentinel"]
            watchers.append(Server(command, port).start())
            stack.callback(watchers[-1].kill)
        until(lambda: all(knows_others(watcher) for watcher in watchers))
        yield servers, watchers


def asked(server: Server, *words: str) -> bytes:
    return RedisServer.ask(server, *words)


def replicate(primary: RedisServer, replica: RedisServer) -> None:
    """Waits until the replica has all that has been written so far."""

    def offset(server: RedisServer, name: bytes) -> int:
        found = re.search(name + rb":(\d+)", server.ask("INFO", "replication"))
        return int(found[1]) if found else -1

    written = offset(primary, b"master_repl_offset")
    until(lambda: offset(replica, b"slave_repl_offset") >= written)


def is_primary(server: RedisServer) -> bool:
    with suppress(ConnectionError):  # Sentinels kill the connections of a server that they promote
        return b"role:master" in server.ask("INFO", "replication")
    return False


def knows_others(watcher: Server) -> bool:
    found = asked(watcher, "SENTINEL", "MASTER", "main")
    return b"num-other-sentinels\r\n$1\r\n2\r\n" in found and b"num-slaves\r\n$1\r\n1\r\n" in found


async def follows(url: str, take_over: Callable[[], object], is_silent: bool = False) -> None:
    """Checks that open relays follow their keys to another server. A silent server is noticed by a
    probe only, so that takes the relays' own times."""
    resync = 1.0 if is_silent else 10 * TIMEOUT
    async with pair(url, resync=resync) as (here, there):
        assert await there.bump("a") == 1
        assert await there.deliver("a", b"value", ttl=10 * TIMEOUT)
        waiting = await started(here, "b", 0)
        epoch = here.epoch
        if is_silent:
            await set_timeout(here, 2.0)
            await set_timeout(there, 2.0)
        await asyncio.to_thread(take_over)
        assert await bumped(there, "a") > 1
        await waiting  # with the version when the new epoch began
        await waits.until(lambda: here.epoch == there.epoch != epoch)
        for relay in (here, there):  # a busy machine may need more than the short time
            await set_timeout(relay, TIMEOUT)
        again = asyncio.create_task(here.wait("c", 0))
        assert await there.bump("c") == await again == 1
        assert await here.receive("a", TIMEOUT) == b"value"


@pytest.mark.parametrize("named", ["killed", "living"])
@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_relay_follows_keys_of_a_cluster(run, tmp_path, named, fault):
    with served("replicated", tmp_path) as cluster:
        url = cluster.url if named == "living" else cluster.primary.url
        is_silent = fault == "paused"

        def take_over() -> None:
            replicate(cluster.primary, cluster.replica)
            cluster.take_over(cluster.primary.pause if is_silent else cluster.primary.kill)

        run(lambda: follows(url, take_over, is_silent))


@pytest.mark.parametrize("kind", ["replicated", "replicated valkey"])
def test_relay_follows_a_slot_to_another_node(run, tmp_path, kind):
    """Both nodes live on, so that only the server's word ends the subscription."""
    with served(kind, tmp_path) as cluster:
        run(lambda: follows(cluster.url, cluster.move_slot))


@pytest.mark.parametrize("fault", ["killed", "planned"])
def test_relay_follows_the_server_of_sentinels(run, tmp_path, fault):
    with sentinels(tmp_path) as (servers, watchers):

        def take_over() -> None:
            replicate(*servers)
            watchers[0].kill()
            if fault == "killed":
                servers[0].kill()
            else:
                asked(watchers[1], "SENTINEL", "FAILOVER", "main")
            until(lambda: is_primary(servers[1]))

        hosts = ",".join(f"127.0.0.1:{watcher.port}" for watcher in watchers)
        options = "sentinel_username=watcher&sentinel_password=s"
        url = f"redis+sentinel://app:p@{hosts}/main/0?{options}"
        run(lambda: follows(url, take_over))


def test_demoted_server_is_left_for_the_primary(run, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    with served("redis", tmp_path / "a") as old, served("redis", tmp_path / "b") as new:
        proxy = Proxy(old)

        def take_over() -> None:
            new.ask("REPLICAOF", "127.0.0.1", str(old.port))
            until(lambda: b"master_link_status:up" in new.ask("INFO"))
            replicate(old, new)
            proxy.server = new
            new.ask("REPLICAOF", "NO", "ONE")
            old.ask("REPLICAOF", "127.0.0.1", str(new.port))  # its connections stay open

        async def main() -> None:
            async with proxy.serving() as url:
                await follows(url, take_over)

        run(main)
