"""One process of ``python tests/benchmarks relay``: waits for versions of keys, or writes them, our
way or by hand.

    python -m benchmarks.relay_process JSON

By hand is the way of tutorials: a message on a channel sets the `asyncio.Event` of its key.
"""

import asyncio
import inspect
import json
import logging
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from purgatory import RelayUnavailable
from purgatory.relay import Relay

CLIENT_OPTIONS: dict[str, Any] = {
    "max_connections": 5_000,
    "socket_timeout": None,
    "socket_connect_timeout": None,
}
"""Options of the clients by hand: enough connections, and no time limits."""


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
        self.client = Redis.from_url(url, **CLIENT_OPTIONS)
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


WAYS: dict[str, Callable[[str], Any]] = {"ours": Ours, "theirs": Theirs}
SETTLE_TIMEOUTS = {"ours": 60.0, "theirs": 2.0}
"""Seconds after the last write within which waits may still be answered. By hand, the write may be
lost for ever."""


def lines_of(way: str) -> int:
    """Lines of code of a way, without blank lines and the lines that all ways share."""
    lines = [line for line in inspect.getsource(WAYS[way]).splitlines()[2:] if line.strip()]
    return len(lines)


async def until_resumed() -> Any:
    """Waits for the message on standard input, and returns it."""
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin, readable.set)
    await readable.wait()
    loop.remove_reader(sys.stdin)
    return json.load(sys.stdin)


class Waits:
    """The answers to waiting tasks."""

    def __init__(self, way: Any) -> None:
        self.way = way
        self.answers: list[tuple[str, int, float]] = []
        self.versions: defaultdict[str, int] = defaultdict(int)

    async def wait(self, key: str) -> None:
        """Waits for the next version of a key."""
        version = await self.way.wait(key, self.versions[key])
        self.answers.append((key, version, time.monotonic()))
        self.versions[key] = version

    async def until_answered(self, last: dict[str, int], timeout: float) -> None:
        """Returns when each key has been answered with its last version, or the timeout has
        passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while any(self.versions[key] < version for key, version in last.items()):
                    await asyncio.sleep(0.01)


async def wait_for_keys(job: dict[str, Any]) -> dict[str, Any]:
    """Waits for the next version of each key, repeatedly; without keys, for a key that is never
    written."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    waits = Waits(way)

    async def wait_again_and_again(key: str) -> None:
        while True:
            try:
                await waits.wait(key)
            except RedisError:
                await asyncio.sleep(0.05)

    names = [f"key{number}" for number in range(job["keys"])] or ["never written"]
    tasks = [asyncio.create_task(wait_again_and_again(name)) for name in names]
    await asyncio.sleep(0.3)
    cpu = time.process_time()
    last = await until_resumed()
    await waits.until_answered(last, SETTLE_TIMEOUTS[job["way"]])
    result = {"answers": waits.answers, "cpu": time.process_time() - cpu}
    if isinstance(way, Ours):
        counts = way.relay.statistics()
        result |= {"received": counts.received, "healed": counts.healed}
        await way.relay.aclose()
    else:
        result["received"] = way.received
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


async def write_keys(job: dict[str, Any]) -> dict[str, Any]:
    """Writes random keys at a rate, after the signal to start. Returns the start of
    each write."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    writes: list[tuple[str, int, float]] = []
    running: set[asyncio.Task[None]] = set()
    rng = random.Random(job["seed"])

    async def write(key: str) -> None:
        start = time.monotonic()
        with suppress(RedisError, RelayUnavailable):
            writes.append((key, await way.write(key), start))

    await until_resumed()
    start, number = time.monotonic(), 0
    count = int(job["seconds"] * job["rate"])
    while number < count:
        while number < min(count, (time.monotonic() - start) * job["rate"]):
            task = asyncio.create_task(write(f"key{rng.randrange(job['keys'])}"))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*running)
    if isinstance(way, Ours):
        await way.relay.aclose()
    return {"writes": writes}


WORKS = {"wait": wait_for_keys, "write": write_keys}

if __name__ == "__main__":
    logging.disable()
    job = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(WORKS[job["work"]](job))), flush=True)
