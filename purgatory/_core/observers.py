"""Observers, which are notified of events in a purgatory. Journals, metrics and traces are
observers; you may write your own.

    class Slow:
        def operation_ended(self, ended: Ended) -> None:
            if ended.ended_at - ended.started_at > 10.0:
                print(f"{ended.kind} on {ended.keys} took long, ended by {ended.cause.value}")

        def key_checked(self, key: Hashable, tried: int, completed: int) -> None: ...

    Purgatory("fetches", observer=Slow())

Observers run on the loop and block it: only record the event, and process it later or in a thread.
"""

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, final

from purgatory._core.arguments import describe
from purgatory._core.states import OperationState


class Cause(Enum):
    """What ended an operation."""

    FIRST_TRY = "first try"
    """Its condition held when it was first tried."""
    KEY = "key"
    """A check of a key."""
    DEADLINE = "deadline"
    """It expired; or it completed at the last try, because its condition held and its keys had not
    been checked."""
    FORCED = "forced"
    """`force_complete`, called from outside its own `try_complete`."""
    CANCELLED = "cancelled"
    """`cancel`, `cancel_for_key`, or the cancellation of the task that owned it."""
    CLOSED = "closed"
    """`aclose` of its purgatory."""
    FAILED = "failed"
    """Its `try_complete` raised; or `fail` ended it."""

    # The hash of enums is a function in Python, and causes are counted in dictionaries.
    __hash__ = object.__hash__


@final
class Ended(NamedTuple):
    """An operation that has ended and been answered. Instants are in the loop's time, durations in
    seconds."""

    purgatory: str
    """The name of the purgatory."""
    kind: str
    """The name of the operation's class."""
    keys: tuple[Hashable, ...]
    """The keys that it watched, each once, in order."""
    started_at: float
    ended_at: float
    timeout: float | None
    """How long it was allowed to wait; None without a deadline."""
    state: OperationState
    cause: Cause
    key: Hashable | None
    """The key whose check ended it; None if no check did."""
    failed_tries: int
    """How often its condition was tried and did not hold."""
    missed_trigger: bool
    """Whether only the last try, at its deadline, completed it: its keys had not been checked when
    its condition became true."""
    exception: BaseException | None
    """The exception of a hook. A reference to it keeps alive everything that its traceback refers
    to."""
    operation_id: int
    """The `id` of the operation, by which an observer that was notified of its start recognises it.
    Unique while it waits."""


class Observer(Protocol):
    """Is notified of events in a purgatory. Work that it causes there runs when it has returned,
    as with the hooks of operations. Its exceptions go to the loop's exception handler.

    An observer whose `key_checked` is the one of this class is not notified of checks.

    It may also have a method `operation_started(operation: DelayedOperation)`, which is called once
    for each operation, in the context of the code that watches it, after its first try: before
    `operation_ended`, or when it begins to wait. For a wait of a `ThresholdPurgatory`, which is not
    an operation, only the identity of the argument is defined.
    """

    def operation_ended(self, ended: Ended) -> None:
        """Called once for each operation, when it has ended and been answered."""

    def key_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Called once for each check that found waiters, when all have been tried."""


def observers_of(given: Observer | Sequence[Observer] | None) -> tuple[Observer, ...]:
    """The observers of an argument that is one observer or a sequence of them.

    Raises:
        TypeError: it is neither.
    """
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, Sequence) else (given,)
    for observer in several:
        for method in ("operation_ended", "key_checked"):
            if not callable(getattr(observer, method, None)):
                raise TypeError(
                    f"observer must have a method {method}, or be a sequence of such, not "
                    f"{describe(observer)}"
                )
    return several


def overrides_key_checked(observer: Observer) -> bool:
    """Whether it overrides `Observer.key_checked`, which does nothing."""
    return getattr(type(observer), "key_checked", None) is not Observer.key_checked
