"""The behaviour of a relay when the server of its store is killed, paused, emptied, or set back to
an earlier state. All faults at random: `test_oracle`."""

import asyncio
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from helpers import until
from relay_proxy import Proxy
from relay_waits import knows, pair, set_timeout, started
from servers import APPENDING, TIMEOUT, FileStore, PostgresServer, RedisServer, served

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

slow = pytest.mark.slow


@pytest.fixture(params=["redis", "postgresql", "nats"])
def server(request, tmp_path):
    with served(request.param, tmp_path, *APPENDING) as server:
        yield server


# Killed, paused and cut off


@slow
async def test_waits_survive_killed_server_and_complete_after_restart(server):
    async with pair(server.url) as (here, there), Relay(server.url, timeout=TIMEOUT) as failing:
        assert await there.bump("a") == 1
        epoch = here.epoch
        calls = (here.wait("a", 1, 0.3), here.receive("a", 0.3))
        short = [asyncio.create_task(call) for call in calls]
        waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(20)]
        receives = [asyncio.create_task(here.receive(f"key{n}")) for n in range(20)]
        await until(lambda: here.statistics().watched >= 40)  # the short ones may have ended
        await set_timeout(failing, 1.0)
        server.kill()
        await until(lambda: not here.statistics().is_connected)
        for task in short:
            with pytest.raises(TimeoutError):
                await task
        begun = time.monotonic()
        failing_calls = {
            "bump": failing.bump("a"),
            "read": failing.version("a"),
            "advance": failing.advance("a", 7),
            "deliver to": failing.deliver("a", b"", ttl=TIMEOUT),
        }
        answers = await asyncio.gather(*failing_calls.values(), return_exceptions=True)
        for verb, error in zip(failing_calls, answers, strict=True):
            assert isinstance(error, RelayUnavailable)
            assert re.match(rf"cannot {verb} 'a': .*127.0.0.1", str(error))
        with pytest.raises(OperationTimeout, match=r"cannot receive 'a': .*127\.0\.0\.1"):
            await failing.receive("a", 0)
        assert time.monotonic() - begun < TIMEOUT
        writing = asyncio.create_task(there.bump("key0"))
        delivering = asyncio.create_task(there.deliver("key0", b"0", ttl=2 * TIMEOUT))
        late = asyncio.create_task(here.receive("key0"))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in (writing, delivering, late, *waits, *receives))
        await asyncio.to_thread(server.start)
        assert await writing >= 1 and await delivering is True
        for number in range(1, 20):
            await there.bump(f"key{number}")
            assert await there.deliver(f"key{number}", b"%d" % number, ttl=2 * TIMEOUT)
        assert await asyncio.gather(*receives) == [b"%d" % number for number in range(20)]
        assert await late == b"0"
        await asyncio.gather(*waits)  # with the version, or the one when the new epoch began
        await until(lambda: here.epoch == there.epoch != epoch)
        again = await asyncio.gather(*(here.wait(f"key{number}", 0) for number in range(20)))
        assert min(again) >= 1
        await until(lambda: here.statistics().is_connected)


@slow
@pytest.mark.parametrize("fault", ["paused", "silent"])
async def test_server_that_gives_no_answer_is_noticed(server, fault):
    """A probe finds it: paused, or behind a firewall that drops the data of its connections."""
    proxy = Proxy(server)
    async with proxy.serving() as url, pair(url, resync=0.3) as (here, there):
        waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(20)]
        receiving = asyncio.create_task(here.receive("a"))
        await until(lambda: here.statistics().watched == 21)
        await set_timeout(here, 1.0)
        await set_timeout(there, 1.0)
        if fault == "silent":
            proxy.silent = list(proxy.open)
        else:
            server.pause()
        try:
            await until(lambda: not here.statistics().is_connected)
            if fault == "paused":
                with pytest.raises(RelayUnavailable, match="gave no answer within"):
                    await there.bump("other")
        finally:
            server.resume()
        await until(lambda: here.statistics().is_connected)
        async with Relay(server.url, timeout=TIMEOUT) as patient:
            await asyncio.gather(*(patient.bump(f"key{number}") for number in range(20)))
            assert await patient.deliver("a", b"value", ttl=2 * TIMEOUT)
        assert min(await asyncio.gather(*waits)) >= 1
        assert await receiving == b"value"


