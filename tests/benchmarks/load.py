"""``python tests/benchmarks load``: the benchmark with which Kafka's purgatory was compared with
the one before it, `TestPurgatoryPerformance`.

Requests arrive at a given rate. Most are completed from outside when their time comes; the rest
expire after 200 ms. The intervals come from an exponential distribution, the times to completion
from a log-normal one. Unlike Kafka's, each request watches three keys of its own. Each
implementation runs in a process of its own; *net* is its cost without the empty purgatory's.
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, cycle, islice, product
from math import inf, log
from statistics import median
from typing import Any
from unittest.mock import patch

from maven import Unavailable

from benchmarks import harness, jvm
from benchmarks.harness import QUICK_DIVISOR, LoopName, Row, in_fresh_process, positive, run_on
from benchmarks.passes import passed, shown
from benchmarks.purgatories import BY_NAME, NEVER_MS, RunState
from purgatory import COMPILED

RATES = (105_000.0, 300_000.0, inf)
TIMEOUT_MS = 200
POSSIBLE_KEYS = 100
KEYS_PER_REQUEST = 3
KEY_SETS = 4_096
"""How many sets of keys are drawn; the requests take one after the other."""

NORMAL_PERCENTILE_75 = 0.674490
"""The third quartile of the normal distribution with mean 0 and deviation 1."""
LATENCIES = {"low": (20.0, 60.0), "high": (200.0, 400.0)}
"""The median and the third quartile of what requests take if nothing is late, in milliseconds. The
names say how many of the requests will expire."""
BATCH = 256
RING = 256
"""Milliseconds; more than the completion of a request can take."""


class Workload:
    """The requests of one measurement: `requests` at `rate` a second on average, or as fast as
    possible if that is `inf`; `latency` is a name in `LATENCIES`. `arrivals` counts the requests of
    each millisecond; `latencies_ms` is `NEVER_MS` for those that expire."""

    def __init__(self, requests: int, rate: float, latency: str, seed: int) -> None:
        draw = random.Random(seed)
        self.requests = requests
        self.arrivals = [requests]
        if rate != inf:
            times_ms = list(accumulate(draw.expovariate(rate / 1000.0) for _ in range(requests)))
            self.arrivals = [0] * (int(times_ms[-1]) + 1)
            for time_ms in times_ms:
                self.arrivals[int(time_ms)] += 1
        median_ms, quartile_ms = LATENCIES[latency]
        deviation = log(quartile_ms / median_ms) / NORMAL_PERCENTILE_75
        taken_ms = (draw.lognormvariate(log(median_ms), deviation) for _ in range(requests))
        self.latencies_ms = array(
            "H", (int(taken) if taken < TIMEOUT_MS else NEVER_MS for taken in taken_ms)
        )
        names = [f"key-{number}" for number in range(POSSIBLE_KEYS)]
        self.key_sets = cycle(
            [tuple(draw.sample(names, KEYS_PER_REQUEST)) for _ in range(KEY_SETS)]
        )


@dataclass(frozen=True, slots=True)
class DriveResult:
    """The seconds until the last request was created, the CPU seconds until the last one had ended,
    the share of requests that expired, the longest CPU time between two ticks, and what was done in
    Python instead of C. The JVM leaves the last two out."""

    created_s: float
    cpu_s: float
    expired: float
    max_stall_s: float = inf
    passes: str = ""


async def drive(make: Callable[[], Any], workload: Workload) -> DriveResult:
    """Takes a new implementation through all of `workload`, on the running loop.

    Once in a millisecond, its *tick*, it creates the requests that have arrived, at most `BATCH` in
    an iteration of the loop. Those to complete lie in a ring of lists, one for each millisecond. As
    in Kafka's benchmark, the time to completion counts from the real creation of a request.
    """
    loop, implementation, run_state = asyncio.get_running_loop(), make(), RunState()
    new_request, watch = implementation.new_request, implementation.watch
    complete = implementation.complete
    ring: list[list[Any]] = [[] for _ in range(RING)]
    latencies, key_sets = iter(workload.latencies_ms), workload.key_sets
    to_come, arrived, last_ms = workload.requests, 0, -1
    timeout = TIMEOUT_MS / 1000.0
    max_stall, created_at, over_ms = 0.0, inf, inf
    gc.collect()
    before = passed()
    start = loop.time()
    cpu_start = left_at = time.process_time()
    while True:
        max_stall = max(max_stall, time.process_time() - left_at)
        run_state.now_ms = now_ms = int((loop.time() - start) * 1000.0 + 1e-3)
        for millisecond in range(last_ms + 1, now_ms + 1):
            due = ring[millisecond % RING]
            for request in due:
                complete(request)
            due.clear()
        arrived += sum(workload.arrivals[last_ms + 1 : now_ms + 1])
        last_ms = now_ms
        batch = min(arrived, BATCH)
        for latency_ms, keys in zip(islice(latencies, batch), key_sets, strict=False):
            request = new_request(run_state, timeout, latency_ms)
            if 0 < latency_ms < TIMEOUT_MS:
                ring[(now_ms + latency_ms) % RING].append(request)
            watch(request, keys)
        arrived -= batch
        to_come -= batch
        if batch and not to_come:
            created_at, over_ms = loop.time(), now_ms + TIMEOUT_MS
        if now_ms >= over_ms and not implementation.pending():
            break
        left_at = time.process_time()
        await asyncio.sleep(0.0 if arrived else start + (now_ms + 1) / 1000.0 - loop.time())
    return DriveResult(
        created_s=created_at - start,
        cpu_s=time.process_time() - cpu_start,
        expired=run_state.expired / workload.requests,
        max_stall_s=max_stall,
        passes=shown(before, passed(), workload.requests),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_loop(parser)
    add = parser.add_argument
    add("--requests", type=positive, default=1_000_000, metavar="N", help="in each run")
    add("--rounds", type=positive, default=1, metavar="N", help="whose median counts")
    many = "; may be repeated"
    text = f"requests per second, or 'max' for as fast as it goes{many}"
    add("--rate", dest="rates", action="append", type=rate, metavar="R", help=text)
    add("--java", action="store_true", help="also Kafka's own classes, on a JVM")
    text = f"the share of requests that expire{many}"
    add("--timeouts", action="append", choices=LATENCIES, help=text)


def rate(text: str) -> float:
    """A rate of requests, `inf` for ``max``."""
    return inf if text == "max" else float(positive(text.replace(",", "")))


def run(options: argparse.Namespace) -> int:
    """Measures all rates."""
    requests = max(1, options.requests // QUICK_DIVISOR) if options.quick else options.requests
    rows: list[Row] = []
    names = [name for name in BY_NAME if name != "pure" or COMPILED]
    if options.java:
        try:
            jvm.command()
            names += jvm.PURGATORIES
        except Unavailable as error:
            print(f"Kafka's own classes are left out: {error}", file=sys.stderr)
    cases = product(harness.loops(options), options.timeouts or LATENCIES, options.rates or RATES)
    for loop, latency, asked in cases:
        found: dict[str, list[DriveResult]] = {name: [] for name in names}
        for seed in range(options.seed, options.seed + options.rounds):
            for name in names:
                workload = requests, asked, latency, seed
                with patch.dict(os.environ, {"PURGATORY_PURE": "1"} if name == "pure" else {}):
                    found[name].append(in_fresh_process(measure, loop, name, *workload))
        own, own_jvm = found.pop("empty"), found.pop("empty-jvm", [])
        for name, results in found.items():
            is_jvm = name in jvm.PURGATORIES
            pairs = zip(results, own_jvm if is_jvm else own, strict=True)
            row: Row = {"implementation": name, "loop": loop, "timeouts": latency}
            row["asked/s"] = asked if asked < inf else "max"
            row["had/s"] = median(requests / each.created_s for each in results)
            row["cpu µs"] = median(each.cpu_s for each in results) / requests * 1e6
            row["net µs"] = median(each.cpu_s - mine.cpu_s for each, mine in pairs) / requests * 1e6
            row["expired %"] = median(each.expired for each in results) * 100
            if not is_jvm:
                row["stall ms"] = median(each.max_stall_s for each in results) * 1e3
            row["passes"] = results[0].passes
            harness.progress(row)
            rows.append(row)
    caption = (
        f"{requests:,} requests a run, medians of {options.rounds}. net: CPU without the "
        "generator's own. stall: longest CPU time between two ticks. passes: compiled functions "
        "that call their Python definitions, and how often for each request."
    )
    return harness.report(options, rows, caption)


def measure(
    loop: LoopName, name: str, requests: int, asked: float, latency: str, seed: int
) -> DriveResult:
    """A run of one implementation, in a process of its own."""
    workload = Workload(requests, asked, latency, seed)
    if name in jvm.PURGATORIES:
        keys = [int(key[4:]) for each in islice(workload.key_sets, KEY_SETS) for key in each]
        return DriveResult(**jvm.drive(name, workload.latencies_ms, workload.arrivals, keys))
    return run_on(loop, drive(BY_NAME[name], workload))
