"""The service that the tests run under real servers: `service:app`.

`GET /poll?key=K` waits for `POST /check?key=K`, `GET /news` for the next version of the news, `GET
/events` is a stream of them, `GET /stats` has the open waits. Errors and the endings are printed.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Purgatory
from purgatory.asgi import LongPolls, Outcome, Versions
from purgatory.asgi.sse import event_source

purgatory: Purgatory[Any] = Purgatory()
versions: Versions[str] = Versions(unchanged=304)
polls = LongPolls(max_wait=300, retry_jitter=0)
values: dict[str, str] = {}


async def wait(request: Request) -> Outcome[str]:
    key = request.query_params.get("key", "")
    return await polls.poll(request.scope).wait_for(purgatory, lambda: values.get(key), [key])


async def poll(request: Request) -> Response:
    outcome = await wait(request)
    if not outcome.is_satisfied:
        return Response(outcome.reason, outcome.status, outcome.headers)
    return JSONResponse({"value": outcome.value}, headers=outcome.headers)


async def check(request: Request) -> Response:
    key = request.query_params.get("key", "")
    values[key] = (await request.body()).decode() or "1"
    return JSONResponse({"completed": purgatory.check_and_complete(key)})


async def news(request: Request) -> Response:
    outcome = await versions.changed(polls.poll(request.scope), "news")
    if not outcome.is_satisfied:
        return Response(outcome.reason, outcome.status, outcome.headers)
    # long enough for a proxy to compress it
    text = f"news {outcome.value} " * 1000
    return JSONResponse({"version": outcome.value, "text": text}, headers=outcome.headers)


async def events(request: Request) -> Response:
    def read(seen: int) -> list[tuple[int, str]]:
        now = versions.version("news")
        return [(now, f"news {now}")] if now > seen else []

    return event_source(polls.poll(request.scope), versions, "news", read)


async def bump(_: Request) -> Response:
    return JSONResponse({"version": versions.bump("news")})


def counts() -> dict[str, int]:
    return {ending.value: number for ending, number in polls.endings.items()}


async def stats(_: Request) -> Response:
    pending = purgatory.pending + versions.thresholds.pending
    found = {"open": polls.open, "pending": pending, "watched": purgatory.watched}
    return JSONResponse({**found, "endings": counts()})


def report(_: object, context: dict[str, Any]) -> None:
    print("unhandled:", json.dumps(context, default=repr), file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    asyncio.get_running_loop().set_exception_handler(report)
    yield
    await purgatory.aclose()
    print("endings:", json.dumps(counts()), flush=True)


routes = [
    Route("/poll", poll, methods=["GET", "POST"]),
    Route("/check", check, methods=["POST"]),
    Route("/news", news),
    Route("/news", bump, methods=["POST"]),
    Route("/events", events),
    Route("/stats", stats),
]
app = polls.middleware(Starlette(routes=routes, lifespan=lifespan))
