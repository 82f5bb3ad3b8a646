"""For tests: a broker in a thread of its own, ready in some milliseconds, and a pytest fixture. See README.md."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from anyio.from_thread import start_blocking_portal

from .server import Server, new_loop
from .settings import Settings


class BrokerThread(ExitStack):
    """A broker that runs while the `with` lasts.

    with BrokerThread(Settings(replicas=3)) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.address)

    Attributes:
        server: what runs.
        address: for the clients, as `127.0.0.1:40123`.
    """

    def __init__(self, settings: Settings | None = None, port: int = 0) -> None:
        super().__init__()
        self._settings, self._port = settings, port

    def __enter__(self) -> "BrokerThread":
        portal = self.enter_context(start_blocking_portal("asyncio", {"loop_factory": new_loop}))
        self.server = portal.call(Server, self._settings, "127.0.0.1", self._port)
        try:
            self.enter_context(portal.wrap_async_context_manager(self.server))
        except BaseException:  # such as a port that is taken
            self.close()
            raise
        self.address = self.server.address
        return self


@pytest.fixture
def kafka_broker() -> Iterator[str]:
    """The address of a new, empty broker."""
    with BrokerThread() as broker:
        yield broker.address
