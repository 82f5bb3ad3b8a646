"""Outcomes as responses and exceptions of Starlette, and of FastAPI, which builds on it."""

from typing import Any

from starlette.exceptions import HTTPException, WebSocketException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from purgatory.asgi._outcome import NO_BODY, Framework, Outcome, PollEnded
from purgatory.asgi._request import Receive, Scope, Send


class StarletteOutcome(Outcome[Any], Response):  # type: ignore[misc]  # final for users
    """An outcome that Starlette takes for a response."""

    headers: Any = None  # of the instance: hides the property of `Response`
    background: Any = None

    def response(self) -> Response:
        """A response of Starlette."""
        value, response = self.value, Response(None, self.status)
        if not self.is_satisfied:
            if self.status not in NO_BODY:
                response = PlainTextResponse(self.reason, self.status)
        elif isinstance(value, Response) and not isinstance(value, Outcome):
            response = value
        elif isinstance(value, bytes):
            response = Response(value, self.status, media_type="application/octet-stream")
        else:
            response = JSONResponse(self._encodable(value), self.status)
        response.headers.update(self.headers)
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the response, and runs the background tasks that FastAPI has given it."""
        if scope["type"] == "websocket":
            await super().__call__(scope, receive, send)
            return
        response = self.response()
        response.background = self.background or response.background
        await response(scope, receive, send)

    def _encodable(self, value: Any) -> Any:
        return value


class FastAPIOutcome(StarletteOutcome):  # type: ignore[misc]  # final for users
    """An outcome whose value may be a model."""

    def _encodable(self, value: Any) -> Any:
        from fastapi.encoders import jsonable_encoder  # noqa: PLC0415 - only where it is in use

        return jsonable_encoder(value)


class StarletteEnded(PollEnded, HTTPException):
    """`PollEnded` as an HTTP exception of Starlette."""

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        super().__init__(outcome, scope)
        self.status_code, self.headers = outcome.status, outcome.headers
        self.detail = outcome.reason


class StarletteSocketEnded(PollEnded, WebSocketException):
    """`PollEnded` as an exception that closes a WebSocket of Starlette."""

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        super().__init__(outcome, scope)
        self.code, self.reason = outcome.close_code, outcome.reason


def framework(package: str) -> Framework:
    """The classes for `starlette` or `fastapi`, which is imported only if it is in use."""
    outcome = FastAPIOutcome if package == "fastapi" else StarletteOutcome
    return Framework(outcome, StarletteEnded, StarletteSocketEnded)
