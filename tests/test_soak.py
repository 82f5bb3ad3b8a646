"""A short turn of `soak`, which run by itself makes each call a hundred thousand times."""

import tracemalloc

import pytest
from soak import soak
from soak_calls import CALLS, COLLECTED

CYCLES = 64
"""In each stage; what is left behind is more than a byte for each."""


@pytest.mark.parametrize(
    "name", [name for name in CALLS if not name.startswith("Journal")]
)  # its thread has a clock of its own
def test_memory_is_flat(name):
    tracemalloc.start()
    try:
        figures = soak(name, CYCLES, CYCLES, CYCLES, CYCLES)
    finally:
        tracemalloc.stop()
    # What is left behind grows in each stage. Buckets that are opened, and tables that are full, grow in one.
    assert min(each.bytes for each in figures) < CYCLES
    assert name in COLLECTED or not sum(each.cyclic for each in figures)
