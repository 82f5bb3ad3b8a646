"""The pytest plugin: `kafka_broker` for a test, `kafka_broker_session` for a session,
`kafka_broker_settings` for both.

    def test_an_order_arrives(kafka_broker):
        producer = KafkaProducer(bootstrap_servers=kafka_broker.address)

One broker serves all tests of a process, under pytest-xdist one for each worker. It needs no other
plugin.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # a session without these fixtures loads nothing of the broker
    from .settings import Settings
    from .testing import BrokerThread


@pytest.fixture(scope="session")
def kafka_broker_settings() -> "Settings | None":
    """The settings of the broker: override it in `conftest.py` to return your own."""
    return None


@pytest.fixture(scope="session")
def kafka_broker_session(kafka_broker_settings: "Settings | None") -> "Iterator[BrokerThread]":
    """A broker for the whole session; clients connect to its `address`."""
    from .testing import BrokerThread  # noqa: PLC0415

    with BrokerThread(kafka_broker_settings) as broker:
        yield broker


@pytest.fixture
def kafka_broker(kafka_broker_session: "BrokerThread") -> "Iterator[BrokerThread]":
    """The broker of the session, empty again after the test: connections closed, topics, groups and
    offsets deleted."""
    yield kafka_broker_session
    kafka_broker_session.clear()
