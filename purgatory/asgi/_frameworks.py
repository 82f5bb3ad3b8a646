"""Outcomes as FastAPI, Starlette and Litestar know responses and exceptions.

    a handler                           the framework
    return outcome.response()           sends it
    return outcome                      takes it for a response of its own, and sends
                                        `outcome.response()`
    value = await poll.result(...)      catches `PollEnded`, an HTTP exception of its own, and
                                        answers it

The application in a request's scope identifies its framework, so no framework is imported before it
is in use. Without a framework an outcome is an ASGI application, and the middleware answers
`PollEnded`.
"""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from purgatory import PurgatoryError
from purgatory.asgi._outcome import Outcome
from purgatory.asgi._types import Scope


class PollEnded(PurgatoryError):
    """Raised by `Poll.result` if there is no value; frameworks answer it with the outcome's
    response.

    Args:
        outcome: of the wait.
        scope: of the request.
    """

    def __init__(self, outcome: Outcome[Any], scope: Scope) -> None:
        del scope  # subclasses for frameworks use it
        super().__init__(outcome.reason or outcome.ending.value)
        self.outcome = outcome


class Framework(NamedTuple):
    """The classes of one framework."""

    outcome: type[Outcome[Any]]
    """Outcomes, which the framework takes for responses."""
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
        if package in ("fastapi", "starlette", "litestar"):
            framework: Framework = import_module(f"purgatory.asgi._{package}").FRAMEWORK
            return framework
    return Framework(Outcome, PollEnded, PollEnded)
