"""`--demo`: three clients, each with a producer and a group with members that join, leave and are
killed; then a report.

The broker runs in this process, each producer and member in a process of its own. Twice a second a
connection is cut, so that idempotent producers send unconfirmed records again, and consumers
reconnect.
"""

import argparse
import asyncio
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from purgatory_broker.command import count
from purgatory_broker.server import Server, new_loop
from purgatory_broker.settings import Settings
from rich.console import Console
from rich.table import Table

CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python")
PARTITIONS: Final = 6
CUTS: Final = 2  # a second
JOIN_DELAY: Final = 1.0  # seconds before the first message
RECEIVE_TIMEOUT: Final = 60.0  # seconds for the last message to arrive


@dataclass
class ClientRun:
    """The processes of one client, and their output."""

    client: str
    address: str
    folder: Path
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    members: list[asyncio.subprocess.Process] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)

    async def start(self, job: str, *arguments: object) -> asyncio.subprocess.Process:
        """Starts a process. Its output goes to a file."""
        path = self.folder / f"{self.client} {job} {len(self.files) if job == 'consume' else 0}"
        command = [
            str(Path(__file__).with_name("demo_client.py")),
            self.client,
            job,
            self.address,
            f"topic-{self.client}",
        ]
        if job == "consume":
            self.files.append(path)
        with path.open("w") as file, path.with_suffix(".errors").open("w") as errors:
            started = await asyncio.create_subprocess_exec(
                sys.executable, *command, *map(str, arguments), stdout=file, stderr=errors
            )
        self.processes.append(started)
        return started

    async def add_member(self) -> None:
        """Starts one more member."""
        self.members.append(await self.start("consume", f"group-{self.client}"))
        self.changes["joined"] += 1

    async def end_member(self, how: signal.Signals) -> None:
        """The oldest member leaves, or is killed."""
        member = self.members.pop(0)
        if member.returncode is not None:
            raise RuntimeError(
                f"a member of {self.client}'s group has ended by itself, with status "
                f"{member.returncode}: {self.errors()}"
            )
        member.send_signal(how)
        self.changes["left" if how is signal.SIGTERM else "killed"] += 1
        await member.wait()

    def errors(self) -> str:
        """The last line that each member wrote to its standard error, if any."""
        lines = [
            path.with_suffix(".errors").read_text().strip().rpartition("\n")[2]
            for path in self.files
        ]
        return "; ".join(filter(None, lines)) or "it has printed nothing"

    def confirmed(self) -> set[int]:
        """The numbers of the messages that the broker has confirmed."""
        return {
            int(line)
            for line in (self.folder / f"{self.client} produce 0").read_text().splitlines()
        }

    def received(self) -> list[tuple[int, int, int, float]]:
        """Partition, offset, number and delay of each received message. Half a line of a killed
        member is ignored."""
        lines = [line.split() for path in self.files for line in path.read_text().split("\n")[:-1]]
        return [
            (int(partition), int(offset), int(number), float(delay))
            for partition, offset, number, delay in lines
        ]

    async def run(self, messages: int, rate: float) -> None:
        """Starts two members; while messages are sent a third one joins, one leaves, one is killed,
        and a last one joins."""
        quarter = messages / rate / 4
        await asyncio.gather(self.add_member(), self.add_member())
        await asyncio.sleep(JOIN_DELAY)
        producer = await self.start("produce", messages, rate)
        for change in (
            self.add_member,
            partial(self.end_member, signal.SIGTERM),
            partial(self.end_member, signal.SIGKILL),
        ):
            await asyncio.sleep(quarter)
            await change()
        await self.add_member()
        await producer.wait()
        until = time.monotonic() + RECEIVE_TIMEOUT
        while time.monotonic() < until and self.confirmed() - {  # noqa: ASYNC110
            number for _, _, number, _ in self.received()
        }:
            await asyncio.sleep(0.2)
        while self.members:
            await self.end_member(signal.SIGTERM)

    def cells(self) -> list[str]:
        """Its column in the report."""
        confirmed, received = self.confirmed(), self.received()
        by_offset = {(partition, offset): number for partition, offset, number, _ in received}
        first: dict[int, float] = {}
        for *_, number, delay in received:
            first[number] = min(delay, first.get(number, delay))
        delays = sorted(first.values()) or [0.0]
        numbers = [
            len(confirmed),
            len(first),
            len(confirmed - set(first)),
            len(by_offset) - len(set(by_offset.values())),
            len(received) - len(by_offset),
        ]
        changes = [self.changes[change] for change in ("joined", "left", "killed")]
        times = [
            f"{delays[int(quantile * (len(delays) - 1))] * 1000:.1f} ms" for quantile in (0.5, 0.99)
        ]
        return [f"{number:,}" for number in (*numbers, *changes)] + times


