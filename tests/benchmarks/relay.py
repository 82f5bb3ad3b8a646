"""``python tests/benchmarks relay``: waits that complete in another process, with a relay and by
hand: a message on a channel sets the `asyncio.Event` of its key.

One process waits for the next version of each of 200 keys, another one writes them at a rate.
Latency is from the write in one to the answer in the other; CPU for each message is a third
process's, which waits for another key. Then the same while all subscribers' connections are killed
every 0.3 seconds. Figures are medians of several rounds, counts are sums.
"""

import argparse
import asyncio
import logging
import random
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import redis
from ports import free_port
from redis.asyncio import Redis
from redis.exceptions import RedisError

from benchmarks import harness
from benchmarks.harness import Row, positive, process
from purgatory import RelayUnavailable
from purgatory.relay import Relay

KEYS = 200
QUICK_DIVISOR = 10
KILL_INTERVAL = 0.3
LOST_AFTER = 1.0
"""Seconds after which an answer counts as lost."""
SETTLE_TIMEOUTS = {"relay": 60.0, "by hand": 2.0}
"""Seconds after the last write within which waits may still be answered. By hand, the write may be
lost for ever."""


class ByHand:
    """Publish/subscribe and an event for each key."""

    def __init__(self, url: str) -> None:
        # Enough connections, and no time limits.
        limits: Any = {"socket_timeout": None, "socket_connect_timeout": None}
        self.client = Redis.from_url(url, max_connections=5_000, **limits)
        self.events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.received = 0

    async def __aenter__(self) -> "ByHand":
        self.listener = asyncio.create_task(self.listen())
        await asyncio.sleep(0.2)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.listener.cancel()

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

    async def bump(self, key: str) -> int:
        version = int(await self.client.incr(key))
        await self.client.publish("news", key)
        return version

    def statistics(self) -> "ByHand":
        return self


WAYS: dict[str, Any] = {"relay": Relay, "by hand": ByHand}


# -- in processes of their own


async def wait_for_keys(job: Row, pipe: Connection) -> Row:
    """Waits for the next version of each key, repeatedly; without keys, for a key that is never
    written."""
    answers: list[tuple[str, int, float]] = []
    versions: defaultdict[str, int] = defaultdict(int)

    async def wait_again_and_again(key: str) -> None:
        while True:
            try:
                versions[key] = version = await way.wait(key, versions[key])
                answers.append((key, version, time.monotonic()))
            except RedisError:
                await asyncio.sleep(0.05)

    names = [f"key{number}" for number in range(job["keys"])] or ["never written"]
    async with WAYS[job["way"]](job["url"]) as way:
        tasks = [asyncio.create_task(wait_again_and_again(name)) for name in names]
        await asyncio.sleep(0.3)
        cpu = time.process_time()
        pipe.send("ready")
        last: dict[str, int] = await asyncio.to_thread(pipe.recv)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUTS[job["way"]]):
                while any(versions[key] < version for key, version in last.items()):
                    await asyncio.sleep(0.01)
        cpu = time.process_time() - cpu
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {"answers": answers, "cpu": cpu, "received": way.statistics().received}


async def write_keys(job: Row, pipe: Connection) -> list[tuple[str, int, float]]:
    """Writes random keys at a rate, after the signal to start. Returns the start of each write."""
    writes: list[tuple[str, int, float]] = []
    rng = random.Random(job["seed"])

    async def write(key: str) -> None:
        start = time.monotonic()
        with suppress(RedisError, RelayUnavailable):
            writes.append((key, await way.bump(key), start))

    async with WAYS[job["way"]](job["url"]) as way, asyncio.TaskGroup() as running:
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        start = time.monotonic()
        for number in range(int(job["seconds"] * job["rate"])):
            if (due := start + number / job["rate"]) > time.monotonic():
                await asyncio.sleep(max(0.001, due - time.monotonic()))
            running.create_task(write(f"key{rng.randrange(job['keys'])}"))
    return writes


def work(pipe: Connection, function: Any, job: Row) -> None:
    """A process."""
    logging.disable()
    pipe.send(asyncio.run(function(job, pipe)))


