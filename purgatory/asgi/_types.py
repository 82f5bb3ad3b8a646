"""The words of ASGI as types: what a server calls an application with (https://asgi.readthedocs.io, version 3).

They are the same plain types as Starlette's, so that whatever is written for one of them fits the other. Other frameworks have
typed dictionaries of their own, and what takes or gives an application takes theirs as well.
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
    """The values of each header field of a request that is called `name`, in lower case, in their order."""
    return [value.decode("latin-1") for field, value in scope.get("headers", ()) if field.lower() == name]
