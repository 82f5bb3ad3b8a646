"""The folder `examples/broker` is imported as the package `broker`, as those do who copy it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path[:0] = [str(EXAMPLES), str(Path(__file__).parent)]

from broker.settings import Settings  # noqa: E402
from broker.testing import BrokerThread, kafka_broker  # noqa: E402, F401


@pytest.fixture
def start_broker() -> Iterator[Callable[..., BrokerThread]]:
    """Starts brokers with these settings; all are stopped at the end of the test."""
    with ExitStack() as stack:

        def start(port: int = 0, **settings: Any) -> BrokerThread:
            return stack.enter_context(BrokerThread(Settings(**settings), port))

        yield start
