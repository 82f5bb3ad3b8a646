"""Observers, which are notified of events in a purgatory. Journals, metrics and traces are
observers; you may write your own.

    class Slow:
        def operation_ended(self, ended: Ended) -> None:
            if ended.ended_at - ended.started_at > 10.0:
                print(f"{ended.kind} on {ended.keys} took long, ended by {ended.cause.value}")

        def key_checked(self, key: Hashable, tried: int, completed: int) -> None: ...

    Purgatory("fetches", observer=Slow())

Observers run on the loop and block it: only record the event, and process it later or in a thread.

An operation that is observed has a `Record` from the moment it is watched. Each claim writes its
cause there. The record is taken off when the observers are notified of the end, so there is no
second event. Without observers there are no records.

While observers are notified the dispatcher is busy, as during a hook, so work that they cause
follows.
"""

from collections.abc import Hashable, Sequence
from enum import Enum
from math import isinf
from typing import Any, Final, NamedTuple, Protocol, final

from purgatory._core.arguments import describe
from purgatory._core.failure import Failure
from purgatory._core.kernel import constants, fields
from purgatory._core.loop import Report
from purgatory._core.states import COMPLETED, OperationState


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


# On Python 3.11 a look-up in an enum costs as much as a call.
FIRST_TRY: Final = Cause.FIRST_TRY
KEY: Final = Cause.KEY
DEADLINE: Final = Cause.DEADLINE
FORCED: Final = Cause.FORCED


@final
class Ended(NamedTuple):
    """An operation that has ended and been answered. Instants are in the loop's time, durations in
    seconds."""

    purgatory: str
    """The name of the purgatory."""
    kind: str
    """The argument `kind` of the wait; by default the name of its operation's class."""
    keys: tuple[Hashable, ...]
    """The keys that it watched, each once, in order."""
    started_at: float
    ended_at: float
    timeout: float | None
    """How long it was allowed to wait; None without a deadline."""
    state: OperationState
    cause: Cause
    key: Hashable | None
    """Key of the check that ended it; None without one."""
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

    An observer that inherits `key_checked` from this class is not notified of checks.

    It may also have a method `operation_started(operation: DelayedOperation)`, which is called once
    for each operation, in the context of the code that watches it, after its first try: before
    `operation_ended`, or when it starts to wait. For a wait of a `ThresholdPurgatory` only the
    identity of the argument is defined.

    It may also have a method `for_purgatory(name: str) -> Observer`. Whatever it is given to calls
    it once, with its own name, and notifies the returned observer instead.
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


def _for_purgatory(observer: Any, name: str) -> Observer:
    """The observer itself, or what its `for_purgatory` returns."""
    if not hasattr(observer, "for_purgatory"):
        return observer  # type: ignore[no-any-return]
    return observer.for_purgatory(name)  # type: ignore[no-any-return]


def overrides_key_checked(observer: Observer) -> bool:
    """Whether it overrides `Observer.key_checked`, which does nothing."""
    return getattr(type(observer), "key_checked", None) is not Observer.key_checked


NO_KEY: Final[Any] = object()
"""Stands for no key, since a key may be None."""

_new_tuple: Final = tuple.__new__

constants(Ended=Ended, Failure=Failure, NO_KEY=NO_KEY)
constants(FIRST_TRY=FIRST_TRY, KEY=KEY, DEADLINE=DEADLINE, FORCED=FORCED)


@final
@fields
class Record:
    """Facts for observers about an operation that has not ended.

    Attributes:
        keys: a key, or a tuple of keys.
        started_at: start of the operation, in the loop's time.
        failed_tries: how often its condition was tried and did not hold.
        cause: the cause, if the operation ends now.
        key: key of the check that ended it; `NO_KEY` without one.
    """

    __slots__ = ("cause", "failed_tries", "key", "keys", "started_at")

    def __init__(self, keys: Hashable, started_at: float) -> None:
        self.keys = keys
        self.started_at = started_at
        self.failed_tries = 0
        self.cause: Cause = FIRST_TRY
        self.key: Hashable = NO_KEY


class Observed(Protocol):
    """An operation, as far as observers are concerned."""

    _op_kind: str | None
    _op_result: Any
    _op_state: OperationState
    _op_timeout: float | None
    _timer_deadline: Any


@final
@fields
class Notifier:
    """Notifies observers. If one raises, the rest are still notified.

    Args:
        name: the name of the object in which operations wait.
        observers: the observers, in the order of notification.
        report: called with their exceptions.
    """

    __slots__ = ("_check_observers", "_observers", "_report", "_start_observers", "name")

    def __init__(self, name: str, observers: Sequence[Observer], report: Report) -> None:
        self.name = name
        observers = [_for_purgatory(each, name) for each in observers]
        self._observers = tuple(observers)
        self._start_observers: list[Any] = [
            each for each in observers if hasattr(each, "operation_started")
        ]
        self._check_observers = [each for each in observers if overrides_key_checked(each)]
        self._report = report

    def started(self, operation: Any) -> None:
        """Notifies of an operation that starts to wait, or has ended at its first try."""
        self._notify(self._start_observers, "operation_started", operation)

    def ended(self, ended: Ended) -> None:
        """Notifies of an operation that has ended."""
        self._notify(self._observers, "operation_ended", ended)

    def operation_ended(self, operation: Observed, record: Record, now: float) -> None:
        """Notifies of an operation of a purgatory that has ended and been answered."""
        state, cause, result = operation._op_state, record.cause, operation._op_result
        keys, key, started_at = record.keys, record.key, record.started_at
        timeout, when = operation._op_timeout, operation._timer_deadline
        if timeout is None and when is not None:
            timeout = max(when - started_at, 0.0)
        self.ended(
            _new_tuple(Ended, (
                self.name, operation._op_kind or type(operation).__name__, keys if type(keys) is tuple else (keys,),
                started_at, now, None if timeout is None or isinf(timeout) else timeout,
                state, cause, None if key is NO_KEY else key, record.failed_tries,
                cause is DEADLINE and state is COMPLETED,
                result.exception if type(result) is Failure else None, id(operation),
            ))
        )  # fmt: skip

    def key_checked(
        self,
        key: Hashable,
        tried: int,
        completed: int,
        budget: int = 0,  # noqa: ARG002 - it takes one step
    ) -> None:
        """Notifies of a check that found waiters, if an observer wants checks."""
        self._notify(self._check_observers, "key_checked", key, tried, completed)

    def _notify(self, observers: Sequence[Any], method: str, *facts: object) -> None:
        for observer in observers:
            try:
                getattr(observer, method)(*facts)
            except BaseException as error:
                self._failed(method, observer, error)

    def _failed(self, method: str, observer: Observer, error: BaseException) -> None:
        self._report(f"{method} of {describe(observer)} raised", error)
