"""Quart: the middleware goes around its `asgi_app`, the poll is made from the request's scope.

pip install '.[asgi]' quart uvicorn
python examples/recipes/with_quart.py
curl -i 'http://127.0.0.1:8000/jobs/7?wait=20'                  # waits for the result of job 7
curl -X PUT --data done http://127.0.0.1:8000/jobs/7            # brings the result
"""

from typing import Any

import uvicorn
from quart import Quart, Response, request

from purgatory import Purgatory
from purgatory.asgi import LongPolls

jobs: Purgatory[Any] = Purgatory("jobs")
polls = LongPolls(max_wait=60)
results: dict[str, str] = {}
app = Quart(__name__)
app.asgi_app = polls.middleware(app.asgi_app)  # type: ignore[assignment, method-assign]


@app.get("/jobs/<name>")
async def result(name: str) -> Response:
    outcome = await polls.poll(request.scope).wait_for(jobs, lambda: results.get(name), [name])
    return Response(outcome.value or outcome.reason, outcome.status, outcome.headers)


@app.put("/jobs/<name>")
async def finish(name: str) -> Response:
    results[name] = str(await request.get_data(as_text=True))
    jobs.check_and_complete(name)
    return Response(status=204)


if __name__ == "__main__":
    uvicorn.run(app)
