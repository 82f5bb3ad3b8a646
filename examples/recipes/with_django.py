"""Django: the middleware goes around its ASGI application, the poll is made from the request's
scope. Views may be asynchronous or not.

    pip install '.[asgi]' django uvicorn
    python examples/recipes/with_django.py
    curl -i 'http://127.0.0.1:8000/jobs/7?wait=20'                  # waits for the result of job 7
    curl -X PUT --data done http://127.0.0.1:8000/jobs/7            # brings the result

The same under `/sync/jobs/7` is a plain function, which Django runs in a thread: it waits by
`async_to_sync`, and holds the thread meanwhile.

In a project of your own, the last line before the server's goes into `asgi.py`, and
`settings.configure` is not needed.
"""

from typing import Any

import uvicorn
from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.urls import path

from purgatory import Purgatory
from purgatory.asgi import LongPolls, Outcome

jobs: Purgatory[Any] = Purgatory("jobs")
polls = LongPolls(max_wait=60)
results: dict[str, str] = {}
if not settings.configured:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])


async def job(request: ASGIRequest, name: str) -> HttpResponse:
    if request.method == "PUT":
        results[name] = request.body.decode()
        jobs.check_and_complete(name)
        return HttpResponse(status=204)
    return response(await wait(request, name))


def sync_job(request: ASGIRequest, name: str) -> HttpResponse:
    if request.method == "PUT":
        results[name] = request.body.decode()
        jobs.check_and_complete_threadsafe(name)
        return HttpResponse(status=204)
    return response(async_to_sync(wait)(request, name))


async def wait(request: ASGIRequest, name: str) -> Outcome[str]:
    return await polls.poll(request.scope).wait_for(jobs, lambda: results.get(name), [name])


def response(outcome: Outcome[str]) -> HttpResponse:
    text = outcome.value if outcome.is_satisfied else outcome.reason
    return HttpResponse(text, status=outcome.status, headers=outcome.headers)


urlpatterns = [path("jobs/<name>", job), path("sync/jobs/<name>", sync_job)]
app = polls.middleware(get_asgi_application())

if __name__ == "__main__":
    uvicorn.run(app)
