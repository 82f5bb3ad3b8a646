"""The types of ASGI, version 3 (https://asgi.readthedocs.io): an application's arguments.

They are the same plain types as Starlette's, so that code for one fits the other. Other frameworks
have typed dictionaries of their own; `AnyApp` and `ASGIApp` fit those as well.
"""

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AnyApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


def header_values(scope: Scope, name: bytes) -> list[str]:
    """The values of the header fields called `name`, which is in lower case, in their order."""
    return [
        value.decode("latin-1")
        for field, value in scope.get("headers", ())
        if field.lower() == name
    ]
