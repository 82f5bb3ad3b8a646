"""A store in PostgreSQL 13 or later: one table, and one channel.

    purgatory_versions    the table: key, version, changed (by which transaction), epoch (in the row of 0xff, which is no key)
    purgatory_news        the channel

A version is raised by an UPDATE, if wanted in the caller's transaction. The row is locked until that ends, NOTIFY publishes the
version if and only if it is committed, and no other transaction gets the same number. So keep such transactions short.

The table is UNLOGGED: after a crash, and on a replica that is promoted, it is empty, without the row of the epoch; and no
commit waits for the disk. A dump that is restored has this row, which names the transaction that has made it; but another
transaction has inserted it there, so it does not count.

Writes are not counted: that would make all of them wait for each other. A position is the last transaction before the oldest
one that was running at the time of a read: that read sees every change up to it. A change by a later transaction is seen by the
next read, perhaps again. A message has the transaction that has sent it as its position; the next transaction is later, unless
the database was set back.

One channel, because NOTIFY makes commits wait for each other; so all writes of one iteration of the loop are one message. A
listener is gone with its connection, and `listen` ends with it. asyncpg calls back as it reads from the connection; psycopg has
to be polled, and holds the connection's lock meanwhile.
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
from purgatory.relay._messages import NO_POSITION, Change, ChangeMessage, ReadResult

EPOCH_KEY: Final = b"\xff"

COLUMNS: Final = [("key", "bytea"), ("version", "bigint"), ("changed", "xid8"), ("epoch", "text")]

MAX_PAYLOAD_BYTES: Final = 7_000
"""Of the keys and versions in a message; NOTIFY takes 8,000 in all."""

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
        SELECT * FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[]) AS change (key, name, floor, increment)
    ), raised AS (
        INSERT INTO {table} AS row (key, version, changed)
        SELECT key, floor + increment, pg_current_xact_id() FROM change ORDER BY key
        ON CONFLICT (key) DO UPDATE SET
            version = (SELECT greatest(row.version, floor) + increment FROM change WHERE change.key = row.key),
            changed = pg_current_xact_id()
        RETURNING key, version
    ), message AS (
        SELECT array_agg(key) AS keys, array_agg(version) AS versions, string_agg(name || ':' || version, ',') AS changes
        FROM raised JOIN change USING (key)
    )
    SELECT keys, versions, epoch, pg_current_xact_id()::text::bigint AS position,
        CASE WHEN epoch IS NOT NULL THEN
            pg_notify($5, '["' || epoch || '",-1,' || pg_current_xact_id()::text || ',{{' || changes || '}}]')
        END
    FROM message LEFT JOIN {table} ON key = '\\xff' AND {table}.xmin = changed::xid
"""

BEGIN_EPOCH: Final = """
    INSERT INTO {table} VALUES ('\\xff', 0, pg_current_xact_id(), $1)
    ON CONFLICT (key) DO UPDATE SET changed = pg_current_xact_id(), epoch = $1 WHERE {table}.xmin <> {table}.changed::xid
"""

ADOPT: Final = """
    UPDATE {table} SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id() AND key <> '\\xff'
"""
"""For a table that was restored from another server, whose transactions had other numbers."""

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
        self._reader = PooledConnection(url)
        self._writer = PooledConnection(url)

    def _query(self, text: str) -> str:
        return text.format(table=self._table)

    async def open(self) -> None:
        """See `Store.open`."""
        async with self._connection(self._writer) as connection, connection.transaction():
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
        """Begins an epoch, unless the table has one that was begun in it."""
        await connection.execute(self._query(BEGIN_EPOCH), token_hex(4))
        await connection.execute(self._query(ADOPT))

    async def close(self) -> None:
        """See `Store.close`."""
        # Together: on a server that is paused neither ends before the time limit, which terminates both.
        await gather(self._reader.close(), self._writer.close(), return_exceptions=True)

    @asynccontextmanager
    async def _connection(self, pooled: "PooledConnection") -> AsyncIterator[Any]:
        with self._translate_errors():
            async with pooled.connection() as connection:
                yield connection

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (asyncpg.DataError, asyncpg.UndefinedColumnError, asyncpg.DatatypeMismatchError) as error:
            raise ValueError(f"cannot use the table {self._table} at {self.address}: {error}") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            if isinstance(error, RelayUnavailable):
                raise
            raise RelayUnavailable(f"cannot use {self.address}: {error}") from error

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`. However many have changed, they are in one result."""
        async with self._connection(self._reader) as connection:
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
                    return ReadResult(epoch, position, versions, latest=latest)
                await self._begin_epoch(connection)

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`. Errors of the caller's connection are raised as they are."""
        if connection is not None:
            if not hasattr(connection, "fetchrow"):
                raise TypeError(f"{self.address} writes on a connection of asyncpg, not on {connection!r}")
            return await self._write(connection, changes)
        async with self._connection(self._writer) as own:
            return await self._write(own, changes)

    async def _write(self, connection: Any, changes: Sequence[Change]) -> ChangeMessage:
        versions: dict[str, int] = {}
        epoch, position = "", NO_POSITION
        for payload in _payloads(changes):
            keys, floors, increments = zip(*payload, strict=True)
            names = [dumps(key) for key in keys]
            arguments = [[key.encode() for key in keys], names, floors, increments, self._channel]
            row = await connection.fetchrow(self._query(WRITE), *arguments)
            if row["epoch"] is None:  # the table was emptied, or restored
                await self._begin_epoch(connection)
                row = await connection.fetchrow(
                    self._query(WRITE), arguments[0], names, [0] * len(keys), [0] * len(keys), self._channel
                )
            epoch, position = row["epoch"], row["position"]
            versions.update((key.decode(), version) for key, version in zip(row["keys"], row["versions"], strict=True))
        return ChangeMessage(epoch, NO_POSITION, position, versions)

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        async with self._connection(self._reader) as connection:
            await connection.execute(self._query(RENEW), self._channel, token_hex(4), epoch)

    # -- messages

    async def listen(self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]) -> None:
        """See `Store.listen`."""
        ended: Future[None] = get_running_loop().create_future()

        def end(*_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        with self._translate_errors():
            connection = await _connect(self._url)
            try:
                connection.add_termination_listener(end)
                await connection.add_listener(
                    self._channel, lambda _connection, _process, _channel, payload: on_message(payload)
                )
                on_subscribed()
                await ended
            finally:
                connection.terminate()

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        async with self._connection(self._reader) as connection:
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, payload.decode())


@final
class PooledConnection:
    """One connection, used by one task at a time. After an error or a cancellation it is terminated, and made anew."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = Lock()
        self._connection: Any = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """The connection, for as long as the block lasts."""
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await _connect(self._url)
            try:
                yield self._connection
            except BaseException:
                connection, self._connection = self._connection, None
                connection.terminate()
                raise

    async def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def _connect(url: str) -> Any:
    return await asyncpg.connect(url, server_settings={"application_name": "purgatory.relay"})


def _payloads(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """The changes, in as few parts as fit into one message each."""
    payload: list[Change] = []
    size = 0
    for change in changes:
        length = len(dumps(change[0])) + 20
        if payload and size + length > MAX_PAYLOAD_BYTES:
            yield payload
            payload, size = [], 0
        payload.append(change)
        size += length
    if payload:
        yield payload
