"""An application with the page, for its tests in a browser: its other paths change its purgatory.

uvicorn console_server:app     with a relay if `RELAY` has its store; `ADDRESS` is the page's

/wait/5/order     five operations wait under the key "order"; the answer is the process id
/check/order      those who wait under it are completed
/miss/order       one is forgotten to be checked
/attack           three wait under keys that no page should obey
/session/3        three wait under keys that begin alike
/threshold        two wait for a version
/refuse           a poll was refused
/eight            another page, with eight purgatories
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from purgatory import DelayedOperation, Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls, console
from purgatory.asgi._outcome import Ending
from purgatory.asgi._request import Scope, query_parameter
from purgatory.metrics import Meter
from purgatory.relay import Relay

ATTACKS = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "</td><b>bold</b>",
]

meter = Meter()
jobs: Purgatory["Job"] = Purgatory("jobs", observer=meter)
eight: list[Purgatory["Job"]] = [Purgatory(f"purgatory {number}") for number in range(8)]
versions: ThresholdPurgatory[str, int] = ThresholdPurgatory("versions")
polls = LongPolls()
relay = Relay(os.environ["RELAY"]) if "RELAY" in os.environ else None
ready: set[str] = set()
waiting: list[asyncio.Future[int]] = []


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
        jobs.try_complete_else_watch(
            Job(request.path_params["key"], 600), [request.path_params["key"]]
        )
    return Response(str(os.getpid()), headers={"connection": "close"})


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


async def session(request: Request) -> Response:
    for number in range(request.path_params["count"]):
        key = f"session:eu-west-1:customer:{number:05d}"
        jobs.try_complete_else_watch(Job(key, 600), [key])
    return Response()


async def threshold(_: Request) -> Response:
    versions.advance("orders", 3)
    waiting.extend(asyncio.ensure_future(versions.wait("orders", number, 600)) for number in (5, 7))
    return Response()


async def refuse(_: Request) -> Response:
    polls.endings[Ending.REFUSED] += 1
    return Response()


def authorize(scope: Scope) -> bool:
    """As the README has it: by a parameter of the query."""
    return query_parameter(scope, "token") == "secret"


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with relay or nullcontext():
        yield


options = {"address": os.environ.get("ADDRESS"), "refresh": 0.25}
page = console(jobs, versions, polls=polls, meter=meter, relay=relay, **options)
routes = [
    Route("/hello", hello),
    Route("/wait/{count}/{key}", wait),
    Route("/check/{key}", check),
    Route("/miss/{key}", miss),
    Route("/attack", attack),
    Route("/session/{count:int}", session),
    Route("/threshold", threshold),
    Route("/refuse", refuse),
    Mount("/purgatory", page),
    Mount("/eight", console(*eight)),
    Mount("/guarded", console(jobs, name="orders service", authorize=authorize)),
]
app = polls.middleware(Starlette(routes=routes, lifespan=lifespan))
