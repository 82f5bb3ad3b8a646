"""One process of ``python tests/benchmarks relay --replies``: receives replies, or delivers them,
with a relay, with the bare client of its store, or by hand.

    python -m benchmarks.replies_process JSON
"""

import asyncio
import json
import logging
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from benchmarks.process import resident_bytes
from benchmarks.relay_process import CLIENT_OPTIONS, until_resumed
from purgatory.relay import Relay
from purgatory.relay import _store_sync as store_sync

VALUE = bytes(200)
TTL = 3600.0
AT_ONCE = 2_000
BARE_TABLE = "purgatory_bare"


async def bare_settle(url: str, prefix: str) -> Callable[[str], Awaitable[object]]:
    """Settles a key with the store's client alone: a write unless the key is there, and a time to
    live or a time of expiry, without a message and without retries."""
    scheme = url.partition(":")[0]
    if scheme == "file":
        database = sqlite3.connect(f"{urlsplit(url).path}.bare.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE IF NOT EXISTS bare (key BLOB PRIMARY KEY, value BLOB, expires REAL)",
        ):
            database.execute(statement)
        insert = "INSERT OR IGNORE INTO bare VALUES (?, ?, ?)"

        async def on_file(key: str) -> object:
            return database.execute(insert, [f"{prefix}{key}".encode(), VALUE, time.time() + TTL])

        return on_file
    if scheme == "redis":
        from redis.asyncio import Redis

        redis = Redis.from_url(url)
        return lambda key: redis.set(f"bare:{prefix}:{key}", VALUE, nx=True, px=int(TTL * 1e3))
    if scheme == "nats":
        import nats
        from nats.js.api import StorageType, StreamConfig

        connection = await nats.connect(url)
        js = connection.jetstream()
        await js.add_stream(
            StreamConfig(
                name="bare", subjects=["bare.>"], storage=StorageType.MEMORY, allow_msg_ttl=True
            )
        )
        headers = {"Nats-TTL": f"{TTL:.0f}s", "Nats-Expected-Last-Subject-Sequence": "0"}
        return lambda key: js.publish(f"bare.{prefix}.{key}", VALUE, headers=headers)
    import asyncpg

    pool: Any = await asyncpg.connect(url)
    await pool.execute(
        f"CREATE UNLOGGED TABLE IF NOT EXISTS {BARE_TABLE} (key bytea PRIMARY KEY, value bytea, "
        f"expires timestamptz)"
    )
    statement = (
        f"INSERT INTO {BARE_TABLE} VALUES ($1, $2, now() + '1 hour') ON CONFLICT DO NOTHING "
        f"RETURNING 1"
    )
    return lambda key: pool.fetchval(statement, f"{prefix}{key}".encode(), VALUE)


