"""A worker that ends between its commit and its bump: each way on the relay's page loses nothing.
The blocks of that page are the code that runs."""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from helpers import until
from relay_waits import knows
from servers import TIMEOUT

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.relay import Relay

sys.path.insert(0, str(Path(__file__).parent.parent))
from readme_blocks import ROOT, blocks

PAGE = ROOT / "purgatory" / "relay" / "README.md"
SCHEMA = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT, version INTEGER)"


def page(name: str) -> Any:
    """The names in a block of the page."""
    [text] = [each.text for each in blocks(PAGE, "python") if each.text.startswith(f"# {name}.py")]
    names: dict[str, Any] = {}
    exec(text, names)
    return SimpleNamespace(**names)


@pytest.fixture
def orders(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "orders.sqlite")) as orders:
        orders.execute(SCHEMA)
        orders.execute("INSERT INTO orders VALUES (7, 'new', 1)")
        orders.commit()
        yield orders


class Ending:
    """A relay to a worker that ends `before` or `after` its next write, and never returns."""

    def __init__(self, relay: Relay, place: str) -> None:
        self.relay, self.place, self.is_over = relay, place, asyncio.Event()

    async def bump(self, key: str, **options: Any) -> None:
        if self.place == "after":
            await self.relay.bump(key, **options)
        self.is_over.set()
        await asyncio.Event().wait()


async def end_worker(relay: Ending, work: Coroutine[Any, Any, Any], connection: Any = None) -> None:
    """Has a worker begin its work and end where its relay does, with its connection."""
    working = asyncio.create_task(work)
    await relay.is_over.wait()
    if connection is not None:
        connection.terminate()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@contextlib.asynccontextmanager
async def waiting(relay: Relay, seen: int) -> AsyncIterator[asyncio.Task[int]]:
    task = asyncio.create_task(relay.wait("orders/7", seen, TIMEOUT))
    await knows(relay, "orders/7")
    yield task
    task.cancel()
    await asyncio.wait([task])


async def test_row_version_is_read_despite_lost_bump(url, orders):
    block = page("own_versions")
    async with Relay(url, timeout=TIMEOUT) as relay:
        relay.attach(block.changes)

        async def poll() -> tuple[str, int]:
            while True:
                with contextlib.suppress(OperationTimeout):
                    found: tuple[str, int] = await block.changed(orders, 7, 1, 0.5)
                    return found

        polling = asyncio.create_task(poll())
        ending: Any = Ending(relay, "before")
        await end_worker(ending, block.pay(orders, ending, 7))
        assert await polling == ("paid", 2)  # the wait that was open, at its deadline
        assert await block.changed(orders, 7, 1, TIMEOUT) == ("paid", 2)
        with pytest.raises(OperationTimeout):
            await block.changed(orders, 7, 2, 0.0)
        later = asyncio.create_task(block.changed(orders, 7, 2, TIMEOUT))
        await until(lambda: block.changes.pending == 1)
        await block.pay(orders, relay, 7)
        assert await later == ("paid", 3)


@pytest.mark.parametrize("place", ["committed", "before", "after"])
async def test_outbox_announces_after_crash(url, orders, place):
    block = page("outbox")
    orders.execute(block.TABLE)
    orders.commit()
    noted = "SELECT count(*) FROM outbox"
    async with Relay(url, timeout=TIMEOUT) as relay:
        seen = await relay.version("orders/7")
        async with waiting(relay, seen) as task:
            block.pay(orders, 7)
            if place != "committed":
                ending: Any = Ending(relay, place)
                await end_worker(ending, block.announce(orders, ending))
            assert orders.execute("SELECT state FROM orders").fetchone() == ("paid",)
            assert orders.execute(noted).fetchone() == (1,)
            announcing = asyncio.create_task(block.keep_announcing(orders, relay))
            assert await task > seen
            await until(lambda: orders.execute(noted).fetchone() == (0,))
            repeated = place == "after"
            assert await relay.version("orders/7") == seen + 1 + repeated
            announcing.cancel()


async def test_outbox_keeps_what_is_noted_while_announcing(tmp_path, orders):
    block = page("outbox")
    orders.execute(block.TABLE)
    block.pay(orders, 7)

    class Slow:
        async def bump(self, key: str) -> None:
            other.execute("DELETE FROM outbox")  # as another worker that announced it, too
            other.commit()
            block.pay(other, 7)

    class Away:
        async def bump(self, key: str) -> None:
            raise RelayUnavailable("away")

    with contextlib.closing(sqlite3.connect(tmp_path / "orders.sqlite")) as other:
        slow: Any = Slow()
        await block.announce(orders, slow)
    away: Any = Away()
    announcing = asyncio.create_task(block.keep_announcing(orders, away))
    await asyncio.sleep(0.1)
    assert not announcing.done()
    announcing.cancel()
    assert orders.execute("SELECT count(*) FROM outbox").fetchone() == (1,)


@contextlib.asynccontextmanager
async def table(url: str) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute("DROP TABLE IF EXISTS orders")
        await connection.execute(SCHEMA)
        await connection.execute("INSERT INTO orders VALUES (7, 'new', 1)")
        yield connection
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before", "after", "committed"])
async def test_transaction_announces_exactly_what_it_commits(postgres, place):
    block = page("in_one_transaction")
    url = postgres.url
    async with Relay(url, timeout=TIMEOUT) as relay, table(url) as connection:
        seen = await relay.version("orders/7")
        async with waiting(relay, seen) as task:
            ending: Any = Ending(relay, place)
            if place == "committed":
                await block.pay(connection, relay, 7)
            else:
                worker = await asyncpg.connect(url)
                await end_worker(ending, block.pay(worker, ending, 7), worker)
            found = await connection.fetchval("SELECT state FROM orders WHERE id = 7")
            if place == "committed":
                assert found == "paid"
            else:
                assert found == "new" and not task.done()
                assert await relay.version("orders/7") == seen
                await block.pay(connection, relay, 7)  # the repeated request holds no lock
            assert await task == seen + 1
