"""The behaviour of a relay when the server of its store is killed, paused, emptied, or set back to
an earlier state."""

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from relay_proxy import Proxy
from relay_waits import bumped, knows, set_timeout, until
from servers import (
    TIMEOUT,
    NatsServer,
    PostgresServer,
    RedisServer,
    nats_server,
    postgres_server,
    redis_server,
)

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

pytestmark = pytest.mark.slow

RESYNC = 60.0  # seconds; too long for a resync to find the tested change
prefixes = count(1)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["redis", "postgresql", "nats"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres")
        return
    if request.param == "nats":
        with nats_server(tmp_path) as server:
            yield server
        return
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def pair(url: str, **options: Any) -> AsyncIterator[tuple[Relay, Relay]]:
    """Two relays on one store."""
    options = {"prefix": f"test{next(prefixes)}", "resync": RESYNC, "timeout": TIMEOUT, **options}
    async with Relay(url, **options) as here, Relay(url, **options) as there:
        yield here, there


def test_waits_survive_killed_server_and_complete_after_restart(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url) as (here, there):
            assert await there.bump("a") == 1
            epoch = here.epoch
            short = asyncio.create_task(here.wait("a", 1, 0.3))
            waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(20)]
            await until(lambda: here.statistics().watched >= 20)  # the short wait may have ended
            server.kill()
            await until(lambda: not here.statistics().is_connected)
            with pytest.raises(TimeoutError):
                await short
            writing = asyncio.create_task(there.bump("key0"))
            await asyncio.sleep(0.1)
            assert not writing.done()
            await asyncio.to_thread(server.start)
            assert await writing >= 1
            for number in range(1, 20):
                await there.bump(f"key{number}")
            await asyncio.gather(
                *waits
            )  # with the written version, or the version when the new epoch began
            await until(lambda: here.epoch == there.epoch != epoch)
            assert (
                min(await asyncio.gather(*(here.wait(f"key{number}", 0) for number in range(20))))
                >= 1
            )
            await until(lambda: here.statistics().is_connected)

    run(main)


def test_receives_outlive_killed_server(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url) as (here, there):
            short = asyncio.create_task(here.receive("a", 0.3))
            receives = [asyncio.create_task(here.receive(f"key{n}")) for n in range(20)]
            await until(lambda: here.statistics().watched >= 20)
            server.kill()
            await until(lambda: not here.statistics().is_connected)
            with pytest.raises(TimeoutError):
                await short
            late = asyncio.create_task(here.receive("key0"))
            delivering = asyncio.create_task(there.deliver("key0", b"0", ttl=2 * TIMEOUT))
            await asyncio.sleep(0.1)
            assert not delivering.done() and not late.done()
            await asyncio.to_thread(server.start)
            assert await delivering is True
            for number in range(1, 20):
                value = b"%d" % number
                assert await there.deliver(f"key{number}", value, ttl=2 * TIMEOUT)
            assert await asyncio.gather(*receives) == [b"%d" % number for number in range(20)]
            assert await late == b"0"

    run(main)


def test_unavailable_store_fails_deliveries_within_timeout(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url) as (here, there):
            receiving = asyncio.create_task(there.receive("a"))
            await until(lambda: there.statistics().watched == 1)
            await set_timeout(here, 1.0)
            server.kill()
            begun = time.monotonic()
            with pytest.raises(RelayUnavailable, match=r"cannot deliver to 'a': .*127\.0\.0\.1"):
                await here.deliver("a", b"", ttl=TIMEOUT)
            with pytest.raises(OperationTimeout, match=r"cannot receive 'a': .*127\.0\.0\.1"):
                await there.receive("a", 0)
            assert time.monotonic() - begun < TIMEOUT
            assert not receiving.done()
            await asyncio.to_thread(server.start)
            assert await there.deliver("a", b"later", ttl=2 * TIMEOUT)
            assert await receiving == b"later"

    run(main)


