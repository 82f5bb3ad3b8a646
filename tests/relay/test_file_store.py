"""The store in a folder, when its files are deleted, locked, full or left behind by processes that
were killed."""

import asyncio
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from fcntl import LOCK_SH, flock
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from old_sqlite import VERSION, old_sqlite
from relay_waits import knows, pair, set_timeout, started
from requirements import need, unavailable
from servers import TIMEOUT, on_both_loops

from purgatory import RelayUnavailable
from purgatory.relay import Relay, _client
from purgatory.relay._file import boot_id


def sockets(folder: Path) -> list[Path]:
    return [*(folder / "app").glob("*.sock")]


async def test_wait_completes_though_sockets_are_deleted(tmp_path):
    """As programs that tidy up /tmp do."""
    async with pair(f"file://{tmp_path}/app", resync=0.2) as (here, there):
        waiting = await started(here, "a", 0)
        for path in sockets(tmp_path):
            path.unlink()
        assert await there.bump("a") == await waiting == 1


async def test_locked_database_does_not_block_the_loop(tmp_path):
    async with pair(f"file://{tmp_path}/app") as (here, there):
        await set_timeout(here, 2.0)
        other = sqlite3.connect(there._store._path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        iterations = 0
        patient, writing = (asyncio.create_task(each.bump("a")) for each in (there, here))
        while not writing.done():
            await asyncio.sleep(0.001)
            iterations += 1
        assert iterations > 20
        with pytest.raises(RelayUnavailable, match=r"gave no answer within 2.0 s"):
            await writing
        assert not patient.done()
        other.execute("ROLLBACK")
        other.close()
        assert await patient >= 1


def write_at_once(store: Any, count: int) -> None:
    """Writes in one iteration of the loop, in which no relay receives: a socket is full after ten
    messages, on most machines."""
    for number in range(count):
        coroutine = store.write([(f"key{number}", 0, 1)])
        coroutine.send(None)
        with pytest.raises(StopIteration):
            coroutine.send(None)


@on_both_loops
async def test_delayed_listener_finally_receives_everything(tmp_path):
    async with pair(f"file://{tmp_path}/app") as (here, there):
        waits = [asyncio.create_task(there.wait(f"key{number}", 0)) for number in range(300)]
        await knows(there, *(f"key{number}" for number in range(300)))
        write_at_once(here._store, 300)
        assert await asyncio.gather(*waits) == [1] * 300
        await until(lambda: not here._store._sockets._queues)


async def test_store_closed_with_queued_messages_keeps_other_sockets(tmp_path):
    async with pair(f"file://{tmp_path}/app") as (here, _):
        write_at_once(here._store, 300)
        await here._store.close()
        await asyncio.sleep(0.05)
        assert len(sockets(tmp_path)) == 2


async def test_what_killed_processes_have_left_is_removed(tmp_path):
    program = f"""if True:
        import asyncio, os, signal
        from purgatory.relay import Relay
        async def main():
            async with Relay("file://{tmp_path}/app", timeout=60):
                os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """

    for _ in range(2):
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await child.wait() == -signal.SIGKILL
    assert sockets(tmp_path)
    async with Relay(f"file://{tmp_path}/app", timeout=TIMEOUT) as here:
        assert len(sockets(tmp_path)) == 1
        await here.bump("a")
        rows = here._store._database.execute("SELECT * FROM listeners").fetchall()
        assert len(rows) == 1
    assert not sockets(tmp_path)


async def test_foreign_files_with_similar_names_are_kept(tmp_path):
    boot = boot_id()
    names = (
        "notes.sqlite", "01234567.sqlite", "0123456789abcdef.sock", "aaaaaaaaaaaaaaaa.sock",
        "89abcdef.sqlite", "89abcdef.sqlite-wal",
    )  # fmt: skip
    notes, other, text, link, old, log = (tmp_path / f"purgatory.{name}" for name in names)
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE cities (name TEXT)")
    database.close()
    for path in (notes, text, log):
        path.write_text("mine")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
        foreign.bind(str(tmp_path / "purgatory.foreign.sock"))
    link.symlink_to(tmp_path / "purgatory.foreign.sock")
    async with Relay(f"file://{tmp_path}/first", timeout=TIMEOUT):
        shutil.copy(tmp_path / "first" / f"purgatory.{boot}.sqlite", old)
    for path in (notes, other, old):
        os.utime(path, (0, 0))
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT):
        assert not old.exists()
        assert not log.exists()
    assert {notes, other, text, link, tmp_path / "purgatory.foreign.sock"} <= {*tmp_path.iterdir()}


