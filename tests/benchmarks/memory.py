"""``python tests/benchmarks memory``: the memory of a pending request, and the memory left after
all requests have ended.

Each request waits for a key of its own. We measure by how much the resident memory of a new process
grows. This includes the request itself with its 100 bytes of payload, about 300 bytes in all
implementations. When all requests have been completed, we measure again: `left` is the share that
the process had not given back to the system, `held` the share that Python had not freed, which
`tracemalloc` measures in another process.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from itertools import product

from benchmarks import harness
from benchmarks.harness import QUICK_DIVISOR, Json, LoopName, Unmeasurable, in_fresh_process, run_on
from benchmarks.purgatories import BY_NAME, COMPARED, NEVER_MS, RunState

SUMMARY = "Bytes of a pending request, with up to a million pending, and the bytes left afterwards."
SIZES = (10_000, 100_000, 1_000_000)
TIMEOUT = 300.0
WARM_UP = 1_000
HEADINGS = ("implementation", "loop", "requests", "bytes each", "left", "held")
CAPTION = "Resident memory of a new process; left, held: shares after all were completed."

add_arguments = harness.add_loop


def run(options: argparse.Namespace) -> int:
    """Measures each size."""
    sizes = [SIZES[0] // QUICK_DIVISOR] if options.quick else SIZES
    table: list[list[str]] = []
    runs: list[Json] = []
    for loop, size, name in product(harness.loops(options), sizes, COMPARED):
        try:
            grown, left = in_fresh_process(measure, loop, name, size)
            traced, held = in_fresh_process(measure, loop, name, size, traced=True)
        except Unmeasurable as error:
            harness.progress(f"{size:,} in {name}: {error}")
            continue
        shares = left / max(grown, 1), held / max(traced, 1)
        each = {"loop": loop, "implementation": name, "requests": size, "bytes_each": grown / size}
        runs.append({**each, "left": shares[0], "held": shares[1]})
        cells = [f"{size:,}", f"{grown / size:,.0f}", *(f"{share:.1%}" for share in shares)]
        table.append([name, loop, *cells])
        harness.progress(*table[-1])
    harness.report(options, "memory", HEADINGS, table, CAPTION, runs=runs)
    return 0


def measure(loop: LoopName, name: str, requests: int, *, traced: bool = False) -> tuple[int, int]:
    """The number of bytes by which pending requests make this process grow, and the number of these
    bytes left at the end. Call it in a new process.

    Args:
        traced: measure the memory allocated by Python, not the process's.
    """
    return run_on(
        loop, _grow_and_shrink(name, requests, _traced if traced else harness.resident_bytes)
    )


def _traced() -> int:
    import tracemalloc  # PyPy has none

    if not tracemalloc.is_tracing():
        tracemalloc.start()
    return tracemalloc.get_traced_memory()[0]


async def _grow_and_shrink(name: str, requests: int, memory: Callable[[], int]) -> tuple[int, int]:
    """The growth of `memory` while all requests are pending, and after all were completed."""
    run_state, implementation = RunState(), BY_NAME[name]()
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
        raise Unmeasurable(f"too busy a machine: requests fell due, within {TIMEOUT:.0f} s")
    for number in range(requests):
        implementation.complete(waiting[number])
        waiting[number] = None
    while implementation.pending():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    gc.collect()
    return grown, memory() - before