def test_receives_outlive_a_paused_server(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url, resync=0.5) as (here, there):
            receiving = asyncio.create_task(here.receive("a"))
            await until(lambda: here.statistics().watched == 1)
            await set_timeout(here, 1.0)
            server.pause()
            try:
                await until(lambda: not here.statistics().is_connected)
                delivering = asyncio.create_task(there.deliver("a", b"value", ttl=2 * TIMEOUT))
                await asyncio.sleep(0.1)
            finally:
                server.resume()
            assert await delivering is True
            assert await receiving == b"value"

    run(main)


def test_unavailable_store_fails_reads_and_writes_within_timeout(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url) as (here, there):
            waiting = asyncio.create_task(here.wait("b", 0))
            await knows(here, "b")
            await set_timeout(here, 1.0)
            server.kill()
            begun = time.monotonic()
            calls = {
                "bump": here.bump("a"),
                "read": here.version("a"),
                "advance": here.advance("a", 7),
            }
            answers = zip(
                calls, await asyncio.gather(*calls.values(), return_exceptions=True), strict=True
            )
            assert time.monotonic() - begun < TIMEOUT
            for verb, error in answers:
                assert isinstance(error, RelayUnavailable)
                assert re.match(rf"cannot {verb} 'a': .*127.0.0.1", str(error))
            assert not waiting.done()
            await asyncio.to_thread(server.start)
            await there.bump("b")
            assert await waiting in (
                0,
                1,
            )  # the written version, or the version when the new epoch began

    run(main)


def test_paused_server_is_noticed_without_loss(run: Runner, server: Any) -> None:
    async def main() -> None:
        prefix = f"test{next(prefixes)}"
        async with (
            pair(server.url, prefix=prefix, resync=0.5) as (here, there),
            Relay(server.url, prefix=prefix, resync=RESYNC, timeout=TIMEOUT) as patient,
        ):
            waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(20)]
            await until(lambda: here.statistics().watched == 20)
            await set_timeout(here, 1.0)
            await set_timeout(there, 1.0)
            server.pause()
            try:
                with pytest.raises(RelayUnavailable, match="gave no answer within"):
                    await there.bump("other")
                await until(lambda: not here.statistics().is_connected)
            finally:
                server.resume()
            await asyncio.gather(*(patient.bump(f"key{number}") for number in range(20)))
            assert min(await asyncio.gather(*waits)) >= 1

    run(main)


def test_closing_with_paused_server_ends_connections_within_timeout(
    run: Runner, postgres: PostgresServer
) -> None:
    async def main() -> None:
        relay = Relay(postgres.url, timeout=TIMEOUT)
        await relay.__aenter__()
        await relay.bump("a")
        await set_timeout(relay, 0.5)
        connections = [
            pooled._connection for pooled in (relay._store._reader, relay._store._writer)
        ]  # type: ignore[attr-defined]
        postgres.pause()
        try:
            await relay.aclose()
            assert [connection.is_closed() for connection in connections] == [True, True]
        finally:
            postgres.resume()

    run(main)


def test_messages_published_during_disconnect_are_found_and_counted(
    run: Runner, redis: RedisServer
) -> None:
    async def main() -> None:
        async with pair(redis.url) as (here, there):
            for number in range(1, 21):
                waiting = asyncio.create_task(here.wait("a", number - 1))
                await knows(here, "a")
                redis.ask("CLIENT", "KILL", "TYPE", "pubsub")
                assert await there.bump("a") == number
                assert await waiting == number
            await until(lambda: here.statistics().is_connected)
            assert here.statistics().healed > 0
            assert here.statistics().epochs == 1

    run(main)


async def refuse_writes(server: Any, refuses: bool) -> None:
    """Makes Redis run out of memory, a stream refuse messages, and PostgreSQL read-only; or undoes
    it."""
    if isinstance(server, RedisServer):
        server.ask("CONFIG", "SET", "maxmemory", "1" if refuses else "0")
        return
    if isinstance(server, NatsServer):
        for config in await configs_of_streams(server):
            config["max_msg_size"] = 1 if refuses else -1
            server.publish(f"$JS.API.STREAM.UPDATE.{config['name']}", json.dumps(config))
        return
    import asyncpg

    connection = await asyncpg.connect(server.url)
    await connection.execute(
        f"ALTER SYSTEM SET default_transaction_read_only = {'on' if refuses else 'off'}"
    )
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    is_reloaded = False
    while (
        not is_reloaded
    ):  # the server signals all its processes before it forks one with the new setting
        connection = await asyncpg.connect(server.url)
        is_reloaded = await connection.fetchval("SHOW default_transaction_read_only") == (
            "on" if refuses else "off"
        )
        await connection.close()


