"""A worker that changes an order and stops at one place, where `test_crash` kills it.

    python crash_worker.py WAY PLACE URL DATABASE

WAY is a block of the relay's page, or `plain`: a commit, then a bump. PLACE is `before` or `after`
the call of the relay, or `committed`.
"""

import asyncio
import importlib
import sqlite3
import sys
from typing import Any, NoReturn

from purgatory.relay import Relay


async def stop() -> NoReturn:
    print("here", flush=True)
    await asyncio.Event().wait()
    raise AssertionError("the worker was not killed")


class Stopping:
    """Wrapper of a relay that hangs before or after each write."""

    def __init__(self, relay: Relay, place: str) -> None:
        self.relay, self.place = relay, place

    async def bump(self, key: str, **options: Any) -> int:
        return await self._around(self.relay.bump, key, **options)

    async def deliver(self, key: str, value: bytes, **options: Any) -> bool:
        return await self._around(self.relay.deliver, key, value, **options)

    async def _around(self, call: Any, *arguments: Any, **options: Any) -> Any:
        if self.place == "before":
            await stop()
        result = await call(*arguments, **options)
        if self.place == "after":
            await stop()
        return result


async def plain(database: sqlite3.Connection, relay: Any) -> None:
    with database:
        database.execute("UPDATE orders SET state = 'paid' WHERE id = 7")
    await relay.bump("orders/7")


async def reply(connection: Any, relay: Any) -> None:
    async with connection.transaction():
        await connection.execute("UPDATE orders SET state = 'paid' WHERE id = 7")
        await relay.deliver("payments/7", b"paid", ttl=600, connection=connection)


async def main(way: str, place: str, url: str, database: str) -> None:
    async with Relay(url, timeout=60) as opened:
        relay: Any = Stopping(opened, place)
        if way in ("in_one_transaction", "reply"):
            import asyncpg

            connection: Any = await asyncpg.connect(database)
            if way == "reply":
                await reply(connection, relay)
            else:
                await importlib.import_module(way).pay(connection, relay, 7)
        elif way == "outbox":
            block = importlib.import_module(way)
            orders = sqlite3.connect(database)
            block.pay(orders, 7)
            if place != "committed":
                await block.announce(orders, relay)
        elif way == "own_versions":
            await importlib.import_module(way).pay(sqlite3.connect(database), relay, 7)
        else:
            await plain(sqlite3.connect(database), relay)
        await stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
