"""Answers: dictionaries of fields by their names in the package `kio`, or by the one name that `codec.NAMES` gives for many.

What an answer does not say has its default, and what a version of the answer has no field for is left out. So one answer is for
all versions, and an error is one of two fields.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

# kio tells Hypothesis of its types wherever that is installed. To load it for that would be two thirds of the broker's start.
is_hidden = sys.modules.setdefault("hypothesis", cast(Any, None)) is None
from kio.schema.errors import ErrorCode  # noqa: E402

if is_hidden:
    del sys.modules["hypothesis"]

__all__ = ["Answer", "ErrorCode", "Refused", "Reply", "attempt", "for_partitions", "refuse_if"]

Answer = dict[str, Any]

Reply = Callable[[Answer | Exception | None], None]
"""Sends an answer, once. An exception closes the connection; None sends nothing, as `acks=0` asks for."""


class Refused(Exception):
    """What was asked for is not done; nothing has changed.

    Attributes:
        code: the error to answer with.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code

    @property
    def answer(self) -> Answer:
        """The error, as it is told."""
        return {"error_code": self.code, "error_message": str(self)}


def refuse_if(condition: object, code: ErrorCode, message: str = "") -> None:
    """Raises `Refused` if something is so."""
    if condition:
        raise Refused(code, message)


def attempt(handle: Callable[..., Answer | None], *arguments: Any, **if_refused: Any) -> Answer:
    """What a function answers, if there is anything to say; or what it was refused with, and what there is to say then."""
    try:
        return handle(*arguments) or {}
    except Refused as error:
        return error.answer | if_refused


def for_partitions(topics: Iterable[Any], handle: Callable[[str, Any], Answer | None], **if_refused: Any) -> Answer:
    """An answer about the partitions that a request names, topic by topic, as it does.

    Args:
        handle: takes a topic's name and what is asked for one of its partitions, and answers for this one.
        if_refused: what is answered besides the error for one that is refused.
    """
    answered = []
    for topic in topics:
        parts = []
        for wanted in topic.partitions:
            parts.append(part := attempt(handle, topic.name, wanted, **if_refused))
            part["index"] = wanted.index
        answered.append({"name": topic.name, "partitions": parts})
    return {"topics": answered}
