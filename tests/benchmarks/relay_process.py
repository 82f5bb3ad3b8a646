"""One process of ``python tests/benchmarks relay``: waits for versions of keys, or writes them, our
way or by hand.

    python -m benchmarks.relay_process JSON

By hand is the way of tutorials: a message on a channel sets the `asyncio.Event` of its key. A
channel for each key is the same, with a subscription for as long as the key has waiters.
"""

import asyncio
import gc
import inspect
import json
import logging
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from benchmarks.measure import LoopProbe
from benchmarks.process import resident_bytes
from purgatory import RelayUnavailable, ThresholdPurgatory
from purgatory.relay import Relay
from purgatory.relay import _store_sync as store_sync

LEAVE_DELAY = store_sync.LEAVE_DELAY

AT_ONCE = 200
"""Number of tasks started in one iteration of the loop."""
MAX_WRITES = 10_000
"""Limit of writes in flight."""

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


class Channels:
    """Publish/subscribe with a channel and an event for each awaited key, with one wait to a
    key."""

    def __init__(self, url: str) -> None:
        self.client = Redis.from_url(url, **CLIENT_OPTIONS)
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
    """Waits for the next version of each key, repeatedly, or once for each key with a given number
    of waits at a time; without keys, for a key that is never written."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    waits = Waits(way)

    async def wait_again_and_again(key: str) -> None:
        while True:
            try:
                await waits.wait(key)
            except RedisError:
                await asyncio.sleep(0.05)

    async def wait_once_for_each() -> None:
        for number in numbers:
            await waits.wait(f"key{number}")

    numbers = iter(range(job["keys"]))
    if job["work"] == "wait once":
        tasks = [asyncio.create_task(wait_once_for_each()) for _ in range(job["at_once"])]
    else:
        names = [f"key{number}" for number in numbers] or ["never written"]
        tasks = [asyncio.create_task(wait_again_and_again(name)) for name in names]
    await asyncio.sleep(0.3)
    cpu = time.process_time()
    last = await until_resumed()
    await waits.until_answered(last, job["settle_timeout"])
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
    """Writes keys at a rate, at random or in order, after the signal to start. Returns the start of
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
            chosen = number if job.get("in_order") else rng.randrange(job["keys"])
            task = asyncio.create_task(write(f"key{chosen}"))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*running)
    seconds = time.monotonic() - start
    if isinstance(way, Ours):
        await way.relay.aclose()
    return {"writes": writes, "seconds": seconds}


async def listen(job: dict[str, Any]) -> dict[str, Any]:
    """Waits for a key that is never written, or for nothing, while others write."""
    messages = 0

    def counted(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def count_and_call(message: Any) -> None:
            nonlocal messages
            messages += 1
            call(message)

        return count_and_call

    async with Relay(job["url"]) as relay:
        follower: Any = relay._follower
        follower.on_message, follower.on_hint = (
            counted(follower.on_message),
            counted(follower.on_hint),
        )
        waiting = asyncio.create_task(relay.wait("never written", 0)) if job["is_waiting"] else None
        await asyncio.sleep(1.0 if waiting else 2.0 * LEAVE_DELAY + 1.0)
        cpu = time.process_time()
        await until_resumed()
        result = {
            "cpu": time.process_time() - cpu,
            "received": relay.statistics().received,
            "messages": messages,
        }
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait([waiting])
    return result


async def come_and_go(job: dict[str, Any]) -> dict[str, Any]:
    """The cost of joining and leaving the changes: the cost of waits that do both, minus the cost
    of as many waits that do neither."""
    joined: list[float] = []

    async def cpu_of_waits(leave_delay: float) -> float:
        store_sync.LEAVE_DELAY = leave_delay
        async with Relay(job["url"]) as relay:
            follower: Any = relay._follower
            on_joined, began = follower.on_joined, 0.0

            def record() -> None:
                joined.append(time.monotonic() - began)
                on_joined()

            follower.on_joined = record
            await asyncio.sleep(0.2)
            cpu = time.process_time()
            for _ in range(job["times"]):
                began = time.monotonic()
                with suppress(TimeoutError):
                    await relay.wait("never written", 0, 0.03)
                await asyncio.sleep(0.03)
            return time.process_time() - cpu

    both = [await cpu_of_waits(leave_delay) for leave_delay in (0.004, 1_000.0)]
    return {
        "times": len(joined),
        "cpu": (both[0] - both[1]) / max(1, len(joined)),
        "seconds": statistics.median(joined),
    }


async def watch_many(job: dict[str, Any]) -> dict[str, Any]:
    """The memory of `keys` awaited keys, in a relay or in a `ThresholdPurgatory` alone."""
    count = job["keys"]
    async with Relay(job["url"]) as relay, ThresholdPurgatory[str, int]() as plain:
        keys = [f"key{number}" for number in range(count)]
        before = resident_bytes()
        wait: Callable[[str, int], Awaitable[int]] = (
            relay.wait if job["way"] == "ours" else plain.wait
        )
        seen = 0 if job["way"] == "ours" else 1
        tasks = [asyncio.ensure_future(wait(key, seen)) for key in keys]
        while (relay.statistics().watched if seen == 0 else plain.pending) < count:
            await asyncio.sleep(0.01)
        await relay.version("last")  # after all earlier reads
        await asyncio.sleep(0.5)
        result = {"bytes": resident_bytes() - before}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return result


async def grow(job: dict[str, Any]) -> dict[str, Any]:
    """The longest iterations of the loop, in milliseconds of CPU, and the memory, while the keys
    are written, waited for and written again. Without garbage collection, whose time depends on the
    number of all objects in the process."""
    keys = [f"key{number}" for number in range(job["keys"])]
    gc.collect()
    gc.disable()
    async with Relay(job["url"], prefix=job["prefix"], timeout=60.0) as relay:
        before = resident_bytes()
        with LoopProbe() as writing:
            await write_all(relay, keys)
        written = resident_bytes() - before
        tasks: list[asyncio.Task[int]] = []
        with LoopProbe() as waiting:
            for key in keys:
                tasks.append(asyncio.create_task(relay.wait(key, 1)))
                if len(tasks) % AT_ONCE == 0:
                    await asyncio.sleep(0.0)
            await asyncio.sleep(0.0)
            await relay.version("last")  # after all earlier reads
        waited = resident_bytes() - before
        with LoopProbe() as answering:
            await write_all(relay, keys)
            for task in tasks:
                if not task.done():
                    await task
    stalls = {"write_ms": writing, "wait_ms": waiting, "answer_ms": answering}
    return {
        **{name: 1e3 * probe.max_stall for name, probe in stalls.items()},
        "written": written,
        "waited": waited,
    }


async def write_all(relay: Relay, keys: list[str]) -> None:
    """Writes all keys, some at once."""
    for first in range(0, len(keys), MAX_WRITES):
        tasks: list[asyncio.Task[int]] = []
        for key in keys[first : first + MAX_WRITES]:
            tasks.append(asyncio.create_task(relay.bump(key)))
            if len(tasks) % AT_ONCE == 0:
                await asyncio.sleep(0.0)
        for task in tasks:
            await task


WORKS = {
    "grow": grow,
    "wait": wait_for_keys,
    "wait once": wait_for_keys,
    "write": write_keys,
    "listen": listen,
    "come and go": come_and_go,
    "watch": watch_many,
}

if __name__ == "__main__":
    logging.disable()
    job = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(WORKS[job["work"]](job))), flush=True)
