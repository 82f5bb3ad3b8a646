"""The pages of several workers, real processes on real stores: each lists the others, and one that
is killed is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
from ports import free_port
from servers import place

pytestmark = pytest.mark.slow

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes

WORKER = """if True:
    import asyncio, socket, sys
    from contextlib import asynccontextmanager
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from purgatory import DelayedOperation, Purgatory
    from purgatory.asgi import console
    from purgatory.relay import Relay

    class Job(DelayedOperation[None]):
        def try_complete(self):
            return False

    store, pending, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jobs, relay = Purgatory("jobs"), Relay(store)

    @asynccontextmanager
    async def lifespan(app):
        async with relay:
            for _ in range(pending):
                jobs.try_complete_else_watch(Job(600), ["a secret key"])
            yield

    page = console(jobs, relay=relay, address=f"http://127.0.0.1:{port}/purgatory/" if pending > 5 else None)
    app = Starlette(routes=[Mount("/purgatory", page)], lifespan=lifespan)
    uvicorn.run(app, port=port, log_level="warning")
"""


class Worker:
    """A process with a page."""

    def __init__(self, store: str, pending: int) -> None:
        self.port = free_port()
        self.pending = pending
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", WORKER, store, str(pending), str(self.port)]
        self.process = subprocess.Popen(command, env=environment)

    def state(self) -> dict[str, Any]:
        """The present state of its page."""
        opener = build_opener(ProxyHandler({}))
        with opener.open(
            f"http://127.0.0.1:{self.port}/purgatory/state", timeout=TIMEOUT
        ) as answer:
            return json.loads(answer.read())

    def others(self) -> list[dict[str, Any]]:
        try:
            others: list[dict[str, Any]] = self.state()["others"]
        except OSError:
            assert self.process.poll() is None, "the worker has ended"
            return []  # it has not begun to serve
        return others


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, "it has not come"
        time.sleep(0.1)


@pytest.fixture(params=["file", "redis"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Worker]]:
    with place(request.param, tmp_path) as url:
        workers = [Worker(url, pending) for pending in (3, 5, 7)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


def test_page_lists_live_workers_only(
    workers: list[Worker],
) -> None:
    for worker in workers:
        pending = sorted(other.pending for other in workers if other is not worker)
        until(
            lambda worker=worker, pending=pending: (
                sorted(each["pending"] for each in worker.others()) == pending
            )
        )
    first, second, victim = workers
    announced = {each["pid"]: each for each in first.others()}
    assert announced.keys() == {second.process.pid, victim.process.pid}
    assert announced[victim.process.pid]["address"] == f"http://127.0.0.1:{victim.port}/purgatory/"
    assert announced[second.process.pid]["address"] is None
    assert (
        announced[second.process.pid]["host"]
        == socket.gethostname()
        == first.state()["worker"]["host"]
    )
    assert "secret" not in json.dumps(first.state()["others"])
    victim.process.send_signal(signal.SIGKILL)
    until(lambda: [each["pid"] for each in first.others()] == [second.process.pid])
    until(lambda: [each["pid"] for each in second.others()] == [first.process.pid])
