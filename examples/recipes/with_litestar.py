"""Litestar: the middleware goes around the application, the poll is made from the request's scope.

pip install '.[asgi]' litestar uvicorn
python examples/recipes/with_litestar.py
curl -i 'http://127.0.0.1:8000/jobs/7?wait=20'                  # waits for the result of job 7
curl -X PUT --data done http://127.0.0.1:8000/jobs/7            # brings the result
"""

from typing import Any

import uvicorn
from litestar import Litestar, Request, get, put
from litestar.params import FromPath

from purgatory import Purgatory
from purgatory.asgi import LongPolls

jobs: Purgatory[Any] = Purgatory("jobs")
polls = LongPolls(max_wait=60)
results: dict[str, str] = {}


@get("/jobs/{name:str}")
async def result(name: FromPath[str], request: Request[Any, Any, Any]) -> str:
    poll = polls.poll(request.scope)
    return await poll.result(jobs, lambda: results.get(name), [name])


@put("/jobs/{name:str}", status_code=204)
async def finish(name: FromPath[str], request: Request[Any, Any, Any]) -> None:
    results[name] = (await request.body()).decode()
    jobs.check_and_complete(name)


app = polls.middleware(Litestar([result, finish]))

if __name__ == "__main__":
    uvicorn.run(app)
