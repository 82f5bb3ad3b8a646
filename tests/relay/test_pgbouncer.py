"""Relays over PostgreSQL behind a pooler, and the number of their connections."""

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from loops import Runner
from relay_waits import bumped, knows, until
from servers import TIMEOUT, PgBouncer, PostgresServer, pgbouncer

from purgatory import RelayUnavailable
from purgatory.relay import Relay

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PgBouncer]]:
    with pgbouncer() as servers:
        yield servers


def opened(pooler: PgBouncer) -> Relay:
    return Relay(pooler.url, resync=TIMEOUT, timeout=TIMEOUT)


async def connections(postgres: PostgresServer) -> int:
    """The number of connections from relays to the server."""
    connection: Any = await asyncpg.connect(postgres.url)
    try:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'purgatory.relay'"
        count: int = await connection.fetchval(query)
        return count
    finally:
        await connection.close()


def test_a_write_completes_a_wait_behind_the_pooler(
    run: Runner, servers: tuple[PostgresServer, PgBouncer]
) -> None:
    async def main() -> None:
        async with opened(servers[1]) as here, opened(servers[1]) as there:
            for number in range(3):
                seen = await there.version("a")
                waiting = asyncio.create_task(here.wait("a", seen))
                await knows(here, "a")
                assert await there.bump("a") == await waiting == seen + 1, number

    run(main)


def test_relay_takes_two_connections_and_releases_them(
    run: Runner, servers: tuple[PostgresServer, PgBouncer]
) -> None:
    async def main() -> None:
        postgres, pooler = servers
        async with opened(pooler) as here, opened(pooler) as there:
            waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(50)]
            await asyncio.gather(*(there.bump(f"key{number}") for number in range(50)))
            await asyncio.gather(*waits)
            assert await connections(postgres) == 4
        async with opened(pooler):
            assert await connections(postgres) <= 4  # returned connections are used again

    run(main)


def test_settings_of_database_change_nothing_behind_pooler(
    run: Runner, servers: tuple[PostgresServer, PgBouncer]
) -> None:
    postgres, pooler = servers
    settings = ["default_transaction_isolation", "default_transaction_read_only"]

    async def main() -> None:
        async with opened(pooler) as relay:
            connection = relay._store._writer._connection  # type: ignore[attr-defined]
            shown = [await connection.fetchval(f"SHOW {name}") for name in settings]
            assert shown == ["read committed", "off"]
            assert await relay.bump("settings") == 1

    for name, value in zip(settings, ("serializable", "on"), strict=True):
        postgres.run(f"ALTER DATABASE postgres SET {name} = '{value}'")
    try:
        pooler.kill()  # its connections to the server have the old settings
        pooler.start()
        run(main)
    finally:
        postgres.run("SET transaction_read_only = off; ALTER DATABASE postgres RESET ALL")
        pooler.kill()
        pooler.start()


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_pooler_must_pool_sessions_and_keeps_no_setting(run: Runner, mode: str) -> None:
    settings = ("lock_timeout", "statement_timeout", "search_path", "standard_conforming_strings")
    shown = [f"current_setting('{name}')" for name in settings]
    query = f"SELECT {', '.join(shown)}, pg_backend_pid(), pg_sleep(0.5)"

    async def main(postgres: PostgresServer, pooler: PgBouncer) -> None:
        async def show_all() -> dict[str, str]:
            """The settings of server connections, by their processes."""
            calls = (asyncio.to_thread(postgres.run, query, at=pooler.url) for _ in range(3))
            rows = [row.rsplit("|", 2) for row in await asyncio.gather(*calls)]
            return {process: text for text, process, _ in rows}

        before = await show_all()
        if mode == "session":
            async with opened(pooler) as relay:
                assert await relay.bump("a") == 1
        else:
            refused = r"^cannot use postgresql://[\d.:]+/postgres: .* use the mode `session`"
            with pytest.raises(RelayUnavailable, match=refused):
                await opened(pooler).__aenter__()
        after = await show_all()
        assert {*after.values()} == {*before.values()} and len({*after.values()}) == 1
        assert after.keys() & before.keys()

    with pgbouncer(mode) as servers:
        run(lambda: main(*servers))


def test_waits_outlive_a_pooler_that_is_killed(
    run: Runner, servers: tuple[PostgresServer, PgBouncer]
) -> None:
    async def main() -> None:
        pooler = servers[1]
        async with opened(pooler) as here, opened(pooler) as there:
            seen = await there.bump("a")
            waiting = asyncio.create_task(here.wait("a", seen))
            await knows(here, "a")
            epoch = here.epoch
            pooler.kill()
            await until(lambda: not here.statistics().is_connected)
            await asyncio.to_thread(pooler.start)
            assert await bumped(there, "a") > seen
            assert await waiting > seen
            assert here.epoch == epoch

    run(main)
