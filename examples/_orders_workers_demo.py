"""The load behind `python examples/orders_workers.py --demo`: clients that wait for a payment,
webhooks on other connections.

Each client waits for an order, learns that it is paid, and continues with the next; `--rate` orders
are paid in a second, which keeps no process busy, so the times include no queueing. A third of the
way through, the worker that has answered most is killed; its supervisor starts another, and its
clients ask again with the ETag that they have (aiohttp does so once by itself). Two thirds of the
way through, the store is killed and started again a second later, if it is a server that the demo
has started; if it is yours, all connections of the relays to it are cut. A wait that is not
answered although the webhook was, is *missed*.
"""

import argparse
import asyncio
import math
import os
import random
import shlex
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from _orders_workers_store import KINDS, OwnStore
from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

WAIT = 20.0  # seconds, that a client asks for
SETTLED = 2.0  # seconds after something was killed, until all is as before
AWAY = 1.0  # seconds for which the store is killed
# seconds from the webhook's answer to the client's, after which an answer is no answer: longer than
# any resync
LATE = 18.0


@dataclass
class Seen:
    """The clients' measurements."""

    endings: Counter[str] = field(default_factory=Counter)
    answers: dict[int, tuple[str, float]] = field(
        default_factory=dict
    )  # by order: the worker, and when it answered
    writers: dict[int, tuple[str, float]] = field(
        default_factory=dict
    )  # by order: the worker that had the webhook, and when it had written
    acknowledged: dict[int, float] = field(
        default_factory=dict
    )  # by order: when the webhook was answered
    workers: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)
    trouble: list[tuple[float, float]] = field(
        default_factory=list
    )  # from when to when something was killed or cut


async def ask(
    session: aiohttp.ClientSession, url: str, method: str, **options: Any
) -> tuple[int, Any, Any]:
    """One request on a connection of its own, so that any worker may get it."""
    async with session.request(method, url, **options) as response:
        return (
            response.status,
            response.headers,
            await response.json() if response.status == 200 else None,
        )


async def keep_waiting(
    session: aiohttp.ClientSession,
    url: str,
    number: int,
    until: float,
    seen: Seen,
    orders: dict[int, asyncio.Event],
) -> None:
    """Waits for one order after the other."""
    order = number * 1_000_000
    while time.monotonic() < until:
        order += 1
        tag: str | None = None
        while True:
            try:
                headers = {} if tag is None else {"If-None-Match": tag}
                path, wait = f"{url}/orders/{order}", {"wait": WAIT}
                status, answer, body = await ask(session, path, "GET", params=wait, headers=headers)
            except (aiohttp.ClientError, ConnectionError):
                seen.endings["asked again"] += 1  # its worker was killed
                await asyncio.sleep(0.1)
                continue
            if status != 304 and answer.get("ETag", tag) == tag:  # refused, or nothing new
                await asyncio.sleep(0.1)
            tag = answer.get("ETag", tag)
            seen.workers[answer["X-Worker"]] += 1
            now = time.time()
            if body is not None and body["state"] == "paid":
                seen.endings["completed"] += 1
                seen.answers[order] = (answer["X-Worker"], now)
                break
            if status == 200:
                orders.setdefault(
                    order, asyncio.Event()
                ).set()  # it is known, and is waited for next
            elif status == 304:
                seen.endings["by deadline"] += 1
            if order in seen.acknowledged and now - seen.acknowledged[order] > LATE:
                seen.endings["missed"] += 1
                break


async def keep_paying(
    session: aiohttp.ClientSession,
    url: str,
    number: int,
    pause: float,
    seen: Seen,
    orders: dict[int, asyncio.Event],
) -> None:
    """Calls the webhook for each of the client's orders, `pause` seconds on the average after the
    client has started to wait."""
    order = number * 1_000_000
    while True:
        order += 1
        await orders.setdefault(order, asyncio.Event()).wait()
        await asyncio.sleep(random.uniform(0.0, 2.0 * pause))
        while order not in seen.acknowledged:
            try:
                status, headers, body = await ask(
                    session, f"{url}/webhooks/payment", "POST", params={"order": order}
                )
            except (aiohttp.ClientError, ConnectionError):
                status = 0
            if status == 200:
                seen.writers[order] = headers["X-Worker"], body["written_at"]
                seen.acknowledged[order] = time.time()
            else:
                seen.endings["webhooks called again"] += 1  # as providers do
                await asyncio.sleep(0.2)


