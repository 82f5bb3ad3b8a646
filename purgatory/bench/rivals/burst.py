"""``python -m purgatory.bench burst``: everything at once, and how long other callbacks of the loop have to wait.

``expiry``: all requests are due in the same tick. ``check``: all watch one key, and one `check_and_complete` completes them. A
callback that runs in every iteration of the loop measures how long the turns are, in CPU time.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, cast

from rich import box
from rich.table import Table

from purgatory._programs import Program
from purgatory.bench._cases import QUICK_DIVISOR, LoopName, loop_factory
from purgatory.bench._measure import LoopProbe, Unmeasurable
from purgatory.bench._process import in_fresh_process
from purgatory.bench.rivals._sizes import add_arguments, run_sizes
from purgatory.bench.rivals.designs import BY_NAME, NEVER_MS, OURS, Design, Listed, World

SIZES = (10_000, 100_000, 1_000_000)
KINDS: tuple["Kind", ...] = ("expiry", "check")
LOOK_AHEAD = 0.6
"""Seconds before the expiry at which the measurement begins, because what a design does ahead counts, too."""

SAMPLE = 2_000

Kind = Literal["expiry", "check"]


@dataclass(frozen=True, slots=True)
class Figures:
    """How long others had to wait: the median of the turns in which a request ended, and the longest turn of all.

    `total_ms` is the CPU time of all turns in which a request ended.
    """

    loop: LoopName
    kind: Kind
    design: str
    requests: int
    median_ms: float
    longest_ms: float
    total_ms: float


def run(options: argparse.Namespace) -> int:
    """Measures each size and kind of burst, prints the table, writes the JSON and draws the plots."""
    return run_sizes(options, "burst", KINDS, SIZES, _measured, table, _draw)


def _measured(loop_name: LoopName, kind: str, design: str, size: int) -> Figures:
    return in_fresh_process(measure, loop_name, cast(Kind, kind), design, size)


def _draw(report: dict[str, Any], directory: Path) -> Path:
    from purgatory.bench.rivals import _plots  # noqa: PLC0415  # matplotlib takes half a second to import

    return _plots.burst(report, directory)


def measure(loop_name: LoopName, kind: Kind, design: str, requests: int) -> Figures:
    """Measures one burst, on a loop of its own."""
    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        probe = runner.run(_expire(BY_NAME[design], requests) if kind == "expiry" else _check(BY_NAME[design], requests))
    busy = [length for length, ended in probe.turns if ended]
    return Figures(loop_name, kind, design, requests, median(busy) * 1e3, probe.longest * 1e3, sum(busy) * 1e3)


class TurnProbe(LoopProbe):
    """A probe that notes how long each turn was, and how many requests ended in it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.turns: list[tuple[float, int]] = []
        self._world = world
        self._ended = world.answered

    def _read(self) -> None:
        before = self._last_run
        super()._read()
        self.turns.append((self._last_run - before, self._world.answered - self._ended))
        self._ended = self._world.answered


async def _expire(listed: Listed, requests: int) -> TurnProbe:
    loop, world, design = asyncio.get_running_loop(), World(), listed.make()
    watch = _watcher(design, world)
    lead = 0.5 + 3.0 * requests * await _seconds_to_watch_one(listed)
    deadline = (int((loop.time() + lead) * 1000.0) + 0.5) / 1000.0  # in the middle of a tick
    for number in range(requests):
        watch(deadline - loop.time(), (number,), NEVER_MS)
    await asyncio.sleep(0)
    gc.collect()  # what is left from making them does not belong to the burst
    ahead = deadline - LOOK_AHEAD - loop.time()
    if ahead < -LOOK_AHEAD:
        raise Unmeasurable(f"the machine was too busy: {requests:,} requests were not watched within {lead:.1f} s")
    await asyncio.sleep(max(0.0, ahead))
    with TurnProbe(world) as probe:
        while design.pending():
            await asyncio.sleep(0)
    return _ended(probe, world, design, requests)


async def _check(listed: Listed, requests: int) -> TurnProbe:
    world, design = World(), listed.make()
    watch = _watcher(design, world)
    for _ in range(requests):
        watch(3600.0, ("the key",), 1)
    await asyncio.sleep(0)
    gc.collect()
    world.now_ms = 1
    with TurnProbe(world) as probe:
        await asyncio.sleep(0)
        design.check_and_complete("the key")
        while design.pending():
            await asyncio.sleep(0)
    return _ended(probe, world, design, requests)


def _ended(probe: TurnProbe, world: World, design: Design, requests: int) -> TurnProbe:
    design.close()
    assert world.answered == requests
    return probe


def _watcher(design: Design, world: World) -> Callable[[float, tuple[Hashable, ...], int], Any]:
    """A function that creates a request, lets it wait and returns it."""
    new_request, watch = design.new_request, design.watch

    def create(timeout: float, keys: tuple[Hashable, ...], latency_ms: int) -> Any:
        request = new_request(world, timeout, latency_ms)
        watch(request, keys)
        return request

    return create


async def _seconds_to_watch_one(listed: Listed) -> float:
    """How long it takes by the clock to watch a request, on this machine now."""
    design = listed.make()
    watch = _watcher(design, World())
    start = time.perf_counter()
    requests = [watch(3600.0, (number,), NEVER_MS) for number in range(SAMPLE)]
    await asyncio.sleep(0)
    seconds = (time.perf_counter() - start) / SAMPLE
    for request in requests:
        design.complete(request)
    while design.pending():
        await asyncio.sleep(0)
    design.close()
    return seconds


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        "Turns of the loop in CPU time: the median of those in which a request ended, and the longest of all.\n"
        "all: the turns in which a request ended, together."
    )
    if quick:
        caption += f"\nQUICK: one {QUICK_DIVISOR}th of the requests; these figures prove nothing."
    result = Table(
        title="How long others wait in a burst",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("burst", "loop", "design"):
        result.add_column(heading, no_wrap=True)
    for heading in ("requests", "turn p50 ms", "turn max ms", "all ms", "µs each"):
        result.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        if each.design == OURS.name:
            result.add_section()
        result.add_row(
            each.kind,
            each.loop,
            each.design,
            f"{each.requests:,}",
            f"{each.median_ms:.2f}",
            f"{each.longest_ms:.2f}",
            f"{each.total_ms:,.1f}",
            f"{each.total_ms / each.requests * 1e3:.2f}",
        )
    return result


PROGRAM = Program(
    "burst", "Up to a million requests that are due, or completed, at once: how long other callbacks wait.", add_arguments, run
)