@slow
async def test_closing_with_paused_server_ends_connections_within_timeout(postgres):
    relay = Relay(postgres.url, timeout=TIMEOUT)
    await relay.__aenter__()
    await relay.bump("a")
    await set_timeout(relay, 0.5)
    connections = [pooled._connection for pooled in (relay._store._reader, relay._store._writer)]
    postgres.pause()
    try:
        await relay.aclose()
        assert [connection.is_closed() for connection in connections] == [True, True]
    finally:
        postgres.resume()


# Emptied, or set back

Loss = Callable[[Any], Iterator[None]]
"""Prepares a loss when the key `a` has version 40, and makes it when it has 50."""


def at_once(lose: Callable[[Any], object]) -> Loss:
    """A loss that needs no preparation."""

    def prepared(store: Any) -> Iterator[None]:
        yield
        lose(store)

    return prepared


def file_restored(store: FileStore) -> Iterator[None]:
    """Positions fall as well, so each message looks like a late one."""
    backup = sqlite3.connect(":memory:", check_same_thread=False)
    with store.database() as database:
        database.backup(backup)
    yield
    with store.database() as database, closing(backup):
        backup.backup(database)


def older_dump(redis: RedisServer) -> Iterator[None]:
    redis.ask("SAVE")
    yield
    redis.kill()
    redis.start()


def table_restored(postgres: PostgresServer) -> Iterator[None]:
    """The dump is from a server whose transactions had higher numbers: relays do not read its
    versions again and again for that reason."""
    postgres.run("CREATE TABLE dump AS TABLE purgatory_versions")
    postgres.run("UPDATE dump SET changed = '9876543210' WHERE epoch IS NULL")
    yield
    restore = "TRUNCATE purgatory_versions; INSERT INTO purgatory_versions TABLE dump"
    postgres.run(f"BEGIN; {restore}; COMMIT")


def stop(postgres: PostgresServer) -> None:
    """Shuts the server down properly."""
    assert postgres.process is not None
    postgres.send(signal.SIGINT)
    postgres.process.wait()


def database_set_back(postgres: PostgresServer) -> Iterator[None]:
    stop(postgres)
    earlier = postgres.folder / "earlier"
    shutil.copytree(postgres.data, earlier, symlinks=True)
    postgres.start()
    yield
    postgres.kill()
    shutil.rmtree(postgres.data)
    earlier.rename(postgres.data)
    for path in (postgres.data, *postgres.data.rglob("*")):
        if postgres.user:
            shutil.chown(path, postgres.user)
    postgres.start()


STREAM = "$JS.API.STREAM.{}.purgatory_versions"
LOSSES: dict[str, Loss] = {
    "rows deleted": at_once(lambda store: store.delete_rows("a")),
    "file restored": file_restored,
    "folder deleted": at_once(lambda store: shutil.rmtree(store.folder)),
    "log deleted": at_once(lambda store: next(store.folder.glob("*.sqlite-wal")).unlink()),
    "flushed": at_once(lambda redis: redis.ask("FLUSHALL")),
    "older dump": older_dump,
    "purged": at_once(lambda nats: nats.publish(STREAM.format("PURGE"))),
    "stream deleted": at_once(lambda nats: nats.publish(STREAM.format("DELETE"))),
    "table dropped": at_once(lambda postgres: postgres.run("DROP TABLE purgatory_versions")),
    "table restored": table_restored,
    "database set back": database_set_back,
}
SERVER_KINDS = ("redis", "postgresql", "nats")
LOST = [
    ("file", "rows deleted", TIMEOUT, "a", 1),
    ("file", "rows deleted", 0.2, "", 0),
    ("file", "file restored", TIMEOUT, "a", 41),
    ("file", "folder deleted", 0.2, "", 0),
    ("file", "log deleted", 0.2, "", 0),
]
LOST_BY_SERVERS = [
    *((kind, "rows deleted", TIMEOUT, "a", 1) for kind in SERVER_KINDS),
    *((kind, "rows deleted", 0.2, "", 0) for kind in SERVER_KINDS),
    ("redis", "flushed", TIMEOUT, "c", 0),
    ("redis", "older dump", TIMEOUT, "", 40),
    ("nats", "purged", 0.5, "", 0),
    ("nats", "stream deleted", 0.5, "", 0),
    ("postgresql", "table dropped", 0.3, "", 0),
    ("postgresql", "table restored", TIMEOUT, "c", 40),
    ("postgresql", "database set back", TIMEOUT, "", 40),
]


