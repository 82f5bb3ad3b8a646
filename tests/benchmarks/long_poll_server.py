"""The server that ``python tests/benchmarks http`` measures, in a process of its own.

``GET /ours?key=K&seen=V&wait=S`` and ``GET /theirs?...`` answer when key K has a later version than
V. Ours waits in a `ThresholdPurgatory`, through `purgatory.asgi`; theirs is what people write
today: `asyncio.wait_for` on the `asyncio.Event` of the key, interrupted once a second to ask
Starlette whether the client has left. ``POST /publish?key=K`` brings the next version of a key.
"""

import asyncio
import socket
import time
from collections import defaultdict
from contextlib import suppress
from multiprocessing.connection import Connection

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from benchmarks.harness import LoopName, raise_file_limit
from benchmarks.passes import passed
from purgatory import ThresholdPurgatory
from purgatory.asgi import LongPolls

CHECK_INTERVAL = 1.0
KEEP_OPEN = 3600


class Service:
    """The versions of the keys, and those who wait for the next one, in both ways."""

    def __init__(self) -> None:
        self.versions: defaultdict[int, int] = defaultdict(int)
        self.stamps: dict[int, float] = {}
        self.polls = LongPolls(max_wait=KEEP_OPEN)
        self.thresholds: ThresholdPurgatory[int, int] = ThresholdPurgatory()
        self.events: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.theirs_open = 0
        endpoints = self.ours, self.theirs, self.publish, self.state
        routes = [Route(f"/{each.__name__}", each, methods=["GET", "POST"]) for each in endpoints]
        self.without = Starlette(routes=routes)
        self.within = self.polls.middleware(self.without)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends only our own requests through our middleware."""
        is_theirs = scope["type"] == "http" and scope["path"] != "/ours"
        await (self.without if is_theirs else self.within)(scope, receive, send)

    def answer(self, key: int, headers: dict[str, str] | None = None) -> Response:
        found = {"version": self.versions[key], "at": self.stamps[key]}
        return JSONResponse(found, headers=headers)

    async def ours(self, request: Request) -> Response:
        key, seen = int(request.query_params["key"]), int(request.query_params["seen"])
        outcome = await self.polls.poll(request.scope).reach(self.thresholds, key, seen + 1)
        if not outcome.is_satisfied:
            return Response(outcome.reason, outcome.status, outcome.headers)
        return self.answer(key, outcome.headers)

    async def theirs(self, request: Request) -> Response:
        key, seen = int(request.query_params["key"]), int(request.query_params["seen"])
        time_now = asyncio.get_running_loop().time
        deadline = time_now() + float(request.query_params["wait"])
        self.theirs_open += 1
        try:
            while self.versions[key] <= seen:
                if await request.is_disconnected():
                    return Response(status_code=499)
                left = deadline - time_now()
                if left <= 0:
                    return Response(status_code=204)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.events[key].wait(), min(left, CHECK_INTERVAL))
            return self.answer(key)
        finally:
            self.theirs_open -= 1

    async def publish(self, request: Request) -> Response:
        key = int(request.query_params["key"])
        self.versions[key] += 1
        self.stamps[key] = time.monotonic()
        self.thresholds.advance(key, self.versions[key])
        event = self.events.pop(key, None)
        if event is not None:
            event.set()
        return Response(status_code=204)

    async def state(self, request: Request) -> Response:
        waiting = self.thresholds.pending + self.theirs_open
        return JSONResponse({"open": waiting, "cpu": time.process_time(), "passed": passed()})


def serve(pipe: Connection, loop: LoopName) -> None:
    """Sends its port, and serves until its process is killed."""
    raise_file_limit()
    listener = socket.create_server(("127.0.0.1", 0), backlog=8192)
    pipe.send(listener.getsockname()[1])
    options = {"log_level": "error", "timeout_keep_alive": KEEP_OPEN, "backlog": 8192}
    config = uvicorn.Config(
        Service().app, interface="asgi3", loop=loop, http="httptools", **options
    )
    uvicorn.Server(config).run(sockets=[listener])
