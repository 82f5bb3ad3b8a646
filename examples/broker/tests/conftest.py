"""The fixtures of the broker's tests. Tests that are coroutine functions run on virtual time."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest
from purgatory_broker.pytest_plugin import kafka_broker, kafka_broker_session, kafka_broker_settings  # noqa: F401
from raw import Direct, running_broker
from requirements import CLIENTS, left_out_without
from tiers import mark_nightly

from purgatory.testing import VirtualTimeLoop

collect_ignore = left_out_without(CLIENTS, "test_exactly_once.py", "test_librdkafka.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_nightly(items)


reports: list[dict[str, Any]] = []
"""Contexts passed to the exception handlers of loops."""


def new_virtual_loop() -> VirtualTimeLoop:
    loop = VirtualTimeLoop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    return loop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], Any]]:
    return {"virtual": new_virtual_loop}


@pytest.fixture(autouse=True)
def nothing_is_reported() -> Iterator[None]:
    """Fails if anything was reported to the exception handler of a test's loop."""
    reports.clear()
    yield
    assert reports == []


@pytest.fixture
async def client() -> AsyncIterator[Direct]:
    """A client of a new broker with a topic, without a network."""
    async with running_broker() as client:
        yield client
