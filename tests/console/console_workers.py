"""An application for several workers behind one address, for the tests of the page in a browser:
`uvicorn console_workers:app --workers 4`. With a relay if `RELAY` has its address.

    /wait/50    starts 50 operations in the worker that answers, and returns its process id
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import console
from purgatory.relay import Relay

jobs: Purgatory["Job"] = Purgatory("jobs")
relay = Relay(os.environ["RELAY"]) if "RELAY" in os.environ else None


class Job(DelayedOperation[None]):
    """Never completes."""

    def try_complete(self) -> bool:
        return False


async def wait(request: Request) -> Response:
    for number in range(int(request.path_params["count"])):
        jobs.try_complete_else_watch(Job(600), [number])
    return PlainTextResponse(str(os.getpid()), headers={"connection": "close"})


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with relay or nullcontext():
        yield


app = Starlette(
    routes=[Route("/wait/{count}", wait), Mount("/purgatory", console(jobs, relay=relay))],
    lifespan=lifespan,
)
