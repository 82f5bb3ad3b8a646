"""Outcomes as responses and exceptions of Starlette, and of FastAPI, which builds on it."""

from inspect import iscoroutinefunction
from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException, WebSocketException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from purgatory.asgi._outcome import NO_BODY, Framework, Outcome, PollEnded
from purgatory.asgi._request import Receive, Scope, Send


class StarletteOutcome(Outcome[Any], Response):  # type: ignore[misc]  # final for users
    """An outcome that Starlette accepts as a response."""

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
    """An outcome; its value may be a model."""

    def _encodable(self, value: Any) -> Any:
        from fastapi.encoders import jsonable_encoder  # noqa: PLC0415 - only where it is in use

        return jsonable_encoder(value)


class StarletteEnded(PollEnded, HTTPException):
    """`PollEnded` as an HTTP exception of Starlette.

    It has a handler of its own in the application's table, unless the application has registered
    one for `PollEnded`. The handler for HTTP exceptions need not know that 204 and 304 have no
    body, as the one in FastAPI's documentation does not; and error trackers report what reaches
    it with a status of 500 and more.
    """

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        super().__init__(outcome, scope)
        self.status_code, self.headers = outcome.status, outcome.headers
        self.detail = outcome.reason
        handlers, _ = scope.get("starlette.exception_handlers", ({}, {}))
        handlers.setdefault(PollEnded, _answer)


async def _answer(request: Request, ended: StarletteEnded) -> Response:
    """The response to a request after a poll without a value: by the application's own
    handler for HTTP exceptions, if there may be a body and it has one."""
    outcome = ended.outcome
    handler = None
    if outcome.status not in NO_BODY:
        handler = getattr(request.app, "exception_handlers", {}).get(HTTPException)
    if handler is None:
        return outcome.response()
    if iscoroutinefunction(handler):
        return cast(Response, await handler(request, ended))
    return cast(Response, await run_in_threadpool(handler, request, ended))


class StarletteSocketEnded(PollEnded, WebSocketException):
    """`PollEnded` as an exception that closes a WebSocket of Starlette."""

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        super().__init__(outcome, scope)
        self.code, self.reason = outcome.close_code, outcome.reason


STARLETTE = Framework(StarletteOutcome, StarletteEnded, StarletteSocketEnded)
FASTAPI = Framework(FastAPIOutcome, StarletteEnded, StarletteSocketEnded)
