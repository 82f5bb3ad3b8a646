"""``python tests/benchmarks relay``: waits that complete in another process, with a relay and by
hand.

One process waits for the next version of each of 200 keys, another one writes them at a rate.
Latency is from the call of the write in one to the answer of the wait in the other; CPU is the
waiting process's for each answer, and, for each message, a third process's, which waits for
another key. Then the same while all subscribers' connections are killed every 0.3 seconds: a
wake-up is lost if a waiter has not been answered within a second. The stores: a folder; a Redis of
its own, if ``redis-server`` is installed; any ``--store`` besides. All of it is repeated in several
rounds; the figures are medians, the counts are sums.

``--channels`` measures instead why there is one channel for all keys: 10,000 keys come and go, each
is waited for once, 200 at a time, with a relay and with a subscription for each awaited
key.

``--interest`` measures instead the cost of five processes' writes for 1, 4 and 16 others, each
with a wait for another key, or without waits; and the cost for such a process
when a wait starts there, and when it has ended. ``--sizes`` measures instead what 1,000 to
1,000,000 keys take: the longest iterations of the loop of a process that writes all, waits for all
and is answered, and the memory of this process and of the store. ``--replies`` measures instead
`deliver` and `receive`: see `replies`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.options import add_common_options, positive
from benchmarks.relay_process import lines_of
from benchmarks.relay_servers import (
    ask,
    cpu_of_redis,
    own_redis,
    process,
    read_line,
    resume,
    stored_bytes,
)
from benchmarks.replies import report_replies
from benchmarks.report import opened_console, plain_table, write_report
from purgatory.pipeline._programs import Program

KEYS = 200
MANY_KEYS = 10_000
WATCHED = 100_000
PROCESSES = (1, 4, 16)
WRITERS = 5
JOINS = 200
SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_DIVISOR = 10
KILL_INTERVAL = 0.3
LOST_AFTER = 1.0
"""Seconds after which an answer counts as lost."""
SETTLE_TIMEOUTS = {"ours": 60.0, "theirs": 2.0, "channels": 60.0}
"""Seconds after the last write within which waits may still be answered. By hand, the write may be
lost for ever."""

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="URL",
        help="a store besides; may be repeated",
    )
    parser.add_argument(
        "--rate",
        type=positive,
        default=1_000,
        metavar="N",
        help="writes a second (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=10,
        metavar="S",
        help="of each row (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=3,
        metavar="N",
        help="times that all is measured (default: 3)",
    )
    parser.add_argument(
        "--channels",
        action="store_true",
        help="measure one channel against one for each key, on Redis, instead",
    )
    parser.add_argument(
        "--interest",
        action="store_true",
        help="measure what writes cost processes that wait for nothing, instead",
    )
    parser.add_argument(
        "--sizes", action="store_true", help="measure 1,000 to 1,000,000 keys on each store instead"
    )
    parser.add_argument(
        "--replies",
        action="store_true",
        help="measure deliver and receive on each store, and by hand on Redis, instead",
    )
    parser.add_argument(
        "--expired",
        type=positive,
        default=100_000,
        metavar="N",
        help="replies that expire, with --replies (default: %(default)s)",
    )
    add_common_options(parser, any_loop=False)


def run(options: argparse.Namespace) -> int:
    console = opened_console(f"relay: {options.rate:,} writes a second")
    head = {"seed": options.seed, "rate": options.rate}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-"))
        redis = stack.enter_context(own_redis(folder))
        if options.channels and redis is None:
            console.print("--channels needs redis-server: apt-get install redis-server")
            return 2
        if options.interest:
            report_interest(console, stores_of(folder, redis, options), options)
            return 0
        if options.replies:
            urls = stores_of(folder, redis, options)
            figures = report_replies(console, urls, reduced(options.expired, options), options)
            write_report(console, options, "relay", **head, **figures)
            return 0
        if options.sizes:
            sizes = [
                row
                for url in stores_of(folder, redis, options)
                for row in rows_of_sizes(url, options)
            ]
            console.print(table_of_sizes(sizes, options))
            write_report(console, options, "relay", **head, rows=sizes)
            return 0
        rounds = [
            round_of_channels(redis, options)
            if options.channels and redis
            else round_of_stores(folder, redis, options)
            for _ in range(1 if options.quick else options.rounds)
        ]
        rows = [medians_of(each) for each in zip(*rounds, strict=True)]
        if options.channels:
            console.print(table_of_channels(rows, options))
            write_report(console, options, "relay", **head, rows=rows)
            return 0
        count = reduced(WATCHED, options)
        memory = memory_of(f"file://{folder}/memory", count)
    console.print(table_of_stores(rows, options))
    console.print(
        f"{count:,} keys watched: {memory / 1e6:.1f} MB more than in a ThresholdPurgatory alone"
    )
    write_report(console, options, "relay", **head, rows=rows, watched=count, bytes=memory)
    return 0


def reduced(full: int, options: argparse.Namespace) -> int:
    """`full`, reduced in a quick run."""
    return full // QUICK_DIVISOR if options.quick else full


def stores_of(folder: str, redis: str | None, options: argparse.Namespace) -> list[str]:
    """The addresses of all stores."""
    return [f"file://{folder}/app", *([redis] if redis else []), *options.store]


def rows_of_sizes(url: str, options: argparse.Namespace) -> list[Row]:
    """A row for each number of keys, with versions of their own in the store."""
    rows = []
    for size in SIZES[:2] if options.quick else SIZES:
        count = reduced(size, options)
        prefix = f"size{count}"
        before = stored_bytes(url, prefix)
        with process({"work": "grow", "url": url, "prefix": prefix, "keys": count}) as child:
            row = json.loads(read_line(child))
        rows.append(
            {
                "store": url.partition(":")[0],
                "keys": count,
                **row,
                "stored": stored_bytes(url, prefix) - before,
            }
        )
    return rows


def round_of_stores(folder: str, redis: str | None, options: argparse.Namespace) -> list[Row]:
    """A row for each way on each store."""
    seconds = options.seconds / QUICK_DIVISOR if options.quick else options.seconds
    contenders = [("ours", f"file://{folder}/app"), *(("ours", url) for url in options.store)]
    if redis is not None:
        contenders += [("ours", redis), ("theirs", redis)]
    rows = []
    for way, url in contenders:
        job = {
            "way": way,
            "url": url,
            "keys": KEYS,
            "rate": options.rate,
            "seconds": seconds,
            "seed": options.seed,
        }
        for is_killed in [False, True] if url == redis else [False]:
            if url == redis:
                ask(url, "FLUSHALL")  # keys begin at 0
            rows.append(measured({**job, "work": "wait"}, is_killed))
    return rows


def round_of_channels(redis: str, options: argparse.Namespace) -> list[Row]:
    """A row with one channel, and one with a channel for each key."""
    count = reduced(MANY_KEYS, options)
    job = {
        "work": "wait once",
        "url": redis,
        "keys": count,
        "at_once": KEYS,
        "in_order": True,
        "rate": options.rate,
        "seconds": count / options.rate,
        "seed": options.seed,
    }
    rows = []
    for way in ("ours", "channels"):
        ask(redis, "FLUSHALL")
        cpu = cpu_of_redis(redis)
        row = measured({**job, "way": way}, is_killed=False)
        rows.append({**row, "cpu_of_server": 1e6 * (cpu_of_redis(redis) - cpu) / row["writes"]})
    return rows


def report_interest(console: Console, urls: Sequence[str], options: argparse.Namespace) -> None:
    """Two tables: of processes that listen, and of a process that joins and leaves."""
    head = {"seed": options.seed, "rate": options.rate}
    counts = PROCESSES[:2] if options.quick else PROCESSES
    rows = [
        cost_of_news(url, count, waits, options)
        for url in urls
        for count in counts
        for waits in (True, False)
    ]
    joins = []
    for url in urls:
        with process(
            {"work": "come and go", "url": url, "times": reduced(JOINS, options)}
        ) as child:
            joins.append({"store": url.partition(":")[0], **json.loads(read_line(child))})
    caption = (
        f"{options.rate:,} writes a second by {WRITERS} processes to {MANY_KEYS:,} keys. CPU is "
        "the median of the processes."
    )
    numbers = ("writes a second", "in a message", "CPU for each write", "of a core")
    table = plain_table(
        "purgatory, relay: interest",
        caption,
        ("store", "processes", "in each"),
        numbers,
        options.quick,
    )
    for row in rows:
        waits = "a wait for another key" if row["is_waiting"] else "no wait"
        costs = (
            f"{row['rate']:,.0f}",
            row["is_waiting"] and f"{row['batch']:.1f}",
            f"{row['cpu']:.2f} µs",
            f"{row['share']:.2%}",
        )
        table.add_row(row["store"], str(row["processes"]), waits, *(cost or "" for cost in costs))
    console.print(table)
    table = plain_table(
        "", "", ("store",), ("times", "CPU to join and leave", "until joined"), options.quick
    )
    for row in joins:
        table.add_row(
            row["store"],
            str(row["times"]),
            f"{1e6 * row['cpu']:.0f} µs",
            milliseconds(1e3 * row["seconds"]),
        )
    console.print(table)
    write_report(console, options, "relay", **head, rows=rows, joins=joins)


def cost_of_news(url: str, count: int, is_waiting: bool, options: argparse.Namespace) -> Row:
    """The cost of one process's writes for `count` others."""
    seconds = options.seconds / QUICK_DIVISOR if options.quick else options.seconds
    job = {"way": "ours", "url": url, "is_waiting": is_waiting}
    write = {
        **job,
        "work": "write",
        "keys": MANY_KEYS,
        "rate": options.rate / WRITERS,
        "seconds": seconds,
    }
    with ExitStack() as stack:
        listeners = [stack.enter_context(process({**job, "work": "listen"})) for _ in range(count)]
        writers = [
            stack.enter_context(process({**write, "seed": options.seed + number}))
            for number in range(WRITERS)
        ]
        for child in (*listeners, *writers):
            read_line(child)
        for child in writers:
            resume(child)
        written = [json.loads(read_line(child)) for child in writers]
        for child in listeners:
            resume(child)
        listened = [json.loads(read_line(child)) for child in listeners]
    writes, took = (
        sum(len(each["writes"]) for each in written),
        max(each["seconds"] for each in written),
    )
    cpu = statistics.median(each["cpu"] for each in listened)
    received, messages = (sum(each[name] for each in listened) for name in ("received", "messages"))
    return {
        "store": url.partition(":")[0],
        "processes": count,
        "is_waiting": is_waiting,
        "writes": writes,
        "rate": writes / took,
        "batch": received / max(1, messages),
        "cpu": 1e6 * cpu / writes,
        "share": cpu / took,
    }


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
    job["settle_timeout"] = SETTLE_TIMEOUTS[way]
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
        "cpu_of_listener": 1e6 * listened["cpu"] / len(writes),
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


