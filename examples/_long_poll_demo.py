"""The load behind `--demo` of both boards: real HTTP clients against a board in a process of its
own.

Ten pollers share a topic. One publisher for each topic writes every two seconds or so, and a poll
waits for 0.5 to 4 seconds, so that polls end both ways; every fifth poller hangs up early. That is
some 400 polls a second: neither the server nor this process, which has all the clients, uses a
whole core. The server's own figures come from `GET /stats` and from its answers; all others are
measured here, on the clients' side of the wire, from the end of the second in which they connect.
"""

import asyncio
import gc
import math
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

POLLERS_PER_TOPIC = 10
MIN_WAIT, MAX_WAIT = 0.5, 4.0  # seconds
PUBLISH_INTERVAL = 2.0  # seconds, on average
POLLERS_PER_LEAVER = 5
CONNECTING = 1.0  # seconds: if 500 clients connected in one moment, only that would be measured
# seconds: less than the server's five, which would close a connection while it is taken for a
# request
KEEP_ALIVE = 3.0


@dataclass
class Seen:
    """The clients' measurements. Times are in seconds."""

    begin: float
    """When all of them are connected."""

    endings: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(
        default_factory=list
    )  # from publishing a message to reading it in an answer
    late_by_server: list[float] = field(
        default_factory=list
    )  # from deadline to answer, by the server's clock
    late_by_client: list[float] = field(
        default_factory=list
    )  # the same by our clock, to reading the answer
    late_sleeps: list[float] = field(
        default_factory=list
    )  # of a task that does nothing else: the delay of the machine


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
            seen.endings["gone"] += 1
            continue
        answered = time.monotonic()
        offset = answer["next"]
        seen.endings[answer["ending"]] += 1
        if answer["ending"] == "deadline":
            if "late" in answer:
                seen.late_by_server.append(answer["late"])
            seen.late_by_client.append(answered - (asked + wait))
        else:
            published = float(answer["messages"][-1])
            if published >= max(
                asked, seen.begin
            ):  # otherwise the message was there before the poll
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


async def show_progress(session: aiohttp.ClientSession, seconds: float, console: Console) -> None:
    """Shows the server's own figures, four times a second."""
    columns = (
        BarColumn(30),
        TextColumn("{task.completed:.1f} of {task.total:g} s  {task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        started, bar = time.monotonic(), progress.add_task("", total=seconds)
        while (passed := time.monotonic() - started) < seconds:
            stats = await read_stats(session)
            endings = ", ".join(
                f"{count} {ending}" for ending, count in stats["endings"].items() if count
            )
            progress.update(
                bar,
                completed=passed,
                description=f"{stats['purgatory']['pending']} pending, {endings}",
            )
            await asyncio.sleep(0.25)


async def wait_until_pending(session: aiohttp.ClientSession, count: int) -> Any:
    """The statistics as soon as `count` operations are pending, or after five seconds."""
    for _ in range(100):
        if (await read_stats(session))["purgatory"]["pending"] == count:
            break
        await asyncio.sleep(0.05)
    return await read_stats(
        session
    )  # an operation is gone a moment before its handler has counted it


async def stop_with_open_polls(
    session: aiohttp.ClientSession, server: asyncio.subprocess.Process, pollers: int
) -> tuple[int, float]:
    """Opens a poll of half a minute for each poller and sends SIGTERM: how many were answered, how
    long it took."""

    async def poll_to_the_end(topic: str) -> bool:
        async with session.get(f"/topics/{topic}?wait=30") as response:
            return response.status == 503

    polls = [asyncio.create_task(poll_to_the_end(f"quiet-{number}")) for number in range(pollers)]
    await wait_until_pending(session, pollers)
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
        async with asyncio.timeout(60):
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
    command: Sequence[str], pollers: int, seconds: float, console: Console, page: str | None
) -> Table:
    """Starts the server and all its clients, stops it, and makes the report."""
    async with serving(command) as (server, url):
        if page is not None:
            console.print(f"to look at while it runs: {url}{page}")
        topics = [f"topic-{number}" for number in range(math.ceil(pollers / POLLERS_PER_TOPIC))]
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        async with aiohttp.ClientSession(url, connector=connector) as session:
            began = time.monotonic()
            seen, until = Seen(began + CONNECTING), began + CONNECTING + seconds
            async with asyncio.TaskGroup() as group:
                group.create_task(show_progress(session, CONNECTING + seconds, console))
                group.create_task(keep_sleeping(until, seen))
                for topic in topics:
                    group.create_task(keep_publishing(session, topic, until))
                for number in range(pollers):
                    leaves = number % POLLERS_PER_LEAVER == 0
                    group.create_task(
                        keep_polling(session, topics[number % len(topics)], until, leaves, seen)
                    )
            stats = await wait_until_pending(session, 0)
            stopped, stop_seconds = await stop_with_open_polls(session, server, pollers)

    polls, answered = (
        sum(stats["endings"].values()),
        sum(stats["endings"][ending] for ending in ("event", "deadline")),
    )
    unread = answered - seen.endings["event"] - seen.endings["deadline"]
    unseen = seen.endings.total() - polls
    caption = [
        "Server: its own figures in /stats. Clients: their measurements.",
        f"{unread} clients hung up when their answer was on its way: the server counts them as "
        "answered, and they do not.",
        *([f"{unseen} hung up before the server had read their request."] if unseen else []),
        "From publish to answer: from before the POST to the parsed answer of the GET, in one "
        "process for all clients. The "
        "sleep is a task beside them: if it is late, the machine had no time for the clients "
        "either.",
    ]
    table = Table(
        title=f"{pollers} pollers on {len(topics)} topics for {seconds:g} s", title_justify="left"
    )
    table.caption, table.caption_justify = "\n".join(caption), "left"
    table.add_column("")
    table.add_column("server", justify="right")
    table.add_column("clients", justify="right")
    for ending, name in (
        ("event", "answered by event"),
        ("deadline", "answered by deadline"),
        ("gone", "gone"),
    ):
        table.add_row(name, str(stats["endings"][ending]), str(seen.endings[ending]))
    table.add_row("polls, all together", str(polls), str(seen.endings.total()))
    table.add_section()
    table.add_row("from publish to answer, p50", "", milliseconds(percentile(seen.latencies, 0.50)))
    table.add_row("from publish to answer, p99", "", milliseconds(percentile(seen.latencies, 0.99)))
    table.add_row(
        "a sleep of 1 ms, 99 of 100: late by at most",
        "",
        milliseconds(percentile(seen.late_sleeps, 0.99)),
    )
    earliest = [
        milliseconds(percentile(late, 0)) if late else ""
        for late in (seen.late_by_server, seen.late_by_client)
    ]
    table.add_row("earliest answer by deadline, after its deadline", *earliest)
    table.add_section()
    table.add_row("operations still pending at the end", str(stats["purgatory"]["pending"]), "")
    table.add_row(f"SIGTERM with {pollers} polls open: answered", "", str(stopped))
    table.add_row("SIGTERM to end of process", "", f"{stop_seconds:.2f} s")
    return table


def percentile(values: list[float], fraction: float) -> float:
    """The value below which this fraction lies; nan if there are none."""
    return sorted(values)[int(fraction * (len(values) - 1))] if values else math.nan


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"


def run_demo(command: Sequence[str], pollers: int, seconds: float, page: str | None = None) -> None:
    """Runs the demo against the server that `command` starts, and prints its table; `page` shows
    the server from inside."""
    console = Console()
    gc.disable()  # of the clients
    with suppress(KeyboardInterrupt):
        console.print(uvloop.run(put_load_on(command, pollers, seconds, console, page)))
