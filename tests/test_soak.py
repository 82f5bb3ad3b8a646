"""A short run of `soak`, which run by itself makes each call a hundred thousand times."""

import tracemalloc

import pytest
from soak import soak
from soak_calls import BUFFERED, CALLS, COLLECTED

CYCLES, CYCLES_COLLECTED = 128, 2048
"""In each stage; what is left to the collector leaves some kB to and fro, however many cycles."""
MIN_OBJECT_BYTES = 16
"""Bytes of the smallest object: what leaves one behind in each cycle leaves so much. Less is the
interpreter's own."""


def is_slow(name: str) -> bool:
    """Whether it takes many cycles, or is a poll that waits in another way than the first."""
    return name in COLLECTED or (
        name.startswith("LongPolls") and "LongPolls: predicate" not in name
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if is_slow(name) else [])
        for name in CALLS
        if name not in BUFFERED  # its thread has a clock of its own
    ],
)
def test_memory_is_flat(name):
    cycles = CYCLES_COLLECTED if name in COLLECTED else CYCLES
    tracemalloc.start()
    try:
        figures = soak(name, *([cycles] * 4))
    finally:
        tracemalloc.stop()
    # Leftovers grow in each stage. Buckets that are opened, and tables that are full, grow in one.
    assert min(each.bytes for each in figures) < cycles * MIN_OBJECT_BYTES
    assert name in COLLECTED or not sum(each.cyclic for each in figures)