# -- the program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--store", action="append", default=[], metavar="URL", help="besides; may be repeated")
    for name, metavar, default, meaning in (
        ("--rate", "N", 1_000, "writes a second"),
        ("--seconds", "S", 10, "length of each row"),
        ("--rounds", "N", 3, "how often all is measured"),
    ):
        add(name, type=positive, default=default, metavar=metavar, help=meaning)


def run(options: argparse.Namespace) -> int:
    """Measures all rows."""
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, own_redis(folder) as url:
        number = 1 if options.quick else options.rounds
        rounds = [round_of_stores(folder, url, options) for _ in range(number)]
    rows = [medians_of(each) for each in zip(*rounds, strict=True)]
    return harness.report(options, rows, f"{options.rate:,} writes a second to {KEYS} keys.")


def round_of_stores(folder: str, url: str | None, options: argparse.Namespace) -> list[Row]:
    """A row for each way on each store."""
    seconds = options.seconds / QUICK_DIVISOR if options.quick else options.seconds
    job = {"keys": KEYS, "rate": options.rate, "seconds": seconds, "seed": options.seed}
    rows = [
        measured({**job, "way": "relay", "url": store}, is_killed=False)
        for store in (f"file://{folder}/app", *options.store)
    ]
    for way in WAYS if url else ():
        for is_killed in (False, True):
            redis.Redis.from_url(url).flushall()  # keys begin at 0
            rows.append(measured({**job, "way": way, "url": url}, is_killed))
    return rows


def measured(job: Row, is_killed: bool) -> Row:
    """One row, from three processes: one waits, one only listens, one writes."""
    with (
        process(work, wait_for_keys, job) as waiter,
        process(work, wait_for_keys, {**job, "keys": 0}) as listener,
        process(work, write_keys, job) as writer,
    ):
        for pipe in (waiter, listener, writer):
            pipe.recv()
        writer.send("start")
        until = time.monotonic() + job["seconds"]
        while is_killed and time.monotonic() < until:
            redis.Redis.from_url(job["url"]).execute_command("CLIENT KILL", "TYPE", "pubsub")
            time.sleep(KILL_INTERVAL)
        writes = writer.recv()
        last: dict[str, int] = {}
        for key, version, _ in writes:
            last[key] = max(version, last.get(key, 0))
        waiter.send(last)
        waited = waiter.recv()
        listener.send({})
        listened = listener.recv()
    written_at = {(key, version): at for key, version, at in writes}
    answered: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    latencies = []
    for key, version, at in waited["answers"]:
        answered[key].append((version, at))
        if (key, version) in written_at:
            latencies.append(1e3 * (at - written_at[key, version]))
    in_time = sum(
        any(answer >= version and when - at < LOST_AFTER for answer, when in answered[key])
        for key, version, at in writes
    )
    latencies.sort()
    return {
        "store": job["url"].partition(":")[0],
        "way": job["way"],
        "connections": "killed" if is_killed else "left alone",
        "p50 ms": median(latencies) if latencies else None,
        "p99 ms": latencies[int(0.99 * len(latencies))] if latencies else None,
        "CPU µs/message": 1e6 * listened["cpu"] / max(1, listened["received"]),
        "writes": len(writes),
        "lost": len(writes) - in_time,
    }


def medians_of(rows: Sequence[Row]) -> Row:
    """One row of several rounds."""
    result = dict(rows[0])
    for name, value in rows[0].items():
        values = [row[name] for row in rows if row[name] is not None]
        if not isinstance(value, str):
            result[name] = sum(values) if isinstance(value, int) else median(values or [None])
    return result


@contextmanager
def own_redis(folder: str) -> Iterator[str | None]:
    """The address of a Redis of its own, or None where there is none."""
    command = shutil.which("redis-server")
    if command is None:
        yield None
        return
    port = free_port()
    options = ("--bind", "127.0.0.1", "--dir", folder, "--save", "", "--loglevel", "warning")
    words = [command, "--port", str(port), *options]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            url = f"redis://127.0.0.1:{port}/0"
            while server.poll() is None:
                with suppress(redis.ConnectionError):
                    redis.Redis.from_url(url).ping()
                    break
                time.sleep(0.05)
            yield url
        finally:
            server.kill()
