"""Telling observers of the waits of requests, by the door that purgatories have: see `purgatory.Observer`.

    SATISFIED    COMPLETED, KEY             GONE        CANCELLED, CANCELLED; so is one whose task somebody else cancels
    DEADLINE     EXPIRED, DEADLINE          STOPPING    CANCELLED, CLOSED
                                            REFUSED     CANCELLED, FAILED; not told if it did not begin to wait

A wait has no keys here, and its kind is "poll". What it has waited for tells of itself, if that has observers.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from math import inf
from typing import Final, Protocol, final

from purgatory import Cause, Observer, OperationState
from purgatory._observers.observer_group import ObserverGroup
from purgatory.asgi._outcome import Ending

KIND: Final = "poll"

STATES: Final = {
    Ending.SATISFIED: (OperationState.COMPLETED, Cause.KEY),
    Ending.DEADLINE: (OperationState.EXPIRED, Cause.DEADLINE),
    Ending.GONE: (OperationState.CANCELLED, Cause.CANCELLED),
    Ending.STOPPING: (OperationState.CANCELLED, Cause.CLOSED),
    Ending.REFUSED: (OperationState.CANCELLED, Cause.FAILED),
}


class Timed(Protocol):
    """A poll, as far as it is told of."""

    timeout: float


@final
class PollTeller:
    """Tells `observers`, of whom there is at least one.

    Args:
        name: of the polls.
        observers: those of `observers_of`.
    """

    __slots__ = ("_name", "_observers")

    def __init__(self, name: str, observers: Sequence[Observer]) -> None:
        self._name = name
        self._observers = ObserverGroup(observers, _report)

    def began(self, poll: Timed) -> float:
        """Tells of a wait that begins now; the loop's time."""
        self._observers.notify_started(poll)
        return get_running_loop().time()

    def ended(self, poll: Timed, begun: float, ending: Ending | None, error: BaseException | None) -> None:
        """Tells of its end, in an ending, or in an exception that is raised."""
        failure = error if ending is None and isinstance(error, Exception) else None
        state, cause = STATES[ending or (Ending.GONE if failure is None else Ending.REFUSED)]
        timeout = None if poll.timeout == inf else max(poll.timeout, 0.0)
        failed_tries = 1 + (cause is Cause.DEADLINE)
        self._observers.notify_ended(
            (self._name, KIND, (), begun, get_running_loop().time(), timeout, state, cause, None, failed_tries, False, failure,
             id(poll))
        )  # fmt: skip


def _report(message: str, error: BaseException | None) -> None:
    get_running_loop().call_exception_handler({"message": f"polls: {message}", "exception": error})
