"""Long polls in ASGI servers: a request that waits, under any server and in any framework (extra
`asgi`).

    jobs = Purgatory()
    polls = LongPolls(max_wait=60)
    app = polls.middleware(app)                       # outermost

    async def result(request):                        # of Starlette, FastAPI or Litestar
        poll = polls.poll(request.scope)
        outcome = await poll.wait_for(jobs, lambda: results.get(name), [name])
        return outcome.response()

The wait ends in one of four ways: the result is there, the deadline has passed, the client has
disconnected, or the server stops. `poll.result` returns the value alone, and `poll.run(awaitable)`
waits for any awaitable. WebSockets can wait as requests do. With `Versions` a client misses nothing
between two polls, and `purgatory.asgi.sse` sends the same as server-sent events.
`purgatory.asgi.fastapi` has the poll as a dependency; the page of open polls lives in
`purgatory.console`. The introduction is `purgatory/asgi/README.md`.
"""

from purgatory.asgi._outcome import Ending, Outcome, PollEnded
from purgatory.asgi._poll import Poll
from purgatory.asgi._polls import LongPolls
from purgatory.asgi._versions import Versions

__all__ = ["Ending", "LongPolls", "Outcome", "Poll", "PollEnded", "Versions"]
