"""Relays talk to servers, in real time: their tests run on the loops that services run on."""

import pytest
from loops import LOOP_FACTORIES, LoopFactory


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """One of the kinds of loop."""
    return LOOP_FACTORIES[request.param]
