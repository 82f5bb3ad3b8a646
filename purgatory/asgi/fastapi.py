"""The poll of a request as a FastAPI dependency: the OpenAPI document then says what may be asked for, and how it is answered.

    @app.get("/jobs/{number}", responses=RESPONSES)
    async def result(number: int, poll: Annotated[Poll, long_poll(polls)]) -> Response:
        outcome = await poll.wait_for(jobs, lambda: results.get(number), [number])

It is `polls.poll(request.scope)`, and serves WebSocket routes as well. What a request asks for is read there, so a malformed
wait is 400, as it is everywhere else, and not FastAPI's 422.
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
    ANSWERS[Ending.STOPPING].status: {"description": "The server stops, or too many wait already.", "headers": _RETRY_AFTER},
}
"""What a route answers besides its result, if it answers with the outcome's status: for its `responses`."""


def long_poll(polls: LongPolls) -> Any:
    """The dependency to annotate a parameter with. Everything that depends on it within one request shares the poll.

    Args:
        polls: whose poll it is; their `max_wait`, `default_wait` and `wait_parameter` are what is documented.
    """
    seconds = {"type": "number", "minimum": 0, "maximum": polls.max_wait}
    usual = f"How long to wait at most, in seconds; {polls.default_wait:g} if nothing says so. Counts more than `Prefer`."

    async def poll_of_request(
        connection: HTTPConnection,
        wait: Annotated[
            str | None,
            WithJsonSchema(seconds),
            Query(alias=polls.wait_parameter, description=usual),
        ] = None,
        prefer: Annotated[
            str | None,
            Header(description="How long to wait at most, in whole seconds (RFC 7240).", examples=["wait=20"]),
        ] = None,
    ) -> Poll:
        del wait, prefer  # documented here, and read there
        return polls.poll(connection.scope)

    return Depends(poll_of_request)
