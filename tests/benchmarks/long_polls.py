"""``python tests/benchmarks http``: long polls on a real server, against the usual handler without
this library.

`long_poll_server` has both handlers, under uvicorn, in a process of its own. The clients are plain
sockets in another process, which reports how busy it was. In a run all polls are opened; events
come at random times under random keys, and each answers ten polls, which are asked again at once.
Latency is from the event in the server to the answer in the client; CPU is the server's alone.
"""

import argparse
import asyncio
import json
import math
import random
import time
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final, cast

from benchmarks import harness
from benchmarks.harness import QUICK_DIVISOR, Row, in_fresh_process, positive, process
from benchmarks.long_poll_server import serve

POLLS = (1_000, 5_000)
OTHER_CONNECTIONS = 100
"""Limit of files that a process needs besides one for each poll."""
WAIT = 3000  # seconds; no poll of the benchmark ends at its deadline
POLLS_PER_KEY = 10
ANSWERS_PER_SECOND = 500
BATCH_OF_CONNECTIONS = 100
FIGURES: Final = {"p50": (1e3, "ms"), "p99": (1e3, "ms"), "p99.9": (1e3, "ms"), "cpu": (1e6, "µs")}
"""The figures of a run: the factor from seconds, and the unit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_loop(parser)
    add = parser.add_argument
    polls = "open polls; may be repeated (default: 1000, 5000)"
    add("--polls", type=positive, action="append", metavar="N", help=polls)
    add("--rounds", type=positive, default=5, metavar="N", help="runs of each handler")
    add("--seconds", type=float, default=5.0, metavar="S", help="length of a run")


def run(options: argparse.Namespace) -> int:
    """Measures all rows; 2 if this process may not open enough connections."""
    counts = options.polls or POLLS
    divisor = QUICK_DIVISOR if options.quick else 1
    if max(counts) // divisor + OTHER_CONNECTIONS > (limit := harness.raise_file_limit()):
        harness.progress({"": f"cannot open {max(counts)} connections: the limit is {limit}"})
        return 2
    rows: list[Row] = []
    busiest = 0.0
    for count, loop in product(counts, harness.loops(options)):
        job = {"polls": max(POLLS_PER_KEY, count // divisor), "loop": loop, "seed": options.seed}
        job["rounds"] = 1 if options.quick else options.rounds
        job["seconds"] = 0.3 if options.quick else options.seconds
        with process(serve, loop) as server:
            found = in_fresh_process(clients, server.recv(), job)
        busiest = max(busiest, *(each["clients_busy"] for each in found))
        for figure, (factor, unit) in FIGURES.items():
            ours, theirs = (
                [factor * each[figure] for each in found if each["path"] == path]
                for path in ("ours", "theirs")
            )
            row = {"polls": count, "loop": loop, "figure": figure, "unit": unit}
            ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
            rows.append({**row, "ours": median(ours), "theirs": median(theirs), "ratio": ratio})
    caption = (
        "Medians; ratios are of paired runs. Theirs is asyncio.wait_for on an asyncio.Event.\nThe "
        f"process of the clients was busy for up to {busiest:.0%} of a run."
    )
    caption += " That is too much: these latencies are also its own." if busiest > 0.9 else ""
    return harness.report(options, rows, caption)


# -- the clients, in a process of their own


class Poller(asyncio.Protocol):
    """One connection, with one poll after the other on it."""

    def __init__(self, clients: "Clients", key: int) -> None:
        self.clients, self.key = clients, key
        self.transport: asyncio.Transport
        self.buffer = b""
        self.seen = 0
        self.is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def poll(self) -> None:
        self.is_waiting = True
        self.transport.write(
            b"GET /%s?key=%d&seen=%d&wait=%d HTTP/1.1\r\nHost: bench\r\n\r\n"
            % (self.clients.path, self.key, self.seen, WAIT)
        )

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, ended, body = self.buffer.partition(b"\r\n\r\n")
        if not ended or (head.startswith(b"HTTP/1.1 200") and not body.endswith(b"}")):
            return
        now = time.monotonic()
        self.buffer = b""
        self.is_waiting = False
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {head[:40]!r}")
        answer = json.loads(body)
        self.seen = answer["version"]
        self.clients.latencies.append(now - answer["at"])
        if self.clients.polling:
            self.poll()


class Clients:
    """All connections to one server, and their measurements."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.pollers: list[Poller] = []
        self.path = b"ours"
        self.polling = False
        self.latencies: list[float] = []

    async def ask(self, method: str, target: str) -> Any:
        """One request on a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"{method} {target} HTTP/1.1\r\nHost: bench\r\nContent-Length: 0\r\nConnection: "
            "close\r\n\r\n".encode()
        )
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        return json.loads(body) if body else None

    async def until_open(self, count: int) -> None:
        while (await self.ask("GET", "/state"))["open"] != count:
            await asyncio.sleep(0.01)

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        while len(self.pollers) < count:
            numbers = range(len(self.pollers), min(count, len(self.pollers) + BATCH_OF_CONNECTIONS))
            protocols = [partial(Poller, self, number // POLLS_PER_KEY) for number in numbers]
            made = [
                loop.create_connection(protocol, "127.0.0.1", self.port) for protocol in protocols
            ]
            self.pollers += [poller for _, poller in await asyncio.gather(*made)]

    async def open_polls(self, path: str) -> None:
        self.path, self.polling = path.encode(), True
        for start in range(0, len(self.pollers), BATCH_OF_CONNECTIONS):
            for poller in self.pollers[start : start + BATCH_OF_CONNECTIONS]:
                poller.poll()
            await asyncio.sleep(0)
        await self.until_open(len(self.pollers))

    async def end_polls(self) -> None:
        """Waits for the answers of all polls, and sends no further polls."""
        self.polling = False
        keys = range(-(-len(self.pollers) // POLLS_PER_KEY))
        for start in range(0, len(keys), BATCH_OF_CONNECTIONS):
            batch = keys[start : start + BATCH_OF_CONNECTIONS]
            await asyncio.gather(*(self.ask("POST", f"/publish?key={key}") for key in batch))
        # The server may have ended a poll whose answer is on its way.
        while any(poller.is_waiting for poller in self.pollers):
            await asyncio.sleep(0.01)

    async def publish(self, rate: float, seconds: float) -> None:
        """Publishes under random keys at random times, whether or not the server keeps up."""
        async with asyncio.TaskGroup() as group:
            end = due = time.monotonic()
            end += seconds
            while (due := due + self.random.expovariate(rate)) < end:
                await asyncio.sleep(due - time.monotonic())
                key = self.random.randrange(-(-len(self.pollers) // POLLS_PER_KEY))
                group.create_task(self.ask("POST", f"/publish?key={key}"))

    async def load(self, path: str, rate: float, seconds: float) -> dict[str, Any]:
        """Opens all polls with one of the handlers, publishes for a while, and ends them."""
        await self.open_polls(path)
        await asyncio.sleep(min(1.0, seconds))
        self.latencies.clear()
        before, cpu, started = (
            await self.ask("GET", "/state"),
            time.process_time(),
            time.monotonic(),
        )
        await self.publish(rate, seconds)
        await self.until_open(len(self.pollers))
        after, passed = await self.ask("GET", "/state"), time.monotonic() - started
        latencies = sorted(self.latencies) or [math.nan]
        result = {
            "path": path,
            "cpu": (after["cpu"] - before["cpu"]) / len(latencies),
            "clients_busy": (time.process_time() - cpu) / passed,
        }
        for share in (50, 99, 99.9):
            result[f"p{share:g}"] = latencies[int(share / 100 * (len(latencies) - 1))]
        await self.end_polls()
        return result


async def measure(port: int, job: Row) -> list[Row]:
    """Runs the handlers alternately."""
    made = Clients(port, job["seed"])
    await made.connect(job["polls"])
    rate = ANSWERS_PER_SECOND / POLLS_PER_KEY
    return [
        await made.load(path, rate, job["seconds"])
        for each in range(job["rounds"])
        for path in (("ours", "theirs") if each % 2 == 0 else ("theirs", "ours"))
    ]


def clients(port: int, job: Row) -> list[Row]:
    """The figures of all runs."""
    harness.raise_file_limit()
    return harness.run_on(job["loop"], measure(port, job))
