"""Notifies observers of the waits of requests, as a purgatory does of its operations: see
`purgatory.Observer`.

    SATISFIED    COMPLETED, KEY             GONE        CANCELLED, CANCELLED; also if other code
                                                        cancels the task
    DEADLINE     EXPIRED, DEADLINE          STOPPING    CANCELLED, CLOSED
                                            REFUSED     CANCELLED, FAILED; no notification if it did
                                                        not begin to wait

These operations have no keys, and their kind is "poll". The purgatory in which a request waits
notifies its own observers.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from math import inf
from typing import Final, final

from purgatory import Cause, Observer, OperationState
from purgatory._core.notifier import ObserverGroup
from purgatory.asgi._outcome import Ending

KIND: Final = "poll"

STATES: Final = {
    Ending.SATISFIED: (OperationState.COMPLETED, Cause.KEY),
    Ending.DEADLINE: (OperationState.EXPIRED, Cause.DEADLINE),
    Ending.GONE: (OperationState.CANCELLED, Cause.CANCELLED),
    Ending.STOPPING: (OperationState.CANCELLED, Cause.CLOSED),
    Ending.REFUSED: (OperationState.CANCELLED, Cause.FAILED),
}


@final
class PollNotifier:
    """Notifies `observers`, of whom there is at least one.

    Args:
        name: of the polls.
        observers: the observers that `observers_of` returned.
    """

    __slots__ = ("_name", "_observers")

    def __init__(self, name: str, observers: Sequence[Observer]) -> None:
        self._name = name
        self._observers = ObserverGroup(observers, _report)

    def notify_started(self, poll: object) -> float:
        """Notifies of a wait that begins now, and returns the loop's time."""
        self._observers.notify_started(poll)
        return get_running_loop().time()

    def notify_ended(
        self,
        poll: object,
        timeout: float,
        started_at: float,
        ending: Ending | None,
        error: BaseException | None,
    ) -> None:
        """Notifies of the end of a wait of at most `timeout` seconds: with `ending`, or else with
        `error`, which is raised."""
        failure = error if ending is None and isinstance(error, Exception) else None
        state, cause = STATES[ending or (Ending.GONE if failure is None else Ending.REFUSED)]
        limit = None if timeout == inf else max(timeout, 0.0)
        failed_tries = 1 + (cause is Cause.DEADLINE)
        self._observers.notify_ended(
            (self._name, KIND, (), started_at, get_running_loop().time(), limit, state, cause, None,
             failed_tries, False,
             failure, id(poll))
        )  # fmt: skip


def _report(message: str, error: BaseException | None) -> None:
    get_running_loop().call_exception_handler({"message": f"polls: {message}", "exception": error})
