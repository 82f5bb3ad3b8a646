"""A store without a server, for the processes of one machine: SQLite holds the versions, Unix
datagram sockets carry the messages.

    /run/app/purgatory.5f1c2d3e.sqlite     versions, position, epoch, listeners and delivered
                                           values; 5f1c2d3e identifies the boot
    /run/app/purgatory.lock                names the boot of the database in use, and is locked by
                                           each process that uses it
    /run/app/purgatory.9a8b7c6d.sock       one for each listening process

A listener binds its socket and then inserts its name into the database; all later commits are sent
to it. A writer reads these names in its write transaction, and sends after the commit. If it dies
in between, or a socket stays full, messages are lost, and the next gap or resync finds their
changes.

A transaction takes 15 µs, less than a round trip to a thread (25 µs), so it runs on the loop's
thread. While the database is locked, the coroutine sleeps and retries. Nothing is synced to the
disk: commits survive the process that made them, and each boot of the machine starts with a new
database and a new epoch. Containers may have boot ids of their own. So a process uses the database
that the lock names while another process holds the lock, and its own boot id only otherwise.

The statements run on SQLite 3.34, of RHEL 9 and Debian 11, which lacks RETURNING.
"""

import os
import sqlite3
from asyncio import get_running_loop, sleep
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from json import dumps, loads
from pathlib import Path
from secrets import token_hex
from stat import S_ISDIR, S_ISREG, S_IWGRP, S_IWOTH
from subprocess import run
from time import monotonic, time
from typing import Any, Final, TypeVar, final
from urllib.parse import unquote, urlsplit

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
except ImportError as error:  # on Windows
    message = "a relay over a folder needs Unix: use redis:// or postgresql://"
    raise ImportError(message) from error

from purgatory import RelayUnavailable
from purgatory.relay._address import without_password
from purgatory.relay._file_sockets import MAX_DATAGRAM, SocketFolder, datagram_socket, is_file_name
from purgatory.relay._forgetting import MAX_FORGOTTEN, horizon
from purgatory.relay._messages import (
    Change,
    ChangeMessage,
    Delivery,
    ReadResult,
    encode,
    encode_settled,
)
from purgatory.relay._store import (
    MAX_SETTLED_BYTES,
    NotWritten,
    Password,
    Refused,
    refuse_connection,
)

T = TypeVar("T")

APPLICATION_ID: Final = 0x70726C79
"""SQLite's application id, which identifies a relay's database."""

SCHEMA_VERSION: Final = 3

SCHEMA: Final = f"""
    CREATE TABLE versions (
        key TEXT PRIMARY KEY, version INTEGER NOT NULL, position INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX positions ON versions (position);
    CREATE TABLE state (
        epoch TEXT NOT NULL, position INTEGER NOT NULL, floor INTEGER NOT NULL DEFAULT 0,
        forgotten INTEGER NOT NULL DEFAULT 0, samples TEXT NOT NULL DEFAULT '[]'
    );
    CREATE TABLE listeners (name TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE settled (
        key TEXT PRIMARY KEY, token BLOB NOT NULL, expires REAL NOT NULL, value BLOB NOT NULL
    );
    CREATE INDEX expiries ON settled (expires);
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {SCHEMA_VERSION};
"""
"""`forgotten` is the latest position among the forgotten keys; `expires` is on the monotonic clock
of this boot."""

MAX_LOG_BYTES: Final = 4 << 20
"""Size to which SQLite truncates its log after a checkpoint, in bytes."""

MAX_ROWS_PER_READ: Final = 1_000
"""Limit of changes per read."""

LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

DAY: Final = 86_400.0


