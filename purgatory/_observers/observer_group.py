"""The observers of one purgatory, timer or tracker, by what they want, and how they are notified."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast, final

from purgatory._arguments import describe
from purgatory._observers.observer import Ended, Fields, FieldsObserver, Observer, StartObserver, with_method

Report = Callable[[str, BaseException | None], object]
"""Is given a message and the exception that an observer has raised."""

_new_tuple: Final = tuple.__new__


@final
class ObserverGroup:
    """Observers who are notified of ends, and some of them of starts. One that raises keeps nothing from the others.

    Args:
        observers: in the order in which they were given; but those who take fields are notified before those who take events.
        report: is given what they raise.

    Attributes:
        wants_starts: whether any of them does.
    """

    __slots__ = ("_event_observers", "_field_observers", "_notifying", "_queue", "_report", "_start_observers", "wants_starts")

    def __init__(self, observers: Sequence[Observer], report: Report) -> None:
        self._field_observers = cast("tuple[FieldsObserver, ...]", with_method(observers, "ended_fields"))
        self._event_observers = tuple([each for each in observers if not hasattr(each, "ended_fields")])
        self._start_observers = cast("tuple[StartObserver, ...]", with_method(observers, "operation_started"))
        self.wants_starts = bool(self._start_observers)
        self._report = report
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        """What observers have set off while they were notified: see `notify_in_order`."""
        self._notifying = False

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

    def notify_in_order(self, notify: Callable[[Any], None], value: Any) -> None:
        """Calls `notify_started` or `notify_ended`, when the observer that is being notified has returned.

        So what observers trigger arrives in order and without recursion. For what has no dispatcher, which sees to that itself.
        """
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
