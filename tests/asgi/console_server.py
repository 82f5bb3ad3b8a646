"""An application with the page, for its tests in a browser: its other paths change its purgatory.

python console_server.py PORT [FOLDER]     with a relay in that folder, if one is given

    /wait/5/order     five operations wait under the key "order"
    /check/order      those who wait under it are completed
    /miss/order       one is forgotten to be checked
    /attack           three wait under keys that no page should obey
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from purgatory import DelayedOperation, Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls, console
from purgatory.asgi._console import _app
from purgatory.metrics import Meter
from purgatory.relay import Relay

ATTACKS = ["<script>window.hacked = 1</script>", '<img src=x onerror="window.hacked = 1">', "</td><b>bold</b>"]

meter = Meter()
jobs: Purgatory["Job"] = Purgatory("jobs", observer=meter)
versions: ThresholdPurgatory[str, int] = ThresholdPurgatory("versions")
polls = LongPolls()
port, *folders = sys.argv[1:]
relay = Relay(f"file://{folders[0]}") if folders else None
ready: set[str] = set()


class Job(DelayedOperation[None]):
    """Completes when its key is ready."""

    def __init__(self, key: str, timeout: float) -> None:
        super().__init__(timeout)
        self.key = key

    def try_complete(self) -> bool:
        return self.key in ready and self.force_complete()


async def hello(_: Request) -> Response:
    return Response()


async def wait(request: Request) -> Response:
    for _ in range(int(request.path_params["count"])):
        jobs.try_complete_else_watch(Job(request.path_params["key"], 600), [request.path_params["key"]])
    return Response()


async def check(request: Request) -> Response:
    ready.add(request.path_params["key"])
    jobs.check_and_complete(request.path_params["key"])
    return Response()


async def miss(request: Request) -> Response:
    jobs.try_complete_else_watch(Job(request.path_params["key"], 0.1), [request.path_params["key"]])
    ready.add(request.path_params["key"])
    return Response()


async def attack(_: Request) -> Response:
    for key in ATTACKS:
        jobs.try_complete_else_watch(Job(key, 600), [key])
    return Response()


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with relay or nullcontext():
        yield


_app.MAX_WAIT = float(os.environ.get("MAX_WAIT", _app.MAX_WAIT))
page = console(
    jobs,
    versions,
    polls=polls,
    meter=meter,
    relay=relay,
    address=f"http://127.0.0.1:{port}/purgatory/",
    refresh=float(os.environ.get("REFRESH", "0.25")),
)
routes = [
    Route("/hello", hello),
    Route("/wait/{count}/{key}", wait),
    Route("/check/{key}", check),
    Route("/miss/{key}", miss),
    Route("/attack", attack),
    Mount("/purgatory", page),
]

if __name__ == "__main__":
    uvicorn.run(polls.middleware(Starlette(routes=routes, lifespan=lifespan)), port=int(port), log_level="warning")
