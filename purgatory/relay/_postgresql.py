"""A store in PostgreSQL 13 or later: one table, and one channel.

    purgatory_versions    the table: key, version, changed (by which transaction), epoch (in the row of 0xff, which is no key)
    purgatory_news        the channel

A version is raised by an UPDATE, in the caller's transaction if he wants: the row is locked until that ends, the version is
told by NOTIFY if and only if it is committed, and nobody else has got the same number. So keep such transactions short.

The table is UNLOGGED: what a server has lost in a crash, or to a replica that takes its place, is the whole of it, and so the
epoch goes with it; and no commit waits for the disk. A dump that is restored brings the epoch's row along, but not the
transaction that has made it, which that row names: so it counts for nothing.

Its writes are not counted: that would make all of them wait for each other. A position is the last transaction before the
oldest one that was running when somebody looked: every change up to it was there to be seen, and a change by any other is seen
the next time, perhaps again. News have the transaction that made them; the next one to come is later than all these, unless the
database comes back with what it had earlier.

One channel, because NOTIFY makes commits wait for each other; so a process tells all that it writes in a turn at once. A
listener is gone with its connection, and `listen` ends with it. asyncpg calls back from its own reading; psycopg has to be
asked, and keeps the connection's lock meanwhile.
"""

from asyncio import Future, Lock, gather, get_running_loop
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from json import dumps
from secrets import token_hex
from typing import Any, Final, final

try:
    import asyncpg
except ImportError as error:
    raise ImportError("a relay over PostgreSQL needs its client: pip install 'asyncio-purgatory[postgresql]'") from error

from purgatory import RelayUnavailable
from purgatory.relay._address import without_password
from purgatory.relay._messages import NOWHERE, Answer, Change, News

EPOCH_KEY: Final = b"\xff"

COLUMNS: Final = [("key", "bytea"), ("version", "bigint"), ("changed", "xid8"), ("epoch", "text")]

LONGEST_PAYLOAD: Final = 7_000
"""Bytes of news, without what is around the keys and versions; NOTIFY takes 8,000."""

SHAPE: Final = """
    SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

CREATE: Final = """
    CREATE UNLOGGED TABLE {table} (key bytea PRIMARY KEY, version bigint NOT NULL, changed xid8 NOT NULL, epoch text);
    CREATE INDEX ON {table} (changed)
"""

READ: Final = """
    SELECT key, version, epoch, pg_snapshot_xmin(shot)::text::bigint - 1, pg_snapshot_xmax(shot)::text::bigint - 1
    FROM {table}, pg_current_snapshot() AS shot WHERE key = '\\xff' AND {table}.xmin = changed::xid
    UNION ALL SELECT key, version, NULL, NULL, NULL FROM {table} WHERE key = ANY ($1::bytea[])
    UNION ALL SELECT key, version, NULL, NULL, NULL FROM {table} WHERE changed > $2::text::xid8 AND key <> '\\xff'
"""

WRITE: Final = """
    WITH change AS MATERIALIZED (
        SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[]) AS change (key, name, at_least, more)
    ), raised AS (
        INSERT INTO {table} AS row (key, version, changed)
        SELECT key, at_least + more, pg_current_xact_id() FROM change ORDER BY key
        ON CONFLICT (key) DO UPDATE SET
            version = (SELECT greatest(row.version, at_least) + more FROM change WHERE change.key = row.key),
            changed = pg_current_xact_id()
        RETURNING key, version
    ), told AS (
        SELECT array_agg(key) AS keys, array_agg(version) AS versions, string_agg(name || ':' || version, ',') AS news
        FROM raised JOIN change USING (key)
    )
    SELECT keys, versions, epoch, pg_current_xact_id()::text::bigint AS position,
        CASE WHEN epoch IS NOT NULL THEN
            pg_notify($5, '["' || epoch || '",-1,' || pg_current_xact_id()::text || ',{{' || news || '}}]')
        END
    FROM told LEFT JOIN {table} ON key = '\\xff' AND {table}.xmin = changed::xid
"""

BEGIN_EPOCH: Final = """
    INSERT INTO {table} VALUES ('\\xff', 0, pg_current_xact_id(), $1)
    ON CONFLICT (key) DO UPDATE SET changed = pg_current_xact_id(), epoch = $1 WHERE {table}.xmin <> {table}.changed::xid
"""

ADOPT: Final = """
    UPDATE {table} SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id() AND key <> '\\xff'
"""
"""For what was restored from another server, whose transactions had other numbers."""

RENEW: Final = """
    WITH renewed AS (
        UPDATE {table} SET epoch = $2, changed = pg_current_xact_id() WHERE key = '\\xff' AND epoch = $3 RETURNING epoch
    )
    SELECT pg_notify($1, '["' || epoch || '",-1,-1,{{}}]') FROM renewed
