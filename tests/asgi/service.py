"""The service that the tests against real servers run, in a process of its own:

    python tests/asgi/service.py uvicorn --loop uvloop --http httptools
    python tests/asgi/service.py hypercorn --loop asyncio

It prints the address that it serves on; other servers are given `service:app`. `GET /poll?key=K`
waits for `POST /check?key=K`, `GET /news` for the next version of the news, `GET /events` is a
stream of them, `GET /stats` has the open waits. Errors are printed, so that a test sees them.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from purgatory import Purgatory
from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.asgi.sse import event_source

purgatory: Purgatory[Any] = Purgatory()
versions: Versions[str] = Versions(unchanged=304)
polls = LongPolls(max_wait=300)
values: dict[str, str] = {}
bodies: list[str] = []
plugins: list[Any] = []


async def poll(request: Request) -> Response:
    key = request.query_params.get("key", "")
    outcome = await polls.poll(request.scope).wait_for(purgatory, lambda: values.get(key), [key])
    if request.method == "POST" and outcome.is_satisfied:
        bodies.append((await request.body()).decode())
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


async def socket_poll(websocket: WebSocket) -> None:
    """Waits for the key, then sends the ending, and the client's messages meanwhile."""
    await websocket.accept()
    key = websocket.query_params.get("key", "")
    outcome = await polls.poll(websocket.scope).wait_for(purgatory, lambda: values.get(key), [key])
    if outcome.is_satisfied:
        await websocket.send_json({"value": outcome.value, "said": await websocket.receive_text()})
    if outcome.ending is not Ending.GONE:
        with contextlib.suppress(
            WebSocketDisconnect, RuntimeError
        ):  # uvicorn's, if it has closed the socket itself
            await websocket.close(outcome.close_code, outcome.reason)


async def stats(_: Request) -> Response:
    answer = {
        "open": polls.open,
        "pending": purgatory.pending + versions.thresholds.pending,
        "watched": purgatory.watched,
        "tasks": len(asyncio.all_tasks()),
        "bodies": bodies,
        "endings": {ending.value: number for ending, number in polls.endings.items()},
    }
    return JSONResponse(answer)


async def through(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    return response


@contextlib.asynccontextmanager
async def plugin() -> AsyncIterator[None]:
    """Another application within this process, with polls of its own."""
    app = LongPolls().middleware(Starlette())
    messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answers: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan"}, messages.get, answers.put))
    messages.put_nowait({"type": "lifespan.startup"})
    await answers.get()
    yield
    messages.put_nowait({"type": "lifespan.shutdown"})
    await task


async def plug(_: Request) -> Response:
    """Two of them come, and the one that came first leaves."""
    first, second = plugin(), plugin()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    plugins.append(second)
    return JSONResponse(len(plugins))


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: print(
            "unhandled:", json.dumps(context, default=repr), file=sys.stderr, flush=True
        )
    )
    yield
    await purgatory.aclose()
    print(
        "endings:",
        json.dumps({ending.value: number for ending, number in polls.endings.items()}),
        flush=True,
    )


routes = [
    Route("/poll", poll, methods=["GET", "POST"]),
    Route("/check", check, methods=["POST"]),
    Route("/news", news),
    Route("/news", bump, methods=["POST"]),
    Route("/events", events),
    Route("/plug", plug, methods=["POST"]),
    Route("/stats", stats),
    WebSocketRoute("/socket", socket_poll),
]


def application(*, behind_base_middleware: bool) -> Any:
    middleware = (
        [Middleware(BaseHTTPMiddleware, dispatch=through)] if behind_base_middleware else []
    )
    return polls.middleware(Starlette(routes=routes, middleware=middleware, lifespan=lifespan))


app = application(behind_base_middleware=False)


def serve_uvicorn(app: Any, listener: socket.socket, loop: str, http: str) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        loop=loop,
        http=http,
        log_level="warning",
        backlog=8192,
        timeout_keep_alive=60,  # type: ignore[arg-type]
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def serve_hypercorn(app: Any, listener: socket.socket, loop: str) -> None:
    import uvloop
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 30
    config.keep_alive_timeout = 60
    config.errorlog = "-"
    config.loglevel = "WARNING"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(serve(app, config))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server", choices=["uvicorn", "hypercorn"])
    parser.add_argument("--loop", default="asyncio")
    parser.add_argument("--http", default="h11")
    parser.add_argument("--base-middleware", action="store_true")
    options = parser.parse_args()
    served = application(behind_base_middleware=True) if options.base_middleware else app
    listener = socket.create_server(("127.0.0.1", 0), backlog=8192)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    if options.server == "uvicorn":
        serve_uvicorn(served, listener, options.loop, options.http)
    else:
        serve_hypercorn(served, listener, options.loop)


if __name__ == "__main__":
    main()
