"""For tests: a broker in a thread of its own, ready in some milliseconds, and a pytest fixture. See README.md."""

import asyncio
import threading
from collections.abc import Iterator
from types import TracebackType

import pytest

from .broker import Settings
from .server import Server, new_loop


class BrokerThread:
    """A broker that runs while the `with` lasts.

    with BrokerThread(Settings(replicas=3)) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.address)

    Attributes:
        server: what runs.
        address: for the clients, as `127.0.0.1:40123`.
    """

    def __init__(self, settings: Settings | None = None, port: int = 0) -> None:
        self._settings, self._port = settings, port
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)

    def __enter__(self) -> "BrokerThread":
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        self.address = self.server.address
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # such as a port that is taken
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with Server(self._settings, port=self._port) as self.server:
            self._ready.set()
            await self._stop.wait()


@pytest.fixture
def kafka_broker() -> Iterator[str]:
    """The address of a new, empty broker."""
    with BrokerThread() as broker:
        yield broker.address
