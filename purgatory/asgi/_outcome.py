"""The five endings of a request that waits: the response to each, as each framework knows it, and how
observers are notified.

    ending       status       close   headers                    observers
    SATISFIED    200          1000    Preference-Applied         COMPLETED, KEY
                                                                 the value is there
    DEADLINE     204          1000    Preference-Applied         EXPIRED, DEADLINE
                                                                 no value in time; the client may
                                                                 ask again
    GONE         499          1001                               CANCELLED, CANCELLED
                                                                 the client has disconnected, so the
                                                                 response is not read
    STOPPING     503          1012    Retry-After, Connection    CANCELLED, CLOSED
                                                                 the server stops, or the purgatory
                                                                 was closed
    REFUSED      503          1013    Retry-After, Connection    CANCELLED, FAILED
                                                                 there was no wait: too many requests
                                                                 wait
                 400          1008                               ... or the request is malformed

`close` is the code to close a WebSocket with. An endpoint may respond differently. `ANSWERS` is
this table, and the only one in the code.

The application in a request's scope identifies its framework, so no framework is imported before it
is in use:

    a handler                           the framework
    return outcome.response()           sends it
    return outcome                      takes it for a response of its own, and sends
                                        `outcome.response()`
    value = await poll.result(...)      catches `PollEnded`, an HTTP exception of its own, and
                                        answers it

Without a framework an outcome is an ASGI application, and the middleware answers `PollEnded`.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from json import dumps
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast, final

from purgatory import Cause, Ended, Observer, OperationState, PurgatoryError
from purgatory._core.observers import Notifier
from purgatory.asgi._request import Receive, Scope, Send

if TYPE_CHECKING:
    from starlette.responses import Response
else:
    Response = Any  # for `get_type_hints`: the framework is imported only if it is in use

T = TypeVar("T")

KIND: Final = "poll"
"""The kind of an operation that is a wait of a request, for observers."""


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
    state: OperationState
    """For observers, as the next one."""
    cause: Cause
    has_wait: bool = False
    """Whether it has `Preference-Applied`, if the request has named a wait."""
    reason: str = ""
    """Default reason of the outcome."""


ANSWERS: Final = {
    Ending.SATISFIED: Answer(200, 1000, OperationState.COMPLETED, Cause.KEY, has_wait=True),
    Ending.DEADLINE: Answer(204, 1000, OperationState.EXPIRED, Cause.DEADLINE, has_wait=True),
    Ending.GONE: Answer(
        499, 1001, OperationState.CANCELLED, Cause.CANCELLED, reason="the client has disconnected"
    ),
    Ending.STOPPING: Answer(
        503, 1012, OperationState.CANCELLED, Cause.CLOSED, reason="the server is stopping"
    ),
    Ending.REFUSED: Answer(
        503, 1013, OperationState.CANCELLED, Cause.FAILED, reason="too many operations wait already"
    ),
}
NO_BODY: Final = (204, 304)
"""Statuses without a body."""

MAX_REASON_BYTES: Final = 123
"""Limit of a reason in bytes of UTF-8: the space in a WebSocket's close frame (RFC 6455, 5.5.1)."""

MALFORMED: Final = Answer(400, 1008, OperationState.CANCELLED, Cause.FAILED)
"""The answer to a malformed request; its ending is `REFUSED`."""


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

    def __reduce__(self) -> tuple[Any, ...]:  # a subclass for a framework may have slots
        return type(self), (self.ending, self.value, self.status, self.headers, self.reason)

    @property
    def is_satisfied(self) -> bool:
        """Whether there is a value."""
        return self.ending is Ending.SATISFIED

    @property
    def close_code(self) -> int:
        """Code to close a WebSocket with: 1000 after a wait, 1012 if the server stops."""
        return (MALFORMED if self.status == MALFORMED.status else ANSWERS[self.ending]).close_code

    def response(self) -> Response:
        """The response to the request: of FastAPI or Starlette, of Litestar, or without either an
        ASGI application. Its declared type is Starlette's; in Litestar return the outcome itself.

        It has the `status` and `headers` of the outcome; its body is the value as JSON (bytes as
        they are), the reason, or nothing.
        """
        return cast(Response, self)

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


class PollEnded(PurgatoryError):
    """Raised by `Poll.result` if there is no value; frameworks answer it with the outcome's
    response.

    Args:
        outcome: the outcome of the wait.
        scope: the scope of the request.
    """

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        del scope  # subclasses for frameworks use it
        super().__init__(outcome.reason or outcome.ending.value)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outcome, {})


