"""``python -m purgatory.bench relay``: waits that complete in another process, ours and what people write by hand.

One process waits for the next version of each of 200 keys, another one writes them at a rate. Latency is from the call of the
write in one to the answer of the wait in the other; CPU is the waiting process's for each answer, and for each news that of a
third process, in which nobody waits. Then the same while all subscribers' connections are killed every 0.3 seconds: a wake-up
is lost if a waiter has not been answered within a second. The stores: a folder; a Redis of its own, if ``redis-server`` is
installed; any ``--store`` besides. All of it goes round several times; the figures are medians, what is counted are sums.

``--channels`` measures instead why there is one channel for all keys: 10,000 keys come and go, each is waited for once, 200 at
a time, with a relay and with a subscription for each key that somebody waits for.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.table import Table

from purgatory._programs import Program
from purgatory.bench._options import positive, writable_file
from purgatory.bench._relay_process import lines_of
from purgatory.bench._report import environment, wide_console, write_report

KEYS = 200
MANY_KEYS = 10_000
WATCHED = 100_000
LOST_AFTER = 1.0
"""Seconds after which an answer counts as lost."""
SETTLED = 2.0
"""Seconds after the last write, until those who wait are asked what they have seen."""

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", action="append", default=[], metavar="URL", help="a store besides; may be repeated")
    parser.add_argument("--rate", type=positive, default=1_000, metavar="N", help="writes a second (default: %(default)s)")
    parser.add_argument("--seconds", type=positive, default=10, metavar="S", help="of each turn (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="times that all is measured (default: 3)")
    parser.add_argument(
        "--channels", action="store_true", help="measure one channel against one for each key, on Redis, instead"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything random (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="do a tenth: shows that it runs, and proves nothing")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write the figures to FILE, too")


def run(options: argparse.Namespace) -> int:
    console = wide_console()
    where = environment()
    console.print(", ".join(f"{name}: {value}" for name, value in where.items()))
    head = {"program": "relay", "environment": where, "seed": options.seed, "quick": options.quick, "rate": options.rate}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-"))
        redis = stack.enter_context(own_redis(folder))
        if options.channels and redis is None:
            console.print("--channels needs redis-server: apt-get install redis-server")
            return 2
        rounds = [
            turns_of_channels(redis, options) if options.channels and redis else turns(folder, redis, options)
            for _ in range(1 if options.quick else options.rounds)
        ]
        rows = [middle(each) for each in zip(*rounds, strict=True)]
        if options.channels:
            console.print(figures_of_channels(rows, options))
            write_report(console, options.json, {**head, "rows": rows})
            return 0
        count = WATCHED // 10 if options.quick else WATCHED
        memory = memory_of(f"file://{folder}/memory", count)
    console.print(figures(rows, options))
    console.print(f"{count:,} keys watched: {memory / 1e6:.1f} MB more than in a ThresholdPurgatory alone")
    write_report(console, options.json, {**head, "rows": rows, "watched": count, "bytes": memory})
    return 0


def turns(folder: str, redis: str | None, options: argparse.Namespace) -> list[Row]:
    """One turn of each way, on each store."""
    seconds = options.seconds / 10 if options.quick else options.seconds
    contenders = [("ours", f"file://{folder}/app"), *(("ours", url) for url in options.store)]
    if redis is not None:
        contenders += [("ours", redis), ("theirs", redis)]
    rows = []
    for way, url in contenders:
        order = {"way": way, "url": url, "keys": KEYS, "rate": options.rate, "seconds": seconds, "seed": options.seed}
        for is_killed in [False, True] if url == redis else [False]:
            if url == redis:
                ask(url, "FLUSHALL")  # keys begin at 0
            rows.append(measured(order, is_killed))
    return rows


def turns_of_channels(redis: str, options: argparse.Namespace) -> list[Row]:
    """One turn with one channel, and one with a channel for each key."""
    count = MANY_KEYS // 10 if options.quick else MANY_KEYS
    order = {
        "url": redis,
        "keys": count,
        "at_once": KEYS,
        "in_turn": True,
        "rate": options.rate,
        "seconds": count / options.rate,
    }
    rows = []
    for way in ("ours", "channels"):
        ask(redis, "FLUSHALL")
        begun = cpu_of_redis(redis)
        row = measured({**order, "way": way, "seed": options.seed, "wait": "wait in turn"}, is_killed=False)
        rows.append({**row, "cpu_of_server": 1e6 * (cpu_of_redis(redis) - begun) / row["writes"]})
    return rows


def middle(rows: Sequence[Row]) -> Row:
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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [command, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--loglevel", "warning"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


@contextmanager
def process(order: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "purgatory.bench._relay_process", json.dumps(order)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    text = child.stdout.readline()
    if not text:
        raise RuntimeError(f"a process of the benchmark ended with status {child.wait()}")
    return text


def measured(order: dict[str, Any], is_killed: bool) -> Row:
    """What a turn has shown."""
    url = order["url"]
    with (
        process({**order, "work": order.get("wait", "wait")}) as waiter,
        process({**order, "work": "wait", "keys": 0}) as hearer,
        process({**order, "work": "write"}) as writer,
    ):
        for child in (waiter, hearer, writer):
            line(child)
        told(writer)
        until = time.monotonic() + order["seconds"]
        while is_killed and time.monotonic() < until:
            ask(url, "CLIENT KILL TYPE pubsub")
            time.sleep(0.3)
        writes = json.loads(line(writer))["writes"]
        time.sleep(SETTLED)
        seen, heard = (ended(child) for child in (waiter, hearer))
    head = {"way": order["way"], "store": url.partition(":")[0], "is_killed": is_killed}
    costs = {"cpu_of_news": 1e6 * heard["cpu"] / max(1, heard["received"]), "cpu_of_hearer": 1e6 * heard["cpu"] / len(writes)}
    return {**head, **judged(writes, seen), **costs}


def told(child: "subprocess.Popen[str]") -> None:
    """Has a process go on."""
    assert child.stdin is not None
    child.stdin.close()


def ended(child: "subprocess.Popen[str]") -> dict[str, Any]:
    """What a process has to say at its end."""
    told(child)
    result: dict[str, Any] = json.loads(line(child))
    return result


def ask(url: str, command: str) -> str:
    """What a Redis answers to a command."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(command.encode() + b"\r\n")
        return client.recv(1 << 16).decode()


