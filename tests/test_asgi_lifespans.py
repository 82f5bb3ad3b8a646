"""What stands at the level of a module, and the lifespans of Starlette's `TestClient`, each of which has a loop of its own."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from purgatory import Purgatory
from purgatory.asgi import LongPolls, Versions


class Service:
    """An application over objects that live as long as it does, whichever loop it runs on."""

    def __init__(self) -> None:
        self.polls = LongPolls(max_wait=60)
        self.results: dict[str, str] = {}
        self.renew()
        routes = [Route("/", self.get), Route("/", self.put, methods=["PUT"]), Route("/news", self.news)]
        self.app = self.polls.middleware(Starlette(routes=routes))

    def renew(self) -> None:
        self.jobs: Purgatory[Any] = Purgatory()
        self.versions: Versions[str] = Versions()

    async def get(self, request: Request) -> Response:
        outcome = await self.polls.poll(request.scope).wait_for(self.jobs, lambda: self.results.get("a"), ["a"])
        return Response(outcome.value or outcome.reason, outcome.status, outcome.headers)

    async def put(self, request: Request) -> Response:
        self.results["a"] = (await request.body()).decode()
        self.versions.bump("news")
        return JSONResponse(self.jobs.check_and_complete("a"))

    async def news(self, request: Request) -> Response:
        outcome = await self.versions.changed(self.polls.poll(request.scope), "news")
        return Response(outcome.reason, outcome.status, outcome.headers)


def serve_once(service: Service) -> None:
    """A lifespan with each ending that a test client can have."""
    service.results.clear()
    with TestClient(service.app) as client, ThreadPoolExecutor() as threads:
        assert client.get("/?wait=0.01").status_code == 204
        tag = client.get("/news").headers["etag"]
        waiting = [threads.submit(client.get, "/?wait=60") for _ in range(2)]
        changed = threads.submit(client.get, "/news?wait=60", headers={"If-None-Match": tag})
        while service.polls.open < 3:
            client.get("/news")
        assert client.put("/", content="done").json() == 2
        assert [future.result().text for future in waiting] == ["done"] * 2
        tag = changed.result().headers["etag"]
        assert client.get("/news?wait=0.01", headers={"If-None-Match": tag}).status_code == 304
        assert service.polls.open == service.jobs.pending == service.versions.thresholds.pending == 0


def test_polls_serve_in_one_lifespan_after_the_other():
    service = Service()
    for _ in range(3):
        service.renew()
        serve_once(service)


def test_polls_of_a_lifespan_that_has_ended_serve_without_one_as_well():
    service = Service()
    serve_once(service)
    service.renew()
    client = TestClient(service.app)
    assert client.get("/?wait=0.01").text == "done"
    assert client.get("/news").status_code == 200


def test_all_that_stands_at_the_level_of_a_module_serves_in_one_lifespan_after_the_other():
    service = Service()
    for _ in range(3):
        serve_once(service)
