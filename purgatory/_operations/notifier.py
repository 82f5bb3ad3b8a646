"""Notifies observers, and stores for them what operations do not.

An operation does not store what only observers need: how often it was tried, when it started, what ended it. Most of that can
be derived, so for most operations nothing is stored here, either: not for one that was tried once and completed; and one with a
timeout started that long before its deadline.
"""

from collections.abc import Callable, Hashable
from functools import partial
from math import isinf
from typing import Any, Final, cast, final

from purgatory._arguments import describe
from purgatory._failure import Failure
from purgatory._loop.dispatcher import Dispatcher
from purgatory._observers.observer import Cause, Fields, Observer, WaitObserver, overrides_key_checked, with_method
from purgatory._observers.observer_group import ObserverGroup, Report
from purgatory._operations.lifecycle import NO_KEY
from purgatory._operations.operation import DelayedOperation
from purgatory._operations.watch_lists import UNWATCHED, Chunk, keys_of
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING

Operation = DelayedOperation[Any]

LONG_TIMEOUT: Final = 1e6
"""In seconds. Up to this, deadline minus timeout gives the start to the microsecond; beyond it, rounding has lost that."""

_KEY: Final = Cause.KEY
_DEFAULT_CAUSE: Final = {COMPLETED: Cause.FORCED, EXPIRED: Cause.DEADLINE, CANCELLED: Cause.CANCELLED}


