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
from collections import defaultdict
from itertools import product
from statistics import median
from typing import Any, Final

from asgi_server import Connection

from benchmarks import harness
from benchmarks.harness import QUICK_DIVISOR, Row, in_fresh_process, positive, process
from benchmarks.long_poll_server import serve
from benchmarks.passes import shown

POLLS = (1_000, 5_000)
OTHER_CONNECTIONS = 100
"""Limit of files that a process needs besides one for each poll."""
WAIT = 3000  # seconds; no poll of the benchmark ends at its deadline
POLLS_PER_KEY = 10
ANSWERS_PER_SECOND = 500
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
    busiest, passes = 0.0, ""
    for count, loop in product(counts, harness.loops(options)):
        job = {"polls": max(POLLS_PER_KEY, count // divisor), "loop": loop, "seed": options.seed}
        job["rounds"] = 1 if options.quick else options.rounds
        job["seconds"] = 0.3 if options.quick else options.seconds
        with process(serve, loop) as server:
            found = in_fresh_process(clients, server.recv(), job)
        passes = found[0]["passes"]
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
    caption += f"\nOurs in Python instead of C, for each answered poll: {passes or 'nothing'}."
    return harness.report(options, rows, caption)


# -- the clients, in a process of their own


class Clients:
    """All connections to one server, with one poll after the other on each, and their
    measurements."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.connections: list[Connection] = []
        self.seen: defaultdict[int, int] = defaultdict(int)
        self.polling = False
        self.latencies: list[float] = []

    async def connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, method: str, target: str) -> Any:
        """One request on a connection of its own."""
        connection = await self.connect()
        connection.send(target, method)
        _, _, body = await connection.answer()
        connection.hang_up()
        return json.loads(body) if body else None

    async def poll(self, path: str, number: int) -> None:
        """Asks again and again on one connection."""
        connection, key = self.connections[number], number // POLLS_PER_KEY
        while self.polling:
            connection.send(f"/{path}?key={key}&seen={self.seen[number]}&wait={WAIT}")
            status, _, body = await connection.answer()
            now = time.monotonic()
            if status != 200:
                raise RuntimeError(f"the server answered {status}")
            answer = json.loads(body)
            self.seen[number] = answer["version"]
            self.latencies.append(now - answer["at"])

    async def until_open(self) -> None:
        while (await self.ask("GET", "/state"))["open"] != len(self.connections):
            await asyncio.sleep(0.01)

    async def publish(self, rate: float, seconds: float) -> None:
        """Publishes under random keys at random times, whether or not the server keeps up."""
        async with asyncio.TaskGroup() as group:
            end = due = time.monotonic()
            end += seconds
            while (due := due + self.random.expovariate(rate)) < end:
                await asyncio.sleep(due - time.monotonic())
                key = self.random.randrange(-(-len(self.connections) // POLLS_PER_KEY))
                group.create_task(self.ask("POST", f"/publish?key={key}"))

    async def load(self, path: str, rate: float, seconds: float) -> dict[str, Any]:
        """Opens all polls with one of the handlers, publishes for a while, and ends them."""
        self.polling = True
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.connections)):
                group.create_task(self.poll(path, number))
            await self.until_open()
            await asyncio.sleep(min(1.0, seconds))
            self.latencies.clear()
            before = await self.ask("GET", "/state")
            cpu, started = time.process_time(), time.monotonic()
            await self.publish(rate, seconds)
            await self.until_open()
            after, passed = await self.ask("GET", "/state"), time.monotonic() - started
            latencies = sorted(self.latencies) or [math.nan]
            result = {
                "path": path,
                "cpu": (after["cpu"] - before["cpu"]) / len(latencies),
                "passes": shown(before["passed"], after["passed"], len(latencies)),
                "clients_busy": (time.process_time() - cpu) / passed,
            }
            for share in (50, 99, 99.9):
                result[f"p{share:g}"] = latencies[int(share / 100 * (len(latencies) - 1))]
            self.polling = False
            for key in range(-(-len(self.connections) // POLLS_PER_KEY)):
                await self.ask("POST", f"/publish?key={key}")
        return result


async def measure(port: int, job: Row) -> list[Row]:
    """Runs the handlers alternately."""
    made = Clients(port, job["seed"])
    made.connections = [await made.connect() for _ in range(job["polls"])]
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
