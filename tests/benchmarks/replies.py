"""``python tests/benchmarks relay --replies``: the cost of `deliver` and `receive`.

For each store: deliveries of 200 bytes a second, one by one and 2,000 at once, against the store's
client alone, which settles a key without a message (both alternate); the latency from the call of
`deliver` to a waiter in another process; the CPU of a process in which nothing waits while others
deliver; the store and the delivering process while many replies expire. On Redis also the latency
of BLPOP and of publish/subscribe by hand, with the connections and the CPU of the waiting
process.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from benchmarks.relay_servers import (
    field_of_redis,
    process,
    read_line,
    resume,
    stored_bytes,
    stored_replies,
)
from benchmarks.report import plain_table

MODULE = "benchmarks.replies_process"
SETTLED = 2_000
WAITS = 300
RATE = 100
TTL = 5.0
SWEPT_WITHIN = 600.0
"""Seconds for a store to remove expired replies."""
STABLE_FOR = 10
"""Seconds without a change after which the store's size counts as final."""
MAX_GIVING_BACK = 60
"""Limit of the wait for the store's final size, in seconds."""

Row = dict[str, Any]


def answer_of(job: dict[str, Any]) -> Any:
    with process(job, MODULE) as child:
        return json.loads(read_line(child))


def report_replies(
    console: Console, urls: Sequence[str], expired: int, options: argparse.Namespace
) -> dict[str, list[Row]]:
    """Measures all, and shows two tables."""
    divisor = 10 if options.quick else 1
    rows = [row_of_store(url, expired, divisor, options) for url in urls]
    caption = (
        f"200 bytes each. Idle: CPU of a process without waits at {options.rate:,} deliveries a "
        f"second. "
    )
    caption += (
        f"Store: before, at most, and after {expired:,} replies have expired; memory: the growth "
        f"of "
        "the delivering process."
    )
    numbers = ("bare", "alone", "2,000 at once", "p50", "p99", "idle")
    numbers += ("memory", "before", "at most", "after", "swept in")
    table = plain_table("purgatory, relay: replies", caption, ("store",), numbers, options.quick)
    for row in rows:
        rates = (f"{row[name]:,.0f}/s" for name in ("bare", "alone", "batched"))
        latencies = (f"{row[name]:.2f} ms" for name in ("p50", "p99"))
        sizes = (f"{row[name] / 1e6:.1f} MB" for name in ("memory", "before", "most", "after"))
        idle = f"{row['idle']:.2%}"
        table.add_row(row["store"], *rates, *latencies, idle, *sizes, f"{row['swept']:.0f} s")
    console.print(table)
    ways = [
        latency_of(url, way, WAITS // divisor)
        for url in urls
        if url.startswith("redis")
        for way in ("relay", "blpop", "pubsub")
    ]
    caption = (
        f"{WAITS // divisor} waits at once in one process, {RATE} deliveries a second from "
        f"another; CPU of all waits."
    )
    numbers = ("connections", "CPU", "p50", "p99")
    table = plain_table("", caption, ("on Redis",), numbers, options.quick)
    for row in ways:
        cpu = f"{1e3 * row['cpu']:.0f} ms"
        latencies = (f"{row[name]:.2f} ms" for name in ("p50", "p99"))
        table.add_row(row["way"], str(row["connections"]), cpu, *latencies)
    console.print(table)
    return {"rows": rows, "ways": ways}


def row_of_store(url: str, expired: int, divisor: int, options: argparse.Namespace) -> Row:
    job = {"url": url, "prefix": f"r{time.time_ns():x}"}
    rates = answer_of({**job, "work": "settle", "count": SETTLED // divisor})
    latency = latency_of(url, "relay", WAITS // divisor)
    return {
        "store": url.partition(":")[0],
        **rates,
        **{name: latency[name] for name in ("p50", "p99")},
        "idle": share_of_idle(job, options.rate, options.seconds / divisor),
        **sizes_of_expired(url, expired),
    }


def latency_of(url: str, way: str, count: int) -> Row:
    """From the call of `deliver` in one process to the reply in another."""
    job = {"url": url, "way": way, "count": count, "rate": RATE, "prefix": f"w{time.time_ns():x}"}
    before = connections_of(url)
    with process({**job, "work": "receive"}, MODULE) as waiter:
        read_line(waiter)
        connections = connections_of(url) - before
        begun = answer_of({**job, "work": "deliver"})
        waited = json.loads(read_line(waiter))
    latencies = sorted(waited["answered"][key] - at for key, at in begun.items())
    return {
        "way": way,
        "connections": connections,
        "cpu": waited["cpu"],
        "p50": 1e3 * statistics.median(latencies),
        "p99": 1e3 * latencies[int(0.99 * len(latencies))],
    }


def connections_of(url: str) -> int:
    """The number of a Redis's clients, without the client of this call; 0 for other stores."""
    if not url.startswith("redis"):
        return 0
    return int(field_of_redis(url, "clients", "connected_clients")) - 1


def share_of_idle(job: dict[str, Any], rate: int, seconds: float) -> float:
    """The share of a core that a process without waits takes while another one delivers."""
    with process({**job, "work": "idle"}, MODULE) as child:
        read_line(child)
        answer_of({**job, "work": "load", "rate": rate, "seconds": seconds})
        resume(child)
        return float(json.loads(read_line(child))["share"])


def is_stable(sizes: Sequence[int]) -> bool:
    return len(sizes) >= STABLE_FOR and len({*sizes[-STABLE_FOR:]}) == 1


def sizes_of_expired(url: str, expired: int) -> Row:
    """The sizes of the store and of the delivering process, until all replies have been removed."""
    prefix = f"x{time.time_ns():x}"
    job = {"url": url, "prefix": prefix, "work": "expire", "ttl": TTL}
    with process({**job, "count": 1}, MODULE) as child:  # makes the tables
        read_line(child)
        resume(child)
        read_line(child)
    before = most = stored_bytes(url, prefix)
    left = stored_replies(url, prefix) if url.startswith("redis") else 0
    with process({**job, "count": expired}, MODULE) as child:
        read_line(child)
        begun = time.monotonic()
        while stored_replies(url, prefix) > left and time.monotonic() - begun < SWEPT_WITHIN:
            most = max(most, stored_bytes(url, prefix))
            time.sleep(1.0)
        swept = time.monotonic() - begun
        sizes: list[int] = []
        while len(sizes) < MAX_GIVING_BACK and not is_stable(sizes):
            sizes.append(stored_bytes(url, prefix))
            time.sleep(1.0)
        resume(child)
        memory = json.loads(read_line(child))["memory"]
        child.wait()  # then SQLite has removed its log
    after = stored_bytes(url, prefix)
    return {"before": before, "most": most, "after": after, "swept": swept, "memory": memory}
