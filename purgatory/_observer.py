"""Who is told what happens in a purgatory, and what is written down for them alone.

An operation does not carry what only a journal asks for: how often it was tried, when it started, what ended it. With an
observer the engine keeps that in `Notes`, beside the operations; most of it follows from what they know anyway, so for most
of them nothing is written down.
"""

from collections.abc import Hashable
from typing import Any, Final, Protocol, cast

from purgatory._operation import DelayedOperation

Operation = DelayedOperation[Any]

NOBODY: Final = cast(Operation, object())
"""Whose hook is running while an observer is told of a check: what that sets off is put off, as for a hook."""


class Among:
    """The `cause` of an operation that a check of `key` has ended, which tried others as well.

    Of one that was tried alone, the cause is the key itself: what the observer is told of its check is then no news.
    """

    __slots__ = ("key",)

    def __init__(self, key: Hashable) -> None:
        self.key = key


NOTHING: Final = object()
"""The `cause` of an operation that no check and no deadline has ended."""
DEADLINE: Final = object()
"""The `cause` of an operation that was tried at its deadline."""

LONG_TIMEOUT: Final = 1e6
"""In seconds. Up to this, a deadline less its timeout is the start, to the microsecond; beyond, the sum has lost that."""


class Observer(Protocol):
    """Is told what happens in a purgatory; journals and metrics are observers. An exception goes to the loop's handler."""

    def operation_finished(self, operation: DelayedOperation[Any]) -> None:
        """Called once for each operation, when it has ended and been answered."""

    def keys_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Called once for each check that found waiters, when all have been tried."""


class Notes:
    """What an observer may ask about the operation that it is being told of."""

    __slots__ = ("cause", "retries", "started")

    def __init__(self) -> None:
        self.cause: Hashable = NOTHING
        """What ended it: the key of its check, or `Among` others; `DEADLINE`; `NOTHING` of these."""
        self.retries: dict[Operation, int] = {}
        """How often a try has failed since the first one, where one has."""
        self.started: dict[Operation, float] = {}
        """When those were watched that have no timeout, or too long a one, to tell it by."""

    def retried(self, operation: Operation) -> None:
        """Counts a try that did not complete the operation."""
        self.retries[operation] = self.retries.get(operation, 0) + 1

    def forget(self, operation: Operation) -> None:
        """The observer has been told."""
        if self.retries:
            self.retries.pop(operation, None)
        if self.started:
            self.started.pop(operation, None)
