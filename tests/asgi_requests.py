"""Requests as a server would make them, for the tests of `purgatory.asgi`.

request = Request(app, b"wait=5", {"prefer": "wait=9"})      # begins at once, in a task of its own
request.body(b"part", more=True)                             # sent by the client
request.leave()
await request.done()
assert request.status == 204
"""

import asyncio
from typing import Any

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
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": [
                (name.lower().encode(), value.encode()) for name, value in (headers or {}).items()
            ],
            "client": (host, 50000),
            "server": ("192.0.2.2", 80),
            "http_version": http_version,
        }
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
