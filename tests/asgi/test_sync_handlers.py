"""Handlers that are plain functions, which frameworks run in threads: they change state by the
`..._threadsafe` methods."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgi_requests import Request
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from fastapi import FastAPI
from fastapi import Request as FastAPIRequest
from fastapi.responses import PlainTextResponse
from helpers import iterations
from litestar import Litestar, put
from litestar import Request as LitestarRequest
from litestar import Response as LitestarResponse
from litestar import get as litestar_get
from litestar.params import FromPath
from loops import on_asyncio

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.asgi import LongPolls, Versions

PATHS = ["/jobs", "/offsets", "/replies", "/news"]


class Service:
    """Values that requests wait for, and plain functions that deliver them, by path."""

    def __init__(self) -> None:
        self.polls = LongPolls(signals=(), max_wait=20)
        self.jobs: Purgatory[Any] = Purgatory("jobs")
        self.replies: Purgatory[Any] = Purgatory("replies")
        self.offsets: ThresholdPurgatory[str, int] = ThresholdPurgatory("offsets")
        self.versions: Versions[str] = Versions(epoch="e")
        self.results: dict[str, str] = {}

    async def wait(self, name: str, scope: Any) -> tuple[str, int, dict[str, str]]:
        poll = self.polls.poll(scope)
        outcome: Any
        if name == "jobs":
            outcome = await poll.wait_for(self.jobs, lambda: self.results.get("job"), ["job"])
        elif name == "offsets":
            outcome = await poll.reach(self.offsets, "topic", 1)
        elif name == "replies":
            outcome = await poll.run(self.replies.receive(7))
        else:
            outcome = await self.versions.changed(poll, "news")
        return str(outcome.value or outcome.reason), outcome.status, outcome.headers

    def bring(self, name: str, *, is_wrong: bool = False) -> None:
        """Changes what `wait` waits for; by the method for the loop's own thread, if `is_wrong`."""
        if name == "jobs":
            self.results["job"] = "done"
            (self.jobs.check_and_complete if is_wrong else self.jobs.check_and_complete_threadsafe)(
                "job"
            )
        elif name == "offsets":
            (self.offsets.advance if is_wrong else self.offsets.advance_threadsafe)("topic", 1)
        elif name == "replies":
            (self.replies.deliver if is_wrong else self.replies.deliver_threadsafe)(7, "reply")
        else:
            (self.versions.bump if is_wrong else self.versions.bump_threadsafe)("news")


def fastapi_app(service: Service) -> Any:
    app = FastAPI()

    @app.get("/{name}")
    async def wait(name: str, request: FastAPIRequest) -> PlainTextResponse:
        return PlainTextResponse(*await service.wait(name, request.scope))

    @app.put("/{name}", status_code=204)
    def bring(name: str) -> None:
        service.bring(name)

    app.add_middleware(service.polls.middleware)
    return app


def litestar_app(service: Service) -> Any:
    @litestar_get("/{name:str}")
    async def wait(
        name: FromPath[str], request: LitestarRequest[Any, Any, Any]
    ) -> LitestarResponse[str]:
        text, status, headers = await service.wait(name, request.scope)
        return LitestarResponse(text, status_code=status, headers=headers)

    @put("/{name:str}", status_code=204, sync_to_thread=True)
    def bring(name: FromPath[str]) -> None:
        service.bring(name)

    return service.polls.middleware(Litestar([wait, bring]))


urlpatterns: list[Any] = []
if not settings.configured:
    settings.configure()


def django_app(service: Service) -> Any:
    async def wait(request: Any, name: str) -> HttpResponse:
        text, status, headers = await service.wait(name, request.scope)
        return HttpResponse(text, status=status, headers=headers)

    def bring(_: Any, name: str) -> HttpResponse:
        service.bring(name)
        return HttpResponse(status=204)

    urlpatterns[:] = [path("bring/<name>", bring), path("<name>", wait)]
    return service.polls.middleware(get_asgi_application())


@on_asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", [fastapi_app, litestar_app, django_app])
async def test_a_plain_function_answers_those_who_wait(
    make: Callable[[Service], Any], path: str
) -> None:
    service = Service()
    with override_settings(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"]):
        app = make(service)
        waiting = Request(app, headers={"If-None-Match": '"e-0"', "Host": "localhost"}, path=path)
        waiting.body()
        async with asyncio.timeout(60):
            while not service.polls.open:
                await iterations(1)
            prefix, method = ("/bring", "GET") if make is django_app else ("", "PUT")
            change = Request(app, headers={"Host": "localhost"}, method=method, path=prefix + path)
            change.body()
            assert (await change.done()).status == 204
            assert (await waiting.done()).status == 200
    assert (
        service.polls.open
        == service.jobs.pending
        == service.replies.pending
        == service.offsets.pending
        == 0
    )


@on_asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_loop_method_in_thread_names_threadsafe_one(path: str) -> None:
    service = Service()
    waiting = asyncio.create_task(service.jobs.wait_for(lambda: None, ["job"], 20))
    receiving = asyncio.create_task(service.replies.receive(7, 20))
    service.offsets.advance("topic", 0)
    service.versions.bump("news")
    await iterations(2)
    expected = {
        "/jobs": "cannot check 'job': .* call check_and_complete_threadsafe$",
        "/offsets": "cannot advance 'topic': .* call advance_threadsafe$",
        "/replies": "cannot deliver to 7: .* call deliver_threadsafe$",
        "/news": "cannot bump 'news': .* call bump_threadsafe$",
    }[path]
    with pytest.raises(RuntimeError, match=expected):
        await asyncio.to_thread(service.bring, path[1:], is_wrong=True)
    waiting.cancel()
    receiving.cancel()
    await asyncio.wait([waiting, receiving])
