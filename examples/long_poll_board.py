"""The board of `long_poll.py` as it would run in production: with all that a small message board
over HTTP needs.

Start it, open http://127.0.0.1:8000 in two browser windows, and write in one of them. Or read in
one terminal and write in another:

    python examples/long_poll_board.py --file board.jsonl
    curl 'http://127.0.0.1:8000/topics/news?offset=0&timeout=20'
    curl -d 'hello' http://127.0.0.1:8000/topics/news

`python examples/long_poll_board.py --demo` lets 500 pollers loose on it. Needs the extra
`examples`.

With `--journal DIR` the outcome of each poll is written there, for `python -m
purgatory.pipeline report`.

`POST /topics/{topic}`
    appends the body to the topic and answers 201 with its offset. A client that cannot know whether
    its message has arrived sends it again with the same `Idempotency-Key`, and the message is
    stored once: 200, with the offset that it has.
`GET /topics/{topic}?offset=N&timeout=S`
    answers with the messages from offset N on: at once if there are any, or as soon as one arrives,
    or with none after S seconds. The offset makes this safe: it is the number of messages that the
    client has seen, so that none published between two polls is lost. 400 explains an invalid
    offset or timeout. An offset beyond the end of the topic is 400 too, with the end: such a client
    knows an earlier board, and would sleep through everything up to its offset. Instead of the
    timeout, `Prefer: wait=S`. Instead of the offset, `If-None-Match` with the `ETag` of the last
    answer, which names the board as well: to a client of an earlier board, everything is new. The
    answer at the deadline is 304 then.
`GET /topics/{topic}/events`
    the same as server-sent events.
`GET /stats`
    the outcomes of the polls so far, and the number of pending operations.
`GET /purgatory`
    the same as a page to look at, live, for a browser on this machine; `python -m purgatory.top`
    shows it in a terminal.
`GET /metrics`
    the same for Prometheus.

A poll ends in exactly one of four ways: by an event, by its deadline, because its client is gone,
or because the board stops. `purgatory.asgi` reports which; there is no race that the handler could
get wrong.
"""

import argparse
import asyncio
import gc
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from purgatory import DelayedOperation, Observer, Purgatory
from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.asgi.sse import event_source
from purgatory.console import console
from purgatory.journal import Journal
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector

PAGE = Path(__file__).with_suffix(".html")
# seconds; a poll that asks for more is refused, not cut short: its client would be answered too
# early
MAX_TIMEOUT = 60.0
# seconds; uvloop's clock shows the last whole millisecond, which is earlier than the client's
CLOCK_GRAIN = 0.001
MAX_POLLS = 100_000
MAX_MESSAGE_BYTES = 64 * 1024

Number = TypeVar("Number", int, float)


class Topics:
    """The messages of each topic, and their entity tags; in a file, too, if there is one.

    The first line of the file is the name of the board, each further one a message. A line is
    written before the message is answered, so acknowledged messages survive any end of the process
    (but not a loss of power).
    """

    def __init__(self, file: Path | None) -> None:
        self.messages: dict[str, list[str]] = {}
        self.offsets: dict[tuple[str, str], int] = {}  # by topic and idempotency key
        self.board = token_hex(4)
        self.path = file
        self.file: Any = None
        self.open()
        if self.file is not None:
            self._read()

    def append(self, topic: str, message: str, key: str | None) -> tuple[int, bool]:
        """Its offset, and whether it is new."""
        if key is not None and (topic, key) in self.offsets:
            return self.offsets[topic, key], False
        self._write([topic, message, key])
        return self._add(topic, message, key), True

    def open(self) -> None:
        """Opens the file, if there is one and it is not open."""
        if self.path is not None and (self.file is None or self.file.closed):
            self.file = self.path.open("ab+", buffering=0)

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()

    def _add(self, topic: str, message: str, key: str | None) -> int:
        messages = self.messages.setdefault(topic, [])
        messages.append(message)
        if key is not None:
            self.offsets[topic, key] = len(messages) - 1
        return len(messages) - 1

    def _write(self, line: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line).encode() + b"\n")

    def _read(self) -> None:
        assert self.file is not None
        self.file.seek(0)
        *lines, torn = self.file.read().split(b"\n")
        if torn:  # written when the process was killed, and never acknowledged
            self.file.truncate(self.file.tell() - len(torn))
        if lines:
            self.board = json.loads(lines[0])
            for line in lines[1:]:
                self._add(*json.loads(line))
        else:
            self._write(self.board)


