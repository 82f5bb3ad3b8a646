"""A small message board over HTTP, on which a poll is an operation that waits in a purgatory.

Start it, read in one terminal, write in another:

    python examples/long_poll.py --port 8000
    curl 'http://127.0.0.1:8000/topics/news?offset=0&timeout=20'
    curl -d 'hello' http://127.0.0.1:8000/topics/news

or let 500 pollers loose on it and see the numbers: `python examples/long_poll.py --demo`. Needs starlette, uvicorn
and uvloop; the demo needs aiohttp and rich beside them.

`POST /topics/{topic}`
    appends the body to the topic and answers 201 with its offset.
`GET /topics/{topic}?offset=N&timeout=S`
    answers with the messages from offset N on: at once if there are any, else as soon as one arrives, else with none
    after S seconds. The offset is what makes this safe: it names what the client has seen, so that nothing published
    between two polls is lost. 400 says what is wrong with an offset or a timeout. An offset beyond the end of the topic
    is 400 too, with the end: the board keeps its topics in memory, so such a client knows an earlier board, and would
    sleep through everything up to its offset.
`GET /stats`
    how the polls ended so far, and what the purgatory holds now.

A poll ends in exactly one of four ways: by an event, by its deadline, because its client is gone, or because the board
stops. Nobody but the purgatory decides which, so the handler has no race of its own to get wrong.
"""

import argparse
import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive

from purgatory import DelayedOperation, OperationCancelled, OperationState, Purgatory, PurgatoryClosed, PurgatoryFull

MAX_TIMEOUT = 60.0  # seconds; a poll that asks for more is refused, not cut short: its client would be told too early
CLOCK_GRAIN = 0.001  # seconds; uvloop's clock shows the last whole millisecond, which is earlier than the client's
MAX_POLLS = 100_000
MAX_MESSAGE_BYTES = 64 * 1024

Number = TypeVar("Number", int, float)


class Poll(DelayedOperation[list[str]]):
    """Waits until the topic has a message at `offset`; its result is that message and all that follow."""

    __slots__ = ("offset", "topic", "topics")

    def __init__(self, topics: Mapping[str, list[str]], topic: str, offset: int, timeout: float) -> None:
        super().__init__(timeout)
        self.topics, self.topic, self.offset = topics, topic, offset

    def try_complete(self) -> bool:
        """Called when the poll arrives, at each check of its topic, and a last time at its deadline."""
        return len(self.topics.get(self.topic, ())) > self.offset and self.force_complete()

    def on_complete(self) -> list[str]:
        """Called once, however the race between message and deadline went; at the deadline the answer is empty."""
        return self.topics.get(self.topic, [])[self.offset :]


