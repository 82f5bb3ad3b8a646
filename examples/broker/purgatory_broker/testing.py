"""For tests: a broker in a thread of its own. `pytest_plugin` has it as a fixture."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import ParamSpec, TypeVar

from anyio.from_thread import start_blocking_portal

from .faults import SteppedLoop
from .server import Server
from .settings import Settings

P = ParamSpec("P")
R = TypeVar("R")


class BrokerThread(ExitStack):
    """A broker that runs while the `with` lasts.

    with BrokerThread(Settings(replicas=3)) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.address)

    Attributes:
        server: runs in a thread of its own: use `call`.
        address: for the clients, as `127.0.0.1:40123`.
    """

    def __init__(self, settings: Settings | None = None, port: int = 0) -> None:
        super().__init__()
        self._settings, self._port = settings, port

    def __enter__(self) -> "BrokerThread":
        self._portal = self.enter_context(
            start_blocking_portal("asyncio", {"loop_factory": SteppedLoop})
        )
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
        """Closes all connections, and deletes all topics, groups, offsets and faults: as if the
        broker were new."""
        self.call(self.server.clear)

    # -- faults: see `Faults`

    def fail(self, api: str, error: str, times: int | None = 1) -> None:
        """The next requests of this API get an error: `fail("produce", "NOT_LEADER_OR_FOLLOWER",
        times=3)`."""
        self.call(self.server.broker.faults.fail, api, error, times)

    def delay(self, api: str, seconds: float, times: int | None = 1) -> None:
        """The responses to the next requests of this API come later."""
        self.call(self.server.broker.faults.delay, api, seconds, times)

    def drop(self, api: str, times: int | None = 1, *, handled: bool = False) -> None:
        """The next requests of this API are not handled, or are if `handled`, and their connections
        are closed."""
        self.call(self.server.broker.faults.drop, api, times, handled=handled)

    def expire(self, group_id: str, member_id: str | None = None) -> None:
        """A member is removed from its group as if it had sent no heartbeat; without `member_id`,
        all of them."""
        self.call(self.server.broker.faults.expire, group_id, member_id)

    def advance(self, seconds: float) -> None:
        """Moves the broker's time forward."""
        self.call(self.server.broker.faults.advance, seconds)
