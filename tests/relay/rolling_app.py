"""The service that is restarted under load: `GET /relay/{key}` waits with a relay, `GET
/attached/{key}` with a purgatory attached to that relay, `POST /{key}` raises the version. The
service answers with the version and the id of its process.

The relay's resync finds no lost change: its interval is longer than the test.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from purgatory import Purgatory
from purgatory.asgi import LongPolls, Outcome
from purgatory.relay import Relay

relay = Relay(os.environ["ROLLING_STORE"], resync=3_600, timeout=60)
purgatory: Purgatory[Any] = Purgatory()
relay.attach(purgatory)
polls = LongPolls(max_wait=600)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with relay:
        yield
    await purgatory.aclose()


app = FastAPI(lifespan=lifespan)


@app.get("/relay/{key}")
async def wait_for_relay(key: str, seen: int, request: Request) -> Response:
    return response_to(await polls.poll(request.scope).run(relay.wait(key, seen)))


@app.get("/attached/{key}")
async def wait_for_purgatory(key: str, seen: int, request: Request) -> Response:
    async def later_version() -> int | None:
        version = await relay.version(key)
        return version if version > seen else None

    return response_to(await polls.poll(request.scope).wait_for(purgatory, later_version, [key]))


def response_to(outcome: Outcome[int]) -> Response:
    if not outcome.is_satisfied:
        return Response(outcome.reason, outcome.status, outcome.headers)
    return JSONResponse({"version": outcome.value, "worker": os.getpid()}, headers=outcome.headers)


@app.post("/{key}")
async def bump(key: str) -> dict[str, int]:
    return {"version": await relay.bump(key), "worker": os.getpid()}


app.add_middleware(polls.middleware)
