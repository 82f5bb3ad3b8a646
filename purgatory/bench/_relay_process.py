"""One process of ``python -m purgatory.bench relay``: waits for versions of keys, or writes them, our way or by hand.

    python -m purgatory.bench._relay_process JSON

By hand is what tutorials show: a message on a channel sets the `asyncio.Event` of its key. A channel for each key is the same,
with a subscription for as long as somebody waits for the key.
"""

import asyncio
import inspect
import json
import logging
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

try:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError
except ImportError as error:
    raise ImportError("the program relay needs a client of Redis: pip install 'asyncio-purgatory[bench]'") from error

from purgatory import RelayUnavailable, ThresholdPurgatory
from purgatory.bench._process import resident_bytes
from purgatory.relay import Relay


class Ours:
    """A relay."""

    def __init__(self, url: str) -> None:
        self.relay = Relay(url)

    async def begin(self) -> None:
        await self.relay.__aenter__()

    async def wait(self, key: str, seen: int) -> int:
        return await self.relay.wait(key, seen)

    async def write(self, key: str) -> int:
        return await self.relay.bump(key)


class Theirs:
    """Publish/subscribe and an event for each key, by hand."""

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url, max_connections=1000)  # as many first reads come at once
        self.events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.received = 0

    async def begin(self) -> None:
        self.listener = asyncio.create_task(self.listen())
        await asyncio.sleep(0.2)

    async def listen(self) -> None:
        while True:
            with suppress(RedisError):
                pubsub = self.client.pubsub(ignore_subscribe_messages=True)
                await pubsub.subscribe("news")
                async for message in pubsub.listen():
                    self.received += 1
                    self.events.pop(message["data"].decode(), asyncio.Event()).set()

    async def wait(self, key: str, seen: int) -> int:
        while True:
            event = self.events[key]
            version = int(await self.client.get(key) or 0)
            if version > seen:
                return version
            await event.wait()

    async def write(self, key: str) -> int:
        version = int(await self.client.incr(key))
        await self.client.publish("news", key)
        return version


class Channels:
    """Publish/subscribe with a channel for each key that somebody here waits for, one wait to a key, and an event for each."""

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url, max_connections=1000)
        self.pubsub = self.client.pubsub()
        self.confirmed: dict[str, asyncio.Event] = {}
        self.events: dict[str, asyncio.Event] = {}
        self.received = 0

    async def begin(self) -> None:
        await self.pubsub.subscribe("nothing")
        self.listener = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        async for message in self.pubsub.listen():
            events = self.confirmed if message["type"] == "subscribe" else self.events
            event = events.get(message["channel"].decode())
            if event is not None and message["type"] != "unsubscribe":
                self.received += message["type"] == "message"
                event.set()

    async def wait(self, key: str, seen: int) -> int:
        confirmed, event = self.confirmed[key], self.events[key] = asyncio.Event(), asyncio.Event()
        await self.pubsub.subscribe(key)
        await confirmed.wait()
        try:
            version = int(await self.client.get(key) or 0)
            while version <= seen:
                await event.wait()
                event.clear()
                version = int(await self.client.get(key) or 0)
            return version
        finally:
            del self.confirmed[key], self.events[key]
            await self.pubsub.unsubscribe(key)

    async def write(self, key: str) -> int:
        version = int(await self.client.incr(key))
        await self.client.publish(key, version)
        return version


WAYS: dict[str, Callable[[str], Any]] = {"ours": Ours, "theirs": Theirs, "channels": Channels}


def lines_of(way: str) -> int:
    """How many lines it takes, without blank ones and what both have in common."""
    lines = [line for line in inspect.getsource(WAYS[way]).splitlines()[2:] if line.strip()]
    return len(lines)


