"""The poll of a request as a FastAPI dependency, which documents the wait and its responses in
OpenAPI.

    @app.get("/jobs/{number}", responses=RESPONSES)
    async def result(number: int, poll: Annotated[Poll, long_poll(polls)]) -> str:
        return await poll.result(jobs, lambda: results.get(number), [number])

It is `polls.poll(request.scope)`, and works in WebSocket routes as well. The wait is parsed there,
so a malformed one is 400, as everywhere else, and not FastAPI's 422.
"""

from typing import Annotated, Any, Final

try:
    from fastapi import Depends, Header, Query
    from fastapi.requests import HTTPConnection
    from pydantic import WithJsonSchema
except ImportError as error:
    raise ImportError("purgatory.asgi.fastapi needs FastAPI: pip install fastapi") from error

from purgatory.asgi._outcome import ANSWERS, MALFORMED, Ending
from purgatory.asgi._poll import Poll
from purgatory.asgi._polls import LongPolls

__all__ = ["RESPONSES", "long_poll"]

_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    ANSWERS[Ending.DEADLINE].status: {"description": "Not within the wait; ask again."},
    MALFORMED.status: {"description": "The wait is not a number of seconds."},
    ANSWERS[Ending.STOPPING].status: {
        "description": "The server stops, or too many wait already.",
        "headers": _RETRY_AFTER,
    },
}
"""For the `responses` of a route: the answers to a wait without a value."""


def long_poll(polls: LongPolls) -> Any:
    """The dependency to annotate a parameter with. All parameters of one request share the poll.

    Args:
        polls: makes the poll; OpenAPI has its `max_wait`, `default_wait` and `wait_parameter`.
    """
    seconds = {"type": "number", "minimum": 0, "maximum": polls.max_wait}
    description = (
        f"How long to wait at most, in seconds; by default {polls.default_wait:g}. Takes "
        "precedence over `Prefer`."
    )

    async def poll_of_request(
        connection: HTTPConnection,
        wait: Annotated[
            str | None,
            WithJsonSchema(seconds),
            Query(alias=polls.wait_parameter, description=description),
        ] = None,
        prefer: Annotated[
            str | None,
            Header(
                description="How long to wait at most, in whole seconds (RFC 7240).",
                examples=["wait=20"],
            ),
        ] = None,
    ) -> Poll:
        del wait, prefer  # documented here, parsed in `poll`
        return polls.poll(connection.scope)

    return Depends(poll_of_request)
