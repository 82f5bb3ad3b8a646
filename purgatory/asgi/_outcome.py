"""What became of a request that waited: one of five endings, and what HTTP says of each.

    ending       status       headers
    SATISFIED    200                                        what was waited for is there
    DEADLINE     204 or 304                                 the wait is over, ask again
    GONE         499                                        the client has left; nobody reads the answer
    STOPPING     503          Retry-After, Connection       the server stops, or has called the wait off
    REFUSED      503 or 400   Retry-After                   it did not begin to wait: too many do, or it asks for nonsense

Status and headers are what any framework's response takes; the author may answer otherwise.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar, final

from purgatory.asgi._types import Send

T = TypeVar("T")


class Ending(Enum):
    """How a wait within a request has ended."""

    SATISFIED = "satisfied"
    DEADLINE = "deadline"
    GONE = "gone"
    STOPPING = "stopping"
    REFUSED = "refused"


@final
@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The ending of a wait, and what to answer.

    Args:
        ending: which one.
        value: what was waited for, if `SATISFIED`; what an operation has to say that expired, if `DEADLINE`.
        status: of the answer.
        headers: of the answer.
        reason: why there was no wait, or why it was ended, in words.
    """

    ending: Ending
    value: T | None
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_satisfied(self) -> bool:
        """Whether what was waited for is there."""
        return self.ending is Ending.SATISFIED

    async def send(self, send: Send, body: bytes = b"", media_type: str = "application/json") -> None:
        """Answers the request, for applications without a framework.

        Args:
            send: of the application.
            body: what to answer; nothing, if the status is 204 or 304.
            media_type: of the body.
        """
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        if self.status not in (204, 304):
            headers += [(b"content-type", media_type.encode("latin-1")), (b"content-length", b"%d" % len(body))]
        elif body:
            raise ValueError(f"cannot answer {self.status} with a body of {len(body)} bytes: it has none")
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
