"""A message board over HTTP: publish to a topic, and poll it for messages that you have not seen
yet. All that a long poll needs.

    python examples/long_poll.py
    curl 'http://127.0.0.1:8000/topics/news?offset=0&wait=20'
    curl -d 'hello' http://127.0.0.1:8000/topics/news         # in another terminal: answers the first one

or let 500 clients poll it, and see the latency: `python examples/long_poll.py --demo`. Needs
    the extra `examples`.

`POST /topics/{topic}`
    appends the body to the topic: 201, with its offset.
`GET /topics/{topic}?offset=N&wait=S`
    answers with the messages from offset N on: at once if there are any, or as soon as one arrives,
    or with none after S seconds. The client's offset is the number of messages that it has seen, so
    no message published between two polls is lost.
`GET /stats`
    the outcomes of the polls, and the number of waiting ones.

`long_poll_board.py` adds the features of a board in production: topics in a file, messages that
arrive once, entity tags, server-sent events, limits, a page to look at.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import Purgatory
from purgatory.asgi import Ending, LongPolls

topics: dict[str, list[str]] = {}
waiting = Purgatory("polls")
polls = LongPolls(max_wait=60, default_wait=20)


async def publish(request: Request) -> Response:
    """Appends a message, and answers the polls of this topic."""
    topic = request.path_params["topic"]
    messages = topics.setdefault(topic, [])
    messages.append((await request.body()).decode(errors="replace"))
    waiting.check_and_complete(topic)
    return JSONResponse({"offset": len(messages) - 1}, status_code=201)


async def poll(request: Request) -> Response:
    """Waits for messages from the client's offset on."""
    topic = request.path_params["topic"]
    try:
        offset = int(request.query_params.get("offset", "0"))
    except ValueError:
        return Response("offset must be a whole number", 400)
    if not 0 <= offset <= len(topics.get(topic, ())):
        return Response(
            f"offset must be from 0 to {len(topics.get(topic, ()))}, which is the end of the topic",
            400,
        )
    outcome = await polls.poll(request.scope).wait_for(
        waiting, lambda: topics.get(topic, [])[offset:], [topic]
    )
    if outcome.ending not in (
        Ending.SATISFIED,
        Ending.DEADLINE,
    ):  # the client has left, the server stops, a bad wait
        return Response(outcome.reason, outcome.status, outcome.headers)
    messages = outcome.value or []
    ending = "event" if messages else "deadline"
    return JSONResponse(
        {"messages": messages, "next": offset + len(messages), "ending": ending},
        headers=outcome.headers,
    )


async def stats(_: Request) -> Response:
    """The outcomes of the polls, and the number of waiting ones."""
    names = {
        "event": Ending.SATISFIED,
        "deadline": Ending.DEADLINE,
        "gone": Ending.GONE,
        "stopped": Ending.STOPPING,
    }
    endings = {name: polls.endings[ending] for name, ending in names.items()}
    return JSONResponse({"endings": endings, "purgatory": asdict(waiting.statistics())})


routes = [
    Route("/topics/{topic}", publish, methods=["POST"], max_body_size=64 * 1024),
    Route("/topics/{topic}", poll, methods=["GET"]),
    Route("/stats", stats, methods=["GET"]),
]
app = polls.middleware(Starlette(routes=routes))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A message board with long polls, on a purgatory.")
    parser.add_argument("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    parser.add_argument(
        "--demo",
        action="store_true",
        help="put load on a board in a process of its own, and report",
    )
    parser.add_argument(
        "--pollers", type=int, default=500, help="clients of the demo (default: 500)"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of the demo (default: 5)"
    )
    options = parser.parse_args(arguments)
    if options.demo:
        from _long_poll_demo import run_demo  # noqa: PLC0415 - a server needs none of it

        run_demo([sys.executable, __file__], options.pollers, options.seconds)
    else:
        # otherwise the collector stops a server with 500 open polls for 5 ms twice a second, and at
        # times for 50
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        uvicorn.run(app, port=options.port, loop="asyncio", log_level="warning")


if __name__ == "__main__":
    main()
