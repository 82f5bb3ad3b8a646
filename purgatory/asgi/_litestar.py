"""Outcomes as responses and exceptions of Litestar."""

from typing import Any

from litestar import MediaType, Response
from litestar.exceptions import HTTPException, WebSocketException
from litestar.response.base import ASGIResponse
from litestar.serialization import encode_json
from litestar.utils.scope.state import ScopeState

from purgatory.asgi._outcome import NO_BODY, Framework, Outcome, PollEnded
from purgatory.asgi._request import Scope


class LitestarOutcome(Outcome[Any], Response[Any]):  # type: ignore[misc]  # final for users
    """An outcome that Litestar accepts as a response."""

    def response(self) -> Any:
        """A response of Litestar."""
        options: dict[str, Any] = {"status_code": self.status, "headers": self.headers}
        if self.status in NO_BODY:
            return Response(None, **options)
        if not self.is_satisfied:
            return Response(self.reason, media_type=MediaType.TEXT, **options)
        if isinstance(self.value, bytes):
            return Response(self.value, media_type="application/octet-stream", **options)
        if isinstance(self.value, str):  # which Litestar would send as it is
            return Response(encode_json(self.value), media_type=MediaType.JSON, **options)
        return Response(self.value, **options)

    def to_asgi_response(self, *arguments: Any, **options: Any) -> ASGIResponse:
        """What Litestar sends for this outcome."""
        response: Response[Any] = self.response()
        return response.to_asgi_response(*arguments, **options)


class LitestarEnded(PollEnded, HTTPException):
    """`PollEnded` as an HTTP exception of Litestar."""

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        HTTPException.__init__(
            self, detail=outcome.reason, status_code=outcome.status, headers=outcome.headers
        )
        self.outcome = outcome
        if outcome.status in NO_BODY and scope:  # Litestar's handler would give it a body, and fail
            state: Any = ScopeState.from_scope(scope)  # type: ignore[arg-type]
            known = state.exception_handlers  # Litestar's `Empty` before a handler is called
            known = known if isinstance(known, dict) else {}
            state.exception_handlers = {LitestarEnded: _respond, **known}


def _respond(_: Any, ended: LitestarEnded) -> Any:
    return ended.outcome.response()


class LitestarSocketEnded(PollEnded, WebSocketException):
    """`PollEnded` as an exception that closes a WebSocket of Litestar."""

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        del scope
        WebSocketException.__init__(self, detail=outcome.reason, code=outcome.close_code)
        self.outcome = outcome


LITESTAR = Framework(LitestarOutcome, LitestarEnded, LitestarSocketEnded)
