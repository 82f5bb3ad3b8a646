"""The loops of these tests: relays talk to servers in real time, so they run on the loops that services run on."""

import os

import pytest
from loops import LOOP_FACTORIES, LoopFactory


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """asyncio's; with `servers.on_both_loops` also uvloop's. `PURGATORY_RELAY_LOOP=uvloop` is for the other tests."""
    return LOOP_FACTORIES[getattr(request, "param", os.environ.get("PURGATORY_RELAY_LOOP", "asyncio"))]
