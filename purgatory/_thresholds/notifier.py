"""Notifies observers of the waits of a `ThresholdPurgatory`, which are not operations, but have the same outcomes.

its threshold is reached      COMPLETED by KEY, or at its FIRST_TRY        `fail`       CANCELLED, FAILED, with the exception
its deadline comes            EXPIRED by DEADLINE                          `aclose`     CANCELLED, CLOSED
its task is cancelled         CANCELLED, CANCELLED
"""

from collections.abc import Callable, Hashable, Sequence
from math import isinf
from typing import Any, Final, final

from purgatory._failure import Failure
from purgatory._observers.observer import Cause, Observer
from purgatory._observers.observer_group import ObserverGroup, Report
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, OperationState

Waiter = Any
"""A `ThresholdWaiter`."""

KIND: Final = "wait"


@final
class WaitNotifier:
    """Notifies `observers`, of which there is at least one.

    Args:
        name: of the purgatory.
        observers: those of `observers_of`.
        report: called with a message and the exception of an observer.
    """

    __slots__ = ("_name", "_observers", "_starts", "time")

    def __init__(self, name: str, observers: Sequence[Observer], report: Report) -> None:
        self._name = name
        self._observers = ObserverGroup(observers, report)
        self.time: Callable[[], float] = float
        self._starts: dict[Waiter, tuple[float, float | None]] = {}
        """When each began to wait, and for how long at most."""

    def bind(self, time: Callable[[], float]) -> None:
        """Moves to another loop. Observers are not notified of what waited on the previous one, which is closed."""
        self.time = time
        self._starts.clear()

    def on_wait(self, waiter: Waiter, when: float | None) -> None:
        """The waiter waits from now on, until `when`."""
        now = self.time()
        self._starts[waiter] = now, None if when is None else when - now
        self._observers.notify_in_order(self._observers.notify_started, waiter)

    def on_immediate(self, key: Hashable, timeout: float | None, state: OperationState) -> None:
        """Notifies of a wait that did not have to wait, or could not."""
        wait, now = object(), self.time()
        timeout = None if timeout is None else max(timeout, 0.0)
        self._observers.notify_in_order(self._observers.notify_started, wait)
        cause = Cause.FIRST_TRY if state is COMPLETED else Cause.DEADLINE
        self._notify_ended(wait, key, (now, timeout), now, state, cause)

    def on_end(self, waiter: Waiter, outcome: Any, cause: Cause) -> None:
        """Notifies of the end of a waiter."""
        now = self.time()
        start = self._starts.pop(waiter, (now, None))
        state, error = COMPLETED, None
        if outcome is EXPIRED or outcome is CANCELLED:
            state = outcome
        elif type(outcome) is Failure:
            state, error = CANCELLED, outcome.exception
        self._notify_ended(waiter, waiter.queue.key, start, now, state, cause, error)

    def _notify_ended(
        self,
        wait: object,
        key: Hashable,
        start: tuple[float, float | None],
        now: float,
        state: OperationState,
        cause: Cause,
        error: BaseException | None = None,
    ) -> None:
        started_at, timeout = start
        limit = None if timeout is None or isinf(timeout) else timeout
        ended_by = key if cause is Cause.KEY else None
        failed_tries = 0 if cause is Cause.FIRST_TRY else 1 + (state is EXPIRED and started_at < now)
        fields = (
            self._name, KIND, (key,), started_at, now, limit, state, cause, ended_by, failed_tries, False, error, id(wait),
        )  # fmt: skip
        self._observers.notify_in_order(self._observers.notify_ended, fields)
