"""Consumers that read their responses slowly: the broker's memory, and how long others wait for a
response meanwhile.

    python tests/kafka/slow_readers.py

Twenty consumers fetch a topic of 90 MB, with limits of 50 MB, and take 1 MB a second each.
Meanwhile a client asks for something small again and again. Its longest wait depends as much
on the machine as on the broker. So the table also has the part of that time in which both processes
waited for a processor, and the longest computation of the broker during one such response, be it
this or another one: for so long it holds up others. Most of that is the first fetch, when
the schemas of that request are loaded. Both are known of a broker with one thread.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from brokers import API_VERSIONS, KINDS, TIMEOUT, Running, running
from confluent_kafka import Producer
from idle_consumers import FETCH, VERSION
from maven import Unavailable

TOPIC: Final = "slow"
RECORD_SIZE: Final = 10_000
LIMIT: Final = 50_000_000
CHUNK: Final = 65_536
STRIDE: Final = 997  # records, from one fetch to the next


@dataclass(frozen=True)
class Stall:
    """The longest response, in seconds."""

    seconds: float
    waiting: float
    """For a processor, during that response: the broker and who asks."""
    computing: float
    """The most that the broker has computed during one response, be it this or another one."""


def fill(address: str, count: int) -> None:
    """Produces records of `RECORD_SIZE`."""
    producer = Producer(
        {"bootstrap.servers": address, "log_level": 0, "queue.buffering.max.kbytes": 1 << 20}
    )
    for _ in range(count):
        producer.produce(TOPIC, b"x" * RECORD_SIZE, partition=0)
    if producer.flush(TIMEOUT):
        raise TimeoutError(f"{address} has not confirmed all records")


def fetch_request(offset: int) -> bytes:
    """A fetch of the one partition of the topic."""
    name = TOPIC.encode()
    head = struct.pack(">hhih4s", FETCH, VERSION, 1, 4, b"slow")
    wanted = struct.pack(">iiiib", -1, 500, 1, LIMIT, 0)
    body = (
        head
        + wanted
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iiqi", 1, 0, offset, LIMIT)
    )
    return struct.pack(">i", len(body)) + body


async def read_slowly(address: str, offsets: Iterator[int], rate: float) -> None:
    """Fetches again and again, and reads `rate` bytes a second."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), limit=CHUNK)
    try:
        for offset in offsets:
            writer.write(fetch_request(offset))
            left = int.from_bytes(await reader.readexactly(4))
            while left:
                chunk = await reader.read(min(left, CHUNK))
                left -= len(chunk)
                await asyncio.sleep(len(chunk) / rate)
    finally:
        writer.close()


def scheduled(pid: int) -> tuple[int, int]:
    """For how many nanoseconds the first thread of a process has computed so far, and waited for a
    processor."""
    computed, waited, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    return computed, waited


def ask(address: str, pid: int, seconds: float) -> Stall:
    """Asks the broker for its versions again and again, for so long; returns the longest
    response."""
    host, port = address.rsplit(":", 1)
    longest, waiting, computing, until = 0.0, 0.0, 0.0, time.monotonic() + seconds
    with (
        socket.create_connection((host, int(port)), TIMEOUT) as client,
        client.makefile("rb") as responses,
    ):
        while (began := time.monotonic()) < until:
            (computed, waited), (_, own_wait) = scheduled(pid), scheduled(os.getpid())
            client.sendall(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
            responses.read(int.from_bytes(responses.read(4)))
            passed, now = time.monotonic() - began, scheduled(pid)
            computing = max(computing, (now[0] - computed) / 1e9)
            if passed > longest:
                longest, waiting = (
                    passed,
                    (now[1] - waited + scheduled(os.getpid())[1] - own_wait) / 1e9,
                )
            time.sleep(0.001)
    return Stall(longest, waiting, computing)


async def measure(
    broker: Running, readers: int, rate: float, size: int, seconds: float
) -> tuple[int, Stall]:
    """How much more memory the broker has at most, in bytes, and the stall."""
    loop, records = asyncio.get_running_loop(), size // RECORD_SIZE
    await loop.run_in_executor(None, fill, broker.address, records)
    before = highest = broker.resident()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        await loop.run_in_executor(
            other, ask, broker.address, broker.pid, 0.1
        )  # the process has started
        asking = loop.run_in_executor(other, ask, broker.address, broker.pid, seconds)
        offsets = [
            (place % records for place in count(number * records // readers, STRIDE))
            for number in range(readers)
        ]
        reading = [asyncio.create_task(read_slowly(broker.address, each, rate)) for each in offsets]
        while not asking.done():
            highest = max(highest, broker.resident())
            await asyncio.sleep(0.01)
            for each in reading:
                if each.done():
                    each.result()  # a reader has failed
        for each in reading:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
        return highest - before, await asking


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument(
        "--rate", type=float, default=1.0, help="MB a second that each takes (default: %(default)s)"
    )
    parser.add_argument(
        "--size", type=float, default=90.0, help="MB that there are to read (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for how long to measure (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--directory",
        action="store_true",
        help="ours has its data in files, as Kafka (default: in memory)",
    )
    parser.add_argument("--only", action="append", choices=KINDS, help="default: both")
    options = parser.parse_args(arguments)
    print(
        f"{options.readers} slow readers   memory, MiB more   longest response, ms   waiting "
        "for a processor   computing"
    )
    sizes: Any = options.readers, options.rate * 1e6, round(options.size * 1e6), options.seconds
    try:
        for _ in range(options.rounds):
            for kind in options.only or KINDS:
                with running(
                    kind, *(["--directory", "data"] if options.directory else [])
                ) as broker:
                    memory, stall = asyncio.run(measure(broker, *sizes))
                parts = [
                    f"{part * 1000:.1f}" if kind == "ours" else "-"
                    for part in (stall.waiting, stall.computing)
                ]
                print(
                    f"{kind:15} {memory / 2**20:18.0f} {stall.seconds * 1000:22.1f} "
                    f"{parts[0]:>25} {parts[1]:>11}",
                    flush=True,
                )
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