class Framework(NamedTuple):
    """The classes of one framework."""

    outcome: type[Outcome[Any]]
    """Outcomes, which the framework accepts as responses."""
    ended: type[PollEnded]
    """`PollEnded` in an HTTP request."""
    socket_ended: type[PollEnded]
    """`PollEnded` in a WebSocket."""


def framework_of(scope: Scope) -> Framework:
    """The framework that serves a request. Cost: O(1)."""
    application: Any = type(scope.get("app"))
    return _framework_of(application)


@cache
def _framework_of(application: Any) -> Framework:
    for base in application.__mro__:
        package = base.__module__.partition(".")[0]
        # Imports that a program which freezes applications can find.
        if package == "litestar":
            from purgatory.asgi._litestar import LITESTAR  # noqa: PLC0415

            return LITESTAR
        if package in ("fastapi", "starlette"):
            from purgatory.asgi._starlette import FASTAPI, STARLETTE  # noqa: PLC0415

            return FASTAPI if package == "fastapi" else STARLETTE
    return Framework(Outcome, PollEnded, PollEnded)


def outcome_of(
    ending: Ending,
    value: Any,
    scope: Scope,
    applied: str | None,
    retry_after: int,
    reason: str = "",
) -> Outcome[Any]:
    """The outcome of a wait, with the response that the table has for its ending.

    Args:
        ending: how the wait has ended.
        value: the outcome's value.
        scope: the scope of the request.
        applied: the `Preference-Applied` header, if the request has named a wait.
        retry_after: the `Retry-After` header, in seconds.
        reason: replaces the reason of the table.
    """
    answer = ANSWERS[ending]
    headers: dict[str, str] = {}
    if answer.has_wait:
        if applied is not None:
            headers["Preference-Applied"] = applied
    elif ending is not Ending.GONE:
        headers["Retry-After"] = str(retry_after)
        # A stopping server would break the connection off during the next request, and a server
        # that refuses polls may be short of open files.
        if scope.get("http_version", "1.1").startswith("1"):
            headers["Connection"] = "close"
    kind = framework_of(scope).outcome
    return kind(ending, value, answer.status, headers, _cut(reason or answer.reason))


def malformed(reason: str, scope: Scope) -> Outcome[Any]:
    """The outcome of a malformed request, with the `reason`."""
    kind = framework_of(scope).outcome
    return kind(Ending.REFUSED, None, MALFORMED.status, {}, _cut(reason))


def _cut(reason: str) -> str:
    """As many whole characters of a reason as fit into `MAX_REASON_BYTES`."""
    return reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore")


@final
class PollNotifier:
    """Notifies one or more `observers` of the waits of requests, as a purgatory does of its
    operations: see `purgatory.Observer`.

    These operations have no keys, and their kind is "poll". The purgatory in which a request waits
    notifies its own observers.

    Args:
        name: name of the `LongPolls`.
        observers: the observers that `observers_of` returned.
    """

    __slots__ = ("_notifier",)

    def __init__(self, name: str, observers: Sequence[Observer]) -> None:
        self._notifier = Notifier(name, observers, _report)

    def notify_started(self, poll: object) -> float:
        """Notifies of a wait that starts now, and returns the loop's time."""
        self._notifier.started(poll)
        return get_running_loop().time()

    def notify_ended(
        self,
        poll: object,
        timeout: float,
        started_at: float,
        ending: Ending | None,
        error: BaseException | None,
    ) -> None:
        """Notifies of the end of a wait of at most `timeout` seconds: with `ending`, or else with
        `error`, which is raised. A task that other code has cancelled counts as `GONE`."""
        failure = error if ending is None and isinstance(error, Exception) else None
        answer = ANSWERS[ending or (Ending.GONE if failure is None else Ending.REFUSED)]
        limit = None if timeout == inf else max(timeout, 0.0)
        failed_tries = 1 + (ending is Ending.DEADLINE)
        self._notifier.ended(
            Ended(
                self._notifier.name, KIND, (), started_at, get_running_loop().time(), limit,
                answer.state, answer.cause, None, failed_tries, False, failure, id(poll),
            )
        )  # fmt: skip


def _report(message: str, error: BaseException | None) -> None:
    get_running_loop().call_exception_handler({"message": f"polls: {message}", "exception": error})
