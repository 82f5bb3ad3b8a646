"""Responses: dictionaries of fields, named as in the package `kio` or, where `codec.COMMON_NAMES`
has one, by a common name.

A field that the dictionary lacks has its default, and a field that the requested version does not
have is left out. So one response serves all versions, and an error is one of two fields.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

# kio registers its types with Hypothesis wherever that is installed. Loading it would be two thirds
# of the broker's start.
is_hidden = sys.modules.setdefault("hypothesis", cast(Any, None)) is None
from kio.schema.errors import ErrorCode  # noqa: E402

if is_hidden:
    del sys.modules["hypothesis"]

__all__ = [
    "ApiError",
    "ErrorCode",
    "Response",
    "ResponseCallback",
    "attempt",
    "for_partitions",
    "raise_if",
]

Response = dict[str, Any]

ResponseCallback = Callable[[Response | Exception | None], None]
"""Sends a response, once. An exception closes the connection; None sends nothing, as `acks=0` asks
for."""


class ApiError(Exception):
    """A request, or its part for one topic or partition, is refused; nothing has changed.

    Attributes:
        code: the error of the protocol.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code

    @property
    def response(self) -> Response:
        """The error as fields of a response."""
        return {"error_code": self.code, "error_message": str(self)}


def raise_if(condition: object, code: ErrorCode, message: str = "") -> None:
    """Raises `ApiError` if the condition is true."""
    if condition:
        raise ApiError(code, message)


def attempt(handle: Callable[..., Response | None], *arguments: Any, **on_error: Any) -> Response:
    """Calls a function and returns its response; if it raises `ApiError` or `OSError`, that error
    and the fields `on_error`."""
    try:
        return handle(*arguments) or {}
    except ApiError as error:
        return error.response | on_error
    except OSError as error:  # the disk is full, or too many files are open
        return ApiError(ErrorCode.kafka_storage_error, str(error)).response | on_error


def for_partitions(
    topics: Iterable[Any], handle: Callable[[Any, Any], Response | None], **on_error: Any
) -> Response:
    """A response with one entry for each partition that a request names, in the order of the
    request.

    Args:
        handle: takes a topic's name, perhaps None, and the request's entry for one of its
            partitions; returns an entry of the response.
        on_error: fields of the entry, besides the error, of a partition for which `handle` raises
            `ApiError`.
    """
    response = []
    for topic in topics:
        partitions, name = [], getattr(topic, "name", None)
        for wanted in topic.partitions:
            partitions.append(entry := attempt(handle, name, wanted, **on_error))
            entry["index"] = wanted.index
        response.append(
            {"name": name, "topic_id": getattr(topic, "topic_id", None), "partitions": partitions}
        )
    return {"topics": response}