class Board:
    """The topics, the polls that wait on them, and the HTTP application in front of both."""

    def __init__(self) -> None:
        self.topics: dict[str, list[str]] = {}
        self.polls: Purgatory[Poll] = Purgatory("polls", max_pending=MAX_POLLS)
        self.endings = Counter(event=0, deadline=0, gone=0, stopped=0)
        self.app = Starlette(
            routes=[
                Route("/topics/{topic}", self.publish, methods=["POST"], max_body_size=MAX_MESSAGE_BYTES),
                Route("/topics/{topic}", self.poll, methods=["GET"]),
                Route("/stats", self.stats, methods=["GET"]),
            ]
        )

    async def publish(self, request: Request) -> Response:
        """Appends a message, then tells the purgatory that something about this topic has changed."""
        topic = request.path_params["topic"]
        try:
            message = (await request.body()).decode()
        except UnicodeDecodeError as error:
            raise HTTPException(400, f"the message is not UTF-8: {error}") from None
        messages = self.topics.setdefault(topic, [])
        messages.append(message)
        self.polls.check_and_complete(topic)
        return JSONResponse({"offset": len(messages) - 1}, status_code=201)

    async def poll(self, request: Request) -> Response:
        """Waits in the purgatory; meanwhile somebody listens for the client to hang up."""
        topic = request.path_params["topic"]
        offset = read_number(request, "offset", int, default=0, most=sys.maxsize)
        timeout = read_number(request, "timeout", float, default=30.0, most=MAX_TIMEOUT)
        if offset > (end := len(self.topics.get(topic, ()))):
            return JSONResponse({"reason": f"offset {offset} is beyond the end, {end}", "end": end}, status_code=400)

        operation = Poll(self.topics, topic, offset, timeout and timeout + CLOCK_GRAIN)
        listener = asyncio.create_task(cancel_when_the_client_leaves(request.receive, operation))
        try:
            messages = await self.polls.wait(operation, [topic])
        except (OperationCancelled, PurgatoryClosed):
            if listener.done():
                self.endings["gone"] += 1
                return Response(status_code=499)  # nobody reads it
            self.endings["stopped"] += 1
            raise HTTPException(503, "the board is stopping", {"Connection": "close"}) from None
        except PurgatoryFull:
            raise HTTPException(503, f"{MAX_POLLS} polls are open already", {"Retry-After": "1"}) from None
        finally:
            listener.cancel()

        ending = "deadline" if operation.state is OperationState.EXPIRED else "event"
        self.endings[ending] += 1
        answer = {"messages": messages, "next": offset + len(messages), "ending": ending}
        if ending == "deadline":
            assert operation.deadline is not None
            answer["late"] = asyncio.get_running_loop().time() - operation.deadline
        return JSONResponse(answer)

    async def stats(self, _: Request) -> Response:
        """The endings as the handlers counted them, and the purgatory's own account."""
        return JSONResponse({"endings": self.endings, "purgatory": asdict(self.polls.statistics())})


async def cancel_when_the_client_leaves(receive: Receive, operation: Poll) -> None:
    """Reads what the client sends until it hangs up. The only reader: two would take messages from each other."""
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a body; that a body has ended does not mean that the client has left
    operation.cancel()  # False, and no harm done, if the poll was answered in the same moment


def read_number(request: Request, name: str, kind: Callable[[str], Number], *, default: Number, most: Number) -> Number:
    """One parameter of the query, or 400 with the reason."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number of seconds"
        raise HTTPException(400, f"{name} must be {noun}, not {text[:40]!r}") from None
    if not 0 <= value <= most:  # written so that nan is refused too
        raise HTTPException(400, f"{name} must be from 0 to {most}, not {text[:40]}")
    return value


class BoardServer(uvicorn.Server):
    """Answers the open polls before it waits for open connections.

    uvicorn does it the other way round: it waits until every connection is idle, and only then tells the application
    to stop. With polls open that takes as long as the longest of them.
    """

    def __init__(self, board: Board, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.board = board

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says where the board is, once it can be reached there."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"the board is at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called at the signal, when nothing has been closed yet."""
        await self.board.polls.aclose()
        await super().shutdown(sockets)
        endings = ", ".join(f"{ending}: {count}" for ending, count in self.board.endings.items())
        print("polls ended by", endings, flush=True)  # the signal, raised again, lets nothing be flushed at exit


def serve(host: str, port: int) -> None:
    """Serves a new board until SIGINT or SIGTERM."""
    board = Board()
    config = uvicorn.Config(board.app, host=host, port=port, loop="uvloop", log_level="warning")
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has stopped
        BoardServer(board, config).run()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A message board with long polls, on a purgatory.")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: loopback only)")
    parser.add_argument("--port", type=int, default=8000, help="port to serve on; 0 takes a free one (default: 8000)")
    parser.add_argument("--demo", action="store_true", help="put load on a board in a process of its own, and report")
    parser.add_argument("--pollers", type=int, default=500, help="clients of the demo (default: 500)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the demo (default: 5)")
    options = parser.parse_args(arguments)
    if options.demo:
        from _long_poll_demo import run_demo  # noqa: PLC0415 - a server needs none of it

        run_demo([sys.executable, __file__, "--port", "0"], options.pollers, options.seconds)
    else:
        serve(options.host, options.port)


if __name__ == "__main__":
    main()
