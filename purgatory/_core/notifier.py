"""Notifies the observers of a purgatory of its operations and checks.

An operation that is observed has a `Record` from the moment it is watched. The record is taken off
when the observers are notified of the end, so there is no second event. Without observers there are
no records.
"""

from collections.abc import Callable, Hashable
from math import isinf
from typing import Any, Final, Protocol, final

from purgatory._core.arguments import describe
from purgatory._core.dispatcher import Dispatcher
from purgatory._core.failure import Failure
from purgatory._core.loop import Report
from purgatory._core.observer_group import ObserverGroup
from purgatory._core.observers import (
    Cause,
    Observer,
    WaitObserver,
    overrides_key_checked,
    with_method,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, OperationState

_DEFAULT_CAUSE: Final = {
    COMPLETED: Cause.FORCED,
    EXPIRED: Cause.DEADLINE,
    CANCELLED: Cause.CANCELLED,
}


@final
class Record:
    """Facts for observers about an operation that has not ended. It has no `__init__`, whose
    call would be a tenth of what an observer costs.

    Attributes:
        keys: a key, or a tuple of keys.
        started_at: in the loop's time.
        failed_tries: how often its condition was tried and did not hold; None until it waits.
    """

    __slots__ = ("failed_tries", "keys", "started_at")

    keys: Hashable
    started_at: float
    failed_tries: int | None


class Observed(Protocol):
    """An operation, as far as observers are concerned."""

    _op_record: Record | None
    _op_result: Any
    _op_state: OperationState
    _op_timeout: float | None
    _timer_deadline: Any


@final
class OperationNotifier:
    """Notifies `observers`, of which there is at least one.

    Args:
        name: the name of the purgatory.
        observers: as `observers_of` returns them.
        report: called with a message and the exception of an observer.
    """

    __slots__ = (
        "_all",
        "_check_observers",
        "_has_others",
        "_name",
        "_report",
        "_wait_callbacks",
        "_wait_observers",
        "_without_wait_observers",
        "dispatcher",
        "is_closing",
        "time",
        "wants_checks",
        "wants_starts",
    )

    def __init__(self, name: str, observers: tuple[Observer, ...], report: Report) -> None:
        self._name = name
        self._wait_observers: tuple[WaitObserver, ...] = with_method(observers, "completed_by_key")
        self._all = ObserverGroup(observers, report)
        self._without_wait_observers = ObserverGroup(
            [each for each in observers if not hasattr(each, "completed_by_key")], report
        )
        self._has_others = bool(self._without_wait_observers)
        self._check_observers = tuple([each for each in observers if overrides_key_checked(each)])
        self._report = report
        self.wants_starts = self._all.wants_starts
        self.wants_checks = bool(self._check_observers)
        self.is_closing = False
        """Whether operations that are cancelled now are cancelled by `aclose`."""
        self.dispatcher = Dispatcher(None)
        self.time: Callable[[], float] = float
        self._wait_callbacks: dict[str, list[Callable[[float], object]]] = {}
        """By kind of operation: callbacks of observers that want only the duration of a wait."""

    def bind(self, time: Callable[[], float], dispatcher: Dispatcher) -> None:
        """Moves to another loop."""
        self.time, self.dispatcher = time, dispatcher

    def started(self, operation: object) -> None:
        """Notifies the observers that have `operation_started`."""
        with self.dispatcher.nested(self):
            self._all.notify_started(operation)

    def ended(self, operation: Observed, cause: Cause | None = None, key: Hashable = None) -> None:
        """Notifies of an operation that has ended and been answered, once.

        Args:
            operation: an ended operation.
            cause: `KEY` or `DEADLINE` if it ended in a try that was not the first one.
            key: the key whose check ended it, if the cause is `KEY`.
        """
        record, operation._op_record = operation._op_record, None
        if record is None:
            return
        now, kind, state = self.time(), type(operation).__name__, operation._op_state
        result, observers = operation._op_result, self._all
        exception = result.exception if type(result) is Failure else None
        if cause is not Cause.KEY:
            key = None
        failed_tries = record.failed_tries
        if state is not COMPLETED or cause is None:
            is_new = failed_tries is None
            failed_tries = (failed_tries or 0) + (
                state is not COMPLETED if is_new else cause is not None
            )
            cause = _DEFAULT_CAUSE[state]
            if cause is Cause.FORCED and is_new:
                cause = Cause.FIRST_TRY
            elif cause is Cause.CANCELLED and (exception is not None or self.is_closing):
                cause = Cause.FAILED if exception is not None else Cause.CLOSED
            elif cause is Cause.DEADLINE:
                key = None
        elif (
            self._wait_observers and cause is Cause.KEY and failed_tries == 1 and exception is None
        ):
            observers = self._without_wait_observers
            self._notify_waited(kind, now - record.started_at)
            if not self._has_others:
                return
        timeout, when, keys = operation._op_timeout, operation._timer_deadline, record.keys
        if timeout is None and when is not None:
            timeout = max(when - record.started_at, 0.0)
        observers.notify_ended(
            (
                self._name, kind, keys if type(keys) is tuple else (keys,), record.started_at, now,
                None if timeout is None or isinf(timeout) else timeout, state, cause, key,
                failed_tries,
                cause is Cause.DEADLINE and state is COMPLETED, exception, id(operation),
            )
        )  # fmt: skip

    def _notify_waited(self, kind: str, seconds: float) -> None:
        """Calls the callbacks of observers that want only the duration of a wait."""
        try:
            callbacks = self._wait_callbacks[kind]
        except KeyError:
            callbacks = self._wait_callbacks[kind] = self._make_wait_callbacks(kind)
        for callback in callbacks:
            try:
                callback(seconds)
            except BaseException as error:
                self._report(
                    f"{describe(callback)} raised, which an observer's completed_by_key had "
                    "returned",
                    error,
                )

    def _make_wait_callbacks(self, kind: str) -> list[Callable[[float], object]]:
        callbacks: list[Callable[[float], object]] = []
        for observer in self._wait_observers:
            try:
                callbacks.append(observer.completed_by_key(self._name, kind))
            except BaseException as error:
                self._report(f"completed_by_key of {describe(observer)} raised", error)
        return callbacks

    def checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Notifies of a check that found waiters, if an observer wants checks."""
        with self.dispatcher.nested(self):
            for observer in self._check_observers:
                try:
                    observer.key_checked(key, tried, completed)
                except BaseException as error:
                    self._report(f"key_checked of {describe(observer)} raised", error)
