"""The store in PostgreSQL: rows locked by other sessions, long transactions, schemas, and a channel
on which any session may send."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from helpers import until
from relay_waits import set_timeout, started
from servers import TIMEOUT, PgBouncer, PostgresServer, served
from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Change, Relay
from purgatory.relay._postgresql import LOCK_TIMEOUT, MAX_ROWS_PER_READ, PostgresStore
from purgatory.relay._postgresql_queries import CREATE

pytestmark = pytest.mark.slow


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Relay]:
    options = {"prefix": f"test{uuid4().hex[:8]}", "resync": TIMEOUT, "timeout": TIMEOUT} | options
    async with Relay(url, **options) as relay:
        yield relay


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, f"test{uuid4().hex[:8]}")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def write_keys(store: PostgresStore, count: int) -> list[str]:
    """Writes `count` keys, a hundred at a time."""
    keys = [f"key{number}" for number in range(count)]
    for first in range(0, count, 100):
        await store.write([Change(key, 0, 1) for key in keys[first : first + 100]])
    return keys


async def read_all(store: PostgresStore, since: int) -> tuple[list[str], int]:
    """The keys that have changed after a position, and the last position."""
    keys: list[str] = []
    has_more = True
    while has_more:
        result = await store.read((), since)
        assert len(result.versions) <= MAX_ROWS_PER_READ
        since, has_more = result.position, result.has_more
        keys += result.versions
    return keys, since


@pytest.mark.parametrize("exists", [False, True])
async def test_locked_row_blocks_no_other_key(postgres, exists):
    """Neither while the row is locked, nor by statements that still wait for it; and a failed write
    is not done later."""
    async with opened(postgres.url) as here, connected(postgres.url) as connection:
        if exists:
            await here.bump("locked")
        transaction = connection.transaction()
        await transaction.start()
        await here.bump("locked", connection=connection)
        failing = []
        for _ in range(5):
            await set_timeout(here, 10.0)
            failing += [asyncio.create_task(here.bump("locked")) for _ in range(2)]
            await asyncio.sleep(0)
            await set_timeout(here, TIMEOUT)
            await asyncio.gather(*(here.bump(f"key{number}") for number in range(99)))
            assert here.statistics().is_connected
        for error in await asyncio.gather(*failing, return_exceptions=True):
            assert isinstance(error, RelayUnavailable)
            words = "cannot bump 'locked': another transaction holds it locked at postgresql://"
            assert str(error).startswith(words)
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'purgatory.relay'"
        assert await connection.fetchval(query) == 2
        # The last attempt has failed, too.
        await until(lambda: "locked" not in here._client.changes._locked)
        waiting = [asyncio.create_task(here.bump("locked")) for _ in range(3)]
        await until(lambda: "locked" in here._client.changes._locked)
        rest = (here.bump("locked"), here.advance("locked", 40), here.bump("locked"))
        waiting += map(asyncio.create_task, rest)
        await transaction.rollback()
        assert await asyncio.gather(*waiting) == [41, 42, 43, 44, 45, 45]
        assert await here.version("key0") == 5


async def test_open_waits_for_table_being_created(postgres):
    """Workers that start together create the tables; on a busy server that takes a while."""
    store = PostgresStore(postgres.url, "together")
    async with connected(postgres.url) as first, connected(postgres.url) as observer:
        async with first.transaction():
            await first.execute(CREATE.format(table='"together_versions"'))
            opening = asyncio.create_task(store.open())
            blocked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while await observer.fetchval(blocked) is None and not opening.done():
                await asyncio.sleep(0.01)
            await asyncio.sleep(4 * LOCK_TIMEOUT / 1000)  # longer than a write would wait
        await opening
        await store.close()


async def test_changes_are_paged_once_despite_open_transaction(postgres):
    async with opened_store(postgres.url) as store, connected(postgres.url) as connection:
        since = (await store.read((), None)).position
        async with connection.transaction():
            await store.write([Change("slow", 0, 1)], connection)
            keys = await write_keys(store, 2 * MAX_ROWS_PER_READ)
            changed, since = await read_all(store, since)
            assert sorted(changed) == sorted(keys)
            assert await read_all(store, since) == ([], since)
            await write_keys(store, MAX_ROWS_PER_READ + 100)
            portion = await store.read((), since)
            assert portion.has_more
        await store.write([Change("key0", 0, 1)])  # both committed between two portions
        rest, since = await read_all(store, portion.position)
        changed, since = await read_all(store, since)
        assert {"slow", "key0"} <= {*rest, *changed}
        assert await read_all(store, since) == ([], since)


async def test_foreign_notification_is_only_a_hint(postgres):
    async with opened(postgres.url) as here, connected(postgres.url) as connection:
        assert await here.bump("a") == 1
        epoch = here.epoch
        waiting = await started(here, "a", 1)
        channel = await connection.fetchval(here._store._query("SELECT {channel}"))
        forged = [f'["{epoch}",-1,1,{{"a":99}}]', f'["{epoch}",0,{10**15},{{"a":99}}]']
        forged += ['["other",-1,-1,{"a":99}]', '["a"]', "[]", "nonsense"]
        for payload in forged:
            await connection.execute("SELECT pg_notify($1, $2)", channel, payload)
        follower = here._follower
        await until(lambda: follower.received >= 4 and not follower.needs_read)
        await until(lambda: follower._in_flight is None)
        assert not waiting.done()
        assert (here.epoch, here.statistics().epochs) == (epoch, 1)
        table = here._store._table
        await connection.execute(
            f"UPDATE {table} SET version = 2, changed = pg_current_xact_id() WHERE version = 1"
        )
        await connection.execute("SELECT pg_notify($1, $2)", channel, '["a"]')
        assert await waiting == 2


async def test_relays_of_two_schemas_are_isolated(postgres):
    prefix = f"test{uuid4().hex[:8]}"
    async with connected(postgres.url) as connection:
        await connection.execute(f"CREATE SCHEMA {prefix}")
    other = f"{postgres.url}?search_path={prefix}"
    async with opened(postgres.url, prefix=prefix) as here, opened(other, prefix=prefix) as there:
        assert here.epoch != there.epoch
        received = here.statistics().received
        assert await there.bump("a") == 1
        assert await there.bump("a") == 2
        await until(lambda: there.statistics().received == 2)
        assert await here.bump("a") == 1
        await until(lambda: here.statistics().received > received)
        assert here.statistics().received == received + 1


HOSTILE_SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "off",
    "statement_timeout": "50",  # enough for a SET
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "idle_session_timeout": "100",
    "search_path": "hostile, pg_catalog",
}


@pytest.mark.parametrize("kind", ["ROLE hostile", "DATABASE hostile"])
def test_settings_of_role_or_database_change_nothing(run, postgres, kind):
    async def main() -> None:
        postgres.run("CREATE ROLE hostile LOGIN SUPERUSER")
        postgres.run("CREATE DATABASE hostile")
        url = postgres.url.replace("tester", "hostile").replace("/postgres", "/hostile")
        async with connected(url) as connection:
            await connection.execute(
                "CREATE SCHEMA hostile; CREATE FUNCTION hostile.pg_notify(text, text) RETURNS int "
                "LANGUAGE plpgsql AS $$ BEGIN RAISE 'not the server''s function'; END $$"
            )
        for name, value in HOSTILE_SETTINGS.items():
            quoted = value if name == "search_path" else f"'{value}'"
            postgres.run(f"ALTER {kind} SET {name} = {quoted}")
        async with opened(url) as here, opened(url, prefix=here._store._prefix) as there:
            waiting = await started(there, "a", 0)
            assert await here.bump("a") == 1
            assert await waiting == 1
            await here.forget("a")
            assert await here.bump("b") == 2
            assert await here.deliver("a", b"value", ttl=TIMEOUT)
            assert await there.receive("a") == b"value"
            shown = []
            for pooled in (here._store._writer, there._store._reader):
                async with pooled.use() as own:
                    shown.append([await own.fetchval(f"SHOW {name}") for name in HOSTILE_SETTINGS])
        assert shown == [["read committed", "off", "off", "0", "50ms", "10s", "0", "hostile"]] * 2

    try:
        run(main)
    finally:
        postgres.run("DROP DATABASE hostile WITH (FORCE)")
        postgres.run("DROP ROLE hostile")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_unsafe_transaction_of_the_caller_is_refused(postgres, level):
    async with opened(postgres.url) as here, connected(postgres.url) as connection:
        async with connection.transaction():
            await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            for call, *words in ((here.bump, "a"), (here.advance, "a", 7)):
                with pytest.raises(ValueError, match=f"READ COMMITTED .*got {level}"):
                    await call(*words, connection=connection)
            assert await connection.fetchval("SELECT 1") == 1  # the transaction is intact
        assert await here.version("a") == 0
        async with connection.transaction(isolation="read_committed"):
            await connection.execute("SET LOCAL standard_conforming_strings = off")
            assert await here.bump("a", connection=connection) == 1


@pytest.mark.parametrize("error", [asyncpg.InsufficientPrivilegeError, asyncpg.DiskFullError])
async def test_half_a_write_outlives_failure_of_the_rest(postgres, monkeypatch, error):
    """A locked key has the write divided: committed changes are not written twice."""
    keys = ["a", "b", "locked", "z"]
    async with opened(postgres.url, timeout=1.0) as here, connected(postgres.url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await here.bump("locked", connection=connection)
        write, written = PostgresStore._write, 0

        async def failing(store: Any, own: Any, changes: Any) -> Any:
            nonlocal written
            if written:
                raise error("cannot write")
            result = await write(store, own, changes)
            written += len(changes)
            return result

        monkeypatch.setattr(PostgresStore, "_write", failing)
        answers = await asyncio.gather(*map(here.bump, keys), return_exceptions=True)
        monkeypatch.undo()
        await transaction.rollback()
        made = [await here.version(key) for key in keys]
        assert 0 < written == sum(made) and max(made) == 1
        for answer, version in zip(answers, made, strict=True):
            assert answer == 1 if version else isinstance(answer, RelayUnavailable)
            assert error is asyncpg.DiskFullError or "perhaps" not in str(answer)


async def test_late_answer_in_a_transaction_is_perhaps_written(postgres):
    class Late:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        async def fetch(self, *words: Any) -> None:
            await self._connection.fetch(*words)
            await asyncio.sleep(TIMEOUT)

    async with opened(postgres.url, timeout=1.0) as here, connected(postgres.url) as connection:
        async with connection.transaction():
            with pytest.raises(RelayUnavailable, match=r"perhaps written$"):
                await here.bump("a", connection=Late(connection))
            with pytest.raises(RelayUnavailable, match=r"perhaps delivered$"):
                await here.deliver("a", b"", ttl=TIMEOUT, connection=Late(connection))
        assert await here.version("a") == 1


async def test_delivery_in_a_transaction_counts_when_committed(postgres, prefix):
    async with (
        connected(postgres.url) as connection,
        opened(postgres.url, prefix=prefix) as here,
        opened(postgres.url, prefix=prefix, timeout=2.0) as there,
    ):
        receiving = asyncio.create_task(there.receive("a", TIMEOUT))
        await until(lambda: there.statistics().watched == 1)
        transaction = connection.transaction()
        await transaction.start()
        assert await here.deliver("a", b"lost", ttl=TIMEOUT, connection=connection)
        locked = "another transaction holds it locked"
        with pytest.raises(RelayUnavailable, match=locked):
            await there.deliver("a", b"other", ttl=TIMEOUT)
        assert await there.deliver("b", b"free", ttl=TIMEOUT)
        assert not receiving.done()
        await transaction.rollback()
        with pytest.raises(OperationTimeout):
            await there.receive("a", 0)
        async with connection.transaction():
            assert await here.deliver("a", b"kept", ttl=TIMEOUT, connection=connection)
            delivering = asyncio.create_task(here.deliver("a", b"late", ttl=TIMEOUT))
            await asyncio.sleep(0.2)
            assert not receiving.done() and not delivering.done()
        assert await receiving == b"kept"
        assert await delivering is False


@pytest.mark.parametrize("begins", [False, True])
async def test_session_of_sqlalchemy_commits_data_with_version(postgres, prefix, begins):
    """The session sends BEGIN with its first statement; `add` sends none."""
    engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+asyncpg:"))
    table = Table(f"{prefix}_orders", MetaData(), Column("id", Integer, primary_key=True))
    async with engine.begin() as connection:
        await connection.run_sync(table.create)
    async with opened(postgres.url, prefix=prefix) as here, AsyncSession(engine) as session:
        if begins:
            await session.execute(insert(table).values(id=1))
        raw = (await (await session.connection()).get_raw_connection()).driver_connection
        if not begins:
            words = r"must be in a transaction at .* such as by `await session.flush\(\)`"
            for call in (here.bump, here.advance, here.deliver):
                more = {here.advance: (7,), here.deliver: (b"",)}.get(call, ())
                ttl = {"ttl": TIMEOUT} if call == here.deliver else {}
                with pytest.raises(ValueError, match=words):
                    await call("a", *more, connection=raw, **ttl)
            assert await here.version("a") == 0
        else:
            sent = here.statistics().sent
            assert await here.bump("a", connection=raw) == 1
            assert await here.deliver("a", b"value", ttl=TIMEOUT, connection=raw)
            assert here.statistics().sent == sent + 2
            await session.rollback()
            assert await here.version("a") == 0
            with pytest.raises(OperationTimeout):
                await here.receive("a", 0)
    await engine.dispose()


# Beside what hosts and tools do to tables


def test_default_grants_are_revoked(run, postgres):
    """As of hosts that give all tables to roles of their own."""
    postgres.run("CREATE DATABASE granted")
    url = postgres.url.replace("/postgres", "/granted")
    postgres.run('CREATE ROLE "any One" LOGIN')
    for to in ("PUBLIC", '"any One"'):
        postgres.run(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {to}", at=url)

    async def main() -> None:
        async with opened(url, prefix="purgatory") as relay:
            assert await relay.deliver("a", b"secret", ttl=TIMEOUT)

    try:
        run(main)
        rights = "SELECT relacl FROM pg_class WHERE relname LIKE 'purgatory_%' AND relkind = 'r'"
        assert postgres.run(rights, at=url).split() == ["{tester=arwdDxtm/tester}"] * 2 or all(
            line.startswith("{tester=") and "," not in line
            for line in postgres.run(rights, at=url).split()
        )
    finally:
        postgres.run("DROP DATABASE granted WITH (FORCE)")
        postgres.run('DROP ROLE "any One"')


def test_row_security_is_used_by_owner_only(run, postgres):
    postgres.run("CREATE DATABASE secured OWNER owner")
    url = postgres.url.replace("/postgres", "/secured")
    tables = "purgatory_versions", "purgatory_settled"

    async def main() -> None:
        owner, guest = (url.replace("tester", name) for name in ("owner", "app"))
        async with opened(owner, prefix="purgatory") as relay:
            assert await relay.bump("a") == 1
        for table in tables:
            postgres.run(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", at=url)
            postgres.run(f"GRANT ALL ON {table} TO app", at=url)
        async with opened(owner, prefix="purgatory") as relay:
            assert await relay.bump("a") == 2
        with pytest.raises(RelayUnavailable, match=r"row security hides rows .* from the role app"):
            await opened(guest, prefix="purgatory").__aenter__()
        for table in tables:
            postgres.run(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY", at=url)
        with pytest.raises(
            RelayUnavailable, match=r"row security hides rows .* from the role owner"
        ):
            await opened(owner, prefix="purgatory").__aenter__()

    try:
        run(main)
    finally:
        postgres.run("DROP DATABASE secured WITH (FORCE)")


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
async def test_alembic_keeps_the_relays_tables(postgres, prefix):
    """With the function of the page."""
    page = (Path(__file__).parents[2] / "purgatory/relay/README.md").read_text()
    names: dict[str, Any] = {}
    block = next(b for b in page.split("```python\n") if b.startswith("# migrations/env.py"))
    exec(block.partition("```")[0].replace("purgatory_", f"{prefix}_"), names)
    engine = create_async_engine(postgres.url.replace("postgresql:", "postgresql+asyncpg:"))

    def differences(connection: Any, **options: Any) -> str:
        context = MigrationContext.configure(connection, opts=options)
        return str(compare_metadata(context, MetaData()))

    async with opened(postgres.url, prefix=prefix), engine.connect() as connection:
        dropped = await connection.run_sync(differences)
        assert f"{prefix}_versions" in dropped and f"{prefix}_settled" in dropped
        include = names["include_object"]
        kept = await connection.run_sync(differences, include_object=include)
        assert f"{prefix}_" not in kept
    await engine.dispose()


# Behind a pooler


@pytest.fixture(scope="module")
def pooler():
    with served("pgbouncer", Path()) as pooler:
        yield pooler


def connections(postgres: PostgresServer) -> int:
    """The number of connections from relays to the server."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'purgatory.relay'"
    return int(postgres.run(query))


