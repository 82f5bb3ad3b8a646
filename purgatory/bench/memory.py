"""``python -m purgatory.bench memory``: what a pending request takes, and what is left when all are done.

Each request waits for one key of its own. What is counted is the growth of the resident memory of a fresh process, the
request with its 100 bytes of payload included, which is the same 300 bytes or so in all designs: unlike `tracemalloc` it
knows what the allocator rounds up and what uvloop takes behind Python's back. When all have been completed and their last
deadline has passed, it is read again.
"""

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table

from purgatory.bench._cases import QUICK_DIVISOR, LoopName, loop_factory
from purgatory.bench._fresh import in_fresh_process
from purgatory.bench._measure import Unmeasurable
from purgatory.bench._operation_rows import resident_bytes
from purgatory.bench._program import Program, add_common_options, add_designs_option, add_plot_option, choose_loop
from purgatory.bench._report import RowProgress, environment, wide_console
from purgatory.bench.designs import BY_NAME, NEVER_MS, OURS, Run

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
TIMEOUT = 300.0
WARM_UP = 1_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What so many requests took, and the share of it that was not given back when all had been completed."""

    loop: LoopName
    design: str
    requests: int
    bytes_each: float
    left: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, random=False)
    choose_loop(parser)
    add_designs_option(parser)
    add_plot_option(parser)


def run(options: argparse.Namespace) -> int:
    """Measures each size, prints the table, writes the JSON and draws the plot."""
    console = wide_console()
    where = environment()
    sizes = [size // QUICK_DIVISOR for size in SIZES] if options.quick else SIZES
    console.print(f"memory: {sizes[0]:,} to {sizes[-1]:,} pending requests in each of {len(options.designs)} designs")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    figures: list[Figures] = []
    progress = RowProgress(console)
    with progress.shown():
        for loop_name in options.loops:
            progress.start(f"memory on {loop_name}")
            todo = [(size, design) for size in sizes for design in options.designs if size <= design.most]
            for step in progress.track(len(todo)):
                size, design = todo[step]
                try:
                    figures.append(in_fresh_process(measure, loop_name, design.name, size))
                except Unmeasurable as error:
                    console.print(f"{size:,} in {design.name}: {error}")
    console.print(table(figures, options.quick))
    report = {"program": "memory", "environment": where, "quick": options.quick, "runs": [asdict(each) for each in figures]}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
        console.print(f"written to {options.json}")
    if options.plot:
        from purgatory.bench import _plots  # noqa: PLC0415  # matplotlib takes half a second to import

        console.print(f"drawn: {_plots.memory(report, options.plot)}")
    return 0


def measure(loop_name: LoopName, design: str, requests: int) -> Figures:
    """Memory of one design, in this process, which should be a fresh one."""
    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        grown, left = runner.run(_grow_and_shrink(design, requests))
    return Figures(loop_name, design, requests, grown / requests, left / grown if grown else 0.0)


async def _grow_and_shrink(name: str, requests: int) -> tuple[int, int]:
    """By how many bytes the process has grown while all were pending, and after all were done."""
    run, design = Run(), BY_NAME[name].make()
    for number in range(WARM_UP):  # whatever is made once
        request = design.new_request(run, TIMEOUT, NEVER_MS)
        design.watch(request, (number,))
        design.complete(request)
    await asyncio.sleep(0.01)
    keys = [(number,) for number in range(requests)]
    waiting = [None] * requests
    gc.collect()
    before = resident_bytes()
    start = time.monotonic()
    for number in range(requests):
        waiting[number] = design.new_request(run, TIMEOUT, NEVER_MS)
        design.watch(waiting[number], keys[number])
    await asyncio.sleep(0.01)
    gc.collect()
    grown = resident_bytes() - before
    if time.monotonic() > start + TIMEOUT:
        raise Unmeasurable(f"the machine was too busy: requests fell due within {TIMEOUT:.0f} s while others were watched")
    for number in range(requests):
        design.complete(waiting[number])
        waiting[number] = None
    while design.pending():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gc.collect()
    return grown, resident_bytes() - before


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = "Resident memory of a fresh process. left: the share of it that was not given back when all had been completed."
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
    for heading in ("requests", "bytes each", "left"):
        result.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        if each.design == OURS.name:
            result.add_section()
        result.add_row(each.loop, each.design, f"{each.requests:,}", f"{each.bytes_each:,.0f}", f"{each.left:.1%}")
    return result


PROGRAM = Program(
    "memory", "Bytes that a pending request takes, of up to a million, and what is left of them afterwards.", add_arguments, run
)