async def configs_of_streams(server: NatsServer) -> list[Any]:
    import nats

    client = await nats.connect(server.url)
    try:
        return [
            stream["config"]
            for stream in json.loads((await client.request("$JS.API.STREAM.LIST")).data)["streams"]
        ]
    finally:
        await client.close()


def test_readonly_server_counts_as_disconnected(run: Runner, server: Any) -> None:
    async def main() -> None:
        async with pair(server.url, resync=0.3) as (here, there):
            assert await here.bump("a") == 1
            await refuse_writes(server, True)
            try:
                bumping = asyncio.create_task(here.bump("a"))
                await until(lambda: not here.statistics().is_connected)
                assert there.statistics().is_connected
                resyncs = here.statistics().resyncs
                await until(lambda: here.statistics().resyncs > resyncs + 1)
                assert not here.statistics().is_connected
                bumping.cancel()
                # A pending write may be done although its caller gave up: an attempt that is
                # connecting now would write, once the server takes writes again.
                await until(lambda: bumping.done() and here._client.changes.task is None)
            finally:
                await refuse_writes(server, False)
            await until(lambda: here.statistics().is_connected)
            assert here.statistics().epochs == 1
            assert await here.bump("a") == 2

    run(main)


def test_probe_finds_silently_dead_connection(run: Runner, server: Any) -> None:
    async def main() -> None:
        proxy = Proxy(server)
        async with proxy.serving() as url, pair(url, resync=0.3) as (here, there):
            await until(lambda: here.statistics().resyncs > 1)
            await set_timeout(here, 1.0)
            await set_timeout(there, 1.0)
            proxy.silent = list(proxy.open)
            await until(lambda: not here.statistics().is_connected)
            await until(lambda: here.statistics().is_connected)
            assert await bumped(here, "a") >= 1

    run(main)


def test_demoted_server_is_left_for_the_new_primary(
    run: Runner, redis: RedisServer, tmp_path: Path
) -> None:
    async def main(other: RedisServer) -> None:
        proxy = Proxy(redis)
        async with proxy.serving() as url, pair(url) as (here, there):
            assert await there.bump("a") == 1
            waiting = asyncio.create_task(here.wait("b", 0))
            await knows(here, "b")
            other.ask("REPLICAOF", "127.0.0.1", str(redis.port))
            await until(lambda: b"master_link_status:up" in other.ask("INFO"))
            connections = list(proxy.open)
            other.ask("REPLICAOF", "NO", "ONE")
            redis.ask("REPLICAOF", "127.0.0.1", str(other.port))
            await until(lambda: b"master_link_status:up" in redis.ask("INFO"))
            bumping = [asyncio.create_task(relay.bump("a")) for relay in (here, there)]
            await until(lambda: len(proxy.open) > len(connections))
            assert not any(bump.done() for bump in bumping)
            proxy.server = other
            assert sorted(await asyncio.gather(*bumping)) == [2, 3]
            await waiting  # with the version when the new epoch began
            again = asyncio.create_task(here.wait("c", 0))
            assert await there.bump("c") == await again == 1
            await until(lambda: b"connected_slaves:1" in other.ask("INFO"))
            assert await here.deliver("a", b"value", ttl=TIMEOUT)
            assert other.ask("EXISTS", f"{{{here._store._prefix}}}:settled:a") == b":1\r\n"  # type: ignore[attr-defined]

    (tmp_path / "other").mkdir()
    with redis_server(tmp_path / "other") as other:
        run(lambda: main(other))