async def test_full_disk_is_named_and_shown_as_disconnected(tmp_path):
    async with pair(f"file://{tmp_path}/app") as (here, there):
        await set_timeout(here, 2.0)
        database = here._store._database
        [pages] = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RelayUnavailable, match="database or disk is full"):
            await asyncio.gather(*(here.bump(f"{number:0512}") for number in range(100)))
        assert not here.statistics().is_connected
        assert there.statistics().is_connected
        database.execute(f"PRAGMA max_page_count = {1000 * pages}")
        await set_timeout(here, TIMEOUT)
        await here.bump("a")
        assert here.statistics().is_connected
        trigger = "BEFORE INSERT ON listeners BEGIN SELECT RAISE(ABORT, 'no space is left'); END"
        database.execute(f"CREATE TRIGGER full {trigger}")
        match = r"cannot open the relay: tried for 2.0 s: .*no space is left"
        with pytest.raises(RelayUnavailable, match=match):
            async with Relay(f"file://{tmp_path}/app", timeout=2.0):
                pass


BUMP = """
import asyncio, sys
from purgatory.relay import Relay, _client
from purgatory.relay._file import boot_id

async def main():
    async with Relay(sys.argv[1], timeout=60) as relay:
        print(boot_id(), await relay.bump("a"), await relay.wait("b", 0, 60))

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
async def test_containers_with_own_boot_ids_share_database(tmp_path):
    """A container (LXC, systemd-nspawn) has its own boot id, and a mount namespace."""
    unshare = need("unshare", "needs unshare: apt-get install util-linux")
    isolate = [unshare, "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*isolate, "true"], check=False).returncode:
        unavailable("needs root, or user namespaces, to make a mount namespace")
    (tmp_path / "boot_id").write_text("01234567-89ab-cdef-0123-456789abcdef\n")
    mount = f"mount --bind {tmp_path}/boot_id /proc/sys/kernel/random/boot_id"
    url = f"file://{tmp_path}/app"
    async with Relay(url, resync=TIMEOUT, timeout=TIMEOUT) as here:
        waiting = await started(here, "a", 0)
        script = f'{mount} && exec "$0" "$@"'
        command = [*isolate, "sh", "-c", script, sys.executable, "-c", BUMP, url]
        pipe = asyncio.subprocess.PIPE
        there = await asyncio.create_subprocess_exec(*command, stdout=pipe)
        assert await waiting == await here.bump("b") == 1
        assert (await there.communicate())[0].split() == [b"01234567", b"1", b"1"]
    assert len(list(tmp_path.glob("app/*.sqlite"))) == 1


async def test_folder_locked_by_another_machine_is_refused(tmp_path):
    """As over a network file system, through which processes see each other's locks only."""
    (tmp_path / "purgatory.lock").write_text("01234567")
    with (tmp_path / "purgatory.lock").open("rb") as lock:
        flock(lock, LOCK_SH)
        with pytest.raises(RelayUnavailable, match=r"01234567 instead .* another machine\?"):
            async with Relay(f"file://{tmp_path}", timeout=1.0):
                pass
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        assert await relay.bump("a") == 1


async def test_expired_replies_leave_the_folder_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(_client, "MAX_SWEEP_INTERVAL", 0.2)
    monkeypatch.setattr(_client, "MIN_SWEEP_INTERVAL", 0.05)
    async with Relay(f"file://{tmp_path}", timeout=TIMEOUT) as relay:
        calls = (relay.deliver(f"a{n}", bytes(500_000), ttl=3.0) for n in range(24))
        assert all(await asyncio.gather(*calls))
        database: Any = relay._store._database
        assert database.execute("PRAGMA page_count").fetchone()[0] > 2_000
        left = "SELECT count(*) FROM settled"
        await until(lambda: database.execute(left).fetchone() == (0,))
        await until(lambda: database.execute("PRAGMA page_count").fetchone()[0] < 1_200)


USE_ALL = """
import asyncio, sqlite3, sys
from purgatory.relay import Relay

async def main():
    here, there = (Relay(sys.argv[1], timeout=60) for _ in range(2))
    async with here, there:
        waiting = asyncio.create_task(there.wait("a", 0))
        print(sqlite3.sqlite_version, await here.bump("a"), await waiting)
        await here.forget("a")
        epoch = here.epoch
        await here._store.renew(epoch)
        assert await there.version("b") == 1 and there.epoch != epoch
        assert await here.deliver("a", b"value", ttl=60)
        assert await there.receive("a", 60) == b"value"
        await here._store.forget_unwritten(0.0)
        assert await here._store.forget_unwritten(0.0) is False

asyncio.run(main())
"""


@pytest.mark.slow
def test_sqlite_of_older_systems_is_enough(tmp_path_factory):
    """RHEL 9 and Debian 11 have SQLite 3.34; this one is older."""
    environment = os.environ | old_sqlite(tmp_path_factory.mktemp("wheel"))
    command = [sys.executable, "-c", USE_ALL, f"file://{tmp_path_factory.mktemp('relay')}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [VERSION, "1", "1"]), done.stderr
