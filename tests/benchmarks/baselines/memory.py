"""``python tests/benchmarks memory``: the memory of a pending request, and the memory left after
all requests have ended.

Each request waits for a key of its own. We measure by how much the resident memory of a new process
grows. This includes the request itself with its 100 bytes of payload, about 300 bytes in all
implementations. When all requests have been completed, we measure again. The rest consists of some
megabytes that the allocator keeps for the next requests, and of the objects that the implementation
still holds, which `tracemalloc` measures in another process.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from rich.table import Table

from benchmarks.baselines.implementations import (
    BY_NAME,
    NEVER_MS,
    OURS,
    RunState,
    add_implementations,
    chosen,
)
from benchmarks.cases import QUICK_DIVISOR, LoopName, run_on
from benchmarks.measure import Unmeasurable
from benchmarks.process import in_fresh_process, resident_bytes
from benchmarks.report import opened_console, plain_table, write_report
from purgatory.pipeline._programs import Program

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
TIMEOUT = 300.0
WARM_UP = 1_000


@dataclass(frozen=True, slots=True)
class Figures:
    """The memory of requests, and the shares of it left after all were completed.

    Attributes:
        left: the share that the process had not given back to the system.
        held: the share that Python had not freed.
    """

    loop: LoopName
    implementation: str
    requests: int
    bytes_each: float
    left: float
    held: float


def run(options: argparse.Namespace) -> int:
    """Measures each size, prints the table and writes the JSON."""
    sizes = [SIZES[0] // QUICK_DIVISOR, SIZES[-1] // QUICK_DIVISOR] if options.quick else SIZES
    console = opened_console("memory: of requests in each implementation")
    figures = []
    for loop_name, size, each in product(options.loops, sizes, chosen(options)):
        console.print(f"{size:,} in {each.name} on {loop_name}", style="dim")
        try:
            figures.append(figures_of(loop_name, each.name, size))
        except Unmeasurable as error:
            console.print(f"{size:,} in {each.name}: {error}")
    console.print(table(figures, options.quick))
    write_report(console, options, "memory", runs=list(map(asdict, figures)))
    return 0


def figures_of(loop_name: LoopName, name: str, size: int) -> Figures:
    grown, left = in_fresh_process(measure, loop_name, name, size)
    traced, held = in_fresh_process(measure, loop_name, name, size, traced=True)
    return Figures(loop_name, name, size, grown / size, left / max(grown, 1), held / max(traced, 1))


def measure(
    loop_name: LoopName, name: str, requests: int, *, traced: bool = False
) -> tuple[int, int]:
    """The number of bytes by which pending requests make this process grow, and the number of these
    bytes left at the end.

    Call it in a new process.

    Args:
        traced: measure the memory allocated by Python, not the process's.
    """
    return run_on(
        loop_name, _grow_and_shrink(name, requests, _traced if traced else resident_bytes)
    )


def _traced() -> int:
    import tracemalloc  # PyPy has none

    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


async def _grow_and_shrink(name: str, requests: int, memory: Callable[[], int]) -> tuple[int, int]:
    """The growth of `memory` while all requests are pending, and after all were completed."""
    run_state, implementation = RunState(), BY_NAME[name].make()
    for number in range(WARM_UP):  # creates all objects that are created only once
        request = implementation.new_request(run_state, TIMEOUT, NEVER_MS)
        implementation.watch(request, (number,))
        implementation.complete(request)
    await asyncio.sleep(0.01)
    keys = [(number,) for number in range(requests)]
    waiting = [None] * requests
    gc.collect()
    before = memory()
    start = time.monotonic()
    for number in range(requests):
        waiting[number] = implementation.new_request(run_state, TIMEOUT, NEVER_MS)
        implementation.watch(waiting[number], keys[number])
    await asyncio.sleep(0.01)
    gc.collect()
    grown = memory() - before
    if time.monotonic() > start + TIMEOUT:
        raise Unmeasurable(
            f"the machine was too busy: requests fell due within {TIMEOUT:.0f} s while others "
            "were watched"
        )
    for number in range(requests):
        implementation.complete(waiting[number])
        waiting[number] = None
    while implementation.pending():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gc.collect()
    return grown, memory() - before


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        "Resident memory of a new process. left: the share not returned to the system after "
        "all were completed;\n"
        "held: the share of Python's allocations that was not freed."
    )
    numbers = ("requests", "bytes each", "left", "held")
    result = plain_table(
        "Memory of a pending request", caption, ("loop", "implementation"), numbers, quick
    )
    for each in figures:
        if each.implementation == OURS.name:
            result.add_section()
        shares = f"{each.left:.1%}", f"{each.held:.1%}"
        result.add_row(
            each.loop, each.implementation, f"{each.requests:,}", f"{each.bytes_each:,.0f}", *shares
        )
    return result


PROGRAM = Program(
    "memory",
    "Bytes of a pending request, with up to a million pending, and the bytes left afterwards.",
    add_implementations,
    run,
)
