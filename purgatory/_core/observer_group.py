"""The observers of one purgatory, timer or tracker, by their forms, and how they are notified."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, Final, final

from purgatory._core.arguments import describe, printable
from purgatory._core.loop import LoopBinding, Report, report
from purgatory._core.observers import (
    Cause,
    Ended,
    Fields,
    FieldsObserver,
    Observer,
    StartObserver,
    observers_of,
    with_method,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED

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

    __slots__ = (
        "_event_observers",
        "_field_observers",
        "_report",
        "_start_observers",
        "wants_starts",
    )

    def __init__(self, observers: Sequence[Observer], report: Report) -> None:
        self._field_observers: tuple[FieldsObserver, ...] = with_method(observers, "ended_fields")
        self._event_observers = [each for each in observers if not hasattr(each, "ended_fields")]
        self._start_observers: tuple[StartObserver, ...] = with_method(
            observers, "operation_started"
        )
        self.wants_starts = bool(self._start_observers)
        self._report = report

    def __bool__(self) -> bool:
        return bool(self._field_observers or self._event_observers)

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

    __slots__ = ("_binding", "_kind", "_name", "_notifying", "_observers", "_queue")

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
