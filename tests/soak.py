"""``python tests/soak.py``: each public call a hundred thousand times and more, and what memory
each has left behind.

The loop runs on virtual time, which moves on by 10 ms every eighth cycle, and Python's collector of
reference cycles is off. Objects and memory in use are counted after the warm-up, a tenth as long,
and at the end. The growth:

    blocks  of memory that Python's allocator has handed out, one or two for each object: none, however many cycles
    RSS     the highest use of the process; it includes memory outside of Python's objects, such as tables
    cyclic  objects in reference cycles: what only the collector could free

Purgatories that were made and dropped, and operations whose hooks raise, are left to the collector,
which is on then. A journal's rows wait for its thread: it warms up for as long as it is counted,
and is judged by RSS alone.
"""

import argparse
import asyncio
import contextlib
import gc
import resource
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context

from helpers import collector
from soak_calls import BUFFERED, CALLS, COLLECTED, Cycle

from purgatory.testing import VirtualTimeLoop

MAX_BLOCKS_PER_CYCLE, MAX_BYTES_PER_CYCLE = 0.001, 1.0
"""Blocks of Python's allocator, and bytes of the process ..."""
MAX_TRANSIENT_BLOCKS, MAX_TRANSIENT_BYTES = 1_000, 1_000_000
"""... beyond so many, which come and go."""

STEP_CYCLES, STEP_SECONDS = 8, 0.01
"""After so many cycles time moves on by so many seconds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What some cycles of a call have left behind."""

    cycles: int
    blocks: int
    bytes: int
    """Zero unless `tracemalloc` traces, which takes its time."""
    rss: int
    """In bytes."""
    cyclic: int
    seconds: float


def soak(name: str, *stages: int) -> list[Figures]:
    """Runs one of `CALLS` for the given cycles in each stage, on a loop of its own.

    Args:
        name: of the call.
        stages: cycles each; the first one warms up.

    Returns:
        The figures of each stage but the first.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, collector(is_on=name in COLLECTED):
        return runner.run(_soak(name, stages))


async def _soak(name: str, stages: Sequence[int]) -> list[Figures]:
    async with contextlib.AsyncExitStack() as stack:
        cycle = CALLS[name](stack)
        figures: list[Figures] = []
        begun = 0
        before = _in_use()
        for cycles in stages:
            start = time.perf_counter()
            await _run(cycle, begun, cycles)
            seconds = time.perf_counter() - start
            cyclic = gc.collect()
            grown = [now - earlier for now, earlier in zip(_in_use(), before, strict=True)]
            figures.append(Figures(cycles, *grown, cyclic, seconds))
            begun += cycles
            before = _in_use()
        return figures[1:]


def _in_use() -> tuple[int, int, int]:
    """Blocks, bytes and RSS, as in `Figures`."""
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0], rss


async def _run(cycle: Cycle, first: int, cycles: int) -> None:
    for number in range(first, first + cycles):
        await cycle(number)
        if number % STEP_CYCLES == 0:
            await asyncio.sleep(STEP_SECONDS)
    await asyncio.sleep(2 * STEP_SECONDS)


def main() -> int:
    """Runs the program; 1 if anything was not flat."""
    parser = argparse.ArgumentParser(
        description="Each public call over and over: what it leaves in memory."
    )
    parser.add_argument(
        "--cycles",
        type=int,
        default=100_000,
        metavar="N",
        help="of each call (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="calls whose names contain this; may be repeated",
    )
    options = parser.parse_args()
    names = [
        name for name in CALLS if not options.only or any(part in name for part in options.only)
    ]
    print(
        f"{options.cycles:,} cycles each, after {options.cycles // 10:,}: how much more is in "
        "use after them"
    )
    print(f"{'call':48} {'blocks':>7} {'RSS kB':>7} {'cyclic':>7} {'µs a cycle':>10}")
    processes = get_context(
        "spawn"
    )  # each in one of its own: leftovers of another would hide its growth
    are_flat = True
    for name in names:
        with processes.Pool(1) as pool:
            warm_up = options.cycles if name in BUFFERED else options.cycles // 10
            [grown] = pool.apply(soak, (name, warm_up, options.cycles))
        is_flat = grown.rss < MAX_TRANSIENT_BYTES + MAX_BYTES_PER_CYCLE * grown.cycles
        is_flat &= (
            grown.blocks < MAX_TRANSIENT_BLOCKS + MAX_BLOCKS_PER_CYCLE * grown.cycles
            or name in BUFFERED
        )
        is_flat &= not grown.cyclic or name in COLLECTED
        are_flat &= is_flat
        microseconds = grown.seconds / grown.cycles * 1e6
        row = (
            f"{name:48} {grown.blocks:7,} {grown.rss // 1024:7,} {grown.cyclic:7,} "
            f"{microseconds:10.0f}"
        )
        print(row if is_flat else f"{row}  NOT FLAT", flush=True)
    return 0 if are_flat else 1


if __name__ == "__main__":
    raise SystemExit(main())
