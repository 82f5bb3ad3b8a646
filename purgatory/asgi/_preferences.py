"""How long a request wants to wait: `Prefer: wait=20` (RFC 7240), or a parameter of its query,
`?wait=20`.

    requested      max_wait    spread    effective                response
    wait=20        60          0         20                       Preference-Applied: wait=20
    wait=600       60          0         60                       Preference-Applied: wait=60
    wait=60        60          1/16      between 56.25 and 60     Preference-Applied: wait=58,
                                                                  rounded up
    nothing        60          0         default_wait

Polls that began together, after a restart for instance, would all come back at once, again and
again: `spread` shortens each wait by up to that fraction. Consul adds up to a sixteenth, but in RFC
7240 the client names an upper bound, after which it may have disconnected.

RFC 7240 has a server ignore a preference that it does not understand, so a malformed `Prefer`
counts as none. A parameter is part of the request, and a malformed one is an error.
"""

from collections.abc import Iterable
from math import ceil
from re import compile as regex
from typing import NamedTuple
from urllib.parse import unquote_plus

from purgatory.asgi._types import Scope, header_values

_QUOTED = regex(r'"(?:[^"\\]|\\.)*+"?')
_SECONDS = regex(r"[0-9]{1,18}")
_NUMBER = regex(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf")


class RequestedWait(NamedTuple):
    """A wait that a request asks for, in seconds, and whether it does so by `Prefer`."""

    seconds: float
    from_header: bool


def query_parameter(scope: Scope, name: str) -> str | None:
    """The last value of a parameter of the query; `None` if there is none."""
    query: bytes = scope.get("query_string", b"")
    for field in reversed(query.decode("latin-1").split("&")):
        field_name, _, value = field.partition("=")
        if field and unquote_plus(field_name) == name:
            return unquote_plus(value)
    return None


def requested_wait(scope: Scope, parameter: str) -> RequestedWait | None:
    """The wait that a request asks for; the parameter takes precedence over the header.

    Raises:
        ValueError: the parameter is not a number of seconds from zero.
    """
    text = query_parameter(scope, parameter)
    if text is not None:
        if not _NUMBER.fullmatch(text):
            raise ValueError(
                f"{parameter} must be a number of seconds, zero or more, not {text[:40]!r}"
            )
        return RequestedWait(float(text), from_header=False)
    preferred = preferred_wait(header_values(scope, b"prefer"))
    return None if preferred is None else RequestedWait(preferred, from_header=True)


def preferred_wait(prefer: Iterable[str]) -> float | None:
    """The `wait` among the preferences in the values of `Prefer` header fields: the first one, as
    in RFC 7240."""
    for value in prefer:
        for preference in _QUOTED.sub("", value).split(","):
            name, _, word = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return float(word) if _SECONDS.fullmatch(word.strip()) else None
    return None


def preference_applied(seconds: float, from_header: bool) -> str:
    """The `Preference-Applied` header of a wait: in whole seconds, rounded up, if `Prefer`
    requested it."""
    return f"wait={ceil(seconds)}" if from_header else f"wait={seconds:.3f}".rstrip("0").rstrip(".")