def test_flushall_ends_waits_in_a_new_epoch(run: Runner, redis: RedisServer) -> None:
    async def main() -> None:
        async with pair(redis.url) as (here, there):
            assert await there.advance("a", 40) == 40
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 40))
            again = asyncio.create_task(here.wait("b", 0))
            await knows(here, "a", "b")
            redis.ask("FLUSHALL")
            assert await there.bump("c") == 1
            assert await waiting == 0
            assert await again == 0
            assert here.epoch == there.epoch != epoch
            assert here.statistics().epochs == 2
            later = asyncio.create_task(here.wait("b", 0))
            await asyncio.sleep(0.05)
            assert not later.done()
            await there.bump("b")
            assert await later == 1

    run(main)


@pytest.mark.parametrize("verb", ["PURGE", "DELETE"])
def test_emptied_or_deleted_stream_ends_waits(run: Runner, tmp_path: Path, verb: str) -> None:
    async def main() -> None:
        with nats_server(tmp_path) as server:
            async with pair(server.url, prefix="test", resync=0.5) as (here, there):
                assert await there.advance("a", 40) == 40
                epoch, position = here.epoch, there._follower.latest
                waiting = asyncio.create_task(here.wait("a", 40))
                await knows(here, "a")
                server.publish(f"$JS.API.STREAM.{verb}.test_versions")
                assert await waiting == 0
                assert await there.bump("c") == 1
                await until(lambda: here.epoch == there.epoch != epoch)
                assert (
                    there._follower.latest > position
                )  # so no earlier state is taken for the present one

    run(main)


def test_older_dump_starts_a_new_epoch(run: Runner, redis: RedisServer) -> None:
    async def main() -> None:
        async with pair(redis.url) as (here, there):
            assert await there.advance("a", 40) == 40
            redis.ask("SAVE")
            for number in range(41, 51):
                assert await there.bump("a") == number
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 50))
            await knows(here, "a")
            redis.kill()
            await asyncio.to_thread(redis.start)
            assert await waiting == 40
            await there.bump("b")
            await until(lambda: there.epoch == here.epoch)
            assert here.epoch != epoch
            assert await there.bump("a") == 41

    run(main)


def test_loss_starts_new_epoch_without_surviving_processes(run: Runner, server: Any) -> None:
    """Redis loses its newest writes, the other servers lose everything: no relay may take earlier
    numbers for present ones."""
    if isinstance(server, RedisServer):
        server.command[server.command.index("--appendonly") + 1] = "no"
        server.kill()
        server.start()

    async def main() -> None:
        prefix = f"test{next(prefixes)}"
        async with Relay(server.url, prefix=prefix, timeout=TIMEOUT) as here:
            assert await here.bump("a") == 1
            if isinstance(server, RedisServer):
                server.ask("SAVE")
            assert await here.bump("a") == 2
            epoch = here.epoch
        server.kill()
        await asyncio.to_thread(server.start)
        async with Relay(server.url, prefix=prefix, timeout=TIMEOUT) as here:
            await here.advance("a", 2)
            assert here.epoch != epoch

    run(main)


def test_clean_shutdown_keeps_versions_and_epoch(run: Runner, postgres: PostgresServer) -> None:
    async def main() -> None:
        async with pair(postgres.url) as (here, there):
            assert await there.advance("a", 40) == 40
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 40))
            await until(lambda: here.statistics().watched == 1)
            await stop(postgres)
            await asyncio.to_thread(postgres.start)
            assert await there.bump("a") == 41
            assert await waiting == 41
            assert here.epoch == there.epoch == epoch

    run(main)


async def stop(server: PostgresServer) -> None:
    """Shuts the server down properly."""
    server.send(signal.SIGINT)
    assert server.process is not None
    await asyncio.to_thread(server.process.wait)


