"""Those who listen: the observers of a purgatory, by what they want to be told, and the telling itself."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast, final

from purgatory._observer import Ended, Fields, FieldsObserver, Observer, StartObserver, having

Report = Callable[[str, BaseException | None], object]
"""Is given a message and the exception that an observer has raised."""

_new_tuple: Final = tuple.__new__


@final
class Ears:
    """Observers who are told of ends, and some of them of starts. One that raises keeps nothing from the others.

    Args:
        observers: in the order in which they were given; but those who take fields are told before those who take events.
        report: hears of what they raise.
    """

    __slots__ = ("_events", "_fields", "_is_telling", "_report", "_starts", "_untold")

    def __init__(self, observers: Sequence[Observer], report: Report) -> None:
        self._fields = cast("tuple[FieldsObserver, ...]", having("ended_fields", observers))
        self._events = tuple([each for each in observers if not hasattr(each, "ended_fields")])
        self._starts = cast("tuple[StartObserver, ...]", having("operation_started", observers))
        self._report = report
        self._untold: deque[tuple[Callable[[Any], None], Any]] = deque()
        """What observers have set off while they were told, and are yet to be told: see `in_turn`."""
        self._is_telling = False

    def __bool__(self) -> bool:
        return bool(self._fields or self._events)

    @property
    def hear_starts(self) -> bool:
        """Whether anybody does."""
        return bool(self._starts)

    def tell_start(self, operation: Any) -> None:
        """Tells of an operation that begins to wait, or has ended at its first try."""
        for observer in self._starts:
            try:
                observer.operation_started(operation)
            except BaseException as error:
                self._report(f"operation_started of {observer!r} raised", error)

    def tell_end(self, fields: Fields) -> None:
        """Tells of an operation that has ended."""
        for hears_fields in self._fields:
            try:
                hears_fields.ended_fields(fields)
            except BaseException as error:
                self._report(f"ended_fields of {hears_fields!r} raised", error)
        if self._events:
            event = _new_tuple(Ended, fields)
            for observer in self._events:
                try:
                    observer.operation_ended(event)
                except BaseException as error:
                    self._report(f"operation_ended of {observer!r} raised", error)

    def in_turn(self, tell: Callable[[Any], None], what: Any) -> None:
        """Calls `tell_start` or `tell_end` when whoever is being told has returned: so what an observer sets off is told after
        what it was told itself, and needs no deeper stack. For what has no dispatcher, which sees to that otherwise.
        """
        self._untold.append((tell, what))
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._untold:
                tell, what = self._untold.popleft()
                tell(what)
        finally:
            self._is_telling = False
