"""Stores that lose rows or go back to a backup while processes wait."""

import asyncio
import sqlite3
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from relay_waits import knows, until
from servers import SERVERS, TIMEOUT, nats_server, postgres_server, redis_server

from purgatory import Ended, OperationTimeout
from purgatory.relay import Relay

prefixes = count(1)


class Store:
    """A store whose rows can be deleted behind the back of its relays."""

    def __init__(self, url: str, delete: Callable[[str, str], Any]) -> None:
        self.url, self._delete = url, delete
        self.prefix = f"test{next(prefixes)}"

    def delete(self, key: str) -> None:
        self._delete(self.prefix, key)

    def relay(self, **options: Any) -> Relay:
        options = {"resync": TIMEOUT, "timeout": TIMEOUT, "prefix": self.prefix, **options}
        return Relay(self.url, **options)


@pytest.fixture(
    scope="module", params=["file", SERVERS["redis"], SERVERS["postgresql"], SERVERS["nats"]]
)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Callable[[str, str], Any]]]:
    """The address of a store, and a function that deletes one of its rows."""
    folder = tmp_path_factory.mktemp("relay")
    if request.param == "file":

        def delete_from_file(prefix: str, key: str) -> None:
            [path] = (folder / "app").glob(f"{prefix}.*.sqlite")
            with sqlite3.connect(path) as database:
                database.execute("DELETE FROM versions WHERE key = ?", (key,))
            database.close()

        yield f"file://{folder}/app", delete_from_file
    elif request.param == "redis":
        with redis_server(folder) as redis:

            def delete_from_redis(prefix: str, key: str) -> None:
                redis.ask("HDEL", f"{{{prefix}}}:versions", f"v:{key}")
                redis.ask("ZREM", f"{{{prefix}}}:order", f"v:{key}")

            yield redis.url, delete_from_redis
    elif request.param == "nats":
        with nats_server(folder) as nats:

            def delete_from_nats(prefix: str, key: str) -> None:
                name = urlsafe_b64encode(key.encode()).decode().rstrip("=")
                filter_ = f'{{"filter":"{prefix}_versions.key.={name}"}}'
                nats.publish(f"$JS.API.STREAM.PURGE.{prefix}_versions", filter_)

            yield nats.url, delete_from_nats
    else:
        with postgres_server() as postgres:

            def delete_from_table(prefix: str, key: str) -> None:
                postgres.run(f"DELETE FROM {prefix}_versions WHERE key = '{key}'")

            yield postgres.url, delete_from_table


@pytest.fixture
def store(place: tuple[str, Callable[[str, str], Any]]) -> Store:
    return Store(*place)


def test_deleted_row_is_noticed_by_next_write(run: Runner, store: Store) -> None:
    async def main() -> None:
        async with store.relay() as here, store.relay() as there:
            assert await there.advance("a", 40) == 40
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 40))
            await knows(here, "a")
            store.delete("a")
            await there.bump("a")
            assert await waiting < 40
            await until(lambda: here.epoch == there.epoch != epoch)

    run(main)


def test_deleted_row_is_noticed_by_a_resync(run: Runner, store: Store) -> None:
    async def main() -> None:
        async with store.relay(resync=0.2) as here:
            assert await here.advance("a", 40) == 40
            epoch = here.epoch
            waiting = asyncio.create_task(here.wait("a", 40))
            await knows(here, "a")
            store.delete("a")
            assert await waiting < 40
            assert here.epoch != epoch

    run(main)


def test_store_behind_its_own_answer_ends_the_epoch(run: Runner, tmp_path: Path) -> None:
    """Positions fall as well, so each message looks like a late one."""

    async def main() -> None:
        store = Store(f"file://{tmp_path}/app", lambda *_: None)
        async with store.relay() as here, store.relay() as there:
            backup = sqlite3.connect(":memory:")
            there._store._database.backup(backup)  # type: ignore[attr-defined]
            for _ in range(5):
                await there.bump("a")
            waiting = asyncio.create_task(here.wait("a", 5))
            await knows(here, "a")
            rows = backup.execute("SELECT epoch, position FROM state").fetchall()
            database = there._store._database  # type: ignore[attr-defined]
            database.execute("DELETE FROM versions")
            database.execute("UPDATE state SET epoch = ?, position = ?", rows[0])
            backup.close()
            async with store.relay() as other:  # knows nothing of the lost writes
                assert await other.bump("a") == 1
                assert await waiting == 1
                await until(lambda: here.epoch == other.epoch)

    run(main)


def test_seen_beyond_current_ends_only_its_wait(run: Runner, tmp_path: Path) -> None:
    ended: list[Ended] = []

    class Observer:
        def operation_ended(self, operation: Ended) -> None:
            ended.append(operation)

        def key_checked(self, key: object, tried: int, completed: int) -> None: ...

    async def main() -> None:
        store = Store(f"file://{tmp_path}/app", lambda *_: None)
        async with store.relay(observer=Observer()) as here:
            assert await here.bump("a") == 1
            waits = [asyncio.create_task(here.wait("a", 1)) for _ in range(100)]
            await knows(here, "a")
            for _ in range(5):
                assert await here.wait("a", 1000) == 1
            assert len(ended) == 5
            assert not any(wait.done() for wait in waits)
            assert await here.bump("a") == 2
            assert await asyncio.gather(*waits) == [2] * 100

    run(main)


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0])
@pytest.mark.parametrize("is_followed", [True, False])
def test_wait_without_timeout_asks_the_store_once(
    run: Runner, store: Store, timeout: float, is_followed: bool
) -> None:
    async def main() -> None:
        async with store.relay() as here, store.relay() as there:
            await there.advance("a", 7)
            others = [asyncio.create_task(here.wait("a", 7)) for _ in range(is_followed)]
            if is_followed:
                await knows(here, "a")
            assert await here.wait("a", 3, timeout) == 7
            assert await here.wait("a", 9, timeout) == 7
            assert await here.wait("a", 7, timeout, epoch="another") == 7
            with pytest.raises(OperationTimeout, match=r"'a' did not reach 8 .*: it has 7"):
                await here.wait("a", 7, timeout)
            assert here.statistics().watched == len(others)
            assert len(here.thresholds._queues) == len(others)
            for task in others:
                task.cancel()

    run(main)
