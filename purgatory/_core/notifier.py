"""Notifies observers: of the operations and checks of a purgatory, and of waits, timers and ids,
which have no dispatcher.

An operation that is observed has a `Record` from the moment it is watched. The record is taken off
when the observers are notified of the end, so there is no second event. Without observers there are
no records.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf, isinf
from typing import Any, Final, Protocol, final

from purgatory._core.arguments import describe, printable
from purgatory._core.dispatcher import Dispatcher
from purgatory._core.failure import Failure
from purgatory._core.loop import LoopBinding, Report, report
from purgatory._core.observers import (
    Cause,
    Ended,
    Fields,
    FieldsObserver,
    Observer,
    StartObserver,
    WaitObserver,
    observers_of,
    overrides_key_checked,
    with_method,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, OperationState

_new_tuple: Final = tuple.__new__


@final
class ObserverGroup:
    """Observers that are notified of ends, and some of them of starts. If one raises, the others
    are notified nevertheless.

    Args:
        observers: in the order of notification, except that observers of fields are notified
            before observers of events.
        report: called with their exceptions.

    Attributes:
        wants_starts: whether any of them wants starts.
    """

    def __init__(self, observers: Sequence[Observer], report: Report) -> None:
        self._field_observers: tuple[FieldsObserver, ...] = with_method(observers, "ended_fields")
        self._event_observers = [each for each in observers if not hasattr(each, "ended_fields")]
        self._start_observers: tuple[StartObserver, ...] = with_method(
            observers, "operation_started"
        )
        self.wants_starts = bool(self._start_observers)
        self._report = report

    def notify_started(self, operation: Any) -> None:
        """Notifies of an operation that begins to wait, or has ended at its first try."""
        for observer in self._start_observers:
            try:
                observer.operation_started(operation)
            except BaseException as error:
                self._report(f"operation_started of {describe(observer)} raised", error)

    def notify_ended(self, fields: Fields) -> None:
        """Notifies of an operation that has ended."""
        for fields_observer in self._field_observers:
            try:
                fields_observer.ended_fields(fields)
            except BaseException as error:
                self._report(f"ended_fields of {describe(fields_observer)} raised", error)
        if self._event_observers:
            event = _new_tuple(Ended, fields)
            for observer in self._event_observers:
                try:
                    observer.operation_ended(event)
                except BaseException as error:
                    self._report(f"operation_ended of {describe(observer)} raised", error)


_STATES: Final = {Cause.FIRST_TRY: COMPLETED, Cause.KEY: COMPLETED, Cause.DEADLINE: EXPIRED}
"""The state of a wait by its cause; by all other causes it is cancelled."""


@final
class WaitNotifier:
    """Notifies observers of waits, timers and ids: objects without a dispatcher.

    Notifications that observers cause meanwhile follow in order, without recursion, as with a
    dispatcher.

    Args:
        observers: at least one.
        binding: knows the loop and its clock.
        name: of the object in which they wait.
        kind: of these waits.
    """

    def __init__(
        self, observers: Sequence[Observer], binding: LoopBinding, name: str, kind: str
    ) -> None:
        self._observers = ObserverGroup(observers, self._report)
        self._binding = binding
        self._name = name
        self._kind = kind
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        """Methods of `ObserverGroup` that are to be called, each with its argument."""
        self._notifying = False

    def started(self, wait: object) -> None:
        """Notifies of the start of a wait."""
        if self._observers.wants_starts:
            self._notify(self._observers.notify_started, wait)

    def ended(
        self,
        wait: object,
        keys: tuple[Hashable, ...],
        started_at: float,
        ended_at: float,
        timeout: float | None,
        cause: Cause,
        failed_tries: int,
        exception: BaseException | None = None,
    ) -> None:
        """Notifies of the end of a wait. For the arguments see `Ended`; an infinite timeout is
        none."""
        fields = (
            self._name, self._kind, keys, started_at, ended_at, None if timeout == inf else timeout,
            _STATES.get(cause, CANCELLED), cause, keys[0] if cause is Cause.KEY else None,
            failed_tries, False, exception, id(wait),
        )  # fmt: skip
        self._notify(self._observers.notify_ended, fields)

    def _notify(self, notify: Callable[[Any], None], value: Any) -> None:
        self._queue.append((notify, value))
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._queue:
                notify, value = self._queue.popleft()
                notify(value)
        finally:
            self._notifying = False

    def _report(self, message: str, error: BaseException | None) -> None:
        report(self._binding.loop, f"{printable(self._name)}: {message}", error)


def wait_notifier(
    given: Observer | Sequence[Observer] | None, binding: LoopBinding, name: str, kind: str
) -> WaitNotifier | None:
    """A `WaitNotifier`, or None without observers.

    Raises:
        TypeError: see `observers_of`.
    """
    observers = observers_of(given)
    return WaitNotifier(observers, binding, name, kind) if observers else None


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

    def __init__(self, name: str, observers: tuple[Observer, ...], report: Report) -> None:
        self._name = name
        self._wait_observers: tuple[WaitObserver, ...] = with_method(observers, "completed_by_key")
        self._all = ObserverGroup(observers, report)
        self._without_wait_observers = ObserverGroup(
            [each for each in observers if not hasattr(each, "completed_by_key")], report
        )
        self._has_others = len(self._wait_observers) < len(observers)
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