async def until_it_serves(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        with suppress(aiohttp.ClientError, ConnectionError):
            await ask(session, f"{url}/stats", "GET")
            return
        await asyncio.sleep(0.1)


async def cause_trouble(options: argparse.Namespace, seen: Seen, own: OwnStore | None) -> None:
    await asyncio.sleep(options.seconds / 3)
    if options.workers > 1:
        while not seen.workers:  # noqa: ASYNC110  on a busy machine
            await asyncio.sleep(0.05)
        [(victim, _)] = seen.workers.most_common(1)
        os.kill(int(victim), signal.SIGKILL)
        note(seen, f"killed worker {victim}")
    await asyncio.sleep(options.seconds / 3)
    store = os.environ["ORDERS_STORE"]
    if own is not None:
        begun = time.time()
        own.kill()
        await asyncio.sleep(AWAY)
        await asyncio.to_thread(own.start)
        note(
            seen,
            f"killed {own.kind}, and started it again after {time.time() - begun:.1f} s",
            begun,
        )
    elif not store.startswith("file:"):
        await (cut_postgresql if store.startswith("postgres") else cut_redis)(store)
        note(seen, "cut all connections to the store, which is yours and was not killed")


def note(seen: Seen, event: str, begun: float | None = None) -> None:
    """Records that something was done, between `begun` and now."""
    seen.events.append(event)
    seen.trouble.append((begun or time.time(), time.time()))


async def cut_redis(store: str) -> None:
    async with Redis.from_url(store) as client:
        for kind in ("pubsub", "normal"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind)


async def cut_postgresql(store: str) -> None:
    connection = await asyncpg.connect(store)
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
        "'purgatory.relay'"
    )
    await connection.execute(query)
    await connection.close()


async def ended(server: "subprocess.Popen[bytes]") -> None:
    while True:
        if server.poll() is not None:
            return
        await asyncio.sleep(0.1)


async def load_while_it_serves(
    load: Coroutine[Any, Any, Table], server: "subprocess.Popen[bytes]"
) -> Table:
    """The load's table, unless the server ends first."""
    loading, ending = asyncio.create_task(load), asyncio.create_task(ended(server))
    await asyncio.wait([loading, ending], return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        raise SystemExit(
            "the server ended while it was needed; see the output of "
            f"{shlex.join(map(str, server.args))}"
        )
    return loading.result()


async def put_load_on(url: str, options: argparse.Namespace, own: OwnStore | None) -> Table:
    seen = Seen()
    orders: dict[int, asyncio.Event] = {}
    numbers = range(1, options.clients + 1)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0)
    ) as session:
        await until_it_serves(session, url)
        until, pause = time.monotonic() + options.seconds, options.clients / options.rate
        others = [
            asyncio.create_task(keep_paying(session, url, number, pause, seen, orders))
            for number in numbers
        ]
        others.append(asyncio.create_task(cause_trouble(options, seen, own)))
        await asyncio.gather(
            *(keep_waiting(session, url, number, until, seen, orders) for number in numbers)
        )
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return report(seen, options)


def report(seen: Seen, options: argparse.Namespace) -> Table:
    """A table of the clients' measurements."""
    store = os.environ["ORDERS_STORE"]
    title = (
        f"{options.clients} clients, {options.workers} workers, {options.seconds:g} s, "
        f"{store.partition(':')[0]}"
    )
    table = Table(
        title=title, title_justify="left", caption=", ".join(seen.events), caption_justify="left"
    )
    table.add_column("")
    table.add_column("clients", justify="right")
    waits = seen.endings["completed"] + seen.endings["missed"]
    table.add_row("orders waited for", str(waits))
    for name in ("completed", "by deadline", "missed", "asked again", "webhooks called again"):
        table.add_row(name, str(seen.endings[name]))
    table.add_section()
    lasting: dict[str, list[float]] = {
        "the same worker": [],
        "another worker": [],
        "any, around a kill": [],
    }
    for order, (worker, answered) in seen.answers.items():
        writer, written = seen.writers.get(order, ("", answered))
        place = "the same worker" if worker == writer else "another worker"
        if any(written < end + SETTLED and answered > begin for begin, end in seen.trouble):
            place = "any, around a kill"
        lasting[place].append(answered - written)
    for place, some in lasting.items():
        p50, p99 = (milliseconds(percentile(some, fraction)) for fraction in (0.5, 0.99))
        table.add_row(f"from write to answer on {place}: {len(some)} times, p50", p50)
        table.add_row("p99", p99)
    return table


def percentile(values: list[float], fraction: float) -> float:
    """The value below which this fraction lies; nan if there are none."""
    return sorted(values)[int(fraction * (len(values) - 1))] if values else math.nan


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"


def run_demo(command: Sequence[str], options: argparse.Namespace) -> None:
    """Serves, puts load on the service, and prints the clients' measurements."""
    own = None
    if options.store in KINDS:
        own = OwnStore(options.store, Path(os.environ["ORDERS_FOLDER"]))
        os.environ["ORDERS_STORE"] = own.url
    try:
        serve_and_load(command, options, own)
    finally:
        if own is not None:
            own.kill()


def serve_and_load(
    command: Sequence[str], options: argparse.Namespace, own: OwnStore | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    whole = [*command, "--port", str(port), "--store", os.environ["ORDERS_STORE"]]
    with subprocess.Popen(whole, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        try:
            load = put_load_on(f"http://127.0.0.1:{port}", options, own)
            Console().print(asyncio.run(load_while_it_serves(load, server)))
        finally:
            server.terminate()