def cpu_of_redis(url: str) -> float:
    """The seconds of a processor that a Redis has used."""
    pairs = (row.partition(":") for row in ask(url, "INFO cpu").splitlines())
    return sum(float(value) for name, _, value in pairs if name in ("used_cpu_user", "used_cpu_sys"))


def judged(writes: list[tuple[str, int, float]], seen: dict[str, Any]) -> Row:
    """Latencies of the answers to each version that was written, and what was not answered."""
    begun = {(key, version): at for key, version, at in writes}
    answered: dict[str, list[tuple[int, float]]] = {}
    for key, version, at in seen["answers"]:
        answered.setdefault(key, []).append((version, at))
    latencies = sorted(at - begun[key, version] for key, version, at in seen["answers"] if (key, version) in begun)
    lost = 0
    for key, version, at in writes:
        in_time = any(got >= version and when - at < LOST_AFTER for got, when in answered.get(key, ()))
        lost += not in_time
    return {
        "writes": len(writes),
        "answers": len(seen["answers"]),
        "p50": 1e3 * statistics.median(latencies) if latencies else None,
        "p99": 1e3 * latencies[int(0.99 * len(latencies))] if latencies else None,
        "cpu": 1e6 * seen["cpu"] / max(1, len(seen["answers"])),
        "lost": lost,
        "healed": seen.get("healed"),
    }


def memory_of(url: str, count: int) -> int:
    """What so many watched keys take, beyond what they take in a `ThresholdPurgatory`."""
    order = {"work": "watch", "url": url, "keys": count}
    with process({**order, "way": "ours"}) as ours, process({**order, "way": "plain"}) as plain:
        return int(json.loads(line(ours))["bytes"] - json.loads(line(plain))["bytes"])


def figures(rows: list[Row], options: argparse.Namespace) -> Table:
    caption = f"{options.rate:,} writes a second to {KEYS} keys."
    caption += f" Lines of code around it: {lines_of('ours')} with a relay, {lines_of('theirs')} by hand."
    if options.quick:
        caption += "\nQUICK: done with a tenth of everything; these figures prove nothing."
    table = Table(title="purgatory, relay", title_justify="left", caption=caption, caption_justify="left")
    for name in ("store", "way", "connections", "writes", "p50", "p99", "CPU/news", "CPU/answer", "lost", "healed"):
        table.add_column(name, justify="left" if name in ("store", "way", "connections") else "right", no_wrap=True)
    for row in rows:
        p50, p99 = ("" if row[name] is None else f"{row[name]:.2f} ms" for name in ("p50", "p99"))
        healed = "" if row["healed"] is None else str(row["healed"])
        way = "relay" if row["way"] == "ours" else "by hand"
        state = "killed" if row["is_killed"] else "left alone"
        costs = (f"{row[name]:.0f} µs" for name in ("cpu_of_news", "cpu"))
        table.add_row(row["store"], way, state, f"{row['writes']:,}", p50, p99, *costs, str(row["lost"]), healed)
    return table


def figures_of_channels(rows: list[Row], options: argparse.Namespace) -> Table:
    caption = f"{options.rate:,} writes a second; keys are waited for once each, {KEYS} at a time. CPU is for each write."
    if options.quick:
        caption += "\nQUICK: done with a tenth of everything; these figures prove nothing."
    table = Table(title="purgatory, relay: channels", title_justify="left", caption=caption, caption_justify="left")
    for name in ("", "writes", "p50", "p99", "CPU of who waits", "of who does not", "of Redis"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        way = "one for all (relay)" if row["way"] == "ours" else "one for each key"
        costs = (f"{row[name]:.0f} µs" for name in ("cpu", "cpu_of_hearer", "cpu_of_server"))
        table.add_row(way, f"{row['writes']:,}", f"{row['p50']:.2f} ms", f"{row['p99']:.2f} ms", *costs)
    return table


PROGRAM = Program("relay", "Waits that complete in another process, against what people write by hand.", add_arguments, run)
