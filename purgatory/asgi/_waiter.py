"""The waits of one request, one after the other: where it stands, and how a wait that is called off comes to its end.

A wait runs in the request's own task. Whoever ends it early, because the client has left or the server stops, cancels the
task, and the wait takes that cancellation back and answers with the ending, in the way of `asyncio.timeout`:

    task            await purgatory.wait(operation, keys)
    the client                        leaves -> _call_off(GONE) -> task.cancel()
    purgatory                                                       the operation is cancelled, and freed, at once
    task            CancelledError, which is ours: uncancel()    -> Outcome(GONE)

What was there by then is `SATISFIED` all the same: the purgatory decides, and once. A cancellation that is not ours passes
through.

           hold               a wait begins            the client leaves,            at once, or in the next turn
    IDLE ────────> HOLDING ─────────────────> WAITING ──────────────────> CALLED_OFF ──────────────────> CANCELLED
     │                                           ^      the server stops      ^       task.cancel()          │
     └───────────────────────────────────────────┘                            └──────────────────────────────┘
                    a wait begins                                               it has come, task.uncancel()

A wait that ends brings each of the three on the right back to where it began: IDLE, which has no place among the open polls,
or HOLDING, which keeps it for the rest of the request.
"""

from asyncio import CancelledError, Task, current_task, get_running_loop
from collections.abc import Coroutine
from enum import Enum
from sys import exception
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from purgatory.asgi._client import Client
from purgatory.asgi._open import OpenPolls
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope

if TYPE_CHECKING:
    from purgatory.asgi._polls import LongPolls

T = TypeVar("T")


class Phase(Enum):
    """Where a poll stands."""

    IDLE = "idle"
    HOLDING = "holding"
    WAITING = "waiting"
    CALLED_OFF = "called off"
    CANCELLED = "cancelled"


IDLE: Final = Phase.IDLE
HOLDING: Final = Phase.HOLDING
WAITING: Final = Phase.WAITING
CALLED_OFF: Final = Phase.CALLED_OFF
CANCELLED: Final = Phase.CANCELLED

MOVES: Final = {
    IDLE: {HOLDING, WAITING},
    HOLDING: {WAITING, IDLE},
    WAITING: {CALLED_OFF, IDLE, HOLDING},
    CALLED_OFF: {CANCELLED, IDLE, HOLDING},
    CANCELLED: {CALLED_OFF, IDLE, HOLDING},
}
"""The legal moves."""


class Subject(Protocol):
    """What is waited for."""

    def ending(self, error: Exception | None) -> Ending | None:
        """The ending of a wait that has returned, or else has raised `error`; `None` if that is none, and to be raised."""

    def found(self) -> tuple[Any] | None:
        """What was waited for, if it was there by the time the wait was called off."""


