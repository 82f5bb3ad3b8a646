"""A folder to which other users have access: names, owners, modes and links are not trusted."""

import asyncio
import os
import re
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from loops import Runner
from relay_waits import knows
from servers import TIMEOUT

sys.path.insert(0, str(Path(__file__).parent.parent))
from requirements import unavailable

from purgatory import RelayUnavailable
from purgatory.relay import Relay, _file
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
def sticky() -> Iterator[Path]:
    """A folder like `/tmp`. Folders of pytest are closed to other users."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def database_of(folder: Path) -> Path:
    return folder / f"purgatory.{boot_id()}.sqlite"


async def refused(folder: Path, match: str) -> None:
    begun = time.monotonic()
    with pytest.raises((ValueError, RelayUnavailable), match=match):
        async with Relay(f"file://{folder}", timeout=TIMEOUT):
            pass
    assert time.monotonic() < begun + TIMEOUT / 2  # it was not retried


def test_names_in_the_database_are_no_paths(run: Runner, tmp_path: Path) -> None:
    folder, precious = tmp_path / "app", tmp_path / "precious"
    near = folder / "purgatory.0123456789abcdef.sock"  # our own form, but no socket
    names = ["../precious", str(precious), "../foreign.sock", str(tmp_path / "foreign.sock")]
    names += [f"{near.name}/../../precious", f"{near.name}\n", near.name, "", ".", "a\0b"]

    async def main() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
            foreign.bind(str(tmp_path / "foreign.sock"))
            foreign.setblocking(False)
            async with Relay(f"file://{folder}") as relay:
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

    run(main)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o700])
def test_folder_of_another_user_is_refused(run: Runner, sticky: Path, mode: int) -> None:
    folder = sticky / "app"
    with another_user():
        folder.mkdir()
        folder.chmod(mode)
        with sqlite3.connect(database_of(folder)) as database:
            database.execute("CREATE TABLE keys (name)")
        database.close()
    before = sorted(folder.iterdir())
    run(lambda: refused(folder, "expected a folder of this user"))
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("part", ["folder", "folder with database", "database", "parent"])
def test_missing_right_to_write_is_named(run: Runner, sticky: Path, part: str) -> None:
    folder = sticky / "app"
    with another_user():
        folder.mkdir(mode=0o700)
        if "database" in part:
            run(lambda: opened(folder))
        readonly = database_of(folder) if part == "database" else folder
        readonly.chmod(0o400 if part == "database" else 0o500)
        needs = re.escape(f"this user ({NOBODY}) needs the rights to read and write {readonly}: ")
        used = folder / "sub" / "sub" if part == "parent" else folder
        try:
            run(lambda: refused(used, f"cannot use file://{used}: {needs}"))
        finally:
            folder.chmod(0o700)


async def opened(folder: Path) -> None:
    async with Relay(f"file://{folder}", timeout=TIMEOUT):
        pass


def test_link_of_another_user_is_refused(run: Runner, sticky: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with another_user():
        (sticky / "app").symlink_to(tmp_path / "home")
    run(lambda: refused(sticky / "app", "expected a folder, not a link"))
    assert not list((tmp_path / "home").iterdir())


def test_folder_open_to_everyone_is_refused(run: Runner, sticky: Path) -> None:
    run(lambda: refused(sticky, "others may not write, got mode 1777"))
    assert not list(sticky.iterdir())


@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o600), (0, 0o666)])
def test_database_that_others_can_write_is_refused(
    run: Runner, tmp_path: Path, owner: int, mode: int
) -> None:
    path = database_of(tmp_path)
    path.touch()
    path.chmod(mode)
    if os.geteuid() != 0:
        unavailable("needs root, to act as another user")
    os.chown(path, owner, -1)
    run(lambda: refused(tmp_path, "expected a file of this user"))
    assert path.read_bytes() == b""


def test_folder_without_rights_is_refused_at_once(run: Runner, sticky: Path) -> None:
    (sticky / "root").mkdir(mode=0o755)

    def main() -> Any:
        return refused(sticky / "root" / "app", "Permission denied")

    with another_user():
        run(main)


def test_symlinked_socket_keeps_mode_of_its_target(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, folder, modes = tmp_path / "precious", tmp_path / "app", set[int]()
    precious.touch(mode=0o600)

    class Socket(socket.socket):
        def bind(self, path: Any) -> None:
            super().bind(path)
            modes.add(Path(path).stat().st_mode & 0o7777)
            Path(path).unlink()
            Path(path).symlink_to(precious)

    def datagram_socket() -> Socket:
        plain = made()
        return Socket(plain.family, plain.type, fileno=plain.detach())

    made = _file.datagram_socket
    monkeypatch.setattr(_file, "datagram_socket", datagram_socket)

    async def main() -> None:
        before = os.umask(0)
        try:
            with pytest.raises(RelayUnavailable):  # its probe does not come back
                async with Relay(f"file://{folder}", timeout=0.5) as relay:
                    raise RelayUnavailable(str(relay))
        finally:
            os.umask(before)

    run(main)
    assert precious.stat().st_mode & 0o7777 == 0o600
    assert modes == {0o660}


def test_database_that_is_being_closed_is_kept(run: Runner, tmp_path: Path) -> None:
    """SQLite deletes the `-wal` a moment before the `-shm`."""

    epochs: list[str] = []

    async def write() -> None:
        async with Relay(f"file://{tmp_path}") as relay:
            assert await relay.advance("a", 40) == 40
            epochs.append(relay.epoch)

    async def read() -> None:
        async with Relay(f"file://{tmp_path}") as relay:
            assert await relay.version("a") == 40
            assert [relay.epoch] == epochs

    run(write)
    Path(f"{database_of(tmp_path)}-shm").write_bytes(bytes(1 << 15))
    run(read)


@pytest.mark.parametrize("letter", ["ü", "\x01", "a"])
def test_changes_of_large_keys_arrive_without_resync(
    run: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture, letter: str
) -> None:
    size = 512 // len(letter.encode())
    keys = [f"{number:02}".ljust(size - 2, letter) for number in range(100)]

    async def main() -> None:
        url = f"file://{tmp_path}/app"
        async with Relay(url, resync=TIMEOUT) as here, Relay(url) as there:
            waits = [asyncio.create_task(here.wait(key, 0)) for key in keys]
            await knows(here, *keys)
            assert await asyncio.gather(*(there.bump(key) for key in keys)) == [1] * 100
            assert await asyncio.gather(*waits) == [1] * 100

    run(main)
    assert "not a message" not in caplog.text
