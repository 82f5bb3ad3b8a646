"""Long polls in ASGI servers: a request that waits, under any server and in any framework (extra `asgi`).

    jobs = Purgatory()
    polls = LongPolls(max_wait=60)
    app = polls.middleware(app)                       # outermost

    async def result(request):                        # Starlette's, or FastAPI's; without either: scope, send
        outcome = await polls.poll(request.scope).wait_for(jobs, lambda: results.get(name), [name])
        if not outcome.is_satisfied:
            return Response(outcome.reason, outcome.status, outcome.headers)
        return JSONResponse(outcome.value, headers=outcome.headers)

The wait ends in one of four ways: what it waits for is there, its deadline has come, its client has disconnected, or the
server stops. `poll.run(awaitable)` waits like this for whatever can be awaited, and WebSockets can wait as requests do. With
`Versions` a client misses nothing between two polls, and `purgatory.asgi.sse` sends the same as server-sent events.
`purgatory.asgi.fastapi` has the poll as a dependency. The introduction is `purgatory/asgi/README.md`.
"""

from purgatory.asgi._console import console
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._poll import Poll
from purgatory.asgi._polls import LongPolls
from purgatory.asgi._versions import Versions

__all__ = ["Ending", "LongPolls", "Outcome", "Poll", "Versions", "console"]
