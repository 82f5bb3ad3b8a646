"""The loops and stores of these tests: relays talk to servers in real time, so they run on the
loops that services run on."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loops import CURRENT, LOOP_FACTORIES
from servers import SERVERS, TIMEOUT, served

from purgatory.relay import Relay

KIND_OF_LOOP = os.environ.get("PURGATORY_RELAY_LOOP", "asyncio")
"""`PURGATORY_RELAY_LOOP=uvloop` moves the tests to uvloop."""

prefixes = count(1)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], Any]]:
    """asyncio's loop, and uvloop's for tests with `servers.on_both_loops`."""
    marker = item.get_closest_marker("asyncio")
    kinds = marker.kwargs.get("loop_factories", [KIND_OF_LOOP]) if marker else [KIND_OF_LOOP]
    return {kind: partial(CURRENT.new_loop, kind) for kind in kinds}


@pytest.fixture(autouse=True)
def connection_may_be_lost(nothing_is_reported):
    """asyncpg reports a connection that is lost, or cancelled, while it connects."""
    yield
    lost = "unexpected connection_lost()"
    CURRENT.reports[:] = [r for r in CURRENT.reports if lost not in str(r.get("exception"))]


@pytest.fixture
def loop_factory():
    return LOOP_FACTORIES[KIND_OF_LOOP]


@pytest.fixture(
    scope="module",
    params=["file", SERVERS["redis"], SERVERS["valkey"], SERVERS["postgresql"], SERVERS["nats"]],
)
def url(request, tmp_path_factory):
    """The address of a store of each kind."""
    with served(request.param, tmp_path_factory.mktemp("relay")) as store:
        yield store.url


@pytest.fixture(scope="module")
def postgres():
    with served("postgresql", Path()) as server:
        server.run("CREATE ROLE app LOGIN; CREATE ROLE mallory LOGIN; CREATE ROLE owner LOGIN")
        yield server


@pytest.fixture
def prefix():
    """A prefix that no other test has."""
    return f"test{next(prefixes)}"


@pytest.fixture
def relay(url, prefix):
    """Makes relays on one store, which is empty."""
    return lambda **options: Relay(
        url, **{"prefix": prefix, "timeout": TIMEOUT, "resync": TIMEOUT, **options}
    )


@pytest.fixture
def file_relay(tmp_path):
    return lambda **options: Relay(f"file://{tmp_path}/app", **{"timeout": TIMEOUT, **options})
