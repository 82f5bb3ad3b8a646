"""The generator of `load`: creates requests when they arrive, and completes them when their time comes.

It must cost almost nothing. Once in a millisecond, its *tick*, it creates the requests that have arrived since the last tick.
The requests that it has to complete lie in a ring of lists, one for each millisecond of the timeout. As in Kafka's benchmark,
the time to completion counts from the moment at which a request was really created. So a generator that cannot keep up does
not complete requests sooner. In a tick it creates at most `BATCH` requests; if more are due, it does the
others in the next iteration of the loop.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any

from benchmarks.baselines.implementations import Implementation, RunState
from benchmarks.baselines.workload import TIMEOUT_MS, Workload
from benchmarks.measure import Unmeasurable
from benchmarks.process import resident_bytes

BATCH = 256
RING = 256
"""Milliseconds; more than the completion of a request can take."""

TICKS_PER_MEMORY_SAMPLE = 64
assert RING > TIMEOUT_MS and RING & (RING - 1) == 0


@dataclass(frozen=True, slots=True)
class DriveResult:
    """What was measured.

    Attributes:
        created_s: seconds of the clock until the last request was created.
        elapsed_s: seconds of the clock until the last request had ended.
        cpu_s: seconds of CPU time until the last request had ended.
        max_stall_s: the longest CPU time between two ticks, all of which was the implementation's.
        peak_bytes: by how much the resident memory grew at most, without the list of expiries.
        answered: how many requests were completed or expired.
        lateness_s: of each expiry, sorted.
        counters: what the implementation has counted itself.
    """

    created_s: float
    elapsed_s: float
    cpu_s: float
    max_stall_s: float
    peak_bytes: int
    answered: int
    lateness_s: list[float]
    counters: dict[str, int]


async def drive(make: Callable[[], Implementation], workload: Workload) -> DriveResult:
    """Takes a new implementation through all of `workload`, on the running loop."""
    return await _Generator(make(), workload).finished


def memory() -> int:
    """The resident memory of this process; zero if the system does not say."""
    try:
        return resident_bytes()
    except Unmeasurable:
        return 0


class _Generator:
    """Starts when it is made; `finished` is set at the end."""

    def __init__(self, implementation: Implementation, workload: Workload) -> None:
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[DriveResult] = loop.create_future()
        self._loop = loop
        self._implementation = implementation
        self._workload = workload
        self._run_state = RunState()
        self._ring: list[list[Any]] = [[] for _ in range(RING)]
        self._completed_to_ms = -1
        """The requests of the ring are completed up to this millisecond."""
        self._arrived_to_ms = -1
        self._arrived = 0
        """How many requests have arrived, but are not yet created."""
        self._to_come = workload.requests
        self._latencies = iter(workload.latencies_ms)
        self._key_sets = workload.key_sets()
        self._ticks = 0
        self._max_stall = 0.0
        gc.collect()
        self._memory_before = memory()
        self._peak = 0
        self._start = loop.time()
        self._cpu_start = self._left_at = time.process_time()
        self._created_at = self._over_ms = inf
        self._tick()

    def _tick(self) -> None:
        cpu = time.process_time()
        if cpu - self._left_at > self._max_stall:
            self._max_stall = cpu - self._left_at
        run_state = self._run_state
        run_state.now_ms = now_ms = int((self._loop.time() - self._start) * 1000.0 + 1e-3)
        while self._completed_to_ms < now_ms:
            self._completed_to_ms += 1
            due = self._ring[self._completed_to_ms & (RING - 1)]
            if due:
                complete = self._implementation.complete
                for request in due:
                    complete(request)
                due.clear()
        self._create(now_ms)
        self._ticks += 1
        if self._ticks % TICKS_PER_MEMORY_SAMPLE == 0:
            self._peak = max(self._peak, self._resident())
        if now_ms >= self._over_ms and not self._implementation.pending():
            self._finish()
            return
        if self._arrived:
            self._loop.call_soon(self._tick)
        else:
            self._loop.call_at(self._start + (now_ms + 1) / 1000.0, self._tick)
        self._left_at = time.process_time()

    def _create(self, now_ms: int) -> None:
        arrivals = self._workload.arrivals
        if self._arrived_to_ms < now_ms:
            self._arrived += sum(arrivals[self._arrived_to_ms + 1 : now_ms + 1])
            self._arrived_to_ms = now_ms
        batch = min(self._arrived, BATCH)
        if not batch:
            return
        new_request, watch, run_state, ring = (
            self._implementation.new_request,
            self._implementation.watch,
            self._run_state,
            self._ring,
        )
        timeout = TIMEOUT_MS / 1000.0
        for latency_ms, keys in zip(islice(self._latencies, batch), self._key_sets, strict=False):
            request = new_request(run_state, timeout, latency_ms)
            if 0 < latency_ms < TIMEOUT_MS:
                ring[(now_ms + latency_ms) & (RING - 1)].append(request)
            watch(request, keys)
        self._arrived -= batch
        self._to_come -= batch
        if not self._to_come:
            self._created_at = self._loop.time()
            self._over_ms = now_ms + TIMEOUT_MS

    def _resident(self) -> int:
        lateness = self._run_state.lateness
        return memory() - self._memory_before - lateness.itemsize * len(lateness)

    def _finish(self) -> None:
        self._implementation.close()
        self.finished.set_result(
            DriveResult(
                created_s=self._created_at - self._start,
                elapsed_s=self._loop.time() - self._start,
                cpu_s=time.process_time() - self._cpu_start,
                max_stall_s=self._max_stall,
                peak_bytes=max(self._peak, self._resident()),
                answered=self._run_state.answered,
                lateness_s=sorted(self._run_state.lateness),
                counters=self._implementation.counters(),
            )
        )
