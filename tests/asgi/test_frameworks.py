"""One line in a handler, on real servers: `Poll.result`, `Outcome.response` and a returned outcome
in each framework, with another handler in a thread; the dependency of FastAPI."""

import asyncio
import json
import logging
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import aiohttp
import fastapi
import litestar
import pytest
from asgi_server import Connection, serving
from helpers import until
from litestar.types import Scope as LitestarScope
from loops import on_asyncio
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from purgatory import Purgatory, ThresholdPurgatory, WrongLoop
from purgatory.asgi import Ending, LongPolls, Outcome, Poll, PollEnded, Versions
from purgatory.asgi._outcome import framework_of, outcome_of
from purgatory.asgi.fastapi import RESPONSES, long_poll

FORMS = ["result", "response", "outcome"]
FRAMEWORKS = ["fastapi", "starlette", "litestar", "plain"]


class Job(BaseModel):
    name: str


@dataclass
class Service:
    """The parts that the applications of all frameworks share."""

    form: str
    polls: LongPolls = field(
        default_factory=lambda: LongPolls(max_wait=60, max_open=2, retry_jitter=0)
    )
    jobs: Purgatory[Any] = field(default_factory=lambda: Purgatory("jobs"))
    results: dict[str, Any] = field(default_factory=dict)
    versions: Versions[str] = field(default_factory=Versions)

    async def answer(self, poll: Poll) -> Any:
        """The result of a handler."""
        if self.form == "result":
            return await poll.result(self.jobs, lambda: self.results.get("7"), ["7"])
        outcome = await poll.wait_for(self.jobs, lambda: self.results.get("7"), ["7"])
        return outcome.response() if self.form == "response" else outcome

    async def news(self, poll: Poll) -> Any:
        return await self.versions.changed(poll, "news")

    def finish(self, value: Any = "done") -> None:
        """What a handler does that is a plain function, in a thread."""
        self.results["7"] = value
        self.jobs.check_and_complete_threadsafe("7")


def fastapi_app(service: Service) -> Any:
    app, LongPoll = fastapi.FastAPI(), Annotated[Poll, long_poll(service.polls)]  # noqa: N806

    @app.get("/jobs")
    async def result(poll: LongPoll) -> Any:
        return await service.answer(poll)

    @app.get("/news")
    async def news(poll: LongPoll) -> Any:
        return await service.news(poll)

    app.put("/jobs")(service.finish)

    @app.websocket("/socket")
    async def socket(websocket: fastapi.WebSocket, poll: LongPoll) -> None:
        await websocket.accept()
        await websocket.send_json(await service.answer(poll))

    return service.polls.middleware(app)


def starlette_app(service: Service) -> Any:
    async def result(request: Request) -> Any:
        answer = await service.answer(service.polls.poll(request.scope))
        return JSONResponse(answer) if service.form == "result" else answer

    async def news(request: Request) -> Any:
        return await service.news(service.polls.poll(request.scope))

    def finish(_: Request) -> Response:
        return Response(service.finish())

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json(await service.answer(service.polls.poll(websocket.scope)))

    routes = [Route("/jobs", result), Route("/jobs", finish, methods=["PUT"])]
    routes += [Route("/news", news), WebSocketRoute("/socket", socket)]
    app = Starlette(routes=routes)
    app.add_middleware(service.polls.middleware)
    return app


