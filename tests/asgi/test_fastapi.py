"""`purgatory.asgi.fastapi`: the poll of a request as a dependency."""

from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Response, WebSocket
from fastapi.testclient import TestClient

from purgatory import Purgatory
from purgatory.asgi import LongPolls, Poll
from purgatory.asgi.fastapi import RESPONSES, long_poll


@pytest.fixture
def app() -> FastAPI:
    app, jobs = FastAPI(), Purgatory[Any]()
    polls = LongPolls(max_wait=30, default_wait=0, wait_parameter="patience")

    @app.get("/job", responses=RESPONSES)
    async def job(
        poll: Annotated[Poll, long_poll(polls)], same: Annotated[Poll, long_poll(polls)]
    ) -> Response:
        outcome = await poll.wait_for(jobs, lambda: None, ["job"])
        return Response(outcome.reason, outcome.status, outcome.headers)

    @app.websocket("/job")
    async def job_socket(websocket: WebSocket, poll: Annotated[Poll, long_poll(polls)]) -> None:
        await websocket.accept()
        outcome = await poll.wait_for(jobs, lambda: None, ["job"])
        await websocket.send_text(f"{outcome.ending.value} after {poll.timeout} s")
        await websocket.close(outcome.close_code)

    app.add_middleware(polls.middleware)
    return app


@pytest.mark.parametrize(
    ("query", "prefer", "status", "applied"),
    [
        ("", "", 204, None),
        ("?patience=0.01", "wait=20", 204, "wait=0.01"),
        ("?patience=5&patience=0", "", 204, "wait=0"),
        ("", "respond-async, wait=0", 204, "wait=0"),
        ("", "wait=nonsense", 204, None),
        ("?patience=soon", "", 400, None),
        ("?wait=soon", "", 204, None),
    ],
)
def test_a_request_is_polled_as_without_the_dependency(app, query, prefer, status, applied):
    with TestClient(app) as client:
        answer = client.get(f"/job{query}", headers={"Prefer": prefer})
    assert (answer.status_code, answer.headers.get("preference-applied")) == (status, applied)


def test_a_websocket_is_polled_as_well(app):
    with TestClient(app) as client, client.websocket_connect("/job?patience=0.01") as websocket:
        assert websocket.receive_text() == "deadline after 0.01 s"


def test_openapi_documents_wait_and_answers(app):
    operation = app.openapi()["paths"]["/job"]["get"]
    patience, prefer = operation["parameters"]
    assert (patience["name"], patience["in"], patience["required"]) == ("patience", "query", False)
    assert patience["schema"].items() >= {"type": "number", "minimum": 0, "maximum": 30}.items()
    assert "by default 0" in patience["description"]
    assert (prefer["name"].lower(), prefer["in"], prefer["required"]) == ("prefer", "header", False)
    assert {"204", "400", "503"} <= set(operation["responses"])
    assert "Retry-After" in operation["responses"]["503"]["headers"]


def test_missing_fastapi_names_its_installation(program):
    code = (
        "import sys; sys.modules['fastapi'] = None; import purgatory.asgi; import "
        "purgatory.asgi.fastapi"
    )
    assert "pip install fastapi" in program("-c", code, status=1).stderr
