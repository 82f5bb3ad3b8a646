"""Jobs over HTTP: submit one, then ask for its result with a wait. The typical handler that waits
for a condition or a time.

    python examples/fastapi_jobs.py --port 8000
    curl -i -d '{"password": "tea", "rounds": 3000000}' -H 'Content-Type: application/json' 127.0.0.1:8000/jobs
    curl -i -H 'Prefer: wait=20' 127.0.0.1:8000/jobs/1

`POST /jobs`
    starts to derive a key from a password, in the given number of rounds, and answers 202 at
    once. `Location` is the address of the result.
`GET /jobs/{number}`
    answers as soon as the job has ended, with `{"state": "done", "result": ...}` or `{"state":
    "failed", ...}`; after the wait that `Prefer: wait=S` or `?wait=S` names (20 seconds, if neither
    does) with 202 and `{"state": "running"}`. 404 for a job that was never submitted, or that ended
    ten minutes ago. `/docs` shows the wait as well.
`GET /purgatory`
    a page that shows the waits, their ages, and missed triggers; on this machine only. `/metrics`
    has the same for Prometheus.

Needs the extra `examples`.
"""

import argparse
import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from prometheus_client import CollectorRegistry, make_asgi_app
from pydantic import BaseModel, Field

from purgatory import IdleTracker, Purgatory
from purgatory.asgi import Ending, LongPolls, Poll
from purgatory.asgi.fastapi import RESPONSES, long_poll
from purgatory.console import console
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector

KEPT_FOR = 600.0  # seconds, from the end of a job


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    with forgetting:
        yield
        for task in running:
            task.cancel()
    jobs.clear()


app = FastAPI(title="Jobs", lifespan=lifespan)
polls = LongPolls(max_wait=60, default_wait=20, spread=1 / 16, max_per_client=100)
meter = Meter()
ends: Purgatory[Any] = Purgatory("ends of jobs", max_pending=10_000, observer=meter)
numbers = count(1)
jobs: dict[int, dict[str, Any]] = {}
forgetting: IdleTracker[int] = IdleTracker(KEPT_FOR, lambda number: jobs.pop(number, None))
running: set[asyncio.Task[None]] = set()


class Order(BaseModel):
    """A client's request."""

    password: str
    rounds: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000


async def run(number: int, order: Order) -> None:
    """Does the job in a thread, then wakes the requests that wait for its end."""
    try:
        key = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, "sha256", order.password.encode(), b"salt", order.rounds
        )
        jobs[number] = {"state": "done", "result": key.hex()}
    except Exception as error:
        jobs[number] = {"state": "failed", "reason": repr(error)}
    ends.check_and_complete(number)
    forgetting.touch(number)


@app.post("/jobs", status_code=202)
async def submit(order: Order, response: Response) -> dict[str, Any]:
    number = next(numbers)
    jobs[number] = {"state": "running"}
    task = asyncio.create_task(run(number, order))
    running.add(task)  # the loop itself holds tasks only weakly
    task.add_done_callback(running.discard)
    response.headers["Location"] = f"/jobs/{number}"
    return {"number": number, "state": "running"}


@app.get(
    "/jobs/{number}",
    response_model=None,
    responses={**RESPONSES, 202: {"description": "It still runs; ask again."}},
)
async def result(
    number: int, poll: Annotated[Poll, long_poll(polls)], response: Response
) -> dict[str, Any] | Response:
    if number not in jobs:
        raise HTTPException(404, f"there is no job {number}")
    job = jobs[number]
    outcome = await poll.wait_for(
        ends, lambda: jobs.get(number, job)["state"] != "running", [number]
    )
    if outcome.ending not in (Ending.SATISFIED, Ending.DEADLINE):
        return Response(outcome.reason, outcome.status, outcome.headers)
    response.headers.update(outcome.headers)
    response.status_code = 200 if outcome.is_satisfied else 202
    return jobs.get(number) or job


registry = CollectorRegistry()
registry.register(collector(meter, purgatories=ends, polls=polls))
app.mount("/metrics", make_asgi_app(registry))
app.mount("/purgatory", console(ends, polls=polls, meter=meter))
app.add_middleware(polls.middleware)  # as the last one, and so the outermost


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Jobs over HTTP, with a purgatory for requests that wait for their end."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: loopback only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    options = parser.parse_args(arguments)
    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
