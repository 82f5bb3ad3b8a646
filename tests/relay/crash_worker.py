"""A worker that changes an order and stops at one place, where `test_crash` kills it.

    python crash_worker.py WAY PLACE URL DATABASE

WAY is a block of the relay's page. PLACE is `before` or `after` the call of the relay, or
`committed`.
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
        if self.place == "before":
            await stop()
        version = await self.relay.bump(key, **options)
        if self.place == "after":
            await stop()
        return version


async def main(way: str, place: str, url: str, database: str) -> None:
    async with Relay(url, timeout=60) as opened:
        relay: Any = Stopping(opened, place)
        block = importlib.import_module(way)
        if way == "in_one_transaction":
            import asyncpg

            await block.pay(await asyncpg.connect(database), relay, 7)
        elif way == "own_versions":
            await block.pay(sqlite3.connect(database), relay, 7)
        else:
            orders = sqlite3.connect(database)
            block.pay(orders, 7)
            if place != "committed":
                await block.announce(orders, relay)
        await stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
