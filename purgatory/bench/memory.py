"""``python -m purgatory.bench memory``: what a pending request takes, and what is left when all are done.

Each request waits for one key of its own. What is counted is the growth of the resident memory of a fresh process, the
request with its 100 bytes of payload included, which is the same 300 bytes or so in all designs: unlike `tracemalloc` it
knows what the allocator rounds up and what uvloop takes behind Python's back. It is read again when all have been completed;
what is left then are some megabytes that the allocator keeps for the next requests, and what the design still holds. How much
that is `tracemalloc` tells, in another process.
"""

import argparse
import asyncio
import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from purgatory.bench._cases import QUICK_DIVISOR, LoopName, loop_factory
from purgatory.bench._fresh import in_fresh_process
from purgatory.bench._measure import Unmeasurable
from purgatory.bench._operation_rows import resident_bytes
from purgatory.bench._program import Program
from purgatory.bench._sizes import add_arguments, run_sizes
from purgatory.bench.designs import BY_NAME, NEVER_MS, OURS, Run

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
TIMEOUT = 300.0
WARM_UP = 1_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What so many requests took, and what became of it when all had been completed.

    Attributes:
        left: the share that the process had not given back.
        held: the share that was not even free.
    """

    loop: LoopName
    design: str
    requests: int
    bytes_each: float
    left: float
    held: float


def run(options: argparse.Namespace) -> int:
    """Measures each size, prints the table, writes the JSON and draws the plot."""
    return run_sizes(options, "memory", ["memory"], SIZES, _measured, table, _draw)


def _measured(loop_name: LoopName, _: str, design: str, size: int) -> Figures:
    grown, left = in_fresh_process(measure, loop_name, design, size)
    traced, held = in_fresh_process(measure, loop_name, design, size, traced=True)
    return Figures(loop_name, design, size, grown / size, left / max(grown, 1), held / max(traced, 1))


def _draw(report: dict[str, Any], directory: Path) -> Path:
    from purgatory.bench import _plots  # noqa: PLC0415  # matplotlib takes half a second to import

    return _plots.memory(report, directory)


def measure(loop_name: LoopName, design: str, requests: int, *, traced: bool = False) -> tuple[int, int]:
    """By how many bytes this process, which should be a fresh one, grew by pending requests, and how many were left of them.

    Args:
        traced: count what Python has allocated, not what the process has.
    """
    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        return runner.run(_grow_and_shrink(design, requests, _traced if traced else resident_bytes))


def _traced() -> int:
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


async def _grow_and_shrink(name: str, requests: int, memory: Callable[[], int]) -> tuple[int, int]:
    """What `memory` had grown by while all were pending, and after all were done."""
    run, design = Run(), BY_NAME[name].make()
    for number in range(WARM_UP):  # whatever is made once
        request = design.new_request(run, TIMEOUT, NEVER_MS)
        design.watch(request, (number,))
        design.complete(request)
    await asyncio.sleep(0.01)
    keys = [(number,) for number in range(requests)]
    waiting = [None] * requests
    gc.collect()
    before = memory()
    start = time.monotonic()
    for number in range(requests):
        waiting[number] = design.new_request(run, TIMEOUT, NEVER_MS)
        design.watch(waiting[number], keys[number])
    await asyncio.sleep(0.01)
    gc.collect()
    grown = memory() - before
    if time.monotonic() > start + TIMEOUT:
        raise Unmeasurable(f"the machine was too busy: requests fell due within {TIMEOUT:.0f} s while others were watched")
    for number in range(requests):
        design.complete(waiting[number])
        waiting[number] = None
    while design.pending():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gc.collect()
    return grown, memory() - before


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        "Resident memory of a fresh process. left: the share of it that was not given back when all had been completed;\n"
        "held: the share of what Python had allocated that was not even free."
    )
    if quick:
        caption += f"\nQUICK: one {QUICK_DIVISOR}th of the requests; these figures prove nothing."
    result = Table(
        title="What a pending request takes",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("loop", "design"):
        result.add_column(heading, no_wrap=True)
    for heading in ("requests", "bytes each", "left", "held"):
        result.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        if each.design == OURS.name:
            result.add_section()
        shares = f"{each.left:.1%}", f"{each.held:.1%}"
        result.add_row(each.loop, each.design, f"{each.requests:,}", f"{each.bytes_each:,.0f}", *shares)
    return result


PROGRAM = Program(
    "memory", "Bytes that a pending request takes, of up to a million, and what is left of them afterwards.", add_arguments, run
)