def test_table_restored_from_dump_has_new_epoch(
    run: Runner, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The dump may be from a server whose transactions had higher numbers: the relay does not read
    its versions again and again for that reason."""
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        async with pair(postgres.url) as (here, there):
            assert await there.advance("a", 40) == 40
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 40))
            await knows(here, "a")
            table = here._store._table  # type: ignore[attr-defined]
            async with connection.transaction():
                await connection.execute(f"CREATE TEMP TABLE dump AS TABLE {table}")
                await connection.execute(
                    "UPDATE dump SET changed = '9876543210' WHERE epoch IS NULL"
                )
                await connection.execute(f"TRUNCATE {table}")
                await connection.execute(f"INSERT INTO {table} TABLE dump")
            assert await there.bump("b") == 1
            assert await waiting == 40
            await until(lambda: here.epoch == there.epoch != epoch)
            assert await here.bump("b") == 2
            answer = await here._store.read((), None)
            assert (await here._store.read((), answer.position)).versions == {}
            assert "not a message of a relay" not in caplog.text
        await connection.close()

    run(main)


def test_database_set_back_has_new_epoch(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with postgres_server() as server:
            async with pair(server.url) as (here, there):
                assert await there.advance("a", 40) == 40
                await stop(server)
                earlier = server.folder / "earlier"
                shutil.copytree(server.data, earlier, symlinks=True)
                await asyncio.to_thread(server.start)
                for number in range(41, 51):
                    assert await there.bump("a") == number
                waiting = asyncio.create_task(here.wait("a", 50))
                await knows(here, "a")
                epoch = here.epoch
                server.kill()
                shutil.rmtree(server.data)
                earlier.rename(server.data)
                for path in (server.data, *server.data.rglob("*")):
                    if server.user:
                        shutil.chown(path, server.user)
                await asyncio.to_thread(server.start)
                assert await waiting == 40
                assert here.epoch != epoch

    run(main)


def test_version_is_published_only_if_transaction_commits(
    run: Runner, postgres: PostgresServer
) -> None:
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("CREATE TABLE orders (id int)")
        async with pair(postgres.url) as (here, there):
            waiting = asyncio.create_task(there.wait("orders", 0))
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("INSERT INTO orders VALUES (1)")
            assert await here.bump("orders", connection=connection) == 1
            await transaction.rollback()
            assert await here.version("orders") == 0
            async with connection.transaction():
                await connection.execute("INSERT INTO orders VALUES (2)")
                assert await here.bump("orders", connection=connection) == 1
                assert await here.advance("stock", 7, connection=connection) == 7
                await asyncio.sleep(0.1)
                assert not waiting.done()
                assert await there.version("orders") == 0
            assert await waiting == 1
            assert await there.wait("stock", 6) == 7
            with pytest.raises(TypeError, match=r"must be an asyncpg connection to .*, got 'x'"):
                await here.bump("orders", connection="x")
            assert await connection.fetchval("SELECT count(*) FROM orders") == 1
        await connection.close()

    run(main)


def test_later_read_sees_changes_of_long_transaction(run: Runner, postgres: PostgresServer) -> None:
    """A position is older than the open transactions: transactions may commit in another order than
    they began."""
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        async with pair(postgres.url) as (here, there):
            async with connection.transaction():
                await here.bump("slow", connection=connection)
                for number in range(5):
                    await here.bump(f"quick{number}")
                resyncs = there.statistics().resyncs
                there._follower.resync()
                there._sync._has_work.set()  # type: ignore[union-attr]
                await until(lambda: there.statistics().resyncs > resyncs)
                position = there._follower.position
            answer = await there._store.read((), position)
            assert answer.versions["slow"] == 1
        await connection.close()

    run(main)


def test_listener_terminated_by_server_reconnects(run: Runner, postgres: PostgresServer) -> None:
    import asyncpg

    async def main() -> None:
        connection = await asyncpg.connect(postgres.url)
        async with pair(postgres.url) as (here, there):
            for _ in range(3):
                seen = await there.version("a")
                waiting = asyncio.create_task(here.wait("a", seen))
                await until(lambda: here.statistics().is_connected)
                query = (
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name "
                    "= 'purgatory.relay'"
                )
                await connection.execute(query)
                assert await bumped(there, "a") > seen
                assert await waiting > seen
        await connection.close()

    run(main)
