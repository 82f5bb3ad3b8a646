"""``python tests/benchmarks relay``: waits that complete in another process, with a relay and by
hand.

One process waits for the next version of each of 200 keys, another one writes them at a rate.
Latency is from the call of the write in one to the answer of the wait in the other; CPU for each
message is a third process's, which waits for another key. Then the same while all subscribers' connections are killed every 0.3 seconds: a wake-up is lost
if a waiter has not been answered within a second. The stores: a folder; a Redis of its own, if
``redis-server`` is installed; any ``--store`` besides. The figures are medians of several rounds,
the counts are sums.

By hand is the way of tutorials: a message on a channel sets the `asyncio.Event` of its key.
"""

import argparse
import asyncio
import logging
import multiprocessing
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from ports import free_port
from redis.asyncio import Redis
from redis.exceptions import RedisError

from benchmarks import harness
from benchmarks.harness import number, positive
from purgatory import RelayUnavailable
from purgatory.relay import Relay

KEYS = 200
QUICK_DIVISOR = 10
KILL_INTERVAL = 0.3
LOST_AFTER = 1.0
"""Seconds after which an answer counts as lost."""
SETTLE_TIMEOUTS = {"ours": 60.0, "theirs": 2.0}
"""Seconds after the last write within which waits may still be answered. By hand, the write may be
lost for ever."""

SUMMARY = "Waits that complete in another process, against the same by hand."
HEADINGS = ("store", "way", "connections", "p50", "p99", "CPU/message", "lost")

Row = dict[str, Any]


# -- the two ways


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

    async def end(self) -> int:
        """Closes it, and returns how many messages it has received."""
        await self.relay.aclose()
        return self.relay.statistics().received


class Theirs:
    """Publish/subscribe and an event for each key, by hand."""

    def __init__(self, url: str) -> None:
        # Enough connections, and no time limits.
        limits: Any = {"socket_timeout": None, "socket_connect_timeout": None}
        self.client = Redis.from_url(url, max_connections=5_000, **limits)
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

    async def end(self) -> int:
        self.listener.cancel()
        return self.received


WAYS: dict[str, Any] = {"ours": Ours, "theirs": Theirs}


# -- in processes of their own


async def wait_for_keys(job: Row, pipe: Connection) -> Row:
    """Waits for the next version of each key, repeatedly; without keys, for a key that is never
    written."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
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
    return {"answers": answers, "cpu": cpu, "received": await way.end()}


async def write_keys(job: Row, pipe: Connection) -> list[tuple[str, int, float]]:
    """Writes random keys at a rate, after the signal to start. Returns the start of each write."""
    way = WAYS[job["way"]](job["url"])
    await way.begin()
    writes: list[tuple[str, int, float]] = []
    rng = random.Random(job["seed"])

    async def write(key: str) -> None:
        start = time.monotonic()
        with suppress(RedisError, RelayUnavailable):
            writes.append((key, await way.write(key), start))

    pipe.send("ready")
    await asyncio.to_thread(pipe.recv)
    start, number = time.monotonic(), 0
    count = int(job["seconds"] * job["rate"])
    async with asyncio.TaskGroup() as running:
        while number < count:
            while number < min(count, (time.monotonic() - start) * job["rate"]):
                running.create_task(write(f"key{rng.randrange(job['keys'])}"))
                number += 1
            await asyncio.sleep(0.001)
    await way.end()
    return writes


def work(function: Any, job: Row, pipe: Connection) -> None:
    """A process."""
    logging.disable()
    pipe.send(asyncio.run(function(job, pipe)))


@contextmanager
def process(function: Any, job: Row) -> Iterator[Connection]:
    """A pipe to a process that is ready for its work."""
    spawn = multiprocessing.get_context("spawn")
    pipe, its_end = spawn.Pipe()
    child = spawn.Process(target=work, args=(function, job, its_end), daemon=True)
    child.start()
    its_end.close()
    try:
        pipe.recv()
        yield pipe
    finally:
        child.kill()
        child.join()


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
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, own_redis(folder) as redis:
        rounds = [
            round_of_stores(folder, redis, options)
            for _ in range(1 if options.quick else options.rounds)
        ]
    rows = [medians_of(each) for each in zip(*rounds, strict=True)]
    table = []
    for row in rows:
        latencies = [number(row[name], "ms") for name in ("p50", "p99")]
        way = "relay" if row["way"] == "ours" else "by hand"
        connections = "killed" if row["is_killed"] else "left alone"
        cells = [*latencies, number(row["cpu_of_message"], "µs"), str(row["lost"])]
        table.append([row["store"], way, connections, *cells])
    caption = f"{options.rate:,} writes a second to {KEYS} keys."
    told = {"seed": options.seed, "rate": options.rate, "rows": rows}
    harness.report(options, "relay", HEADINGS, table, caption, **told)
    return 0


def round_of_stores(folder: str, redis: str | None, options: argparse.Namespace) -> list[Row]:
    """A row for each way on each store."""
    seconds = options.seconds / QUICK_DIVISOR if options.quick else options.seconds
    job = {"keys": KEYS, "rate": options.rate, "seconds": seconds, "seed": options.seed}
    rows = [
        measured({**job, "way": "ours", "url": url}, is_killed=False)
        for url in (f"file://{folder}/app", *options.store)
    ]
    for way in WAYS if redis else ():
        for is_killed in (False, True):
            ask(redis or "", "FLUSHALL")  # keys begin at 0
            rows.append(measured({**job, "way": way, "url": redis}, is_killed))
    return rows


def measured(job: Row, is_killed: bool) -> Row:
    """One row, from three processes: one waits, one only listens, one writes."""
    with (
        process(wait_for_keys, job) as waiter,
        process(wait_for_keys, {**job, "keys": 0}) as listener,
        process(write_keys, job) as writer,
    ):
        writer.send("start")
        until = time.monotonic() + job["seconds"]
        while is_killed and time.monotonic() < until:
            ask(job["url"], "CLIENT KILL TYPE pubsub")
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
        "way": job["way"],
        "store": job["url"].partition(":")[0],
        "is_killed": is_killed,
        "writes": len(writes),
        "answers": len(waited["answers"]),
        "p50": statistics.median(latencies) if latencies else None,
        "p99": latencies[int(0.99 * len(latencies))] if latencies else None,
        "cpu_of_message": 1e6 * listened["cpu"] / max(1, listened["received"]),
        "lost": len(writes) - in_time,
    }


def medians_of(rows: Sequence[Row]) -> Row:
    """One row of several rounds."""
    result = dict(rows[0])
    for name, value in rows[0].items():
        values = [row[name] for row in rows if row[name] is not None]
        if type(value) is float:
            result[name] = statistics.median(values)
        elif type(value) is int:
            result[name] = sum(values)
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
                with suppress(OSError):
                    ask(url, "PING")
                    break
                time.sleep(0.05)
            yield url
        finally:
            server.kill()


def ask(url: str, command: str) -> str:
    """The answer of a Redis to a command."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(command.encode() + b"\r\n")
        return client.recv(1 << 16).decode()
