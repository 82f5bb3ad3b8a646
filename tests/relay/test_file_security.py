"""A folder to which other users have access: names, owners, modes and links are not trusted."""

import os
import re
import shutil
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from helpers import until
from relay_waits import pair, refused, started
from servers import TIMEOUT

sys.path.insert(0, str(Path(__file__).parent.parent))
from requirements import unavailable

from purgatory.relay import Relay
from purgatory.relay._file import boot_id

NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    """Runs the block as another user of the machine."""
    if os.geteuid() != 0:
        unavailable("needs root, to act as another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def sticky():
    """A folder like `/tmp`. Folders of pytest are closed to other users."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def database_of(folder: Path) -> Path:
    return folder / f"purgatory.{boot_id()}.sqlite"


async def test_names_in_the_database_are_no_paths(tmp_path):
    folder, precious = tmp_path / "app", tmp_path / "precious"
    near = folder / "purgatory.0123456789abcdef.sock"  # our own form, but no socket
    names = ["../precious", str(precious), "../foreign.sock", str(tmp_path / "foreign.sock")]
    names += [f"{near.name}/../../precious", f"{near.name}\n", near.name, "", ".", "a\0b"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
        foreign.bind(str(tmp_path / "foreign.sock"))
        foreign.setblocking(False)
        async with Relay(f"file://{folder}", timeout=TIMEOUT) as relay:
            for path in (precious, near):
                path.write_text("mine")
            with sqlite3.connect(database_of(folder)) as database:
                rows = [(name,) for name in names]
                database.executemany("INSERT INTO listeners VALUES (?)", rows)
                database.execute("INSERT INTO listeners VALUES (?)", (b"purgatory",))
            database.close()
            for number in range(1, 4):
                assert await relay.bump("a") == number
            await relay._store.send(b'"a probe"')
            await relay._store.renew(relay.epoch)
            assert precious.read_text() == near.read_text() == "mine"
            assert (tmp_path / "foreign.sock").is_socket()
            with pytest.raises(BlockingIOError):
                foreign.recv(1)


def others_folder(folder: Path, mode: int = 0o777) -> Path:
    with another_user():
        folder.mkdir()
        folder.chmod(mode)
        with sqlite3.connect(database_of(folder)) as database:
            database.execute("CREATE TABLE keys (name)")
        database.close()
    return folder


def others_link(folder: Path) -> Path:
    (folder.parent / "home").mkdir()
    with another_user():
        folder.symlink_to(folder.parent / "home")
    return folder


def database(folder: Path, owner: int = -1, mode: int = 0o600, content: bytes = b"") -> Path:
    folder.mkdir()
    database_of(folder).write_bytes(content)
    database_of(folder).chmod(mode)
    if os.geteuid() != 0:
        unavailable("needs root, to act as another user")
    os.chown(database_of(folder), owner, -1)
    return folder


def foreign_database(folder: Path) -> Path:
    folder.mkdir()
    with sqlite3.connect(database_of(folder)) as theirs:
        theirs.execute("CREATE TABLE accounts (name TEXT)")
    theirs.close()
    return folder


def linked_database(folder: Path) -> Path:
    folder.mkdir()
    database_of(folder).symlink_to(folder / "target")
    return folder


PLACES: list[tuple[Callable[[Path], Path], str]] = [
    (others_folder, "expected a folder of this user"),
    (partial(others_folder, mode=0o700), "expected a folder of this user"),
    (others_link, "expected a folder, not a link"),
    (lambda folder: folder.parent, "others may not write, got mode 1777"),
    (partial(database, owner=NOBODY), "expected a file of this user"),
    (partial(database, mode=0o666), "expected a file of this user"),
    (partial(database, content=b"a text that is no database" * 100), "not a database"),
    (foreign_database, "not a relay's database, and was left alone"),
    (linked_database, "expected a file, not a link"),
]


def content(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """The files below a folder, by their paths, without the lock that relays hold."""
    return {
        path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
        if path.name != "purgatory.lock"
    }


@pytest.mark.parametrize(("make", "match"), PLACES, ids=[match for _, match in PLACES])
async def test_place_of_others_is_left_alone(sticky, make, match):
    used = make(sticky / "app")
    before = content(sticky)
    await refused(f"file://{used}", match)
    assert content(sticky) == before


@pytest.mark.parametrize("part", ["folder", "folder with database", "database", "parent"])
async def test_missing_right_to_write_is_named(sticky, part):
    folder = sticky / "app"
    with another_user():
        folder.mkdir(mode=0o700)
        if "database" in part:
            async with Relay(f"file://{folder}", timeout=TIMEOUT):
                pass
        readonly = database_of(folder) if part == "database" else folder
        readonly.chmod(0o400 if part == "database" else 0o500)
        needs = re.escape(f"this user ({NOBODY}) needs the rights to read and write {readonly}: ")
        used = folder / "sub" / "sub" if part == "parent" else folder
        try:
            await refused(f"file://{used}", f"cannot use file://{used}: {needs}")
        finally:
            folder.chmod(0o700)


async def test_files_are_private_below_a_long_path(tmp_path):
    """The path is too long for a socket. Another folder takes its place."""
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    before = os.umask(0)
    try:
        async with pair(f"file://{folder}") as (here, there):
            waiting = await started(here, "a", 0)
            assert await there.bump("a") == await waiting == 1
            assert [path for path in folder.iterdir() if path.stat().st_mode & 0o007] == []
            assert folder.stat().st_mode & 0o077 == 0
            folder.rename(tmp_path / "before")
            shutil.rmtree(tmp_path / "before")
            version = await there.bump("a")
            await until(lambda: here.statistics().is_connected and here.statistics().epochs == 2)
            waiting = await started(here, "a", version)
            assert await there.bump("a") == await waiting == version + 1
    finally:
        os.umask(before)


async def test_database_that_is_being_closed_is_kept(tmp_path):
    """SQLite deletes the `-wal` a moment before the `-shm`."""
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        assert await relay.advance("a", 40) == 40
        epoch = relay.epoch
    Path(f"{database_of(tmp_path)}-shm").write_bytes(bytes(1 << 15))
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        assert await relay.version("a") == 40
        assert relay.epoch == epoch
