"""The observers of one purgatory, timer or tracker, by their forms, and how they are notified."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any, Final, cast, final

from purgatory._core.arguments import describe
from purgatory._core.observers import (
    Cause,
    Ended,
    Fields,
    FieldsObserver,
    Observer,
    StartObserver,
    with_method,
)
from purgatory._core.states import OperationState

Report = Callable[[str, BaseException | None], object]
"""Called with a message and the exception of an observer."""

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
        "_notifying",
        "_queue",
        "_report",
        "_start_observers",
        "wants_starts",
    )

    def __init__(self, observers: Sequence[Observer], report: Report) -> None:
        self._field_observers = cast(
            "tuple[FieldsObserver, ...]", with_method(observers, "ended_fields")
        )
        self._event_observers = tuple(
            [each for each in observers if not hasattr(each, "ended_fields")]
        )
        self._start_observers = cast(
            "tuple[StartObserver, ...]", with_method(observers, "operation_started")
        )
        self.wants_starts = bool(self._start_observers)
        self._report = report
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()
        """Notifications that observers have caused while they were notified: see
        `notify_in_order`."""
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

    def started(self, thing: object) -> None:
        """Notifies of the start of a wait or a timer; for objects without a dispatcher."""
        if self.wants_starts:
            self.notify_in_order(self.notify_started, thing)

    def ended(
        self,
        thing: object,
        purgatory: str,
        kind: str,
        keys: tuple[Hashable, ...],
        started_at: float,
        ended_at: float,
        timeout: float | None,
        state: OperationState,
        cause: Cause,
        failed_tries: int,
        exception: BaseException | None,
    ) -> None:
        """Notifies of the end of a wait or a timer; for objects without a dispatcher. For the
        arguments see `Ended`; an infinite timeout is none."""
        fields = (
            purgatory, kind, keys, started_at, ended_at, None if timeout == inf else timeout, state,
            cause,
            keys[0] if cause is Cause.KEY else None, failed_tries, False, exception, id(thing),
        )  # fmt: skip
        self.notify_in_order(self.notify_ended, fields)

    def notify_in_order(self, notify: Callable[[Any], None], value: Any) -> None:
        """Calls `notify_started` or `notify_ended`, after any notification in progress.

        So notifications caused by observers arrive in order and without recursion. For objects
        without a dispatcher, which does the same.
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
