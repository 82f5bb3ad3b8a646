"""Django: the middleware goes around its ASGI application, the poll is made from the request's scope; the view is asynchronous.

    pip install '.[asgi]' django uvicorn
    python examples/recipes/with_django.py
    curl -i 'http://127.0.0.1:8000/jobs/7?wait=20'                  # waits for the result of job 7
    curl -X PUT --data done http://127.0.0.1:8000/jobs/7            # brings the result

In a project of your own, the last line before the server's goes into `asgi.py`, and `settings.configure` is not needed.
"""

from typing import Any

import uvicorn
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.urls import path

from purgatory import Purgatory
from purgatory.asgi import LongPolls

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
    outcome = await polls.poll(request.scope).wait_for(jobs, lambda: results.get(name), [name])
    return HttpResponse(outcome.value or outcome.reason, status=outcome.status, headers=outcome.headers)


urlpatterns = [path("jobs/<name>", job)]
app = polls.middleware(get_asgi_application())

if __name__ == "__main__":
    uvicorn.run(app)
