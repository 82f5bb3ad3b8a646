"""The load behind `--demo` of both boards: real HTTP clients against a board in a process of its
own. It prints its progress every second, and five lines at the end. Its exit status is 1 if a
promise was broken.

Ten pollers share a topic. One publisher for each topic writes every two seconds or so, and a poll
waits for 0.5 to 4 seconds, so that polls end both ways; every fifth poller hangs up early. That is
some 400 polls a second: neither the server nor this process, which has all the clients, uses a
whole core. How polls ended is what the server counted (`GET /stats`); times are measured here, on
the clients' side of the wire, from the end of the second in which they connect.
"""

import asyncio
import gc
import math
import platform
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import aiohttp
import uvloop

from purgatory import COMPILED

POLLERS_PER_TOPIC = 10
MIN_WAIT, MAX_WAIT = 0.5, 4.0  # seconds
PUBLISH_INTERVAL = 2.0  # seconds, on average
POLLERS_PER_LEAVER = 5
CONNECTING = 1.0  # seconds: if 500 clients connected in one moment, only that would be measured
# seconds: less than the server's five, which would close a connection while it is taken for a
# request
KEEP_ALIVE = 3.0
LIMIT = 60.0  # seconds; above what a busy machine takes


@dataclass
class Seen:
    """The clients' measurements, in seconds."""

    begin: float
    """When all of them are connected."""

    latencies: list[float] = field(default_factory=list)
    """From publishing a message to reading it in an answer."""

    late: list[float] = field(default_factory=list)
    """From a poll's deadline to reading its answer."""

    late_sleeps: list[float] = field(default_factory=list)
    """Lateness of a task that does nothing but sleep: the delay of the machine."""


@dataclass(frozen=True)
class Result:
    """The results of a demo."""

    endings: dict[str, int]
    """The server's counts of the polls, by how they ended."""

    seen: Seen
    pending: int
    """Operations that the server still has when no client polls."""

    opened: int
    """Polls that were open when the server got the signal to stop."""

    stopped: int
    """... and were answered."""

    stop_seconds: float

    @property
    def kept(self) -> bool:
        """Whether no poll was answered early, left behind, or dropped by the stop."""
        early = any(late < 0 for late in self.seen.late)
        return not early and not self.pending and self.stopped == self.opened

    def lines(self) -> Iterator[str]:
        seen, ends = self.seen, self.endings
        yield (
            f"{sum(ends.values())} polls: {ends['event']} answered by a message, "
            f"{ends['deadline']} at their deadline, {ends['gone']} hung up"
        )
        yield (
            f"publish to read: {milliseconds(seen.latencies, 0.5)} (median), "
            f"{milliseconds(seen.latencies, 0.99)} (99 of 100); "
            f"a bare sleep was {milliseconds(seen.late_sleeps, 0.99)} late"
        )
        yield f"the earliest answer at a deadline came {milliseconds(seen.late, 0)} after it"
        yield f"operations left when all clients had gone: {self.pending}"
        yield (
            f"SIGTERM with {self.opened} polls open: {self.stopped} answered, "
            f"and the server ended after {self.stop_seconds:.2f} s"
        )


async def keep_polling(
    session: aiohttp.ClientSession, topic: str, until: float, leaves: bool, seen: Seen
) -> None:
    """Polls one topic repeatedly. A client that leaves closes its connection in the middle of each
    poll."""
    await asyncio.sleep(CONNECTING * random.random())
    offset = 0
    while (asked := time.monotonic()) < until:
        wait = random.uniform(MIN_WAIT, MAX_WAIT)
        leave_after = random.uniform(0.1, wait) if leaves else None
        try:
            async with (
                asyncio.timeout(leave_after),
                session.get(f"/topics/{topic}?offset={offset}&wait={wait}") as response,
            ):
                answer = await response.json()
        except TimeoutError:
            continue
        answered = time.monotonic()
        offset = answer["next"]
        if answer["ending"] == "deadline":
            seen.late.append(answered - (asked + wait))
        else:
            published = float(answer["messages"][-1])
            # otherwise the message was there before the poll
            if published >= max(asked, seen.begin):
                seen.latencies.append(answered - published)


async def keep_publishing(session: aiohttp.ClientSession, topic: str, until: float) -> None:
    """Publishes again and again; the message is the time at which it was sent."""
    while time.monotonic() < until:
        await asyncio.sleep(random.expovariate(1 / PUBLISH_INTERVAL))
        async with session.post(f"/topics/{topic}", data=str(time.monotonic())):
            pass