@final
class OperationNotifier:
    """Notifies `observers`, of which there is at least one.

    Args:
        name: of the purgatory.
        observers: those of `observers_of`.
        report: called with a message and the exception of an observer.
    """

    __slots__ = (
        "_all",
        "_check_observers",
        "_event_observers",
        "_has_event_observers",
        "_name",
        "_report",
        "_retries",
        "_starts",
        "_wait_callbacks",
        "_wait_observers",
        "dispatcher",
        "is_closing",
        "time",
        "tries",
        "wants_checks",
        "wants_starts",
    )

    def __init__(self, name: str, observers: tuple[Observer, ...], report: Report) -> None:
        self._name = name
        self._wait_observers = cast("tuple[WaitObserver, ...]", with_method(observers, "completed_by_key"))
        self._all = ObserverGroup(observers, report)
        self._event_observers = ObserverGroup([each for each in observers if not hasattr(each, "completed_by_key")], report)
        self._has_event_observers = bool(self._event_observers)
        self._check_observers = tuple([each for each in observers if overrides_key_checked(each)])
        self._report = report
        self.wants_starts = self._all.wants_starts
        self.wants_checks = bool(self._check_observers)
        self.is_closing = False
        """Whether what is cancelled now is cancelled by `aclose`."""
        self.dispatcher = Dispatcher(None)
        self.time: Callable[[], float] = float
        self.tries = 0
        """How many tries there were, without first ones; counted only if an observer wants checks."""
        self._wait_callbacks: dict[type, Callable[[float], object]] = {}
        """For each kind of operation, what is called with the duration of a wait, for observers that want only this."""
        self._retries: dict[Operation, int] = {}
        """How often operations have failed a try since the first one; without zeros."""
        self._starts: dict[Operation, float] = {}
        """When operations began to wait, if that cannot be derived: they have no timeout, or too long a one."""

    def bind(self, time: Callable[[], float], dispatcher: Dispatcher) -> None:
        """Moves to another loop. Observers are not notified of what waited on the previous one, which is closed."""
        self.time, self.dispatcher = time, dispatcher
        self._retries.clear()
        self._starts.clear()

    def on_watch(self, operation: Operation, now: float, was_tried: bool) -> None:
        """The operation waits from `now` on."""
        timeout = operation._op_timeout
        if timeout is None or timeout > LONG_TIMEOUT:
            self._starts[operation] = now
        if not was_tried:
            self._retries[operation] = -1
        if self.wants_starts:
            self.notify_started(operation)

    def notify_started(self, operation: Operation) -> None:
        """Notifies the observers that have `operation_started`."""
        dispatcher = self.dispatcher
        interrupted, dispatcher.current = dispatcher.current, self
        try:
            self._all.notify_started(operation)
        finally:
            dispatcher.current = interrupted

    def on_retry(self, operation: Operation, key: Hashable, is_last: bool) -> None:
        """Notifies of a try that was not the first one: by a check of `key`, or the last one, at the deadline.

        `key` is `NO_KEY` at a deadline, unless a check of `key` was due as well.
        """
        if self.wants_checks:
            self.tries += 1
        state = operation._op_state
        if state is COMPLETED and not (
            is_last
            or (self._retries and operation in self._retries)
            or (self._starts and operation in self._starts)
            or type(operation._op_result) is Failure
        ):
            # The common case, in fewer steps than `on_end` takes.
            links, operation._op_links = operation._op_links, UNWATCHED
            timeout = operation._op_timeout
            start, now = operation._timer_deadline - timeout, self.time()
            if self._wait_observers:
                try:
                    callback = self._wait_callbacks[type(operation)]
                except KeyError:
                    callback = self._wait_callback(type(operation))
                try:
                    callback(now - start)
                except BaseException as error:
                    self._report(f"{describe(callback)} raised, which an observer's completed_by_key had returned", error)
            if self._has_event_observers:
                keys = keys_of(links) if type(links) is tuple or type(links) is Chunk else (links,)
                fields = (
                    self._name, type(operation).__name__, keys, start, now, timeout, COMPLETED, _KEY, key, 1, False, None,
                    id(operation),
                )  # fmt: skip
                self._event_observers.notify_ended(fields)
        elif state is COMPLETED:
            if key is NO_KEY:
                self.on_end(operation, Cause.DEADLINE)
            else:
                self.on_end(operation, _KEY, key)
        else:
            self._retries[operation] = self._retries.get(operation, 0) + 1
            if state is not PENDING:
                self.on_end(operation, None, None if key is NO_KEY or state is EXPIRED else key)

    def on_end(self, operation: Operation, cause: Cause | None = None, key: Hashable = None) -> None:
        """Notifies of an operation that has ended and been answered; without a `cause` it is what follows from its state."""
        fields = self._fields(operation, cause, key)
        operation._op_links = UNWATCHED
        self._all.notify_ended(fields)

    def _wait_callback(self, kind: type) -> Callable[[float], object]:
        """What to call with the duration of a wait, for this kind of operation."""
        several = []
        for observer in self._wait_observers:
            try:
                several.append(observer.completed_by_key(self._name, kind.__name__))
            except BaseException as error:
                self._report(f"completed_by_key of {describe(observer)} raised", error)
        self._wait_callbacks[kind] = several[0] if len(several) == 1 else partial(self._call_all, several)
        return self._wait_callbacks[kind]

    def _call_all(self, functions: list[Callable[[float], object]], seconds: float) -> None:
        for function in functions:
            try:
                function(seconds)
            except BaseException as error:
                self._report(f"{describe(function)} raised, which an observer's completed_by_key had returned", error)

    def on_check(self, key: Hashable, tried: int, completed: int) -> None:
        """Notifies of a check."""
        if not self.wants_checks:
            return
        dispatcher = self.dispatcher
        dispatcher.current = self
        try:
            for observer in self._check_observers:
                try:
                    observer.key_checked(key, tried, completed)
                except BaseException as error:
                    self._report(f"key_checked of {describe(observer)} raised", error)
        finally:
            dispatcher.current = None

    def _fields(self, operation: Operation, cause: Cause | None, key: Hashable) -> Fields:
        now, state = self.time(), operation._op_state
        timeout = operation._op_timeout
        when = operation._timer_deadline
        start = self._starts.pop(operation, None) if self._starts else None
        has_waited = start is not None or not (timeout is None or when is None)
        if start is None:
            start = now if timeout is None or when is None else min(when - timeout, now)
        if timeout is None and when is not None:
            timeout = max(when - start, 0.0)
        failed_tries = 1 + self._retries.pop(operation, 0) if self._retries else 1
        failure = operation._op_result
        exception = failure.exception if type(failure) is Failure else None
        if cause is None:
            cause = _DEFAULT_CAUSE[state]
            if cause is Cause.FORCED and not has_waited:
                cause, failed_tries = Cause.FIRST_TRY, 0
            elif cause is Cause.CANCELLED and (exception is not None or self.is_closing):
                cause = Cause.FAILED if exception is not None else Cause.CLOSED
        return (
            self._name, type(operation).__name__, keys_of(operation._op_links), start, now,
            None if timeout is None or isinf(timeout) else timeout, state, cause, key, failed_tries,
            cause is Cause.DEADLINE and state is COMPLETED, exception, id(operation),
        )  # fmt: skip
