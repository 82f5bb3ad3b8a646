"""A service of two workers is restarted under load, one worker after the other: no wait is lost,
and each request without a version has a known reason."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from asyncio import IncompleteReadError, create_task
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from servers import SERVERS, TIMEOUT, place

sys.path.insert(0, str(Path(__file__).parent.parent))
from asgi_connection import Connection
from ports import free_port

pytestmark = pytest.mark.slow

WORKERS = 2
KEYS = [f"key{number}" for number in range(10)]
ROUTES = ["relay", "attached"]
WAITS_PER_KEY = 2  # on each route
CHECKS = ["--timeout-worker-healthcheck", "60"]  # a busy machine starts a worker slowly
WORKER_CLASS = ["--worker-class", "uvicorn_worker.UvicornWorker"]
COMMANDS = {
    "uvicorn": ["uvicorn", "--workers", str(WORKERS), *CHECKS, "--port"],
    "gunicorn": [
        "gunicorn",
        "--workers",
        str(WORKERS),
        "--worker-class",
        "uvicorn_worker.UvicornWorker",
        "--no-control-socket",
        "--bind",
    ],
}


@pytest.fixture(scope="module", params=["file", SERVERS["redis"], SERVERS["postgresql"]])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with place(request.param, tmp_path_factory.mktemp("relay")) as url:
        yield url


@contextmanager
def service(server: str, url: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """The service's first process, and its port."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        *COMMANDS[server],
        str(port) if server == "uvicorn" else f"127.0.0.1:{port}",
    ]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "ROLLING_STORE": url, "PYTHONPATH": path}
    with subprocess.Popen(
        [*command, "rolling_app:app"], env=environment, start_new_session=True
    ) as process:
        try:
            yield process, port
            process.terminate()
            assert process.wait(TIMEOUT) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Clients:
    """Clients that wait and write, and the answers they received."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.workers: set[int] = set()
        """The workers that have answered."""
        self.unanswered: Counter[str] = Counter()
        """The reasons why requests got no version."""
        self.seen: dict[tuple[str, str, int], int] = {}
        """The last version that each waiter has received."""
        self.given: dict[str, list[int]] = {key: [] for key in KEYS}
        """The versions given to writers."""
        self.is_writing = True

    async def keep_waiting(self, route: str, key: str, number: int) -> None:
        waiter, client = (route, key, number), Client(self)
        self.seen[waiter] = 0
        try:
            while True:
                version = await client.ask(
                    "GET", f"/{route}/{key}?seen={self.seen[waiter]}&wait=600"
                )
                if version is not None:
                    assert version > self.seen[waiter]
                    self.seen[waiter] = version
        finally:
            client.leave()

    async def keep_writing(self) -> None:
        client = Client(self)
        while self.is_writing:
            await self.write(client, random.choice(KEYS))
            if random.random() < 0.5:  # the next connection is perhaps another worker's
                client.leave()
            await asyncio.sleep(0.01)
        client.leave()

    async def write(self, client: "Client", key: str) -> int | None:
        version = await client.ask("POST", f"/{key}")
        if version is not None:
            self.given[key].append(version)
        return version

    async def answered_by_others(self, before: set[int]) -> None:
        """Waits until `WORKERS` workers outside `before` have answered, and no worker of `before`
        is alive."""
        self.workers.clear()
        while len(self.workers - before) < WORKERS or any(is_alive(worker) for worker in before):
            await asyncio.sleep(0.05)


class Client:
    """A client with a connection of its own, which it makes anew when that has ended."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._connection: Connection | None = None

    async def ask(self, method: str, target: str) -> int | None:
        """The version in the answer of the service, if it has one."""
        try:
            if self._connection is None:
                self._connection = Connection(
                    *await asyncio.open_connection("127.0.0.1", self._clients.port)
                )
            self._connection.send(target, method)
            status, headers, content = await self._connection.answer()
        except (IncompleteReadError, ConnectionError) as error:
            has_begun = isinstance(error, IncompleteReadError) and bool(error.partial)
            self._clients.unanswered[
                "cut in the middle of an answer" if has_begun else "cut before an answer"
            ] += 1
            self.leave()
            return None
        if headers.get("connection") == "close":
            self.leave()
        if status != 200:
            self._clients.unanswered[f"{status} {content.decode()}"] += 1
            return None
        answer = json.loads(content)
        self._clients.workers.add(answer["worker"])
        version: int = answer["version"]
        return version

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.hang_up()
            self._connection = None


def is_alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("server", COMMANDS)
async def test_rolling_restart_loses_no_wait_and_names_endings(server: str, url: str) -> None:
    with service(server, url) as (process, port):
        clients = Clients(port)
        writer = Client(clients)
        while await clients.write(writer, KEYS[0]) is None:
            assert process.poll() is None
            await asyncio.sleep(0.05)
        clients.unanswered.clear()
        waiters = [
            (route, key, number)
            for route in ROUTES
            for key in KEYS
            for number in range(WAITS_PER_KEY)
        ]
        waiting = [create_task(clients.keep_waiting(*waiter)) for waiter in waiters]
        writing = [create_task(clients.keep_writing()) for _ in range(4)]
        before: set[int] = set()
        for _ in range(2):
            await clients.answered_by_others(before)
            before = set(clients.workers) - before
            process.send_signal(signal.SIGHUP)
        await clients.answered_by_others(before)
        clients.is_writing = False
        await asyncio.gather(*writing)
        writer.leave()
        last: dict[str, int] = {}
        for key in KEYS:
            version = await clients.write(writer, key)
            assert version is not None
            last[key] = version
        writer.leave()
        while any(clients.seen[waiter] < last[waiter[1]] for waiter in waiters):
            assert not any(task.done() for task in waiting)
            await asyncio.sleep(0.01)
        assert all(clients.seen[waiter] == last[waiter[1]] for waiter in waiters)
        assert all(len(numbers) == len({*numbers}) for numbers in clients.given.values())
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert clients.unanswered["503 the server is stopping"] > 0
        assert {*clients.unanswered} <= {"503 the server is stopping", "cut before an answer"}
