"""A store in PostgreSQL 13 or later: two tables, and a channel.

    purgatory_versions     table of versions: key, version, changed (the last transaction), epoch.
                           The row with key 0xff has the epoch, the row 0xfe the state of
                           forgetting
    purgatory_settled      table of delivered values: key, token, expires, value; with their times to live
    purgatory_news_2200    channel of all messages; 2200 is the schema of the tables

A version is raised by an UPDATE, optionally in the caller's transaction. The row is locked until
that transaction ends, NOTIFY publishes the key if and only if it commits, and no other transaction
gets the same number. So keep such transactions short. Other writers wait for a locked row only
briefly: then the server ends their statement, and it is repeated in halves, which leaves out the
locked keys.

The table is UNLOGGED, so commits do not wait for the disk. After a crash, and on a promoted
replica, it is empty and lacks the row of the epoch. A restored dump has this row. The row names the
transaction that wrote it, but in the restored table another transaction inserted it, so it is
invalid. The `version` of this row is the floor.

Writes are not counted, since a counter would serialize them. A position describes a snapshot:
`730:745:733,740` has seen all transactions below 745 except 733 and 740, which were running. The
next read asks for the rows of these two and of all transactions from 745 on, so it reads each
change once, even while an older transaction stays open. It reads in portions; each portion starts
after the last row of the portion before.

Every role that can connect to the database can listen to a channel and send to it. So a message is
only a hint to read its keys, or, if their names do not fit into a message, all changes; versions
come from the table alone.

Keys are forgotten under a table lock. An INSERT waits for this lock before it takes its snapshot,
so it sees the floor that includes the forgotten version of its key.

All keys share one channel, because NOTIFY serializes commits; all writes of one loop iteration are
one message. A listener ends with its connection, and so does `listen`. Each process has two
connections: one listens and reads, the other writes. asyncpg calls back when it reads from the
connection; psycopg must be polled, and holds the connection's lock meanwhile.
"""

from asyncio import Future, gather, get_running_loop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from json import dumps, loads
from secrets import token_hex
from typing import Any, Final, TypeVar, final

from purgatory._core.errors import how_to_install

try:
    import asyncpg
except ImportError as error:
    raise ImportError(
        f"a relay over PostgreSQL needs its client: {how_to_install('postgresql')}"
    ) from error

from purgatory import RelayUnavailable
from purgatory.relay import _postgresql_queries as sql
from purgatory.relay._address import hosts_of, require_address, without_password
from purgatory.relay._connection import Connection
from purgatory.relay._forgetting import MAX_FORGOTTEN, horizon
from purgatory.relay._messages import (
    NO_POSITION,
    Change,
    ChangeMessage,
    Delivery,
    ReadResult,
)
from purgatory.relay._store import MAX_SETTLED_BYTES, NotWritten, Password, Refused, current

T = TypeVar("T")
R = TypeVar("R")

MAX_HINT_BYTES: Final = 7_000
"""Size limit of a hint, in bytes; NOTIFY allows 8,000."""

MAX_ROWS_PER_READ: Final = 2_000
"""Limit of changes per read."""

OPENING_LOCK_TIMEOUT: Final = 5_000
LOCK_TIMEOUT: Final = 50
SHORT_LOCK_TIMEOUT: Final = 5
"""Milliseconds for which a statement waits for a lock. The first value applies while a connection is
opened, since another process may be creating the tables; the second is longer than relays that
write the same keys delay each other; the third applies once some row is known to be locked."""


