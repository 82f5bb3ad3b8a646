"""Telling observers of the waits of a `ThresholdPurgatory`, which are no operations, but end in the same ways.

its threshold is reached      COMPLETED by KEY, or at its FIRST_TRY        `fail`       CANCELLED, FAILED, with the exception
its deadline comes            EXPIRED by DEADLINE                          `aclose`     CANCELLED, CLOSED
its task     CANCELLED, CANCELLED
"""

from collections.abc import Callable, Hashable, Sequence
from math import isinf
from typing import Any, Final, final

from purgatory._ears import Ears, Report
from purgatory._failure import Failure
from purgatory._observer import Cause, Observer
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, OperationState

Waiter = Any
"""One of `_waits`."""

KIND: Final = "wait"


@final
class WaitTeller:
    """Tells `observers`, of whom there is at least one.

    Args:
        name: of the purgatory.
        observers: those of `observers_of`.
        report: called with a message and the exception of an observer.
    """

    __slots__ = ("_ears", "_name", "_starts", "time")

    def __init__(self, name: str, observers: Sequence[Observer], report: Report) -> None:
        self._name = name
        self._ears = Ears(observers, report)
        self.time: Callable[[], float] = float
        self._starts: dict[Waiter, tuple[float, float | None]] = {}
        """When each began to wait, and for how long at most."""

    def bind(self, time: Callable[[], float]) -> None:
        """Belongs to another loop. Of those that waited on the one before, which is closed, nobody will ever hear."""
        self.time = time
        self._starts.clear()

    def began(self, waiter: Waiter, when: float | None) -> None:
        """The waiter waits from now on, until `when`."""
        now = self.time()
        self._starts[waiter] = now, None if when is None else when - now
        self._ears.in_turn(self._ears.tell_start, waiter)

    def at_once(self, key: Hashable, timeout: float | None, state: OperationState) -> None:
        """Tells of a wait that did not have to wait, or could not."""
        it, now = object(), self.time()
        timeout = None if timeout is None else max(timeout, 0.0)
        self._ears.in_turn(self._ears.tell_start, it)
        cause = Cause.FIRST_TRY if state is COMPLETED else Cause.DEADLINE
        self._tell(it, key, (now, timeout), now, state, cause)

    def wake(self, waiter: Waiter, outcome: Any) -> None:
        """Wakes a waiter, and tells of its end. If `outcome` is CANCELLED, because the purgatory is closed."""
        self._wake(waiter, outcome, Cause.CLOSED)

    def wake_one(self, waiter: Waiter, outcome: Any) -> None:
        """The same. If `outcome` is CANCELLED, because its task is."""
        self._wake(waiter, outcome, Cause.CANCELLED)

    def _wake(self, waiter: Waiter, outcome: Any, cancelled_by: Cause) -> None:
        waiter.wake(outcome)
        begun, now, key, error = self._starts.pop(waiter), self.time(), waiter.line.key, None
        if outcome is EXPIRED:
            state, cause = EXPIRED, Cause.DEADLINE
        elif outcome is CANCELLED:
            state, cause = CANCELLED, cancelled_by
        elif type(outcome) is Failure:
            state, cause, error = CANCELLED, Cause.FAILED, outcome.exception
        else:
            state, cause = COMPLETED, Cause.KEY
        self._tell(waiter, key, begun, now, state, cause, error)

    def _tell(
        self,
        it: object,
        key: Hashable,
        begun: tuple[float, float | None],
        now: float,
        state: OperationState,
        cause: Cause,
        error: BaseException | None = None,
    ) -> None:
        start, timeout = begun
        limit = None if timeout is None or isinf(timeout) else timeout
        ended_by = key if cause is Cause.KEY else None
        failed_tries = 0 if cause is Cause.FIRST_TRY else 1 + (state is EXPIRED and start < now)
        fields = (self._name, KIND, (key,), start, now, limit, state, cause, ended_by, failed_tries, False, error, id(it))
        self._ears.in_turn(self._ears.tell_end, fields)
