"""Requests as a server would make them, for the tests of `purgatory.asgi`, and `Service`, whose
requests wait in each of the `WAITS`."""

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from anyio import sleep

from purgatory import DelayedOperation, OperationState, Purgatory, ThresholdPurgatory
from purgatory.asgi import Ending, LongPolls, Outcome, Poll

Message = dict[str, Any]


class Request:
    """One request to an application, and the application's answer."""

    def __init__(
        self,
        app: Any,
        query: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        method: str = "GET",
        path: str = "/",
        host: str = "192.0.2.1",
        http_version: str = "1.1",
    ) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.answer: list[Message] = []
        self.readers = self.most_readers = 0
        names = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        self.scope = {
            "type": "http", "http_version": http_version, "scheme": "http", "method": method,
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": query,
            "headers": [*names.items()], "client": (host, 50000), "server": ("192.0.2.2", 80),
        }  # fmt: skip
        self.task = asyncio.create_task(app(self.scope, self.receive, self.send))

    async def receive(self) -> Message:
        self.readers += 1
        self.most_readers = max(self.readers, self.most_readers)
        try:
            return await self.messages.get()
        finally:
            self.readers -= 1

    async def send(self, message: Message) -> None:
        self.answer.append(message)

    def body(self, body: bytes = b"", *, more: bool = False) -> None:
        self.messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})

    async def done(self) -> "Request":
        await self.task
        return self

    @property
    def status(self) -> int:
        [start, *_] = self.answer
        return int(start["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.answer[0]["headers"]}

    @property
    def content(self) -> bytes:
        return b"".join(message["body"] for message in self.answer[1:])


class Reader(Request):
    """A request whose client takes some seconds for each message of a kind, `inf` for ever."""

    def __init__(self, app: Any, message: str, seconds: float = inf) -> None:
        self.message, self.seconds = message, seconds
        super().__init__(app)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.message == kind_of(message):
            await sleep(self.seconds)


def kind_of(message: Any) -> str:
    if message["type"] == "http.response.start":
        return "start"
    body = message["body"]
    return "end" if not body else "ping" if body.startswith(b":") else "event"


async def lifespan(app: Any, *messages: str) -> list[str]:
    """Sends the messages of the lifespan protocol, and returns the application's answers."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    answers: list[str] = []

    async def send(message: Message) -> None:
        answers.append(message["type"])

    for message in messages:
        queue.put_nowait({"type": message})
    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, queue.get, send)
    return answers


WAITS = ("predicate", "asynchronous predicate", "operation", "threshold", "run")
"""The ways in which a poll waits."""


class Fetch(DelayedOperation[str]):
    """An operation that completes with "found" when an event is set, and expires with "late"."""

    def __init__(self, found: asyncio.Event, timeout: float) -> None:
        super().__init__(timeout)
        self.found = found

    def try_complete(self) -> bool:
        return self.found.is_set() and self.force_complete()

    def on_complete(self) -> str:
        return "late" if self.state is OperationState.EXPIRED else "found"


class Service:
    """An application whose requests wait in one of the ways, or in yours, until `satisfy` is called; `outcomes`
    has the waits' outcomes, in order."""

    def __init__(self, way: str | Callable[[Poll], Any] = "predicate", **options: Any) -> None:
        self.way = way
        self.polls = LongPolls(**{"signals": (), **options})
        self.purgatory: Purgatory[Any] = Purgatory()
        self.thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory()
        self.found = asyncio.Event()
        self.outcomes: list[Outcome[Any]] = []
        self.app = self.polls.middleware(self.serve)

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": f"{message['type']}.complete"})
            return
        await self.answer(scope, receive, send)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Waits, and sends the outcome; tests replace it."""
        outcome = await self.wait(self.polls.poll(scope))
        await outcome.send(send, str(outcome.value).encode() if outcome.is_satisfied else b"")

    async def wait(self, poll: Poll) -> Outcome[Any]:
        def look() -> str | None:
            return "found" if self.found.is_set() else None

        async def look_later() -> str | None:
            await asyncio.sleep(0)
            return look()

        async def find() -> str | None:
            await self.found.wait()
            return look()

        wait_for = partial(poll.wait_for, self.purgatory, keys=["key"])
        fetch = Fetch(self.found, poll.remaining)
        waits: dict[str, Any] = {
            "predicate": lambda: wait_for(look),
            "asynchronous predicate": lambda: wait_for(look_later),
            "operation": lambda: poll.wait(self.purgatory, fetch, ["key"]),
            "threshold": lambda: poll.reach(self.thresholds, "key", 1),
            "run": lambda: poll.run(find()),
        }
        waiting = waits[self.way]() if isinstance(self.way, str) else self.way(poll)
        self.outcomes.append(await waiting)
        return self.outcomes[-1]

    def satisfy(self) -> None:
        self.found.set()
        self.thresholds.advance("key", 1)
        self.purgatory.check_and_complete("key")

    def unsatisfy(self) -> None:
        self.found.clear()
        self.thresholds.forget("key")

    @property
    def endings(self) -> list[Ending]:
        return [outcome.ending for outcome in self.outcomes]

    def check_nothing_is_left(self) -> None:
        assert self.polls.open == self.purgatory.pending == self.thresholds.pending == 0
        assert self.purgatory.watched == 0
        assert self.polls._open_polls is None or not self.polls._open_polls.per_client