"""


@final
class PostgresStore:
    """The store at `postgresql://user@host/database`. See `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str) -> None:
        self.address = without_password(url)
        self._url = url
        self._table = f'"{prefix}_versions"'
        self._channel = f"{prefix}_news"
        self._reader = Slot(url)
        self._writer = Slot(url)

    def _query(self, text: str) -> str:
        return text.format(table=self._table)

    async def open(self) -> None:
        """See `Store.open`."""
        async with self._using(self._writer) as connection, connection.transaction():
            # All processes of an application start at once, and CREATE TABLE IF NOT EXISTS is not made for that.
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._table)
            shape = [tuple(row) for row in await connection.fetch(SHAPE, self._table)]
            if not shape:
                await connection.execute(self._query(CREATE))
            elif shape != COLUMNS:
                raise ValueError(
                    f"cannot use the table {self._table} at {self.address}: it is something else, and was left alone"
                )
            await self._begin_epoch(connection)

    async def _begin_epoch(self, connection: Any) -> None:
        """Begins one, unless there is one that was begun here."""
        await connection.execute(self._query(BEGIN_EPOCH), token_hex(4))
        await connection.execute(self._query(ADOPT))

    async def close(self) -> None:
        """See `Store.close`."""
        # At once: one that is not answered, because the server is paused, is ended with the time limit.
        await gather(self._reader.close(), self._writer.close(), return_exceptions=True)

    @asynccontextmanager
    async def _using(self, slot: "Slot") -> AsyncIterator[Any]:
        with self._in_our_words():
            async with slot.connection() as connection:
                yield connection

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except (asyncpg.DataError, asyncpg.UndefinedColumnError, asyncpg.DatatypeMismatchError) as error:
            raise ValueError(f"cannot use the table {self._table} at {self.address}: {error}") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if isinstance(error, RelayUnavailable):
                raise
            raise RelayUnavailable(f"cannot use {self.address}: {error}") from error

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> Answer:
        """See `Store.read`. However many have changed, they are in one answer."""
        async with self._using(self._reader) as connection:
            while True:
                rows = await connection.fetch(
                    self._query(READ), [key.encode() for key in keys], None if since is None else str(since)
                )
                versions = dict.fromkeys(keys, 0)
                epoch, position, latest = None, 0, 0
                for row in rows:
                    if row[0] == EPOCH_KEY:
                        epoch, position, latest = row[2], row[3], row[4]
                    else:
                        versions[row[0].decode()] = row[1]
                if epoch is not None:
                    return Answer(epoch, position, versions, latest=latest)
                await self._begin_epoch(connection)

    async def write(self, changes: Sequence[Change], connection: Any = None) -> News:
        """See `Store.write`. On a connection of the caller's, what goes wrong with it is raised as it is."""
        if connection is not None:
            if not hasattr(connection, "fetchrow"):
                raise TypeError(f"{self.address} writes on a connection of asyncpg, not on {connection!r}")
            return await self._write(connection, changes)
        async with self._using(self._writer) as own:
            return await self._write(own, changes)

    async def _write(self, connection: Any, changes: Sequence[Change]) -> News:
        versions: dict[str, int] = {}
        epoch, position = "", NOWHERE
        for some in portions(changes):
            keys, least, more = zip(*some, strict=True)
            names = [dumps(key) for key in keys]
            arguments = [[key.encode() for key in keys], names, least, more, self._channel]
            row = await connection.fetchrow(self._query(WRITE), *arguments)
            if row["epoch"] is None:  # the table was emptied, or restored
                await self._begin_epoch(connection)
                row = await connection.fetchrow(
                    self._query(WRITE), arguments[0], names, [0] * len(keys), [0] * len(keys), self._channel
                )
            epoch, position = row["epoch"], row["position"]
            versions.update((key.decode(), version) for key, version in zip(row["keys"], row["versions"], strict=True))
        return News(epoch, NOWHERE, position, versions)

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        async with self._using(self._reader) as connection:
            await connection.execute(self._query(RENEW), self._channel, token_hex(4), epoch)

    # -- news

    async def listen(self, confirmed: Callable[[], None], heard: Callable[[bytes | str], None]) -> None:
        """See `Store.listen`."""
        ended: Future[None] = get_running_loop().create_future()

        def end(*_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        with self._in_our_words():
            connection = await asyncpg.connect(self._url, server_settings={"application_name": "purgatory.relay"})
            try:
                connection.add_termination_listener(end)
                await connection.add_listener(self._channel, lambda _connection, _process, _channel, payload: heard(payload))
                confirmed()
                await ended
            finally:
                connection.terminate()

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._using(self._reader) as connection:
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, payload.decode())


@final
class Slot:
    """A place for one connection, which one uses at a time. One that has failed, or was left in the middle, is thrown away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = Lock()
        self._connection: Any = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """The connection, for as long as the block lasts."""
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._url, server_settings={"application_name": "purgatory.relay"})
            try:
                yield self._connection
            except BaseException:
                connection, self._connection = self._connection, None
                connection.terminate()
                raise

    async def close(self) -> None:
        """Ends the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def portions(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """The changes, in as few portions as news of them fit into messages."""
    some: list[Change] = []
    size = 0
    for change in changes:
        length = len(dumps(change[0])) + 20
        if some and size + length > LONGEST_PAYLOAD:
            yield some
            some, size = [], 0
        some.append(change)
        size += length
    if some:
        yield some
