"""The five endings of a request that waits, and the response to each.

    ending       status       close   headers
    SATISFIED    200          1000    Preference-Applied        what it waited for is there
    DEADLINE     204          1000    Preference-Applied        the wait is over, ask again
    GONE         499          1001                              the client has disconnected; nobody reads the response
    STOPPING     503          1012    Retry-After, Connection   the server stops, or the purgatory was closed
    REFUSED      503          1013    Retry-After               it did not begin to wait: too many requests do
                 400          1008                              ... or what it requests is malformed

Any framework's response takes the status and the headers; `close` is the code to close a WebSocket with. An endpoint may
respond differently. `ANSWERS` is this table, and the only one in the code.
"""

from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from purgatory.asgi._types import Scope, Send

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
    """`Preference-Applied`, if the request has named a wait."""
    has_retry: bool = False
    """`Retry-After`."""
    closes: bool = False
    """`Connection: close`, in HTTP/1: a server that stops would break the connection off during the next request."""
    reason: str = ""
    """Used unless there is a better one."""


ANSWERS: Final = {
    Ending.SATISFIED: Answer(200, 1000, has_wait=True),
    Ending.DEADLINE: Answer(204, 1000, has_wait=True),
    Ending.GONE: Answer(499, 1001),
    Ending.STOPPING: Answer(503, 1012, has_retry=True, closes=True, reason="the server is stopping"),
    Ending.REFUSED: Answer(503, 1013, has_retry=True, reason="too many operations wait already"),
}
MALFORMED: Final = Answer(400, 1008)
"""`REFUSED`, because what the request asks for is malformed."""


@final
@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The ending of a wait, and how to respond.

    Args:
        ending: how the wait has ended.
        value: what was waited for, if `is_satisfied`: its type is for then. Otherwise `None`, or at the `DEADLINE` the result
            of an operation that has expired.
        status: of the response.
        headers: of the response.
        reason: why there was no wait, or why it was ended, in words.
    """

    ending: Ending
    value: T
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_satisfied(self) -> bool:
        """Whether what was waited for is there."""
        return self.ending is Ending.SATISFIED

    @property
    def close_code(self) -> int:
        """The code to close a WebSocket with after this wait: 1000 for most endings, 1012 if the server stops."""
        return (MALFORMED if self.status == MALFORMED.status else ANSWERS[self.ending]).close_code

    async def send(self, send: Send, body: bytes = b"", media_type: str = "application/json") -> None:
        """Sends the response, for applications without a framework.

        Args:
            send: the application's.
            body: of the response; none, if the status is 204 or 304.
            media_type: of the body.
        """
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.status not in (204, 304):
            headers += [(b"content-type", media_type.encode("latin-1")), (b"content-length", b"%d" % len(body))]
        elif body:
            raise ValueError(f"cannot answer {self.status} with a body of {len(body)} bytes: it has none")
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def outcome_of(ending: Ending, value: Any, scope: Scope, applied: str | None, retry_after: float) -> Outcome[Any]:
    """The outcome of a wait, with the response that the table has for its ending.

    Args:
        ending: of the wait.
        value: the outcome's.
        scope: of the request.
        applied: the `Preference-Applied` header, if the request has named a wait.
        retry_after: in seconds; `Retry-After` has whole seconds, rounded up.
    """
    answer = ANSWERS[ending]
    headers: dict[str, str] = {}
    if answer.has_wait and applied is not None:
        headers["Preference-Applied"] = applied
    if answer.has_retry:
        headers["Retry-After"] = str(ceil(retry_after))
    if answer.closes and scope.get("http_version", "1.1").startswith("1"):
        headers["Connection"] = "close"
    return Outcome(ending, value, answer.status, headers, answer.reason)


def malformed(reason: str) -> Outcome[Any]:
    """The outcome of a malformed request; `reason` says what is wrong with it."""
    return Outcome(Ending.REFUSED, None, MALFORMED.status, {}, reason)