@final
class FileStore:
    """The store at `file:///folder`, which is created if it is missing. See
    `purgatory.relay.Store`."""

    def __init__(self, url: str, prefix: str, password: Password | None = None) -> None:
        if password is not None:
            raise ValueError(f"password must be None: {without_password(url)!r} is a folder")
        parts = urlsplit(url)
        is_local = parts.netloc in ("", "localhost") and len(parts.path) > 1
        if not is_local or parts.query or parts.fragment:
            raise ValueError(
                "store must be an address like file:///folder, with three slashes, "
                f"got {without_password(url)!r}"
            )
        self.address = without_password(url)
        self._folder = Path(unquote(parts.path))
        self._prefix = prefix
        self._boot = boot_id()
        self._lock_path = self._folder / f"{prefix}.lock"
        self._lock: int | None = None
        """File descriptor of the lock, which it holds while open."""
        self._database: sqlite3.Connection | None = None
        self._identities: list[tuple[int, int]] = []
        """Device and inode of the open database and of its log."""
        self._sockets = SocketFolder(self._folder, self._remove_listener)
        self._own_name = ""
        """Name of this process's socket while it listens, else empty."""

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._prefix}.{self._boot}.sqlite"

    # -- the database

    async def open(self) -> None:
        """See `Store.open`."""
        await self._retry_while_locked(self._connect)
        self._remove_old_databases()

    def _connect(self) -> None:
        """Opens the database, and creates missing tables."""
        self._close_database()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_private(self._folder, S_ISDIR, "folder", {os.geteuid(), 0})
        self._sockets.open()
        self._sockets.remove_dead(self._prefix)
        self._take_lock()
        try:
            self._open_database()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_IOERR_SHORT_READ:
                raise
            # The log was deleted while in use, and no process can open the database again. If
            # another one has replaced it by now, it notices that this one does so, too.
            remove_database(self._path)
            self._open_database()
        self._identities = self._find_identities()

    def _take_lock(self) -> None:
        """Takes the lock, in common with all processes that use the database, and finds its name.

        Raises:
            BlockingIOError: another process is writing the name.
            NotWritten: the folder is in use on another machine, over a network file system.
        """
        self._release_lock()
        path = self._lock_path
        lock = self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o660)
        own = boot_id()
        with suppress(BlockingIOError):
            flock(lock, LOCK_EX | LOCK_NB)  # no process uses a database
            os.pwrite(lock, own.encode(), 0)
        flock(lock, LOCK_SH | LOCK_NB)
        named = os.pread(lock, len(own), 0).decode("ascii", "replace")
        if not is_file_name(f"{self._prefix}.{named}.sqlite", self._prefix, "sqlite"):
            raise ValueError(f"cannot use {path}: it is not a relay's, and was left alone")
        if named != own and not self._sockets.has_listener(self._prefix):
            raise NotWritten(
                f"cannot use {self.address}: it is locked by a process with another boot id, "
                f"{named} instead of {own}, and no relay listens there: is that another machine?"
            )
        self._boot = named

    def _release_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _open_database(self) -> None:
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o660))
        users = {os.geteuid(), 0}
        if self._folder.stat().st_mode & S_IWGRP:  # any member of its group may have created it
            users.add(self._path.lstat().st_uid)
        require_private(self._path, S_ISREG, "file", users)
        database = self._database = sqlite3.connect(self._path, timeout=0.0, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = OFF")
            first_row(database, f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
            database.execute("PRAGMA auto_vacuum = FULL")  # for a new database
            database.execute("BEGIN IMMEDIATE")
            [application] = first_row(database, "PRAGMA application_id")
            [tables] = first_row(database, "SELECT count(*) FROM sqlite_master")
            [schema] = first_row(database, "PRAGMA user_version")
            if not application and not tables and not schema:
                for statement in SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(
                    "INSERT INTO state (epoch, position) VALUES (?, 0)", (token_hex(4),)
                )
            elif application != APPLICATION_ID or schema != SCHEMA_VERSION:
                raise ValueError(
                    f"cannot use {self._path}: it is not a relay's database, and was left alone"
                )
            database.execute("COMMIT")
            first_row(database, "PRAGMA journal_mode = WAL")
            first_row(database, "SELECT * FROM state")  # creates the log
        except BaseException:
            self._close_database()
            raise

    def _remove_old_databases(self) -> None:
        """Removes the databases of earlier boots, but no other files with such names."""
        for path in self._folder.glob(f"{self._prefix}.*.sqlite"):
            with suppress(OSError):
                is_ours = is_file_name(path.name, self._prefix, "sqlite")
                if path != self._path and is_ours and is_old_database(path):
                    remove_database(path)

    async def close(self) -> None:
        """See `Store.close`."""
        self._sockets.close()
        self._close_database()
        self._release_lock()

    def _close_database(self) -> None:
        database, self._database, self._identities = self._database, None, []
        if database is not None:
            database.close()

    async def _transact(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `work` on the database in one transaction, and returns its result."""

        def transaction() -> T:
            if not self._identities or self._find_identities() != self._identities:
                self._connect()
            database = self._database
            assert database is not None
            database.execute(begin)
            try:
                result = work(database)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
            return result

        return await self._retry_while_locked(transaction)

    async def _retry_while_locked(self, work: Callable[[], T]) -> T:
        """Calls `work`, retries while the database is locked, and returns the result."""
        delay = 0.0005
        # Nothing else here suspends: many transactions would share one loop iteration.
        await sleep(0.0)
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in LOCKED:
                    raise self._unavailable(error) from error
            except sqlite3.DatabaseError as error:
                raise ValueError(f"cannot use {self._path}: {error}") from error
            except BlockingIOError:
                pass
            except RelayUnavailable:
                raise
            except OSError as error:
                raise self._unavailable(error) from error
            await sleep(delay)
            delay = min(delay * 2.0, 0.01)

    def _find_identities(self) -> list[tuple[int, int]]:
        """Device and inode of the database and of its log: other numbers for later files of the
        same names."""
        try:
            paths = (self._path, Path(f"{self._path}-wal"))
            return [(status.st_dev, status.st_ino) for status in map(Path.stat, paths)]
        except OSError:
            return []

    def _unavailable(self, error: Exception) -> RelayUnavailable:
        reason = getattr(error, "strerror", None) or str(error)
        unusable = self._find_unusable()
        if unusable is not None:
            reason = f"this user ({os.geteuid()}) needs the rights to read and write {unusable}: {reason}"
        is_refused = isinstance(error, PermissionError) or unusable is not None
        kind = Refused if is_refused else NotWritten
        return kind(f"cannot use {self.address}: {reason}")

    def _find_unusable(self) -> Path | None:
        """The file or folder of the store, or the folder in which it is to be created, that this
        user may not read and write. SQLite's errors do not show this."""
        paths = [self._folder, self._path, self._lock_path]
        if not has_right(self._folder, os.F_OK):
            paths = [next(path for path in self._folder.parents if has_right(path, os.F_OK))]
        for path in paths:
            mode = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
            if has_right(path, os.F_OK) and not has_right(path, mode):
                return path
        return None

    # -- versions

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """See `Store.read`."""

        def work(database: sqlite3.Connection) -> ReadResult:
            query = "SELECT epoch, position, floor, forgotten FROM state"
            epoch, position, floor, forgotten = first_row(database, query)
            is_incomplete = since is not None and since < forgotten
            rows: list[tuple[str, int, int]] = []
            if since is not None and since < position:
                query = """
                    SELECT key, version, position FROM versions WHERE position > ?
                    ORDER BY position LIMIT ?
                """
                rows = database.execute(query, (since, MAX_ROWS_PER_READ)).fetchall()
            latest, has_more = position, len(rows) == MAX_ROWS_PER_READ
            if has_more:
                position = rows[-1][2] - 1  # the last position may have more changes
            versions = {key: version for key, version, at in rows if at <= position}
            for key in keys:
                row = first_row(database, "SELECT version FROM versions WHERE key = ?", (key,))
                versions[key] = row[0] if row else floor
            return ReadResult(epoch, position, versions, has_more, latest, is_incomplete)

        return await self._transact("BEGIN", work)

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """See `Store.write`."""
        refuse_connection(self, connection)

        def work(database: sqlite3.Connection) -> tuple[ChangeMessage, list[str], list[str]]:
            query = "SELECT epoch, position, floor FROM state"
            epoch, before_all, base = first_row(database, query)
            versions, raised = {}, []
            for key, floor, increment in changes:
                row = first_row(database, "SELECT version FROM versions WHERE key = ?", (key,))
                before = row[0] if row else base
                versions[key] = max(before, floor) + increment
                if versions[key] > before:
                    raised.append(key)
            position = before_all + len(raised)
            database.execute("UPDATE state SET position = ?", (position,))
            rows = [(key, versions[key], position) for key in raised]
            database.executemany("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", rows)
            message = ChangeMessage(epoch, before_all, position, versions)
            return message, raised, self._listeners(database)

        message, raised, listeners = await self._transact("BEGIN IMMEDIATE", work)
        if raised:
            versions = {key: message.versions[key] for key in raised}
            payload = encode(message._replace(versions=versions))
            self._publish(payload if len(payload) <= MAX_DATAGRAM else b"[]", listeners)
        return message

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""

        def work(database: sqlite3.Connection) -> None:
            query = "SELECT key, version, position FROM versions WHERE key = ?"
            rows = [first_row(database, query, (key,)) for key in keys]
            self._forget_rows(database, [row for row in rows if row is not None])

        await self._transact("BEGIN IMMEDIATE", work)

    async def forget_unwritten(self, seconds: float) -> bool:
        """See `Store.forget_unwritten`. Times are on the monotonic clock of this boot."""

        def work(database: sqlite3.Connection) -> bool:
            position, before = first_row(database, "SELECT position, samples FROM state")
            samples, last = horizon(loads(before), monotonic(), position, seconds)
            database.execute("UPDATE state SET samples = ?", (dumps(samples),))
            query = """
                SELECT key, version, position FROM versions WHERE position <= ?
                ORDER BY position LIMIT ?
            """
            rows = database.execute(query, (last, MAX_FORGOTTEN)).fetchall()
            self._forget_rows(database, rows)
            return len(rows) == MAX_FORGOTTEN

        return await self._transact("BEGIN IMMEDIATE", work)

    def _forget_rows(self, database: sqlite3.Connection, rows: list[tuple[str, int, int]]) -> None:
        """Deletes rows, each given by its key, version and position, and raises the floor to the
        highest of their versions."""
        if rows:
            keys, *numbers = zip(*rows, strict=True)
            database.executemany("DELETE FROM versions WHERE key = ?", [(key,) for key in keys])
            database.execute(
                "UPDATE state SET floor = max(floor, ?), forgotten = max(forgotten, ?)",
                [*map(max, numbers)],
            )

    async def renew(self, epoch: str) -> None:
        """See `Store.renew`."""
        new = token_hex(4)

        def work(database: sqlite3.Connection) -> tuple[int | None, list[str]]:
            before, position = first_row(database, "SELECT epoch, position FROM state")
            if before != epoch:
                return None, []
            database.execute("UPDATE state SET epoch = ?", (new,))
            return position, self._listeners(database)

        position, listeners = await self._transact("BEGIN IMMEDIATE", work)
        if position is not None:
            self._publish(encode(ChangeMessage(new, position, position, {})), listeners)

    # -- deliveries

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """See `StoreWithDeliveries.settle`."""
        refuse_connection(self, connection)

        def work(database: sqlite3.Connection) -> tuple[dict[str, bool], list[str], list[str]]:
            now = monotonic()
            settled, new = {}, []
            for key, value, ttl, token in deliveries:
                query = "SELECT token FROM settled WHERE key = ? AND expires > ?"
                row = first_row(database, query, (key, now))
                settled[key] = row is None or row[0] == token
                if row is None:
                    query = "INSERT OR REPLACE INTO settled VALUES (?, ?, ?, ?)"
                    database.execute(query, (key, token, now + ttl, value))
                    new.append(key)
            return settled, new, self._listeners(database)

        settled, new, listeners = await self._transact("BEGIN IMMEDIATE", work)
        if new:
            for name in listeners:
                self._sockets.send(name, encode_settled(new, MAX_DATAGRAM))
        return settled

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `StoreWithDeliveries.settled`."""

        def work(database: sqlite3.Connection) -> dict[str, bytes]:
            values: dict[str, bytes] = {}
            now, size = monotonic(), 0
            for key in keys:
                query = "SELECT value FROM settled WHERE key = ? AND expires > ?"
                row = first_row(database, query, (key, now))
                if row is not None:
                    values[key] = row[0]
                    size += len(row[0])
                if size > MAX_SETTLED_BYTES:
                    break
            return values

        return await self._transact("BEGIN", work)

    async def sweep(self, limit: int) -> int:
        """See `SweptStore.sweep`. Removes fewer if they are large. SQLite returns their pages to the
        disk."""
        expired = "FROM settled WHERE expires <= ?"

        def has_expired(database: sqlite3.Connection) -> bool:
            return first_row(database, f"SELECT 1 {expired}", (monotonic(),)) is not None

        def work(database: sqlite3.Connection) -> int:
            query = f"SELECT rowid, length(value) {expired} ORDER BY expires LIMIT ?"
            count, size = 0, 0
            for row, length in database.execute(query, (monotonic(), limit)).fetchall():
                database.execute("DELETE FROM settled WHERE rowid = ?", (row,))
                count, size = count + 1, size + length
                if size > MAX_SETTLED_BYTES:
                    break
            return count

        if not await self._transact("BEGIN", has_expired):
            return 0
        return await self._transact("BEGIN IMMEDIATE", work)

    # -- messages

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """See `Store.listen`."""
        loop = get_running_loop()
        name = f"{self._prefix}.{token_hex(8)}.sock"
        buffer = memoryview(bytearray(2 * MAX_DATAGRAM))
        with datagram_socket() as receiver:

            def receive() -> None:
                with suppress(BlockingIOError):
                    for _ in range(64):
                        size = receiver.recv_into(buffer)
                        on_message(bytes(buffer[:size]))

            try:
                with self._sockets.address(name) as address:
                    receiver.bind(address)
                query = "INSERT INTO listeners VALUES (?)"
                await self._transact(
                    "BEGIN IMMEDIATE", lambda database: database.execute(query, (name,))
                )
                self._own_name = name
                loop.add_reader(receiver, receive)
                on_subscribed()
                await loop.create_future()
            except RelayUnavailable:
                raise
            except OSError as error:
                raise self._unavailable(error) from error
            finally:
                self._own_name = ""
                loop.remove_reader(receiver)
                self._remove_listener(name)

    def _listeners(self, database: sqlite3.Connection) -> list[str]:
        """The valid names of sockets."""
        rows = database.execute("SELECT name FROM listeners").fetchall()
        return [name for (name,) in rows if is_file_name(name, self._prefix, "sock")]

    def _remove_listener(self, name: str) -> None:
        """Removes a listener that is gone. If the database is locked, the next process that sends
        to it removes its name."""
        self._sockets.remove(name)
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.execute("DELETE FROM listeners WHERE name = ?", (name,))

    async def send(self, payload: bytes) -> None:
        """See `Store.send`."""
        for name in await self._transact("BEGIN", self._listeners):
            self._sockets.send(name, payload)

    def _publish(self, payload: bytes, listeners: list[str]) -> None:
        """Sends a message to all other listeners."""
        for name in listeners:
            if name != self._own_name:
                self._sockets.send(name, payload)


def first_row(database: sqlite3.Connection, query: str, arguments: Sequence[Any] = ()) -> Any:
    """The first row of a query, or None."""
    # An open statement blocks a commit, and PyPy frees cursors only at its next garbage collection.
    with closing(database.execute(query, arguments)) as cursor:
        return cursor.fetchone()


def has_right(path: Path, mode: int) -> bool:
    """Whether this process has all these rights to a file, and may write to its file system."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def require_private(path: Path, is_kind: Callable[[int], bool], kind: str, users: set[int]) -> None:
    """Requires that no other user can replace a folder's files or a file's content.

    Raises:
        ValueError: it is a link or of another kind, belongs to none of these users, or is writable
            by everyone.
    """
    status = path.lstat()
    if not is_kind(status.st_mode):
        raise ValueError(f"cannot use {path}: expected a {kind}, not a link or another file")
    if status.st_uid not in users or status.st_mode & S_IWOTH:
        raise ValueError(
            f"cannot use {path}: expected a {kind} of this user ({os.geteuid()}) or root to which "
            f"others may not write, got mode {status.st_mode & 0o7777:04o} of user {status.st_uid}"
        )


def remove_database(path: Path) -> None:
    """Removes a database with its log and index."""
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink(missing_ok=True)


def is_old_database(path: Path) -> bool:
    """Whether this is a relay's database, not a link to one, and unchanged for a day."""
    status = path.lstat()
    if not S_ISREG(status.st_mode) or status.st_mtime > time() - DAY:
        return False
    with path.open("rb") as file:
        header = file.read(100)
    return header.startswith(b"SQLite format 3\0") and header[68:72] == APPLICATION_ID.to_bytes(
        4, "big"
    )


def boot_id() -> str:
    """Identifier of this boot of the machine, 8 characters."""
    file = Path("/proc/sys/kernel/random/boot_id")
    if file.exists():
        return file.read_text()[:8]
    command = ["sysctl", "-n", "kern.bootsessionuuid"]  # macOS
    return run(command, capture_output=True, text=True, check=True).stdout.strip().lower()[:8]
