"""``python tests/benchmarks relay``: waits that complete in another process, with a relay and by
hand.

One process waits for the next version of each of 200 keys, another one writes them at a rate.
Latency is from the call of the write in one to the answer of the wait in the other; CPU is the
waiting process's for each answer, and, for each message, a third process's, which waits for
another key. Then the same while all subscribers' connections are killed every 0.3 seconds: a
wake-up is lost if a waiter has not been answered within a second. The stores: a folder; a Redis of
its own, if ``redis-server`` is installed; any ``--store`` besides. All of it is repeated in several
rounds; the figures are medians, the counts are sums.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ports import free_port
from rich.table import Table

from benchmarks.options import add_common_options, positive
from benchmarks.process import run_module
from benchmarks.relay_process import lines_of
from benchmarks.report import opened_console, plain_table, write_report
from purgatory.pipeline._programs import Program

KEYS = 200
QUICK_DIVISOR = 10
KILL_INTERVAL = 0.3
LOST_AFTER = 1.0
"""Seconds after which an answer counts as lost."""
SERVER_TIMEOUT = 60.0

Row = dict[str, Any]
Child = subprocess.Popen[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--store", action="append", default=[], metavar="URL", help="besides; may be repeated")
    for name, metavar, default, meaning in (
        ("--rate", "N", 1_000, "writes a second"),
        ("--seconds", "S", 10, "length of each row"),
        ("--rounds", "N", 3, "how often all is measured"),
    ):
        text = f"{meaning} (default: %(default)s)"
        add(name, type=positive, default=default, metavar=metavar, help=text)
    add_common_options(parser, any_loop=False)


def run(options: argparse.Namespace) -> int:
    console = opened_console(f"relay: {options.rate:,} writes a second")
    with tempfile.TemporaryDirectory(prefix="relay-") as folder, own_redis(folder) as redis:
        rounds = [
            round_of_stores(folder, redis, options)
            for _ in range(1 if options.quick else options.rounds)
        ]
    rows = [medians_of(each) for each in zip(*rounds, strict=True)]
    console.print(table_of_stores(rows, options))
    write_report(console, options, "relay", seed=options.seed, rate=options.rate, rows=rows)
    return 0


def round_of_stores(folder: str, redis: str | None, options: argparse.Namespace) -> list[Row]:
    """A row for each way on each store."""
    seconds = options.seconds / QUICK_DIVISOR if options.quick else options.seconds
    job = {"keys": KEYS, "rate": options.rate, "seconds": seconds, "seed": options.seed}
    rows = [
        measured({**job, "way": "ours", "url": url, "work": "wait"}, is_killed=False)
        for url in (f"file://{folder}/app", *options.store)
    ]
    for way in ("ours", "theirs") if redis else ():
        for is_killed in (False, True):
            ask(redis or "", "FLUSHALL")  # keys begin at 0
            rows.append(measured({**job, "way": way, "url": redis, "work": "wait"}, is_killed))
    return rows


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


def measured(job: dict[str, Any], is_killed: bool) -> Row:
    """One row, from three processes: one waits, one only listens, one writes."""
    url, way = job["url"], job["way"]
    with (
        process(job) as waiter,
        process({**job, "work": "wait", "keys": 0}) as listener,
        process({**job, "work": "write"}) as writer,
    ):
        for child in (waiter, listener, writer):
            read_line(child)
        resume(writer)
        until = time.monotonic() + job["seconds"]
        while is_killed and time.monotonic() < until:
            ask(url, "CLIENT KILL TYPE pubsub")
            time.sleep(KILL_INTERVAL)
        writes = json.loads(read_line(writer))["writes"]
        last: dict[str, int] = {}
        for key, version, _ in writes:
            last[key] = max(version, last.get(key, 0))
        resume(waiter, last)
        waited = json.loads(read_line(waiter))
        resume(listener, {})
        listened = json.loads(read_line(listener))
    return {
        "way": way,
        "store": url.partition(":")[0],
        "is_killed": is_killed,
        **compared(writes, waited),
        "cpu_of_news": 1e6 * listened["cpu"] / max(1, listened["received"]),
    }


def compared(writes: list[tuple[str, int, float]], waited: dict[str, Any]) -> Row:
    """Latencies of the answers to each written version, and the number of lost answers."""
    written_at = {(key, version): at for key, version, at in writes}
    answered: dict[str, list[tuple[int, float]]] = {}
    for key, version, at in waited["answers"]:
        answered.setdefault(key, []).append((version, at))
    latencies = sorted(
        at - written_at[key, version]
        for key, version, at in waited["answers"]
        if (key, version) in written_at
    )
    in_time = sum(
        any(answer >= version and when - at < LOST_AFTER for answer, when in answered.get(key, ()))
        for key, version, at in writes
    )
    return {
        "writes": len(writes),
        "answers": len(waited["answers"]),
        "p50": 1e3 * statistics.median(latencies) if latencies else None,
        "p99": 1e3 * latencies[int(0.99 * len(latencies))] if latencies else None,
        "cpu": 1e6 * waited["cpu"] / max(1, len(waited["answers"])),
        "lost": len(writes) - in_time,
        "healed": waited.get("healed"),
    }


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"


def table_of_stores(rows: list[Row], options: argparse.Namespace) -> Table:
    caption = f"{options.rate:,} writes a second to {KEYS} keys."
    caption += (
        f" Lines of code around it: {lines_of('ours')} with a relay, {lines_of('theirs')} by hand."
    )
    numbers = ("writes", "p50", "p99", "CPU/news", "CPU/answer", "lost", "healed")
    table = plain_table(
        "purgatory, relay", caption, ("store", "way", "connections"), numbers, options.quick
    )
    for row in rows:
        table.add_row(
            row["store"],
            "relay" if row["way"] == "ours" else "by hand",
            "killed" if row["is_killed"] else "left alone",
            f"{row['writes']:,}",
            milliseconds(row["p50"]),
            milliseconds(row["p99"]),
            f"{row['cpu_of_news']:.0f} µs",
            f"{row['cpu']:.0f} µs",
            str(row["lost"]),
            "" if row["healed"] is None else str(row["healed"]),
        )
    return table


# -- the processes


@contextmanager
def own_redis(folder: str) -> Iterator[str | None]:
    """The address of a Redis of its own, or None where there is none."""
    command = shutil.which("redis-server")
    if command is None:
        yield None
        return
    port = str(free_port())
    options = ("--bind", "127.0.0.1", "--dir", folder, "--save", "", "--loglevel", "warning")
    words = [command, "--port", port, *options]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + SERVER_TIMEOUT
            while time.monotonic() < deadline:
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", int(port))) == 0:
                        break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


@contextmanager
def process(job: Row) -> Iterator[Child]:
    command, env = run_module("benchmarks.relay_process", json.dumps(job))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: Child) -> str:
    assert child.stdout is not None
    text = child.stdout.readline()
    if not text:
        raise RuntimeError(f"a process of the benchmark ended with status {child.wait()}")
    return text


def resume(child: Child, message: object = None) -> None:
    """Resumes a waiting process: sends a message and closes its standard input."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(message))
    child.stdin.close()


def ask(url: str, command: str) -> str:
    """The answer of a Redis to a command."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(command.encode() + b"\r\n")
        return client.recv(1 << 16).decode()


PROGRAM = Program(
    "relay",
    "Waits that complete in another process, against the same by hand.",
    add_arguments,
    run,
)
