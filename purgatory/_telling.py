"""Tells observers what happens, and keeps for them what an operation does not hold itself.

An operation does not carry what only observers ask for: how often it was tried, when it started, what ended it. Most of that
follows from what it knows anyway, so for most operations nothing is written down: one that was tried once and completed has no
entry here, and one with a timeout started that long before its deadline.
"""

from collections.abc import Callable, Hashable
from functools import partial
from math import isinf
from typing import Any, Final, cast, final

from purgatory._dispatcher import Dispatcher
from purgatory._ears import Ears, Report
from purgatory._failure import Failure
from purgatory._observer import Cause, Fields, Observer, WaitObserver, having, wants_checks
from purgatory._operation import DelayedOperation
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING
from purgatory._watchers import NO_PLACES, Chunk, keys_of

Operation = DelayedOperation[Any]

LONG_TIMEOUT: Final = 1e6
"""In seconds. Up to this, deadline minus timeout gives the start to the microsecond; beyond it, rounding has lost that."""

_KEY: Final = Cause.KEY
_USUAL: Final = {COMPLETED: Cause.FORCED, EXPIRED: Cause.DEADLINE, CANCELLED: Cause.CANCELLED}


@final
class Teller:
    """Tells `observers`, of which there is at least one.

    Args:
        name: of the purgatory.
        observers: those of `observers_of`.
        report: called with a message and the exception of an observer.
    """

    __slots__ = (
        "_all",
        "_check_observers",
        "_has_unhurried",
        "_name",
        "_report",
        "_retries",
        "_starts",
        "_unhurried",
        "_wait_observers",
        "_waits",
        "hears_checks",
        "hears_starts",
        "is_closing",
        "room",
        "time",
        "tries",
    )

    def __init__(self, name: str, observers: tuple[Observer, ...], report: Report) -> None:
        self._name = name
        self._wait_observers = cast("tuple[WaitObserver, ...]", having("completed_by_key", observers))
        self._all = Ears(observers, report)
        self._unhurried = Ears([each for each in observers if not hasattr(each, "completed_by_key")], report)
        self._has_unhurried = bool(self._unhurried)
        self._check_observers = tuple([each for each in observers if wants_checks(each)])
        self._report = report
        self.hears_starts = self._all.hear_starts
        self.hears_checks = bool(self._check_observers)
        self.is_closing = False
        """Whether what is cancelled now is cancelled by `aclose`."""
        self.room = Dispatcher(None)
        self.time: Callable[[], float] = float
        self.tries = 0
        """How many there were, the first ones not counted; counted only if somebody wants to hear of checks."""
        self._waits: dict[type, Callable[[float], object]] = {}
        """For each kind of operation, what is called with the duration of a wait, for observers that want no more."""
        self._retries: dict[Operation, int] = {}
        """How often a try has failed since the first one, where one has."""
        self._starts: dict[Operation, float] = {}
        """When operations began to wait whose timeout does not tell: they have none, or too long a one."""

    def bind(self, time: Callable[[], float], room: Dispatcher) -> None:
        """Moves to another loop. What waited on the one before, which is closed, will never be told of."""
        self.time, self.room = time, room
        self._retries.clear()
        self._starts.clear()

    def began(self, operation: Operation, now: float, was_tried: bool) -> None:
        """The operation waits from `now` on."""
        timeout = operation._op_timeout
        if timeout is None or timeout > LONG_TIMEOUT:
            self._starts[operation] = now
        if not was_tried:
            self._retries[operation] = -1
        if self.hears_starts:
            self.started(operation)

    def started(self, operation: Operation) -> None:
        """Tells the observers that have `operation_started`."""
        room = self.room
        outer, room.current = room.current, self
        try:
            self._all.tell_start(operation)
        finally:
            room.current = outer

    def tried(self, operation: Operation, key: Hashable, is_last: bool) -> None:
        """Tells of a try that was not the first one: by a check of `key`, or the last one, at the deadline."""
        if self.hears_checks:
            self.tries += 1
        state = operation._op_state
        if state is COMPLETED and not (
            is_last
            or (self._retries and operation in self._retries)
            or (self._starts and operation in self._starts)
            or type(operation._op_result) is Failure
        ):
            # The common case, in fewer steps than `ended` takes.
            places, operation._op_places = operation._op_places, NO_PLACES
            timeout = operation._op_timeout
            start, now = operation._wheel_when - timeout, self.time()
            if self._wait_observers:
                try:
                    tell = self._waits[type(operation)]
                except KeyError:
                    tell = self._waits_of(type(operation))
                try:
                    tell(now - start)
                except BaseException as error:
                    self._report(f"{tell!r} raised, which an observer's completed_by_key had returned", error)
            if self._has_unhurried:
                keys = keys_of(places) if type(places) is tuple or type(places) is Chunk else (places,)
                fields = (
                    self._name, type(operation).__name__, keys, start, now, timeout, COMPLETED, _KEY, key, 1, False, None,
                    id(operation),
                )  # fmt: skip
                self._unhurried.tell_end(fields)
        elif state is COMPLETED:
            self.ended(operation, Cause.DEADLINE if is_last else _KEY, key)
        else:
            self._retries[operation] = self._retries.get(operation, 0) + 1
            if state is not PENDING:
                self.ended(operation, None, key)

    def ended(self, operation: Operation, cause: Cause | None = None, key: Hashable = None) -> None:
        """Tells of an operation that has ended and been answered; without a `cause` it is what follows from its state."""
        fields = self._fields(operation, cause, key)
        operation._op_places = NO_PLACES
        self._all.tell_end(fields)

    def _waits_of(self, kind: type) -> Callable[[float], object]:
        """What is to be called with how long an operation of a kind has waited."""
        several = []
        for observer in self._wait_observers:
            try:
                several.append(observer.completed_by_key(self._name, kind.__name__))
            except BaseException as error:
                self._report(f"completed_by_key of {observer!r} raised", error)
        self._waits[kind] = several[0] if len(several) == 1 else partial(self._call_all, several)
        return self._waits[kind]

    def _call_all(self, functions: list[Callable[[float], object]], seconds: float) -> None:
        for function in functions:
            try:
                function(seconds)
            except BaseException as error:
                self._report(f"{function!r} raised, which an observer's completed_by_key had returned", error)

    def checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Tells of a check."""
        if not self.hears_checks:
            return
        room = self.room
        room.current = self
        try:
            for observer in self._check_observers:
                try:
                    observer.key_checked(key, tried, completed)
                except BaseException as error:
                    self._report(f"key_checked of {observer!r} raised", error)
        finally:
            room.current = None

    def _fields(self, operation: Operation, cause: Cause | None, key: Hashable) -> Fields:
        now, state = self.time(), operation._op_state
        timeout = operation._op_timeout
        when = getattr(operation, "_wheel_when", None)  # unset where the first try has raised an exit
        start = self._starts.pop(operation, None) if self._starts else None
        has_waited = start is not None or not (timeout is None or when is None)
        if start is None:
            start = now if timeout is None or when is None else min(when - timeout, now)
        if timeout is None and when is not None:
            timeout = max(when - start, 0.0)
        failed_tries = 1 + self._retries.pop(operation, 0) if self._retries else 1
        failure = getattr(operation, "_op_result", None)
        exception = failure.exception if type(failure) is Failure else None
        if cause is None:
            cause = _USUAL[state]
            if cause is Cause.FORCED and not has_waited:
                cause, failed_tries = Cause.FIRST_TRY, 0
            elif cause is Cause.CANCELLED and (exception is not None or self.is_closing):
                cause = Cause.FAILED if exception is not None else Cause.CLOSED
        return (
            self._name, type(operation).__name__, keys_of(operation._op_places), start, now,
            None if timeout is None or isinf(timeout) else timeout, state, cause, key, failed_tries,
            cause is Cause.DEADLINE and state is COMPLETED, exception, id(operation),
        )  # fmt: skip