def litestar_app(service: Service) -> Any:
    @litestar.get("/jobs")
    async def result(scope: LitestarScope) -> Any:
        return await service.answer(service.polls.poll(scope))

    @litestar.get("/news")
    async def news(scope: LitestarScope) -> Any:
        return await service.news(service.polls.poll(scope))

    @litestar.put("/jobs", sync_to_thread=True)
    def finish() -> None:
        service.finish()

    @litestar.websocket("/socket")
    async def socket(socket: litestar.WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.send_json(await service.answer(service.polls.poll(socket.scope)))

    return service.polls.middleware(litestar.Litestar([result, news, finish, socket]))


def plain_app(service: Service) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise LookupError  # it has none
        poll = service.polls.poll(scope)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            text = json.dumps(await service.answer(poll))
            await send({"type": "websocket.send", "text": text})
            await send({"type": "websocket.close"})
        elif scope["path"] == "/news":
            await (await service.news(poll))(scope, receive, send)
        elif scope["method"] == "PUT":
            await asyncio.to_thread(service.finish)
            await Response()(scope, receive, send)
        elif service.form == "result":
            body = json.dumps(await service.answer(poll)).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
        else:
            await (await service.answer(poll))(scope, receive, send)

    return service.polls.middleware(app)


APPS: dict[str, Callable[[Service], Any]] = {
    "fastapi": fastapi_app,
    "starlette": starlette_app,
    "litestar": litestar_app,
    "plain": plain_app,
}
in_each = pytest.mark.parametrize("framework", FRAMEWORKS)


@asynccontextmanager
async def asking(app: Any) -> AsyncIterator[Callable[..., Awaitable[Connection]]]:
    """A function that sends a request to an application, under a server."""
    connections: list[Connection] = []
    async with serving(app) as port:

        async def ask(target: str, method: str = "GET", headers: str = "") -> Connection:
            connections.append(Connection(*await asyncio.open_connection("127.0.0.1", port)))
            connections[-1].send(target, method, headers)
            return connections[-1]

        yield ask
        for connection in connections:
            connection.hang_up()


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@on_asyncio
@in_each
@pytest.mark.parametrize("form", FORMS)
async def test_each_ending_is_answered_as_its_outcome_says(framework, form):
    service = Service(form)
    async with asking(APPS[framework](service)) as ask:
        status, headers, body = await (await ask("/jobs?wait=0.1")).answer()
        assert headers["cache-control"] == "no-store"
        assert (status, headers["preference-applied"], body) == (204, "wait=0.1", b"")
        assert headers.get("content-length", "0") == "0"
        status, headers, body = await (await ask("/jobs?wait=soon")).answer()
        assert status == 400 and b"wait must be a number of seconds" in body
        leaving, waiting = [await ask("/jobs?wait=50") for _ in range(2)]
        await until(lambda: service.polls.open == 2)
        status, headers, body = await (await ask("/jobs?wait=50")).answer()
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"max_open (2) polls are open already" in body
        leaving.reset()
        await until(lambda: service.polls.endings[Ending.GONE] == 1)
        assert (await (await ask("/jobs", "PUT")).answer())[0] in (200, 204)
        status, headers, body = await waiting.answer()
        is_text = (framework, form) == ("litestar", "result")  # as Litestar sends any text
        assert (status, body) == (200, b"done" if is_text else b'"done"')
        if form != "result":
            assert headers["content-type"] == "application/json"
            assert headers["preference-applied"] == "wait=50"
        status, headers, body = await (await ask("/news")).answer()
        assert (status, body) == (200, b"0")
        condition = f"if-none-match: {headers['etag']}\r\n"
        status, headers, body = await (await ask("/news?wait=0", headers=condition)).answer()
        assert (status, body) == (304, b"") and "etag" in headers
        service.results.clear()
        stopped = await ask("/jobs?wait=50")
        await until(lambda: service.polls.open == 1)
        service.polls.stop()
        status, headers, body = await stopped.answer()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert b"the server is stopping" in body
    assert service.jobs.pending == service.polls.open == 0


@on_asyncio
@in_each
async def test_a_socket_is_closed_as_the_outcome_says(framework):
    service = Service("result")
    async with serving(APPS[framework](service)) as port, aiohttp.ClientSession() as session:
        address = f"http://127.0.0.1:{port}/socket?wait="

        async def close_of(query: str) -> tuple[Any, Any]:
            message = await (await session.ws_connect(address + query)).receive()
            return message.data, message.extra

        assert (await close_of("0"))[0] == 1000
        code, reason = await close_of("soon")
        assert code == 1008 and reason.startswith("wait must be a number of seconds")
        leaving = await session.ws_connect(address + "50")
        await until(lambda: service.polls.open == 1)
        await leaving.close()
        await until(lambda: service.polls.endings[Ending.GONE] == 1)
        waiting = await session.ws_connect(address + "50")
        await until(lambda: service.polls.open == 1)
        service.finish()
        assert await waiting.receive_json() == "done"
        await waiting.close()
        service.results.clear()
        stopped = await session.ws_connect(address + "50")
        await until(lambda: service.polls.open == 1)
        service.polls.stop()
        assert (await stopped.receive())[1:] == (1012, "the server is stopping")


@on_asyncio
async def test_loop_method_in_thread_names_threadsafe_one():
    jobs, offsets = Purgatory[Any](), ThresholdPurgatory[str, int]()
    waits = [asyncio.create_task(wait) for wait in (jobs.receive("job"), offsets.wait("topic", 1))]
    await asyncio.sleep(0)
    for method, *arguments, begin in (
        (jobs.check_and_complete, "job", "cannot check 'job'"),
        (jobs.deliver, "job", 1, "cannot deliver to 'job'"),
        (offsets.advance, "topic", 1, "cannot advance 'topic'"),
    ):
        with pytest.raises(WrongLoop, match=f"{begin}: .* {method.__name__}_threadsafe$"):
            await asyncio.to_thread(method, *arguments)
    for task in waits:
        task.cancel()
    await asyncio.wait(waits)


@on_asyncio
@pytest.mark.parametrize(
    ("framework", "form", "value"),
    [
        *(("fastapi", form, Job(name="tea")) for form in FORMS),
        *((framework, "outcome", b"\x00\xff") for framework in FRAMEWORKS),
    ],
)
async def test_models_and_bytes_are_encoded(framework, form, value):
    service = Service(form)
    service.finish(value)
    async with asking(APPS[framework](service)) as ask:
        status, headers, body = await (await ask("/jobs")).answer()
        is_bytes = isinstance(value, bytes)
        assert (status, body) == (200, value if is_bytes else b'{"name":"tea"}')
        content_type = "application/octet-stream" if is_bytes else "application/json"
        assert headers["content-type"] == content_type


@on_asyncio
async def test_a_handler_of_the_application_may_answer_instead():
    service = Service("result")
    app = fastapi.FastAPI()

    @app.get("/jobs")
    async def result(poll: Annotated[Poll, long_poll(service.polls)]) -> Any:
        return await service.answer(poll)

    @app.exception_handler(PollEnded)
    async def ended(_: fastapi.Request, error: PollEnded) -> Any:
        outcome: Outcome[Any] = error.outcome
        return fastapi.responses.PlainTextResponse(outcome.ending.value, 418)

    app.add_middleware(service.polls.middleware)
    async with asking(app) as ask:
        assert (await (await ask("/jobs?wait=0")).answer())[::2] == (418, b"deadline")


@on_asyncio
@pytest.mark.parametrize("is_plain", [False, True])
async def test_override_of_http_exceptions_gets_a_body(is_plain):
    service = Service("result")
    app = fastapi.FastAPI()

    @app.get("/jobs")
    async def result(poll: Annotated[Poll, long_poll(service.polls)]) -> Any:
        return await service.answer(poll)

    async def answer(_: fastapi.Request, error: HTTPException) -> Any:  # as in FastAPI's docs
        return fastapi.responses.PlainTextResponse(str(error.detail), error.status_code)

    def plain(_: fastapi.Request, error: HTTPException) -> Any:
        return fastapi.responses.PlainTextResponse(str(error.detail), error.status_code)

    app.exception_handler(HTTPException)(plain if is_plain else answer)
    app.add_middleware(service.polls.middleware)
    async with asking(app) as ask:
        status, headers, body = await (await ask("/jobs?wait=0.01")).answer()
        assert (status, body, headers["preference-applied"]) == (204, b"", "wait=0.01")
        service.polls.stop()
        status, headers, body = await (await ask("/jobs")).answer()
        assert (status, body) == (503, b"the server is stopping")
        assert headers["content-type"].startswith("text/plain")


TRACKED = """
import sys
import sentry_sdk

events, framework = [], sys.argv[1]
options = {}
if framework == "litestar":
    from purgatory.asgi import PollEnded
    options["ignore_errors"] = [PollEnded]
sentry_sdk.init("http://key@127.0.0.1:9/1", before_send=lambda event, _: events.append(event), traces_sample_rate=1.0,
                before_send_transaction=lambda *_: None, **options)

from purgatory import Purgatory
from purgatory.asgi import LongPolls

jobs, polls = Purgatory(), LongPolls(signals=())

async def answer(scope):
    value = await polls.poll(scope).result(jobs, lambda: None, ["job"])

if framework == "litestar":
    from litestar import Litestar, get
    from litestar.testing import TestClient
    from litestar.types import Scope

    @get("/jobs")
    async def result(scope: Scope) -> None:
        await answer(scope)

    @get("/broken")
    async def broken() -> None:
        raise LookupError

    app = Litestar([result, broken], middleware=[polls.middleware])
else:
    from fastapi import FastAPI, Request
    from starlette.applications import Starlette
    from starlette.testclient import TestClient
    app = FastAPI() if framework == "fastapi" else Starlette()

    async def result(request: Request):
        await answer(request.scope)

    async def broken(request: Request):
        raise LookupError

    app.add_route("/jobs", result)
    app.add_route("/broken", broken)
    app.add_middleware(polls.middleware)

with TestClient(app, raise_server_exceptions=False) as client:
    statuses = [client.get(f"/jobs?wait={wait}").status_code for wait in ("0", "soon")]
    polls.stop_threadsafe()
    statuses.append(client.get("/jobs").status_code)
    print(statuses, len(events))
    print(client.get("/broken").status_code, len(events))
"""


@pytest.mark.parametrize("framework", ["fastapi", "starlette", "litestar"])
def test_sentry_gets_no_event_for_an_ending(framework, program):
    printed = program("-c", TRACKED, framework).stdout.splitlines()
    assert printed == ["[204, 400, 503] 0", "500 1"]


@in_each
def test_poll_ended_survives_pickle(framework):
    for ending in (Ending.STOPPING, Ending.DEADLINE):
        application = {
            "fastapi": fastapi.FastAPI,
            "starlette": Starlette,
            "litestar": lambda: litestar.Litestar([]),
            "plain": object,
        }[framework]()
        scope = {"type": "http", "app": application}
        outcome = outcome_of(ending, None, scope, None, 3)
        for kind in framework_of(scope)[1:]:
            ended = pickle.loads(pickle.dumps(kind(outcome, scope)))
            assert type(ended) is kind and ended.outcome == outcome
            assert str(ended) == str(kind(outcome, scope))


@pytest.mark.parametrize("annotation", [Annotated[Poll, long_poll], Poll])
def test_poll_without_dependency_names_long_poll(annotation):
    app = fastapi.FastAPI()

    async def result(poll: annotation) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(TypeError, match=r"Annotated\[Poll, long_poll\(polls\)\]"):
        app.get("/jobs")(result)


# The dependency of FastAPI


@pytest.fixture
def documented() -> fastapi.FastAPI:
    app, jobs = fastapi.FastAPI(), Purgatory[Any]()
    polls = LongPolls(max_wait=30, default_wait=0, wait_parameter="patience")

    dependency = Annotated[Poll, long_poll(polls)]

    @app.get("/job", responses=RESPONSES)
    async def job(poll: dependency, same: dependency) -> Response:  # type: ignore[valid-type]
        assert poll is same
        return (await poll.wait_for(jobs, lambda: None, ["job"])).response()

    app.add_middleware(polls.middleware)
    return app


@pytest.mark.parametrize(
    ("query", "prefer", "status", "applied"),
    [
        ("?wait=soon", "", 204, None),
        ("?patience=0.01", "wait=20", 204, "wait=0.01"),
        ("", "respond-async, wait=0", 204, "wait=0"),
        ("?patience=soon", "", 400, None),
    ],
)
def test_request_is_polled_as_without_dependency(documented, query, prefer, status, applied):
    with TestClient(documented) as client:
        answer = client.get(f"/job{query}", headers={"Prefer": prefer})
    assert (answer.status_code, answer.headers.get("preference-applied")) == (status, applied)


def test_openapi_documents_wait_and_answers(documented):
    operation = documented.openapi()["paths"]["/job"]["get"]
    patience, prefer = operation["parameters"]
    assert (patience["name"], patience["in"], patience["required"]) == ("patience", "query", False)
    assert patience["schema"].items() >= {"type": "number", "minimum": 0, "maximum": 30}.items()
    assert "by default 0" in patience["description"]
    assert (prefer["name"].lower(), prefer["in"], prefer["required"]) == ("prefer", "header", False)
    assert {"204", "400", "503"} <= set(operation["responses"])
    assert "Retry-After" in operation["responses"]["503"]["headers"]