def memory_of(url: str, count: int) -> int:
    """The memory of `count` watched keys, beyond their memory in a `ThresholdPurgatory`."""
    job = {"work": "watch", "url": url, "keys": count}
    with process({**job, "way": "ours"}) as ours, process({**job, "way": "plain"}) as plain:
        return int(json.loads(read_line(ours))["bytes"] - json.loads(read_line(plain))["bytes"])


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


def table_of_sizes(rows: list[Row], options: argparse.Namespace) -> Table:
    caption = (
        "Longest iterations of the loop, in CPU time without garbage collection, while all keys "
        "are written, waited for"
    )
    caption += " and written again; memory of the process then, and of the store."
    numbers = (
        "writing",
        "starting to wait",
        "answering",
        "process, written",
        "process, waiting",
        "store",
    )
    table = plain_table(
        "purgatory, relay: sizes", caption, ("store", "keys"), numbers, options.quick
    )
    for row in rows:
        stalls = (f"{row[name]:.1f} ms" for name in ("write_ms", "wait_ms", "answer_ms"))
        sizes = (f"{row[name] / 1e6:.1f} MB" for name in ("written", "waited", "stored"))
        table.add_row(row["store"], f"{row['keys']:,}", *stalls, *sizes)
    return table


def table_of_channels(rows: list[Row], options: argparse.Namespace) -> Table:
    caption = (
        f"{options.rate:,} writes a second; keys are waited for once each, {KEYS} at a time. "
        "CPU is for each write."
    )
    numbers = ("writes", "p50", "p99", "CPU: waiting", "waiting for another key", "Redis")
    table = plain_table("purgatory, relay: channels", caption, ("way",), numbers, options.quick)
    for row in rows:
        way = "one for all (relay)" if row["way"] == "ours" else "one for each key"
        costs = (f"{row[name]:.0f} µs" for name in ("cpu", "cpu_of_listener", "cpu_of_server"))
        table.add_row(
            way, f"{row['writes']:,}", milliseconds(row["p50"]), milliseconds(row["p99"]), *costs
        )
    return table


PROGRAM = Program(
    "relay",
    "Waits that complete in another process, against the same by hand.",
    add_arguments,
    run,
)