class Poll(DelayedOperation[list[str]]):
    """Waits until the topic has a message at `offset`; its result is that message and all that
    follow."""

    __slots__ = ("offset", "topic", "topics")

    def __init__(
        self, topics: Mapping[str, list[str]], topic: str, offset: int, timeout: float
    ) -> None:
        super().__init__(timeout)
        self.topics, self.topic, self.offset = topics, topic, offset

    def try_complete(self) -> bool:
        """Called when the poll arrives, at each check of its topic, and a last time at its
        deadline."""
        return len(self.topics.get(self.topic, ())) > self.offset and self.force_complete()

    def on_complete(self) -> list[str]:
        """Called once, however the race between message and deadline went; at the deadline the
        answer is empty."""
        return self.topics.get(self.topic, [])[self.offset :]


NAMES = {
    Ending.SATISFIED: "event",
    Ending.DEADLINE: "deadline",
    Ending.GONE: "gone",
    Ending.STOPPING: "stopped",
}


class Board:
    """The topics, the polls that wait on them, and the HTTP application in front of both."""

    def __init__(self, file: Path | None = None, journal: Path | None = None) -> None:
        self.store = Topics(file)
        self.topics = self.store.messages
        self.journal = None if journal is None else Journal(journal)
        meter = Meter()
        observers: list[Observer] = [meter] if self.journal is None else [meter, self.journal]
        self.polls: Purgatory[Poll] = Purgatory("polls", max_pending=MAX_POLLS, observer=observers)
        self.requests = LongPolls(max_wait=MAX_TIMEOUT, default_wait=30.0)
        self.versions: Versions[str] = Versions(
            epoch=self.store.board
        )  # of a topic: how many messages it has
        metrics = CollectorRegistry()
        metrics.register(
            collector(
                meter,
                purgatories=self.polls,
                thresholds=self.versions.thresholds,
                polls=self.requests,
            )
        )
        app = Starlette(
            routes=[
                Route("/", self.page),
                Route(
                    "/topics/{topic}",
                    self.publish,
                    methods=["POST"],
                    max_body_size=MAX_MESSAGE_BYTES,
                ),
                Route("/topics/{topic}", self.poll, methods=["GET"]),
                Route("/topics/{topic}/events", self.events, methods=["GET"]),
                Route("/stats", self.stats, methods=["GET"]),
                Mount("/metrics", make_asgi_app(metrics)),
                Mount(
                    "/purgatory",
                    console(self.polls, self.versions.thresholds, polls=self.requests, meter=meter),
                ),
            ],
            lifespan=self.lifespan,
        )
        self.app = self.requests.middleware(app)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Opens all that an earlier lifespan has closed, makes the messages of the file known, and
        closes it at the end."""
        self.store.open()
        async with self.journal or nullcontext(), self.polls:
            for topic, messages in self.topics.items():
                self.versions.thresholds.advance(topic, len(messages))
            yield
            self.store.close()

    async def publish(self, request: Request) -> Response:
        """Appends a message, then checks the polls of this topic."""
        topic = request.path_params["topic"]
        try:
            message = (await request.body()).decode()
        except UnicodeDecodeError as error:
            raise HTTPException(400, f"the message is not UTF-8: {error}") from None
        offset, is_new = self.store.append(topic, message, request.headers.get("idempotency-key"))
        if is_new:
            self.polls.check_and_complete(topic)
            self.versions.thresholds.advance(topic, offset + 1)
        return JSONResponse({"offset": offset}, status_code=201 if is_new else 200)

    async def poll(self, request: Request) -> Response:
        """Waits in the purgatory for messages from the client's offset on."""
        topic = request.path_params["topic"]
        by_tag = "offset" not in request.query_params and "if-none-match" in request.headers
        if by_tag:
            offset = self.versions.seen(request.scope) or 0
        else:
            offset = read_number(request, "offset", int, default=0, most=sys.maxsize)
        wait = None
        if "timeout" in request.query_params:
            wait = read_number(request, "timeout", float, default=0.0, most=MAX_TIMEOUT)
        if offset > (end := len(self.topics.get(topic, ()))):
            return JSONResponse(
                {"reason": f"offset {offset} is beyond the end, {end}", "end": end}, status_code=400
            )

        poll = self.requests.poll(request.scope, wait=wait)
        operation = Poll(self.topics, topic, offset, poll.timeout and poll.timeout + CLOCK_GRAIN)
        outcome = await poll.wait(self.polls, operation, [topic])
        if outcome.ending is not Ending.SATISFIED and outcome.ending is not Ending.DEADLINE:
            return Response(outcome.reason, outcome.status, outcome.headers)

        messages = outcome.value or []
        headers = {**outcome.headers, "ETag": self.versions.etag(offset + len(messages))}
        if by_tag and outcome.ending is Ending.DEADLINE:
            return Response(status_code=304, headers=headers)
        ending = NAMES[outcome.ending]
        answer = {"messages": messages, "next": offset + len(messages), "ending": ending}
        if outcome.ending is Ending.DEADLINE:
            assert operation.deadline is not None
            answer["late"] = asyncio.get_running_loop().time() - operation.deadline
        return JSONResponse(answer, headers=headers)

    async def events(self, request: Request) -> Response:
        """The messages of a topic as server-sent events; the version of a message is how many there
        are up to it."""
        topic = request.path_params["topic"]

        def read(seen: int) -> list[tuple[int, str]]:
            return list(enumerate(self.topics.get(topic, ())[seen:], seen + 1))

        return event_source(self.requests.poll(request.scope), self.versions, topic, read)

    async def page(self, _: Request) -> Response:
        """The board for two browser windows."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    @property
    def endings(self) -> Mapping[str, int]:
        """How many polls have ended in which way."""
        return {name: self.requests.endings[ending] for ending, name in NAMES.items()}

    async def stats(self, _: Request) -> Response:
        """The endings of the requests, and the purgatory's own account."""
        return JSONResponse({"endings": self.endings, "purgatory": asdict(self.polls.statistics())})