async def until_told() -> None:
    """Returns when standard input is closed."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_reader(sys.stdin, told.set)
    await told.wait()
    loop.remove_reader(sys.stdin)


async def wait_for_all(order: dict[str, Any]) -> dict[str, Any]:
    """Waits for the next version of each key, again and again: when each was answered."""
    way = WAYS[order["way"]](order["url"])
    await way.begin()
    answers: list[tuple[str, int, float]] = []

    async def keep_waiting(key: str) -> None:
        seen = 0
        while True:
            try:
                seen = await way.wait(key, seen)
                answers.append((key, seen, time.monotonic()))
            except RedisError:
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(keep_waiting(f"key{number}")) for number in range(order["keys"])]
    await asyncio.sleep(0.3)
    begun = time.process_time()
    print("ready", flush=True)
    await until_told()
    result = {"answers": answers, "cpu": time.process_time() - begun, **await counted(way)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


async def counted(way: Any) -> dict[str, Any]:
    """What it has counted; it ends with that."""
    if not isinstance(way, Ours):
        return {"received": way.received}
    statistics = way.relay.statistics()
    await way.relay.aclose()
    return {"received": statistics.received, "healed": statistics.healed}


async def wait_in_turn(order: dict[str, Any]) -> dict[str, Any]:
    """Waits once for each key, for so many of them at a time: when each was answered."""
    way = WAYS[order["way"]](order["url"])
    await way.begin()
    answers: list[tuple[str, int, float]] = []
    rest = iter(range(order["keys"]))

    async def keep_waiting() -> None:
        for number in rest:
            version = await way.wait(f"key{number}", 0)
            answers.append((f"key{number}", version, time.monotonic()))

    tasks = [asyncio.create_task(keep_waiting()) for _ in range(order["at_once"])]
    await asyncio.sleep(0.3)
    begun = time.process_time()
    print("ready", flush=True)
    await until_told()
    result = {"answers": answers, "cpu": time.process_time() - begun, **await counted(way)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


async def write_some(order: dict[str, Any]) -> dict[str, Any]:
    """Writes keys at a rate, at random or in turn, as soon as standard input is closed: when each write began."""
    way = WAYS[order["way"]](order["url"])
    await way.begin()
    writes: list[tuple[str, int, float]] = []
    running: set[asyncio.Task[None]] = set()
    chance = random.Random(order["seed"])

    async def write(key: str) -> None:
        begun = time.monotonic()
        with suppress(RedisError, RelayUnavailable):
            writes.append((key, await way.write(key), begun))

    print("ready", flush=True)
    await until_told()
    begun, number = time.monotonic(), 0
    count = int(order["seconds"] * order["rate"])
    while number < count:
        while number < min(count, (time.monotonic() - begun) * order["rate"]):
            chosen = number if order.get("in_turn") else chance.randrange(order["keys"])
            task = asyncio.create_task(write(f"key{chosen}"))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*running)
    if isinstance(way, Ours):
        await way.relay.aclose()
    return {"writes": writes}


async def watch_many(order: dict[str, Any]) -> dict[str, Any]:
    """The memory of so many keys that are waited for, in a relay or in a `ThresholdPurgatory` alone."""
    count = order["keys"]
    async with Relay(order["url"]) as relay, ThresholdPurgatory[str, int]() as plain:
        keys = [f"key{number}" for number in range(count)]
        before = resident_bytes()
        wait: Callable[[str, int], Awaitable[int]] = relay.wait if order["way"] == "ours" else plain.wait
        seen = 0 if order["way"] == "ours" else 1
        tasks = [asyncio.ensure_future(wait(key, seen)) for key in keys]
        while (relay.statistics().watched if seen == 0 else plain.pending) < count:
            await asyncio.sleep(0.01)
        await relay.version("last")  # after all that was asked before
        await asyncio.sleep(0.5)
        result = {"bytes": resident_bytes() - before}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return result


WORKS = {"wait": wait_for_all, "wait in turn": wait_in_turn, "write": write_some, "watch": watch_many}

if __name__ == "__main__":
    logging.disable()
    order = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(WORKS[order["work"]](order))), flush=True)
