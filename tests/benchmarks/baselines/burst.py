"""``python tests/benchmarks burst``: all requests end at once; how long do other callbacks of the
loop have to wait?

``expiry``: all requests are due in the same tick. ``check``: all watch one key, and one
`check_and_complete` completes them. A callback that runs in every iteration of the loop measures
how long the iterations are, in CPU time.
"""

import argparse
import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, cast

from rich.table import Table

from benchmarks.baselines.implementations import (
    BY_NAME,
    NEVER_MS,
    OURS,
    Implementation,
    Named,
    RunState,
)
from benchmarks.baselines.sizes import add_arguments, run_sizes
from benchmarks.cases import LoopName, run_on
from benchmarks.measure import LoopProbe, Unmeasurable
from benchmarks.process import in_fresh_process
from benchmarks.report import plain_table
from purgatory.pipeline._programs import Program

SIZES = (10_000, 100_000, 1_000_000)
KINDS: tuple["Kind", ...] = ("expiry", "check")
LOOK_AHEAD = 0.6
"""Seconds from the start of the measurement to the expiry, because work done ahead counts, too."""

SECONDS_TO_WATCH_ONE = 30e-6
"""Seconds allowed for each request; several times the usual time."""

Kind = Literal["expiry", "check"]


@dataclass(frozen=True, slots=True)
class Figures:
    """How long other callbacks had to wait: the median of the iterations in which a request ended,
    and the longest of all.

    `total_ms` is the CPU time of all iterations in which a request ended.
    """

    loop: LoopName
    kind: Kind
    implementation: str
    requests: int
    median_ms: float
    max_stall_ms: float
    total_ms: float


def run(options: argparse.Namespace) -> int:
    """Measures each size and kind of burst, prints the table and writes the JSON."""
    return run_sizes(options, "burst", KINDS, SIZES, _measured, table)


def _measured(loop_name: LoopName, kind: str, name: str, size: int) -> Figures:
    return in_fresh_process(measure, loop_name, cast(Kind, kind), name, size)


def measure(loop_name: LoopName, kind: Kind, name: str, requests: int) -> Figures:
    """Measures one burst, on a loop of its own."""
    probe = run_on(
        loop_name,
        _expire(BY_NAME[name], requests) if kind == "expiry" else _check(BY_NAME[name], requests),
    )
    busy = [length for length, ended in probe.iterations if ended]
    return Figures(
        loop_name, kind, name, requests, median(busy) * 1e3, probe.max_stall * 1e3, sum(busy) * 1e3
    )


class IterationProbe(LoopProbe):
    """A probe that notes how long each iteration was, and how many requests ended in it."""

    def __init__(self, run_state: RunState) -> None:
        super().__init__()
        self.iterations: list[tuple[float, int]] = []
        self._run_state = run_state
        self._ended = run_state.answered

    def _read(self) -> None:
        before = self._last_run
        super()._read()
        self.iterations.append((self._last_run - before, self._run_state.answered - self._ended))
        self._ended = self._run_state.answered


async def _expire(named: Named, requests: int) -> IterationProbe:
    loop, run_state, implementation = asyncio.get_running_loop(), RunState(), named.make()
    lead = 0.5 + SECONDS_TO_WATCH_ONE * requests
    deadline = (int((loop.time() + lead) * 1000.0) + 0.5) / 1000.0  # in the middle of a tick
    for number in range(requests):
        implementation.watch(
            implementation.new_request(run_state, deadline - loop.time(), NEVER_MS), (number,)
        )
    await asyncio.sleep(0)
    gc.collect()  # garbage from creating them does not belong to the burst
    ahead = deadline - LOOK_AHEAD - loop.time()
    if ahead < -LOOK_AHEAD:
        raise Unmeasurable(
            f"the machine was too busy: {requests:,} requests were not watched within {lead:.1f} s"
        )
    await asyncio.sleep(max(0.0, ahead))
    with IterationProbe(run_state) as probe:
        while implementation.pending():
            await asyncio.sleep(0)
    return _ended(probe, run_state, implementation, requests)


async def _check(named: Named, requests: int) -> IterationProbe:
    run_state, implementation = RunState(), named.make()
    for _ in range(requests):
        implementation.watch(implementation.new_request(run_state, 3600.0, 1), ("the key",))
    await asyncio.sleep(0)
    gc.collect()
    run_state.now_ms = 1
    with IterationProbe(run_state) as probe:
        await asyncio.sleep(0)
        implementation.check_and_complete("the key")
        while implementation.pending():
            await asyncio.sleep(0)
    return _ended(probe, run_state, implementation, requests)


def _ended(
    probe: IterationProbe, run_state: RunState, implementation: Implementation, requests: int
) -> IterationProbe:
    implementation.close()
    assert run_state.answered == requests
    return probe


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        "Iterations of the loop in CPU time: the median of those in which a request ended, and "
        "the longest of all.\n"
        "all: the iterations in which a request ended, together."
    )
    texts, numbers = (
        ("burst", "loop", "implementation"),
        ("requests", "p50 ms", "max stall ms", "all ms", "µs each"),
    )
    result = plain_table("How long others wait in a burst", caption, texts, numbers, quick)
    for each in figures:
        if each.implementation == OURS.name:
            result.add_section()
        result.add_row(
            each.kind,
            each.loop,
            each.implementation,
            f"{each.requests:,}",
            f"{each.median_ms:.2f}",
            f"{each.max_stall_ms:.2f}",
            f"{each.total_ms:,.1f}",
            f"{each.total_ms / each.requests * 1e3:.2f}",
        )
    return result


PROGRAM = Program(
    "burst",
    "Up to a million requests that are due, or completed, at once: how long other callbacks wait.",
    add_arguments,
    run,
)
