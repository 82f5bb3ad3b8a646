"""Objects at the level of a module, under the lifespans of Starlette's `TestClient`, each of which
has a loop of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgi_modules import EXAMPLES, load
from helpers import iterations
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from purgatory import IdleTracker, Purgatory, PurgatoryClosed, PurgatoryFull, ThresholdPurgatory
from purgatory.asgi import LongPolls, Versions


class Service:
    """An application over objects that live as long as it does, whichever loop it runs on."""

    def __init__(self) -> None:
        self.polls = LongPolls(max_wait=60)
        self.results: dict[str, str] = {}
        self.renew()
        routes = [
            Route("/", self.get),
            Route("/", self.put, methods=["PUT"]),
            Route("/news", self.news),
        ]
        self.app = self.polls.middleware(Starlette(routes=routes))

    def renew(self) -> None:
        self.jobs: Purgatory[Any] = Purgatory()
        self.versions: Versions[str] = Versions()

    async def get(self, request: Request) -> Response:
        outcome = await self.polls.poll(request.scope).wait_for(
            self.jobs, lambda: self.results.get("a"), ["a"]
        )
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
        assert (
            service.polls.open == service.jobs.pending == service.versions.thresholds.pending == 0
        )


def test_polls_serve_in_one_lifespan_after_the_other():
    service = Service()
    for _ in range(3):
        service.renew()
        serve_once(service)


def test_polls_serve_after_their_lifespan_without_one():
    service = Service()
    serve_once(service)
    service.renew()
    client = TestClient(service.app)
    assert client.get("/?wait=0.01").text == "done"
    assert client.get("/news").status_code == 200


def test_module_level_objects_serve_consecutive_lifespans():
    service = Service()
    for _ in range(3):
        serve_once(service)


@pytest.mark.parametrize("kind", [Purgatory, ThresholdPurgatory])
def test_closed_purgatory_opens_with_the_next_lifespan(run, kind):
    purgatory = kind("module's", max_pending=1)

    async def lifespan() -> None:
        for number in range(2):  # also on the same loop
            async with purgatory:
                waiting = asyncio.create_task(wait(number + 1))
                await iterations(2)
                assert purgatory.pending == 1
                with pytest.raises(PurgatoryFull):
                    await wait(9)
                if kind is Purgatory:
                    results.append("x")
                    assert purgatory.check_and_complete("key") == 1
                    results.clear()
                else:
                    purgatory.forget("key")
                    assert purgatory.advance("key", number + 1) == 1
                await waiting
                purgatory.forget("key") if kind is ThresholdPurgatory else None
            with pytest.raises(PurgatoryClosed):
                await wait(1)

    async def wait(value: int) -> None:
        await (
            purgatory.wait_for(lambda: results, ["key"])
            if kind is Purgatory
            else purgatory.wait("key", value)
        )

    results: list[str] = []
    for _ in range(2):
        run(lifespan)


async def test_closing_purgatory_cannot_be_entered(purgatory):
    waiting = asyncio.create_task(purgatory.wait_for(lambda: None, ["key"]))
    await iterations(2)
    closing = asyncio.create_task(purgatory.aclose(drain=60))
    await iterations(2)
    with pytest.raises(PurgatoryClosed, match="cannot open test again: it is being closed"):
        await purgatory.__aenter__()
    purgatory.cancel_for_key("key")
    await asyncio.wait([waiting, closing])
    waiting.exception()
    async with purgatory:
        assert await purgatory.wait_for(lambda: 7, ["key"]) == 7


def test_closed_idle_tracker_tracks_again_when_entered(virtual):
    idle: list[str] = []
    tracker = IdleTracker(1.0, idle.append)

    async def lifespan() -> None:
        with tracker:
            tracker.touch("id")
            await asyncio.sleep(2)
            tracker.touch("forgotten")
        with pytest.raises(PurgatoryClosed):
            tracker.touch("late")

    for _ in range(2):
        virtual(lifespan)
    assert idle == ["id"] * 2


def test_examples_serve_consecutive_lifespans(tmp_path):
    board = load(EXAMPLES / "long_poll_board.py").Board(
        tmp_path / "board.jsonl", tmp_path / "journal"
    )
    jobs = load(EXAMPLES / "fastapi_jobs.py")
    for number in range(1, 4):
        with TestClient(board.app) as client:
            assert client.post("/topics/tea", content="ready").json() == {"offset": number - 1}
            assert client.get(f"/topics/tea?offset={number - 1}&timeout=1").json()["messages"] == [
                "ready"
            ]
            assert client.get("/purgatory/state", headers={"host": "localhost"}).status_code in (
                200,
                403,
            )
        with TestClient(jobs.app) as client:
            place = client.post("/jobs", json={"password": "x", "rounds": 1}).headers["location"]
            assert client.get(f"{place}?wait=20").json()["state"] == "done"
    runs = {
        file.name.split("-")[0] for file in (tmp_path / "journal" / "operations").glob("*.parquet")
    }
    assert len(runs) == 3


@pytest.mark.parametrize("name", ["litestar", "quart"])  # Django has no lifespans
def test_recipes_serve_consecutive_lifespans(name):
    recipe = load(EXAMPLES / "recipes" / f"with_{name}.py")
    for number in range(3):
        with TestClient(recipe.app) as client, ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.get, f"/jobs/{number}?wait=20")
            while not recipe.jobs.pending:
                client.get("/jobs/-1?wait=0")
            assert client.put(f"/jobs/{number}", content="done").status_code == 204
            assert waiting.result().text == "done"
