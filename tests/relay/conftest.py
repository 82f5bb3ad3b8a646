"""The loops and stores of these tests: relays talk to servers in real time, so they run on the
loops that services run on."""

import os
from collections.abc import Iterator

import pytest
from loops import LOOP_FACTORIES, LoopFactory
from servers import SERVERS, place


@pytest.fixture
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """asyncio's loop, and uvloop's for tests with `servers.on_both_loops`.
    `PURGATORY_RELAY_LOOP=uvloop` moves the other tests to uvloop."""
    return LOOP_FACTORIES[
        getattr(request, "param", os.environ.get("PURGATORY_RELAY_LOOP", "asyncio"))
    ]


@pytest.fixture(
    scope="module",
    params=["file", SERVERS["redis"], SERVERS["valkey"], SERVERS["postgresql"], SERVERS["nats"]],
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a store of each kind."""
    with place(request.param, tmp_path_factory.mktemp("relay")) as url:
        yield url
