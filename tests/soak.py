"""``python tests/soak.py``: each public call a hundred thousand times and more, and the memory that
it leaves in use.

The loop runs on virtual time, which advances by 10 ms every eighth cycle, and Python's collector of
reference cycles is off. Objects and memory in use are counted after the warm-up, a tenth as long,
and at the end. The growth:

    blocks  blocks of Python's allocator, one or two for each object; must not grow with the cycles
    RSS     peak memory of the process; includes memory outside of Python's objects, such as tables
    cyclic  objects in reference cycles, which only the collector can free

Purgatories that are created and dropped, and operations whose hooks raise, need the collector,
which is on for them. A journal's rows wait for its thread: its warm-up is as long as the count, and
it is judged by RSS alone.
"""

import argparse
import asyncio
import gc
import resource
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context

from helpers import collector
from soak_calls import BUFFERED, CALLS, COLLECTED, Cycle, World

from purgatory.testing import VirtualTimeLoop

MAX_BLOCKS_PER_CYCLE, MAX_BYTES_PER_CYCLE = 0.001, 1.0
"""Limits of the growth per cycle: blocks of Python's allocator, and bytes of the process."""
MAX_TRANSIENT_BLOCKS, MAX_TRANSIENT_BYTES = 1_000, 1_000_000
"""Growth that is allowed in addition, because it varies over time."""

STEP_CYCLES, STEP_SECONDS = 8, 0.01
"""The number of cycles between two advances of the time, and the length of an advance in
seconds."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The memory left in use by some cycles of a call."""

    cycles: int
    blocks: int
    bytes: int
    """Traced bytes; zero unless the slow `tracemalloc` is on."""
    rss: int
    """Growth of the peak memory, in bytes."""
    cyclic: int
    seconds: float


def soak(name: str, *stages: int) -> list[Figures]:
    """Runs one of `CALLS` for the given cycles in each stage, on a loop of its own.

    Args:
        name: name of the call.
        stages: number of cycles of each stage; the first stage is the warm-up.

    Returns:
        The figures of each stage but the first.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, collector(is_on=name in COLLECTED):
        return runner.run(_soak(name, stages))


async def _soak(name: str, stages: Sequence[int]) -> list[Figures]:
    async with World() as world:
        cycle = CALLS[name](world)
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
    """Runs the program. Returns 1 if the memory of any call grew."""
    parser = argparse.ArgumentParser(
        description="Repeats each public call, and reports the memory that it leaves in use."
    )
    parser.add_argument(
        "--cycles",
        type=int,
        default=100_000,
        metavar="N",
        help="cycles of each call (default: %(default)s)",
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
    )  # each in its own process: leftovers of another call would hide its growth
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