def read_number(
    request: Request, name: str, kind: Callable[[str], Number], *, default: Number, most: Number
) -> Number:
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
    """Prints the address of the board, and at the end the outcomes of its polls. `purgatory.asgi`
    ends the polls first."""

    def __init__(self, board: Board, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.board = board

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called when the server starts; afterwards the board can be reached."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        print(f"the board is at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Called at the signal, when nothing has been closed yet."""
        await super().shutdown(sockets)
        endings = ", ".join(f"{ending}: {count}" for ending, count in self.board.endings.items())
        print(
            "polls ended by", endings, flush=True
        )  # the signal, raised again, ends the process without flushing


def serve(host: str, port: int, file: Path | None, journal: Path | None) -> None:
    """Serves a board until SIGINT or SIGTERM."""
    board = Board(file, journal)
    gc.freeze()  # see long_poll.py: fewer and shorter pauses by the collector
    gc.set_threshold(10_000, 20, 50)
    config = uvicorn.Config(board.app, host=host, port=port, loop="uvloop", log_level="warning")
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again once it has stopped
        BoardServer(board, config).run()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A message board with long polls, on a purgatory.")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: loopback only)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help="port to serve on; 0 takes a free one (default: 8000)",
    )
    parser.add_argument(
        "--file", type=Path, help="where the messages are kept (default: in memory only)"
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="DIR",
        help="where the polls are written down (default: nowhere)",
    )
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

        journal = [] if options.journal is None else ["--journal", str(options.journal)]
        run_demo(
            [sys.executable, __file__, *journal], options.pollers, options.seconds, "/purgatory"
        )
    else:
        serve(options.host, options.port, options.file, options.journal)


if __name__ == "__main__":
    main()
