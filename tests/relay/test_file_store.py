"""The store in a folder, when its files are deleted, locked, full or left behind by processes that were killed."""

import asyncio
import shutil
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from relay_waits import knows, set_timeout, until
from servers import TIMEOUT, on_both_loops

from purgatory import RelayUnavailable
from purgatory.relay import Relay


@asynccontextmanager
async def pair(folder: Path, **options: Any) -> AsyncIterator[tuple[Relay, Relay]]:
    """Two relays on one folder."""
    options = {"resync": TIMEOUT, "timeout": TIMEOUT, **options}
    async with Relay(f"file://{folder}", **options) as here, Relay(f"file://{folder}", **options) as there:
        yield here, there


def test_sockets_and_database_may_be_deleted_while_they_are_in_use(run: Runner, tmp_path: Path) -> None:
    """As programs that tidy up /tmp do."""

    def sockets() -> list[Path]:
        return list(tmp_path.glob("app/*.sock"))

    async def main() -> None:
        async with pair(tmp_path / "app", resync=0.2) as (here, there):
            assert await there.bump("a") == 1
            epoch = there.epoch
            waiting = asyncio.create_task(here.wait("a", 1))
            await knows(here, "a")
            for path in sockets():
                path.unlink()
            assert await there.bump("a") == 2
            assert await waiting == 2
            shutil.rmtree(tmp_path / "app")
            (tmp_path / "app").mkdir()
            waiting = asyncio.create_task(here.wait("a", 2))
            assert await waiting == 0
            await until(lambda: here.epoch == there.epoch != epoch)
            assert await there.bump("a") == 1
            assert await here.wait("a", 0) == 1

    run(main)


def test_a_locked_database_does_not_hold_up_the_loop(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path / "app") as (here, there):
            await set_timeout(here, 0.5)
            other = sqlite3.connect(there._store._path, isolation_level=None)  # type: ignore[attr-defined]
            other.execute("BEGIN IMMEDIATE")
            iterations = 0
            patient, writing = asyncio.create_task(there.bump("a")), asyncio.create_task(here.bump("a"))
            while not writing.done():
                await asyncio.sleep(0.001)
                iterations += 1
            assert iterations > 5
            with pytest.raises(RelayUnavailable, match=r"gave no answer within 0.5 s"):
                await writing
            assert not patient.done()
            other.execute("ROLLBACK")
            other.close()
            assert await patient >= 1

    run(main)


@on_both_loops
def test_a_listener_that_is_held_up_receives_everything_in_the_end(run: Runner, tmp_path: Path) -> None:
    """Its socket is full after ten messages, on most machines."""

    async def main() -> None:
        async with pair(tmp_path / "app") as (here, there):
            waits = [asyncio.create_task(there.wait(f"key{number}", 0)) for number in range(300)]
            await knows(there, *(f"key{number}" for number in range(300)))
            writer = here._store
            for number in range(300):  # in one iteration of the loop, so that nobody receives meanwhile
                coroutine = writer.write([(f"key{number}", 0, 1)])  # type: ignore[list-item]
                with pytest.raises(StopIteration):
                    coroutine.send(None)
            assert await asyncio.gather(*waits) == [1] * 300

    run(main)


def test_what_killed_processes_have_left_is_removed(run: Runner, tmp_path: Path) -> None:
    program = f"""if True:
        import asyncio, os, signal
        from purgatory.relay import Relay
        async def main():
            async with Relay("file://{tmp_path}/app"):
                os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """

    def sockets() -> list[Path]:
        return list(tmp_path.glob("app/*.sock"))

    async def main() -> None:
        for _ in range(2):
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
            assert await child.wait() == -signal.SIGKILL
        assert sockets()
        async with Relay(f"file://{tmp_path}/app") as here:
            assert len(sockets()) == 1
            await here.bump("a")
            rows = here._store._database.execute("SELECT * FROM listeners").fetchall()  # type: ignore[attr-defined]
            assert len(rows) == 1
        assert not sockets()

    run(main)


def test_a_folder_may_have_a_longer_name_than_a_socket(run: Runner, tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 100) / ("b" * 100)

    async def main() -> None:
        async with pair(folder) as (here, there):
            waiting = asyncio.create_task(here.wait("a", 0))
            await knows(here, "a")
            await there.bump("a")
            assert await waiting == 1

    run(main)