@final
class Position(int):
    """A snapshot as a position: as an integer, the last transaction before all that were running.

    Attributes:
        seen: the snapshot up to which all changes were read.
        target: the later snapshot of an unfinished read in portions, or empty. It is reached when
            all of its changes after `last` have been read.
        last: transaction and key of the last row read toward `target`.
    """

    def __new__(cls, seen: str, target: str = "", last: tuple[int, bytes] = (0, b"")) -> "Position":
        self = super().__new__(cls, int(seen.partition(":")[0]) - 1)
        self.seen, self.target, self.last = seen, target, last
        return self

    seen: str
    target: str
    last: tuple[int, bytes]

    @classmethod
    def of(cls, number: int) -> "Position":
        """The position with this number, with all later changes unread."""
        return number if isinstance(number, Position) else cls(f"{number + 1}:{number + 1}:")

    @property
    def running(self) -> list[str]:
        """The transactions below `limit` that were running: their changes were not seen."""
        return [number for number in self.seen.split(":")[2].split(",") if number]

    @property
    def limit(self) -> int:
        """The first transaction that had not started."""
        return int(self.seen.split(":")[1])


@final
class PostgresStore:
    """The store at `postgresql://user@host/database`, or on the primary among several hosts,
    `postgresql://user@host1,host2/database`. See `purgatory.relay.Store`."""

    is_channel_trusted = False

    def __init__(self, url: str, prefix: str, password: Password | None = None) -> None:
        self.address = without_password(url)
        self._password = password
        url = require_address(url, takes_several_hosts=True)
        self._url = url
        is_single = len(hosts_of(url)) == 1
        self._attributes = None if is_single or "target_session_attrs=" in url else "primary"
        self._must_check_mode = True
        """Whether a pooler there may share connections; checked once."""
        self._prefix = prefix
        self._table = self._settled_table = ""
        """Names with their schema, because the caller's connection may have another
        `search_path`."""
        self._reader, self._writer = Connection[Any](self), Connection[Any](self)

    def _query(self, text: str) -> str:
        return text.format(
            table=self._table,
            settled=self._settled_table,
            channel=sql.CHANNEL.format(table=self._table, prefix=self._prefix),
            rows=MAX_ROWS_PER_READ,
            epoch=sql.KEY.format(sql.EPOCH_KEY.hex()),
            state=sql.KEY.format(sql.STATE_KEY.hex()),
        )

    async def open(self) -> None:
        """See `Store.open`."""
        async with self._writer.use():
            pass

    async def close(self) -> None:
        """See `Store.close`."""
        # Concurrently: on a paused server neither ends before the caller's time limit, which then
        # terminates both.
        await gather(self._reader.close(), self._writer.close(), return_exceptions=True)

    async def connect(self, current: Any) -> Any:
        """See `Server.connect`. Also creates the tables, unless they exist, and starts an epoch."""
        if current is not None and not current.is_closed():
            return current
        connection = await self._connect()
        try:
            direct = sql.IS_DIRECT.format(pid=connection.get_server_pid())
            if await self._set(connection, direct) == "SELECT 0":
                if self._must_check_mode:
                    await self._require_mode(connection)
                    self._must_check_mode = False
                await self._set(connection, "true")
            self._table = await self._require_table(connection, "versions", sql.COLUMNS, sql.CREATE)
            self._settled_table = await self._require_table(
                connection, "settled", sql.SETTLED_COLUMNS, sql.CREATE_SETTLED
            )
            await self._begin_epoch(connection)
            await connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT}")
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _connect(self) -> Any:
        return await asyncpg.connect(
            self._url,
            password=self._password and partial(current, self._password),
            server_settings={"application_name": "purgatory.relay"},
            target_session_attrs=self._attributes,
        )

    async def disconnect(self, connection: Any, is_broken: bool) -> None:
        """See `Server.disconnect`."""
        if is_broken:
            connection.terminate()
        else:
            await connection.close()

    def kind_of(self, error: Exception) -> type[Exception] | None:
        """See `Server.kind_of`."""
        if isinstance(
            error, (asyncpg.DataError, asyncpg.UndefinedColumnError, asyncpg.DatatypeMismatchError)
        ):
            return ValueError
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            return Refused
        is_lost = str(getattr(error, "sqlstate", "")).startswith(("08", "57"))
        if isinstance(error, asyncpg.PostgresError) and not is_lost:
            return NotWritten  # the statement failed
        if "cannot switch to state" in str(error):
            return NotWritten  # it did not start
        clients = asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
        return RelayUnavailable if isinstance(error, (*clients, OSError)) else None

    async def _set(self, connection: Any, condition: str) -> str:
        """Sets `SETTINGS`, and returns how many, as `SELECT 6`."""
        settings = sql.SETTINGS.format(lock_timeout=OPENING_LOCK_TIMEOUT, condition=condition)
        status: str = await connection.execute(settings)
        return status

    async def _require_mode(self, connection: Any) -> None:
        """Requires that no pooler shares this connection's server process with other clients. Sets
        nothing, so that nothing is left for them.

        Raises:
            Refused: a pooler does.
        """
        own, is_shared = await backend_of(connection), False
        other = await self._connect()
        try:
            for _ in range(3):  # a third client may have the shared process in between
                await other.execute("BEGIN")
                is_shared = await backend_of(other) == own or await backend_of(connection) != own
                await other.execute("ROLLBACK")
                if is_shared:
                    break
        except asyncpg.PostgresError as error:
            if "pooling mode" not in str(error):  # statement mode refuses transactions
                raise
            is_shared = True
        finally:
            other.terminate()
        if is_shared:
            raise Refused(
                "a pooler there shares server connections between transactions, but LISTEN needs "
                "its own: use the mode `session` (PgBouncer's pool_mode) for this user or "
                "database, or the server's own address"
            )

    async def _require_table(
        self, connection: Any, name: str, columns: list[str], create: str
    ) -> str:
        """Creates a table unless it exists, and checks that using it runs no other role's code.
        Takes no lock, since any role could hold it. Returns the name with its schema."""
        name = f'"{self._prefix}_{name}"'
        row = await connection.fetchrow(sql.SHAPE, name)
        if row is None:
            with suppress(  # other processes create it, too
                asyncpg.DuplicateTableError,
                asyncpg.DuplicateObjectError,
                asyncpg.UniqueViolationError,
            ):
                async with connection.transaction():
                    await connection.execute(create.format(table=name))
                    for [role] in await connection.fetch(sql.GRANTEES, name):
                        await connection.execute(f"REVOKE ALL ON {name} FROM {role}")
            row = await connection.fetchrow(sql.SHAPE, name)
        if row is None:
            raise NotWritten(f"its table {name} was dropped again")
        if row["columns"] != columns:
            raise ValueError(f"its table {name} is not a relay's, and was left alone")
        if not row["is_trusted"]:
            raise ValueError(
                f"its table {name} belongs to {row['owner']}: expected this role, a superuser, or "
                "the owner of the schema or the database"
            )
        if row["has_code"]:
            raise ValueError(f"its table {name} is not a plain table: it has triggers or rules")
        if row["hides_rows"]:
            raise Refused(
                f"row security hides rows of its table {name} from the role {row['role']}: use the "
                "table's owner without FORCE ROW LEVEL SECURITY, or a role with BYPASSRLS"
            )
        if row["missing"]:
            raise Refused(
                f"the role {row['role']} has no right to {', '.join(row['missing'])} on its table "
                f"{name}"
            )
        found: str = row["name"]
        return found

    async def _begin_epoch(self, connection: Any) -> None:
        """Begins an epoch, unless the table has a valid one."""
        await connection.execute(self._query(sql.BEGIN_EPOCH), token_hex(4))
        await connection.execute(self._query(sql.ADOPT))

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""
        names = [key.encode() for key in keys]
        before = None if since is None else Position.of(since)
        running: list[str] = []
        arguments: tuple[Any, ...] = (running, "0", b"", None)
        if before is not None:
            running, (at, key) = before.running, before.last
            arguments = (running, str(at), key, str(max(at, before.limit)))
        async with self._reader.use() as connection:
            while True:
                rows = await connection.fetch(self._query(sql.READ), names, *arguments)
                if rows and rows[0][0] == sql.EPOCH_KEY:
                    break
                await self._begin_epoch(connection)
        _, floor, epoch, snapshot = rows[0]
        versions: dict[str, Any] = dict.fromkeys(keys, floor)
        changes, is_incomplete = 0, False
        last = b"", ""
        for name, version, changed, _ in rows[1:]:
            if name == sql.STATE_KEY:
                is_incomplete = before is not None and (
                    changed in running or int(changed) >= before.limit
                )
                continue
            versions[name.decode()] = version
            if changed is not None:
                changes += 1
                last = name, changed
        position = Position(snapshot)
        latest = position.limit - 1
        has_more = changes >= MAX_ROWS_PER_READ - 1  # one row may have been the epoch's
        if before is not None:
            position = Position(before.target or snapshot)
            if has_more:
                position = Position(before.seen, position.seen, (int(last[1]), last[0]))
        return ReadResult(epoch, position, versions, has_more, latest, is_incomplete)

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`. Errors of the caller's connection are raised as they are."""
        if connection is not None:
            self._require_connection(connection)
            await self._require_isolation(connection)
            return await self._write(connection, changes)
        async with self._writer.use() as own:
            messages = await leaving_out_locked(own, changes, partial(self._write, own))
            message = messages[-1] if messages else await self._write(own, ())
            versions = [each.versions.items() for each in messages]
            return message._replace(versions=dict(chain(*versions)))

    def _require_connection(self, connection: Any) -> None:
        """Requires that a caller's connection is one of the client, in a transaction."""
        if not hasattr(connection, "fetchrow"):
            raise TypeError(
                f"connection must be an asyncpg connection to {self.address}, got {connection!r}"
            )
        if not connection.is_in_transaction():
            raise ValueError(
                f"connection must be in a transaction at {self.address}: there is none, so the "
                "write would be committed at once. Begin one, as by `async with "
                "connection.transaction()`; SQLAlchemy's session does so with its first statement, "
                "such as by `await session.flush()`"
            )

    async def _require_isolation(self, connection: Any) -> None:
        """Requires that a write in the caller's transaction sees the current floor: the snapshot of
        a stricter level may be older than a forgotten key."""
        isolation = await connection.fetchval("SHOW transaction_isolation")
        if isolation not in ("read committed", "read uncommitted"):
            raise ValueError(
                f"connection must have a READ COMMITTED transaction at {self.address}, "
                f"got {isolation.upper()}"
            )

    async def _write(self, connection: Any, changes: Sequence[Change]) -> ChangeMessage:
        names = [key.encode() for key, _, _ in changes]
        hint = dumps([key for key, _, _ in changes]) if changes else ""
        if len(hint) > MAX_HINT_BYTES:
            hint = "[]"
        floors = [floor for _, floor, _ in changes]
        increments = [increment for _, _, increment in changes]
        rows = await connection.fetch(self._query(sql.WRITE), names, floors, increments, hint)
        if rows[0]["epoch"] is None:  # the table was emptied, or restored
            await self._begin_epoch(connection)
            zeros = [0] * len(changes)
            rows = await connection.fetch(self._query(sql.WRITE), names, zeros, zeros, hint)
        versions = {row["key"].decode(): row["version"] for row in rows if row["key"] is not None}
        return ChangeMessage(rows[0]["epoch"], NO_POSITION, rows[0]["position"], versions)

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._forget([key.encode() for key in keys], -1)

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`."""
        async with self._writer.use() as connection:
            now, position, before = await connection.fetchrow(self._query(sql.AGE))
            samples, last = horizon(loads(before or "[]"), now, position, seconds)
            if dumps(samples) != before:
                await connection.execute(self._query(sql.SAMPLE), dumps(samples))
        return last >= 0 and await self._forget([], last) == MAX_FORGOTTEN

    async def _forget(self, names: list[bytes], last: int) -> int:
        """Forgets these keys, and some keys that no transaction after `last` has changed. Returns
        the number of forgotten keys."""
        async with self._writer.use() as connection:
            try:
                async with connection.transaction():
                    await connection.execute(self._query(sql.LOCK))
                    count: int = await connection.fetchval(
                        self._query(sql.FORGET), names, str(max(last, 0)), MAX_FORGOTTEN
                    )
                    return count
            except asyncpg.LockNotAvailableError as error:
                raise NotWritten("another transaction with writes is open") from error

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        async with self._writer.use() as connection:
            await connection.execute(self._query(sql.RENEW), token_hex(4), epoch)

    # -- deliveries

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """See `StoreWithDeliveries.settle`. Errors of the caller's connection are raised as they
        are."""
        if connection is not None:
            self._require_connection(connection)
            return await self._settle(connection, deliveries)
        async with self._writer.use() as own:
            parts = await leaving_out_locked(own, deliveries, partial(self._settle, own))
        return dict(chain(*(part.items() for part in parts)))

    async def _settle(self, connection: Any, deliveries: Sequence[Delivery]) -> dict[str, bool]:
        tokens = {delivery.key.encode(): delivery.token for delivery in deliveries}
        rows = await connection.fetch(
            self._query(sql.SETTLE),
            list(tokens),
            [dumps(delivery.key) for delivery in deliveries],
            [delivery.value for delivery in deliveries],
            [delivery.ttl for delivery in deliveries],
            list(tokens.values()),
            MAX_HINT_BYTES,
        )
        settled = {row["key"] for row in rows}
        others = [key for key in tokens if key not in settled]
        if others:  # the snapshot of another statement includes an earlier attempt's write
            rows = await connection.fetch(self._query(sql.TOKENS), others)
            settled |= {row["key"] for row in rows if row["token"] == tokens[row["key"]]}
        return {key.decode(): key in settled for key in tokens}

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `StoreWithDeliveries.settled`."""
        async with self._reader.use() as connection:
            names = [key.encode() for key in keys]
            rows = await connection.fetch(self._query(sql.SETTLED), names, MAX_SETTLED_BYTES)
        return {row["key"].decode(): row["value"] for row in rows}

    async def sweep(self, limit: int) -> int:
        """See `SweptStore.sweep`."""
        async with self._writer.use() as connection:
            count: int = await connection.fetchval(self._query(sql.SWEEP), limit)
            return count

    # -- messages

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """See `Store.listen`."""
        ended: Future[None] = get_running_loop().create_future()

        def end(*_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        async with self._reader.use() as connection:
            connection.add_termination_listener(end)
            channel = await connection.fetchval(self._query("SELECT {channel}"))
            await connection.add_listener(channel, lambda *words: on_message(words[-1]))
        try:
            on_subscribed()
            await ended
        finally:
            self._reader.drop(connection)

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        # On the writer's connection: so a probe shows that it is alive, too.
        async with self._writer.use() as connection:
            await connection.execute(
                self._query("SELECT pg_notify({channel}, $1)"), payload.decode()
            )


async def backend_of(connection: Any) -> int:
    """Id of the server process that answers. A COPY needs no prepared statement, which a pooler
    could give to another process."""
    parts: list[bytes] = []

    async def keep(data: bytes) -> None:
        parts.append(data)

    await connection.copy_from_query("SELECT pg_backend_pid()", output=keep)
    return int(b"".join(parts))


async def leaving_out_locked(
    connection: Any, items: Sequence[T], write: Callable[[Sequence[T]], Awaitable[R]]
) -> list[R]:
    """Writes items, and returns the results. If other transactions hold some locked, writes halves,
    to leave these out; then statements wait for a shorter time, since some are known to be locked. What
    fails after others were written is left out, too. After an error nothing is reset, because the
    error ends the connection."""
    with suppress(asyncpg.LockNotAvailableError):
        return [await write(items)]
    await connection.execute(f"SET lock_timeout = {SHORT_LOCK_TIMEOUT}")
    results: list[R] = []
    parts = [items]
    while parts:
        part = parts.pop()
        middle = len(part) // 2
        for half in (part[:middle], part[middle:]) if middle else ():
            try:
                results.append(await write(half))
            except asyncpg.LockNotAvailableError:
                parts.append(half)
            except asyncpg.PostgresError:
                if not results:
                    raise
    await connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT}")
    return results
