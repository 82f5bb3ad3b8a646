"""An application with the page, for its tests in a browser: its other paths change its purgatory.

uvicorn console_server:app     with a relay if `RELAY` has its store; `ADDRESS` is the page's

/wait/5/order     five operations wait under the key "order"; the answer is the process id
/check/order      those who wait under it are completed
/miss/order       one is forgotten to be checked
/attack           three wait under keys that no page should obey
/session/3        three wait under keys that begin alike
/threshold        two wait for a version
/refuse           a poll was refused
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
from purgatory.asgi import LongPolls
from purgatory.asgi._outcome import Ending
from purgatory.asgi._request import Scope, query_parameter
from purgatory.console import console
from purgatory.metrics import Meter
from purgatory.relay import Relay

ATTACKS = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "</td><b>bold</b>",
]

meter = Meter()
jobs: Purgatory["Job"] = Purgatory("jobs", observer=meter)
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


def wait(count: str, key: str, timeout: float = 600) -> None:
    for _ in range(int(count)):
        jobs.try_complete_else_watch(Job(key, timeout), [key])


def check(key: str) -> None:
    ready.add(key)
    jobs.check_and_complete(key)


def miss(key: str) -> None:
    wait("1", key, 0.1)
    ready.add(key)


def attack() -> None:
    for key in ATTACKS:
        wait("1", key)


def session(count: str) -> None:
    for number in range(int(count)):
        wait("1", f"session:eu-west-1:customer:{number:05d}")


def threshold() -> None:
    versions.advance("orders", 3)
    waiting.extend(asyncio.ensure_future(versions.wait("orders", number, 600)) for number in (5, 7))


def refuse() -> None:
    polls.endings[Ending.REFUSED] += 1


CHANGES = {"hello": lambda: None} | {
    each.__name__: each for each in (wait, check, miss, attack, session, threshold, refuse)
}


async def change(request: Request) -> Response:
    name, *words = request.url.path.strip("/").split("/")
    CHANGES[name](*words)
    return Response(str(os.getpid()), headers={"connection": "close"})


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
    Mount("/purgatory", page),
    Mount("/guarded", console(jobs, name="orders service", authorize=authorize)),
    *(Route(f"/{name}{{words:path}}", change) for name in CHANGES),
]
app = polls.middleware(Starlette(routes=routes, lifespan=lifespan))
