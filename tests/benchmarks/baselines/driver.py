"""The generator of `load`: creates requests when they arrive, and completes them when their time
comes.

It must cost almost nothing. Once in a millisecond, its *tick*, it creates the requests that have
arrived since the last tick. The requests that it has to complete lie in a ring of lists, one for
each millisecond of the timeout. As in Kafka's benchmark, the time to completion counts from the
moment at which a request was really created. So a generator that cannot keep up does not complete
requests sooner. In a tick it creates at most `BATCH` requests, and the others in the next iteration
of the loop.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from benchmarks.baselines.purgatories import RunState
from benchmarks.baselines.workload import TIMEOUT_MS, Workload

BATCH = 256
RING = 256
"""Milliseconds; more than the completion of a request can take."""

assert RING > TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class DriveResult:
    """The measurements of a run.

    Attributes:
        created_s: seconds of the clock until the last request was created.
        elapsed_s: seconds of the clock until the last request had ended.
        cpu_s: seconds of CPU time until the last request had ended.
        max_stall_s: the longest CPU time between two ticks, all of which was the implementation's.
        answered: how many requests were completed or expired.
        lateness_s: of each expiry, sorted.
    """

    created_s: float
    elapsed_s: float
    cpu_s: float
    max_stall_s: float
    answered: int
    lateness_s: list[float]


async def drive(make: Callable[[], Any], workload: Workload) -> DriveResult:
    """Takes a new implementation through all of `workload`, on the running loop."""
    loop, implementation, run_state = asyncio.get_running_loop(), make(), RunState()
    new_request, watch, complete = (
        implementation.new_request,
        implementation.watch,
        implementation.complete,
    )
    ring: list[list[Any]] = [[] for _ in range(RING)]
    latencies, key_sets = iter(workload.latencies_ms), workload.key_sets()
    to_come, arrived, last_ms = workload.requests, 0, -1
    timeout = TIMEOUT_MS / 1000.0
    max_stall, created_at, over_ms = 0.0, inf, inf
    gc.collect()
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
    implementation.close()
    return DriveResult(
        created_s=created_at - start,
        elapsed_s=loop.time() - start,
        cpu_s=time.process_time() - cpu_start,
        max_stall_s=max_stall,
        answered=run_state.answered,
        lateness_s=sorted(run_state.lateness),
    )