async def keep_sleeping(until: float, seen: Seen) -> None:
    """Sleeps for a millisecond again and again, in the same loop as the clients: nothing that they
    see is faster than that."""
    await asyncio.sleep(CONNECTING)
    while (began := time.monotonic()) < until:
        await asyncio.sleep(0.001)
        seen.late_sleeps.append(time.monotonic() - began - 0.001)
        await asyncio.sleep(0.02)


async def read_stats(session: aiohttp.ClientSession) -> Any:
    async with session.get("/stats") as response:
        return await response.json()


async def keep_telling(session: aiohttp.ClientSession, until: float) -> None:
    """Prints the server's own figures, once a second."""
    began = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(1)
        stats = await read_stats(session)
        ends = stats["endings"]
        print(
            f"{time.monotonic() - began:3.0f} s: {stats['purgatory']['pending']:4} wait, "
            f"{ends['event']:5} answered by a message, {ends['deadline']:4} at their deadline, "
            f"{ends['gone']:4} hung up",
            flush=True,
        )


async def until_pending(session: aiohttp.ClientSession, count: int) -> Any:
    """The statistics as soon as `count` operations are pending, or after `LIMIT` at least."""
    for _ in range(round(LIMIT / 0.05)):
        if (await read_stats(session))["purgatory"]["pending"] == count:
            break
        await asyncio.sleep(0.05)
    # an operation is gone a moment before its handler has counted it
    return await read_stats(session)


async def stop_with_open_polls(
    session: aiohttp.ClientSession, server: asyncio.subprocess.Process, pollers: int
) -> tuple[int, float]:
    """Opens a poll of a minute for each poller and sends SIGTERM: how many were answered, how long
    it took."""

    async def poll_to_the_end(topic: str) -> bool:
        async with session.get(f"/topics/{topic}?wait=60") as response:
            return response.status == 503

    polls = [asyncio.create_task(poll_to_the_end(f"quiet-{number}")) for number in range(pollers)]
    await until_pending(session, pollers)
    stopping = time.monotonic()
    server.terminate()
    answers = await asyncio.gather(*polls, return_exceptions=True)
    await server.wait()
    return answers.count(True), time.monotonic() - stopping


@asynccontextmanager
async def serving(command: Sequence[str]) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Starts the server on a free port; when it can be reached, the process and the address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        *command, "--port", str(port), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(LIMIT):
            while server.returncode is None:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        if server.returncode is not None:
            raise SystemExit(f"the board has ended with status {server.returncode}")
        yield server, f"http://127.0.0.1:{port}"
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()


async def put_load_on(
    command: Sequence[str], pollers: int, seconds: float, page: str | None
) -> Result:
    """Starts the server and all its clients, and stops it."""
    async with serving(command) as (server, url):
        topics = [f"topic-{number}" for number in range(math.ceil(pollers / POLLERS_PER_TOPIC))]
        print(f"{pollers} clients poll {len(topics)} topics of {url} for {seconds:g} s")
        if page is not None:
            print(f"to look at while it runs: {url}{page}")
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        async with aiohttp.ClientSession(url, connector=connector) as session:
            began = time.monotonic()
            seen, until = Seen(began + CONNECTING), began + CONNECTING + seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_telling(session, until))
                group.create_task(keep_sleeping(until, seen))
                for topic in topics:
                    group.create_task(keep_publishing(session, topic, until))
                for number in range(pollers):
                    leaves = number % POLLERS_PER_LEAVER == 0
                    group.create_task(
                        keep_polling(session, topics[number % len(topics)], until, leaves, seen)
                    )
            stats = await until_pending(session, 0)
            stopped, stop_seconds = await stop_with_open_polls(session, server, pollers)
    pending = stats["purgatory"]["pending"]
    return Result(stats["endings"], seen, pending, pollers, stopped, stop_seconds)


def milliseconds(values: list[float], fraction: float) -> str:
    """The value below which this fraction lies; nan if there are none."""
    value = sorted(values)[int(fraction * (len(values) - 1))] if values else math.nan
    return f"{1000 * value:.2f} ms"


def run_demo(command: Sequence[str], pollers: int, seconds: float, page: str | None = None) -> None:
    """Runs the demo against the server that `command` starts; `page` shows the server from
    inside."""
    kernel = "with its kernel in C" if COMPILED else "in plain Python, without its kernel in C"
    print(
        f"purgatory {version('asyncio-purgatory')} on Python {platform.python_version()}: {kernel}"
    )
    gc.disable()  # of the clients
    with suppress(KeyboardInterrupt):
        result = uvloop.run(put_load_on(command, pollers, seconds, page))
        print(*result.lines(), sep="\n")
        if not result.kept:
            raise SystemExit("that is not what a purgatory promises")