ROWS: Final = (
    "messages confirmed",
    "received",
    "lost",
    "doubled: at two offsets",
    "read again, after a death",
    "members that came",
    "left",
    "died",
    "send to receipt, p50",
    "p99",
)


async def cut_connections(server: Server) -> None:
    """Aborts a random connection, `CUTS` times a second."""
    while True:
        await asyncio.sleep(1 / CUTS)
        if server.connections:
            random.choice(list(server.connections)).transport.abort()


async def run_clients(messages: int, rate: float, folder: Path) -> tuple[Server, list[ClientRun]]:
    """Runs the broker and all clients at the same time."""
    async with Server(Settings(replicas=3, replica_lag=0.001), port=0) as server:
        for client in CLIENTS:
            server.broker.topics.create(f"topic-{client}", PARTITIONS, 3, {})
        runs = [ClientRun(client, server.address, folder) for client in CLIENTS]
        cutting = asyncio.create_task(cut_connections(server))
        try:
            await asyncio.gather(*(run.run(messages, rate) for run in runs))
        finally:
            cutting.cancel()
            for process in [
                process for run in runs for process in run.processes if process.returncode is None
            ]:
                with suppress(ProcessLookupError):
                    process.kill()
    return server, runs


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=max(80, Console().width)).print(table)


def run_demo(messages: int, rate: float) -> None:
    """Runs the demo and prints the report.

    Args:
        messages: for each client.
        rate: messages a second, of each.
    """
    logging.getLogger("purgatory_broker").setLevel(logging.ERROR)
    print(
        f"{messages} messages by each of three clients, {rate:g} a second: {messages / rate:g} "
        "s and a little more",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_loop) as runner:
        server, runs = runner.run(run_clients(messages, rate, Path(folder)))
        columns = [run.cells() for run in runs]
    show(
        "seen by the clients",
        ["", *CLIENTS],
        [[name, *cells] for name, *cells in zip(ROWS, *columns, strict=True)],
    )
    statistics = [purgatory.statistics() for purgatory in server.broker.purgatories]
    kinds = [
        [
            of.name,
            *(
                f"{count:,}"
                for count in (
                    of.completed,
                    of.expired,
                    of.cancelled,
                    of.missed_triggers,
                    of.pending,
                )
            ),
        ]
        for of in statistics
    ]
    show(
        "operations in the broker",
        ["", "completed", "expired", "cancelled", "missed triggers", "pending"],
        kinds,
    )
    times = sorted(server.broker.coordinator.rebalances)
    print(
        f"rebalances: {len(times)}, median {times[len(times) // 2]:.2f} s, longest "
        f"{times[-1]:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Three clients with groups; their members join, leave and are killed."
    )
    parser.add_argument(
        "--messages", type=count, default=4000, help="of each client (default: 4000)"
    )
    parser.add_argument(
        "--rate", type=count, default=200, help="messages a second of each client (default: 200)"
    )
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        run_demo(options.messages, options.rate)


if __name__ == "__main__":
    main()
