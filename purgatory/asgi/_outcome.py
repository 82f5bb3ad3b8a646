"""The five endings of a request that waits, and the response to each.

    ending       status       close   headers
    SATISFIED    200          1000    Preference-Applied        the value is there
    DEADLINE     204          1000    Preference-Applied        no value in time; the client may ask
                                                                again
    GONE         499          1001                              the client has disconnected, so the
                                                                response is not read
    STOPPING     503          1012    Retry-After, Connection   the server stops, or the purgatory
                                                                was closed
    REFUSED      503          1013    Retry-After, Connection   there was no wait: too many requests
                                                                wait
                 400          1008                              ... or the request is malformed

`close` is the code to close a WebSocket with. An endpoint may respond differently. `ANSWERS` is
this table, and the only one in the code.
"""

from dataclasses import dataclass, field
from enum import Enum
from json import dumps
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast, final

from purgatory.asgi._types import Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.responses import Response

T = TypeVar("T")


class Ending(Enum):
    """How a wait within a request has ended."""

    SATISFIED = "satisfied"
    DEADLINE = "deadline"
    GONE = "gone"
    STOPPING = "stopping"
    REFUSED = "refused"


class Answer(NamedTuple):
    """A row of the table."""

    status: int
    close_code: int
    has_wait: bool = False
    """Whether it has `Preference-Applied`, if the request has named a wait."""
    has_retry: bool = False
    """Whether it has `Retry-After`."""
    closes: bool = False
    """Whether it has `Connection: close`, in HTTP/1: a stopping server would break the connection
    off during the next request, and a server that refuses polls may be short of open files."""
    reason: str = ""
    """Default reason of the outcome."""


ANSWERS: Final = {
    Ending.SATISFIED: Answer(200, 1000, has_wait=True),
    Ending.DEADLINE: Answer(204, 1000, has_wait=True),
    Ending.GONE: Answer(499, 1001, reason="the client has disconnected"),
    Ending.STOPPING: Answer(
        503, 1012, has_retry=True, closes=True, reason="the server is stopping"
    ),
    Ending.REFUSED: Answer(
        503, 1013, has_retry=True, closes=True, reason="too many operations wait already"
    ),
}
NO_BODY: Final = (204, 304)
"""Statuses whose responses have no body."""

MAX_REASON_BYTES: Final = 123
"""Limit of a reason in bytes of UTF-8: the space in a WebSocket's close frame (RFC 6455, 5.5.1)."""

MALFORMED: Final = Answer(400, 1008)
"""The answer to a malformed request, whose ending is `REFUSED`."""


@final
@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The ending of a wait, and how to respond. A handler that returns it answers `response()`.

    Args:
        ending: how the wait has ended.
        value: the result, if `is_satisfied`; its type holds only then. Otherwise `None`, or at the
            `DEADLINE` the result of an operation that has expired.
        status: HTTP status of the response.
        headers: HTTP headers of the response.
        reason: why there was no wait or no value, in words; at most 123 bytes of UTF-8.
    """

    ending: Ending
    value: T
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_satisfied(self) -> bool:
        """Whether there is a value."""
        return self.ending is Ending.SATISFIED

    @property
    def close_code(self) -> int:
        """Code to close a WebSocket with: 1000 after a wait, 1012 if the server stops."""
        return (MALFORMED if self.status == MALFORMED.status else ANSWERS[self.ending]).close_code

    def response(self) -> "Response":
        """The response to the request: of FastAPI or Starlette, of Litestar, or without either an
        ASGI application. Its declared type is Starlette's; in Litestar return the outcome itself.

        It has the `status` and `headers` of the outcome; its body is the value as JSON (bytes as
        they are), the reason, or nothing.
        """
        return cast("Response", self)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answers a request, or closes a WebSocket: the ASGI application of this outcome."""
        if scope["type"] == "websocket":
            reason = self.reason
            await send({"type": "websocket.close", "code": self.close_code, "reason": reason})
        elif self.status in NO_BODY:
            await self.send(send)
        elif not self.is_satisfied:
            await self.send(send, self.reason.encode(), "text/plain; charset=utf-8")
        elif isinstance(self.value, bytes):
            await self.send(send, self.value, "application/octet-stream")
        else:
            await self.send(send, dumps(self.value).encode())

    async def send(
        self, send: Send, body: bytes = b"", media_type: str = "application/json"
    ) -> None:
        """Sends the response, for applications without a framework.

        Args:
            send: the `send` of the application.
            body: body of the response; empty if the status is 204 or 304.
            media_type: type of the body.

        Raises:
            ValueError: there is a body, and the status allows none.
        """
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in self.headers.items()
        ]
        if self.status not in NO_BODY:
            headers += [
                (b"content-type", media_type.encode("latin-1")),
                (b"content-length", b"%d" % len(body)),
            ]
        elif body:
            raise ValueError(
                f"cannot answer {self.status} with a body of {len(body)} bytes: the status "
                "allows none"
            )
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def outcome_of(
    ending: Ending,
    value: Any,
    scope: Scope,
    applied: str | None,
    retry_after: float,
    reason: str = "",
    kind: type[Outcome[Any]] = Outcome,
) -> Outcome[Any]:
    """The outcome of a wait, with the response that the table has for its ending.

    Args:
        ending: of the wait.
        value: the outcome's.
        scope: of the request.
        applied: the `Preference-Applied` header, if the request has named a wait.
        retry_after: in seconds; `Retry-After` has whole seconds, rounded up.
        reason: replaces the reason of the table.
        kind: the class of the outcome.
    """
    answer = ANSWERS[ending]
    headers: dict[str, str] = {}
    if answer.has_wait and applied is not None:
        headers["Preference-Applied"] = applied
    if answer.has_retry:
        headers["Retry-After"] = str(ceil(retry_after))
    if answer.closes and scope.get("http_version", "1.1").startswith("1"):
        headers["Connection"] = "close"
    return kind(ending, value, answer.status, headers, _cut(reason or answer.reason))


def malformed(reason: str, kind: type[Outcome[Any]] = Outcome) -> Outcome[Any]:
    """The outcome of a malformed request, with the `reason`."""
    return kind(Ending.REFUSED, None, MALFORMED.status, {}, _cut(reason))


def _cut(reason: str) -> str:
    """The beginning of a reason, in whole characters, that fits into `MAX_REASON_BYTES`."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")