async def settle(job: dict[str, Any]) -> dict[str, float]:
    """Deliveries a second: by the bare client, by a relay one by one, and by a relay at once. The
    first two alternate."""
    once, rounds = job["count"], 4
    numbers = count()
    bare = await bare_settle(job["url"], job["prefix"])
    seconds: defaultdict[str, float] = defaultdict(float)
    async with Relay(job["url"], prefix=job["prefix"], timeout=60.0) as relay:

        async def timed(name: str, call: Callable[[str], Awaitable[object]]) -> None:
            begun = time.perf_counter()
            for _ in range(once // rounds):
                await call(f"a{next(numbers)}")
            seconds[name] += time.perf_counter() - begun

        for _ in range(rounds):
            await timed("bare", bare)
            await timed("alone", lambda key: relay.deliver(key, VALUE, ttl=TTL))
        begun = time.perf_counter()
        for _ in range(rounds):
            keys = [f"a{next(numbers)}" for _ in range(AT_ONCE)]
            await asyncio.gather(*(relay.deliver(key, VALUE, ttl=TTL) for key in keys))
        batched = rounds * AT_ONCE / (time.perf_counter() - begun)
    return {
        **{name: once // rounds * rounds / each for name, each in seconds.items()},
        "batched": batched,
    }


async def expire(job: dict[str, Any]) -> dict[str, int]:
    """Delivers replies that expire at once; the memory of this process when all are delivered, and
    its growth."""
    async with Relay(job["url"], prefix=job["prefix"], timeout=60.0) as relay:
        await relay.deliver("first", VALUE, ttl=job["ttl"])
        before = peak = resident_bytes()
        for first in range(0, job["count"], AT_ONCE):
            last = min(first + AT_ONCE, job["count"])
            keys = [f"key{number}" for number in range(first, last)]
            await asyncio.gather(*(relay.deliver(key, VALUE, ttl=job["ttl"]) for key in keys))
            peak = max(peak, resident_bytes())
        await until_resumed()
        return {"memory": peak - before}


class Replies:
    """A relay."""

    def __init__(self, url: str) -> None:
        self.relay = Relay(url, timeout=60.0)

    async def begin(self) -> None:
        await self.relay.__aenter__()

    async def receive(self, key: str) -> object:
        return await self.relay.receive(key)

    async def deliver(self, key: str) -> None:
        await self.relay.deliver(key, VALUE, ttl=TTL)


class Lists:
    """A list for each reply, and a connection for each wait: BLPOP."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis

        self.client = Redis.from_url(url, **CLIENT_OPTIONS)

    async def begin(self) -> None:
        await self.client.ping()

    async def receive(self, key: str) -> object:
        return await self.client.blpop([f"list:{key}"])

    async def deliver(self, key: str) -> None:
        await self.client.rpush(f"list:{key}", VALUE)
        await self.client.expire(f"list:{key}", int(TTL))


class Events:
    """One channel with the keys of all replies, an event for each wait, and a GET."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis

        self.client = Redis.from_url(url, **CLIENT_OPTIONS)
        self.events: dict[str, asyncio.Event] = {}

    async def begin(self) -> None:
        self.listener = asyncio.create_task(self.listen())
        await asyncio.sleep(0.2)

    async def listen(self) -> None:
        pubsub = self.client.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe("replies")
        async for message in pubsub.listen():
            event = self.events.get(message["data"].decode())
            if event is not None:
                event.set()

    async def receive(self, key: str) -> object:
        event = self.events[key] = asyncio.Event()
        try:
            value = await self.client.get(f"event:{key}")
            if value is None:
                await event.wait()
                value = await self.client.get(f"event:{key}")
            return value
        finally:
            del self.events[key]

    async def deliver(self, key: str) -> None:
        if await self.client.set(f"event:{key}", VALUE, nx=True, ex=int(TTL)):
            await self.client.publish("replies", key)


WAYS: dict[str, Callable[[str], Any]] = {"relay": Replies, "blpop": Lists, "pubsub": Events}


async def receive(job: dict[str, Any]) -> dict[str, Any]:
    """Receives all keys at once: when each reply was there, and the CPU from before
    the first wait to the last answer."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    answered: dict[str, float] = {}

    async def one(key: str) -> None:
        assert await way.receive(key) is not None
        answered[key] = time.monotonic()

    cpu = time.process_time()
    tasks = [asyncio.create_task(one(f"{job['prefix']}{n}")) for n in range(job["count"])]
    await asyncio.sleep(1.0)
    print(json.dumps({"waiting": True}), flush=True)
    await asyncio.gather(*tasks)
    return {"answered": answered, "cpu": time.process_time() - cpu}


async def deliver(job: dict[str, Any]) -> dict[str, float]:
    """Delivers to all keys at a rate, one by one: when each call began."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    begun: dict[str, float] = {}
    start = time.monotonic()
    for number in range(job["count"]):
        key = f"{job['prefix']}{number}"
        await asyncio.sleep(max(0.0, start + number / job["rate"] - time.monotonic()))
        begun[key] = time.monotonic()
        await way.deliver(key)
    return begun


async def idle(job: dict[str, Any]) -> dict[str, float]:
    """An open relay in which nothing waits."""
    async with Relay(job["url"], prefix=job["prefix"], timeout=60.0):
        await asyncio.sleep(2.0 * store_sync.LEAVE_DELAY + 1.0)
        cpu, begun = time.process_time(), time.monotonic()
        await until_resumed()
        return {"share": (time.process_time() - cpu) / (time.monotonic() - begun)}


async def load(job: dict[str, Any]) -> dict[str, float]:
    """Delivers at a rate, and returns it."""
    running: set[asyncio.Task[bool]] = set()
    async with Relay(job["url"], prefix=job["prefix"], timeout=60.0) as relay:
        start, number = time.monotonic(), 0
        while (now := time.monotonic() - start) < job["seconds"]:
            while number < now * job["rate"]:
                call = relay.deliver(f"load{number}", VALUE, ttl=TTL)
                task = asyncio.create_task(call)
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            await asyncio.sleep(0.001)
        with suppress(ValueError):
            await asyncio.gather(*running)
        return {"rate": number / (time.monotonic() - start)}


WORKS: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
    "settle": settle,
    "expire": expire,
    "receive": receive,
    "deliver": deliver,
    "idle": idle,
    "load": load,
}


async def main(job: dict[str, Any]) -> None:
    print(json.dumps(await WORKS[job["work"]](job)), flush=True)


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main(json.loads(sys.argv[1])))