async def test_relay_takes_two_connections_and_releases_them(pooler, prefix):
    postgres = pooler.postgres
    async with (
        opened(pooler.url, prefix=prefix) as here,
        opened(pooler.url, prefix=prefix) as there,
    ):
        waits = [asyncio.create_task(here.wait(f"key{number}", 0)) for number in range(50)]
        await asyncio.gather(*(there.bump(f"key{number}") for number in range(50)))
        await asyncio.gather(*waits)
        assert connections(postgres) == 4
    async with opened(pooler.url):
        assert connections(postgres) <= 4  # returned connections are used again


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_pooler_must_pool_sessions_and_keeps_no_setting(run, mode):
    settings = ("lock_timeout", "statement_timeout", "search_path", "standard_conforming_strings")
    shown = [f"current_setting('{name}')" for name in settings]
    query = f"SELECT {', '.join(shown)}, pg_backend_pid(), pg_advisory_xact_lock_shared(7)"

    async def main(pooler: PgBouncer) -> None:
        postgres = pooler.postgres

        async def show_all() -> dict[str, str]:
            """The settings of three server connections, by their processes."""
            run = partial(asyncio.to_thread, postgres.run, query, at=pooler.url)
            async with connected(postgres.url) as holder:
                await holder.execute("SELECT pg_advisory_lock(7)")
                calls = [asyncio.create_task(run()) for _ in range(3)]
                while await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted") < 3:
                    await asyncio.sleep(0.02)
            rows = [row.rsplit("|", 2) for row in await asyncio.gather(*calls)]
            return {process: text for text, process, _ in rows}

        before = await show_all()
        if mode == "session":
            async with opened(pooler.url) as relay:
                assert await relay.bump("a") == 1
        else:
            refused = r"^cannot use postgresql://[\d.:]+/postgres: .* use the mode `session`"
            with pytest.raises(RelayUnavailable, match=refused):
                await opened(pooler.url).__aenter__()
        after = await show_all()
        assert {*after.values()} == {*before.values()} and len({*after.values()}) == 1
        assert after.keys() & before.keys()

    with served("pgbouncer", Path(), mode) as pooler:
        run(lambda: main(pooler))
