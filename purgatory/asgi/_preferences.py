"""How long a request wants to wait: `Prefer: wait=20` (RFC 7240), or a parameter of its query, `?wait=20`.

    asked for      most    spread    effective                told back
    wait=20        60      0         20                       Preference-Applied: wait=20
    wait=600       60      0         60                       Preference-Applied: wait=60
    wait=60        60      1/16      between 56.25 and 60     Preference-Applied: wait=58, rounded up
    nothing        60      0         the usual wait           nothing

Polls that began together, after a restart for instance, would all come back in one instant, and go on doing so: `spread`
takes up to that share off each wait. Consul adds up to a sixteenth, but what the client names is an upper bound
in RFC 7240, after which it may have hung up.

A preference is a wish: after RFC 7240 a server ignores what it does not understand, so a malformed `Prefer` counts as none.
A parameter is part of the request, and a malformed one is an error.
"""

from collections.abc import Iterable
from math import ceil
from re import compile as regex
from typing import NamedTuple
from urllib.parse import parse_qsl

from purgatory.asgi._types import Scope, header_values

_QUOTED = regex(r'"(?:[^"\\]|\\.)*+"?')
_SECONDS = regex(r"[0-9]{1,18}")


class Wish(NamedTuple):
    """A wait that was asked for, in seconds, and by which means."""

    seconds: float
    by_header: bool


def query_parameter(scope: Scope, name: str) -> str | None:
    """The last value of a parameter of the query; `None` if there is none."""
    query: bytes = scope.get("query_string", b"")
    if not query:
        return None
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get(name)


def wish(scope: Scope, parameter: str) -> Wish | None:
    """The wait that a request asks for; the parameter takes precedence over the header.

    Raises:
        ValueError: the parameter is not a number of seconds from zero.
    """
    text = query_parameter(scope, parameter)
    if text is not None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not seconds >= 0.0:  # so that NaN is refused, too
            raise ValueError(f"{parameter} must be a number of seconds, zero or more, not {text[:40]!r}")
        return Wish(seconds, by_header=False)
    seconds_preferred = preferred_wait(header_values(scope, b"prefer"))
    return None if seconds_preferred is None else Wish(seconds_preferred, by_header=True)


def preferred_wait(prefer: Iterable[str]) -> float | None:
    """The `wait` among the preferences in the values of `Prefer` header fields: the first one, as in RFC 7240."""
    for value in prefer:
        for preference in _QUOTED.sub("", value).split(","):
            name, _, word = preference.partition(";")[0].partition("=")
            if name.strip().lower() == "wait":
                return float(word) if _SECONDS.fullmatch(word.strip()) else None
    return None


def applied(seconds: float, by_header: bool) -> str:
    """What `Preference-Applied` says of a wait: in whole seconds, rounded up, where the header asked for it."""
    return f"wait={ceil(seconds)}" if by_header else f"wait={seconds:.3f}".rstrip("0").rstrip(".")