@pytest.mark.parametrize(
    ("kind", "loss", "resync", "written", "kept"),
    [*LOST, *(pytest.param(*row, marks=slow) for row in LOST_BY_SERVERS)],
)
async def test_loss_ends_waits_in_a_new_epoch(tmp_path, caplog, kind, loss, resync, written, kept):
    """The loss is noticed by a resync, by a write to the key `written`, or by connecting again. The
    wait gets what is `kept`, or one more."""
    options = () if loss == "older dump" else APPENDING
    with served(kind, tmp_path, *options) as server:
        async with pair(server.url, resync=resync) as (here, there):
            losing = LOSSES[loss](server)
            assert await there.advance("a", 40) == 40
            await asyncio.to_thread(next, losing)
            assert [await there.bump("a") for _ in range(10)] == [*range(41, 51)]
            epoch = here.epoch
            waits = [asyncio.create_task(here.wait(key, n)) for key, n in (("a", 50), ("b", 0))]
            await knows(here, "a", "b")
            await asyncio.to_thread(next, losing, None)
            if written:
                await there.bump(written)
            first, second = await asyncio.gather(*waits)
            assert (kept <= first <= kept + 1, second) == (True, 0)
            await until(lambda: here.epoch == there.epoch != epoch)
            async with Relay(server.url, timeout=TIMEOUT) as new:
                assert new.epoch == here.epoch
            later = await started(here, "b", 0)
            assert not later.done()
            assert await there.bump("b") == await later == 1
            assert await here.bump("a") > first
            position = (await here._store.read((), None)).position
            assert (await here._store.read((), position)).versions == {}
            assert kind == "nats" or "not a message of a relay" not in caplog.text


@slow
async def test_loss_starts_new_epoch_without_surviving_processes(server):
    """Redis loses its newest writes, the other servers lose everything: no relay may take earlier
    numbers for present ones."""
    if isinstance(server, RedisServer):
        server.command[server.command.index("--appendonly") + 1] = "no"
        server.kill()
        server.start()
    async with Relay(server.url, timeout=TIMEOUT) as here:
        assert await here.bump("a") == 1
        if isinstance(server, RedisServer):
            server.ask("SAVE")
        assert await here.bump("a") == 2
        epoch = here.epoch
    server.kill()
    await asyncio.to_thread(server.start)
    async with Relay(server.url, timeout=TIMEOUT) as here:
        await here.advance("a", 2)
        assert here.epoch != epoch


@slow
async def test_clean_shutdown_keeps_versions_and_epoch(postgres):
    async with pair(postgres.url) as (here, there):
        assert await there.advance("a", 40) == 40
        epoch = here.epoch
        waiting = asyncio.create_task(here.wait("a", 40))
        await until(lambda: here.statistics().watched == 1)
        await asyncio.to_thread(stop, postgres)
        await asyncio.to_thread(postgres.start)
        assert await there.bump("a") == await waiting == 41
        assert here.epoch == there.epoch == epoch
