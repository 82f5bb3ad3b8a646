"""Each public call that waits, ends a wait or limits a wait leaves no memory in use.

The loop runs on virtual time, which advances by 10 ms every eighth cycle, and Python's collector of
reference cycles is off, except for the calls that leave cycles to it (`COLLECTED`).
"""

import asyncio
import gc
import tracemalloc

import pytest
from helpers import collector
from soak_calls import CALLS, COLLECTED, World

from purgatory.testing import VirtualTimeLoop

STAGES = 4
CYCLES, CYCLES_COLLECTED = 128, 2048
"""In each stage; what is left to the collector leaves some kB to and fro, however many cycles."""
STEP_CYCLES, STEP_SECONDS = 8, 0.01
MIN_OBJECT_BYTES = 16
"""Bytes of the smallest object: a call that leaves one behind in each cycle leaves at least as many.
Less is the interpreter's own."""


def is_slow(name: str) -> bool:
    """Whether it takes many cycles, or is a poll that waits in another way than the first."""
    is_poll = name.startswith("LongPolls") and "LongPolls: predicate" not in name
    return name in COLLECTED or is_poll


async def soak(name: str, cycles: int) -> tuple[list[int], int]:
    """Bytes by which each stage but the first, the warm-up, grows, and the objects in cycles."""
    grown, cyclic = [], 0
    async with World() as world:
        cycle = CALLS[name](world)
        before = 0
        for stage in range(STAGES):
            for number in range(stage * cycles, (stage + 1) * cycles):
                await cycle(number)
                if number % STEP_CYCLES == 0:
                    await asyncio.sleep(STEP_SECONDS)
            await asyncio.sleep(2 * STEP_SECONDS)
            cyclic = gc.collect() + (cyclic if stage > 1 else 0)
            in_use = tracemalloc.get_traced_memory()[0]
            grown.append(in_use - before)
            before = in_use
    return grown[1:], cyclic


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * is_slow(name)) for name in CALLS]
)
def test_memory_is_flat(name):
    is_collected = name in COLLECTED
    cycles = CYCLES_COLLECTED if is_collected else CYCLES
    tracemalloc.start()
    try:
        with (
            asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
            collector(is_on=is_collected),
        ):
            grown, cyclic = runner.run(soak(name, cycles))
    finally:
        tracemalloc.stop()
    # Leftovers grow in each stage. Buckets that are opened, and tables that are full, grow in one.
    assert min(grown) < cycles * MIN_OBJECT_BYTES
    assert is_collected or not cyclic
