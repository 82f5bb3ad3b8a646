"""For tests: a broker in a thread of its own. `pytest_plugin` has it as a fixture."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import ParamSpec, TypeVar

from anyio.from_thread import start_blocking_portal

from .server import Server, new_loop
from .settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class BrokerThread(ExitStack):
    """A broker that runs while the `with` lasts.

    with BrokerThread(Settings(replicas=3)) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.address)

    Attributes:
        server: what runs, in its own thread: use `call`.
        address: for the clients, as `127.0.0.1:40123`.
    """

    def __init__(self, settings: Settings | None = None, port: int = 0) -> None:
        super().__init__()
        self._settings, self._port = settings, port

    def __enter__(self) -> "BrokerThread":
        self._portal = self.enter_context(start_blocking_portal("asyncio", {"loop_factory": new_loop}))
        try:
            self.server = self.call(Server, self._settings, "127.0.0.1", self._port)
            self.enter_context(self._portal.wrap_async_context_manager(self.server))
        except BaseException:  # such as a port that is taken
            self.close()
            raise
        self.address = self.server.address
        return self

    def call(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        """Calls a function in the broker's thread, and returns its result."""
        return self._portal.call(partial(function, *arguments, **named))

    def clear(self) -> None:
        """Closes all connections, and deletes all topics, groups and offsets: as if the broker were new."""
        self.call(self.server.clear)