class Waiter:
    """What a `Poll` is, but for what it can wait for.

    Args:
        polls: where it belongs.
        scope: of the request.
        client: of the request.
        applied: what to tell the client of its wait, if anything.
        problem: the outcome of each wait, if something is wrong with the request.
    """

    timeout: float

    __slots__ = (
        "__weakref__", "_applied", "_cancelling", "_client", "_ending", "_phase", "_place", "_polls", "_problem", "_rest",
        "_task", "scope",
    )  # fmt: skip

    def __init__(
        self, polls: "LongPolls", scope: Scope, client: Client, applied: str | None, problem: Outcome[Any] | None
    ) -> None:
        self.scope = scope
        self._polls = polls
        self._client = client
        self._applied = applied
        self._problem = problem
        self._phase = IDLE
        self._rest = IDLE
        """Where it stands between two waits: IDLE or HOLDING."""
        self._place: OpenPolls | None = None
        """Where it is one of the open polls."""
        self._ending: Ending | None = None
        """Why it was called off."""
        self._task: Task[Any] | None = None
        self._cancelling = 0
        """Whose wait it is, and how often that one was being cancelled when it began."""

    def hold(self) -> Outcome[Any] | None:
        """Keeps a place among the open polls until the end of the request, also between its waits: for streams.

        Returns:
            `None`, or the refusal, if there is no place.
        """
        refusal = self._enter()
        if refusal is None:
            self._rest = HOLDING
            if self._phase is IDLE:
                self._move(HOLDING)
        return refusal

    # -- for the client and the server

    def client_left(self) -> None:
        """Ends the wait, if there is one: its client has left."""
        self._call_off(Ending.GONE)

    def server_stops(self) -> None:
        """Ends the wait, if there is one: the server stops."""
        self._call_off(Ending.STOPPING)

    def request_ended(self) -> None:
        """Gives up the place that `hold` has kept; a wait that another task goes on with keeps it to its end."""
        self._rest = IDLE
        if self._phase is HOLDING:
            self._move(IDLE)
            self._give_up_place()

    # -- one wait

    async def _until(self, waiting: Coroutine[Any, Any, T], subject: Subject) -> Outcome[T]:
        """Waits, unless it is refused, and makes an outcome of how that has ended.

        Args:
            waiting: what to wait for; it is closed unbegun if there is no wait.
            subject: the same, to be asked afterwards.
        """
        try:
            refusal = self._begin()
        except BaseException:
            waiting.close()
            raise
        if refusal is not None:
            waiting.close()
            return refusal
        value: T | None = None
        ending: Ending | None = None
        teller = self._polls.teller
        begun = 0.0 if teller is None else teller.began(self)
        try:
            value = await waiting
            ending = subject.ending(None)
        except CancelledError:
            ending = self._take_back()
            if ending is None:
                raise
            found = subject.found()
            if found is not None:
                ending, [value] = Ending.SATISFIED, found
        except Exception as error:
            ending = subject.ending(error)
            if ending is None:
                raise
        finally:
            self._end()
            if teller is not None:
                teller.ended(self, begun, ending, exception())
        assert ending is not None
        return self._outcome(ending, value)

    def _begin(self) -> Outcome[Any] | None:
        """Begins a wait, or says why there is none."""
        if self._phase is not self._rest:
            raise RuntimeError("cannot wait: this poll waits already; a second wait at the same time needs a poll of its own")
        task = current_task()
        if task is None:
            raise RuntimeError("cannot wait: this runs in no task")
        refusal = self._enter()
        if refusal is not None:
            return refusal
        # Whatever the client has done before now, in this very call for instance, nobody will be told of again.
        if self._client.error is not None:
            self._leave()
            raise self._client.error
        if self._client.gone:
            self._leave()
            return self._outcome(Ending.GONE)
        self._task, self._cancelling = task, task.cancelling()
        self._move(WAITING)
        return None

    def _enter(self) -> Outcome[Any] | None:
        """Takes a place among the open polls, and listens to the client."""
        if self._problem is not None:
            return self._refused()
        if self._place is not None:
            return self._outcome(Ending.STOPPING) if self._place.is_stopping else None
        place = self._polls.enter(self)
        if isinstance(place, str):
            return self._outcome(Ending.REFUSED, reason=place) if place else self._outcome(Ending.STOPPING)
        self._place = place
        try:
            self._client.attend(self)
        except BaseException:
            self._give_up_place()
            raise
        return None

    def _leave(self) -> None:
        if self._rest is IDLE:
            self._client.ignore(self)
            self._give_up_place()

    def _give_up_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.leave(self)

    def _end(self) -> None:
        task, self._task = self._task, None
        if self._phase is CANCELLED and task is not None:  # and nobody has taken it back
            task.uncancel()
        self._move(self._rest)
        self._ending = None
        self._leave()

    def _call_off(self, ending: Ending) -> None:
        if self._phase is not WAITING:
            return
        self._move(CALLED_OFF)
        self._ending = ending
        if self._task is current_task():
            # From a hook that the wait's own first try has called: it may yet end without being suspended.
            get_running_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._phase is CALLED_OFF and self._task is not None:
            self._move(CANCELLED)
            self._task.cancel()

    def _take_back(self) -> Ending | None:
        """Takes a cancellation back, if it is ours, and says why the wait was called off; `None` if it is somebody else's."""
        if self._phase is not CANCELLED or self._task is None:
            return None
        self._move(CALLED_OFF)
        if self._task.uncancel() > self._cancelling:
            return None  # somebody else has cancelled it as well
        if self._client.error is not None:
            raise self._client.error
        return self._ending

    def _move(self, phase: Phase) -> None:
        assert phase in MOVES[self._phase], f"{self._phase} -> {phase}"
        self._phase = phase

    # -- its outcome

    def _outcome(self, ending: Ending, value: Any = None, reason: str = "") -> Outcome[Any]:
        return self._polls.outcome(ending, value, self.scope, self._applied, reason)

    def _refused(self) -> Outcome[Any]:
        assert self._problem is not None
        self._polls.endings[Ending.REFUSED] += 1
        return self._problem
