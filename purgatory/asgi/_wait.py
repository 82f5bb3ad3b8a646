"""The waits of one request, one after the other: their phases, and how a wait that is ended early returns.

A wait runs in the request's own task. Whoever ends it early, because the client has disconnected or the server stops, cancels
the task, and the wait absorbs that cancellation and returns the ending, as `asyncio.timeout` does:

    the task        await purgatory.wait(operation, keys)
    the client      disconnects -> _request_cancel(GONE) -> task.cancel()
    the purgatory   cancels and frees the operation, at once
    the task        gets a CancelledError, which is ours: uncancel() -> Outcome(GONE)

What had completed by then is `SATISFIED` all the same: the purgatory decides, and once. A cancellation that is not ours passes
through.

           hold               a wait begins             a disconnect,                at once, or in the next iteration
    IDLE ────────> HOLDING ─────────────────> WAITING ────────────────> CANCEL_REQUESTED ──────────────────> CANCELLED
     │                                           ^     the server stops        ^            task.cancel()        │
     └───────────────────────────────────────────┘                             └─────────────────────────────────┘
                    a wait begins                                                it has arrived, task.uncancel()

A wait that ends brings each of the three on the right back to where it began: IDLE, which is not registered as an open poll, or
HOLDING, which stays registered until the request ends.
"""

from asyncio import CancelledError, Task, current_task, get_running_loop
from collections import Counter
from collections.abc import Coroutine
from enum import Enum
from sys import exception
from typing import Any, Final, Protocol, TypeVar

from purgatory.asgi._client import Client
from purgatory.asgi._notifier import PollNotifier
from purgatory.asgi._open import OpenPolls, Stoppable
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope

T = TypeVar("T")


class Phase(Enum):
    """The state of a poll."""

    IDLE = "idle"
    HOLDING = "holding"
    WAITING = "waiting"
    CANCEL_REQUESTED = "cancel requested"
    CANCELLED = "cancelled"


MOVES: Final = {
    Phase.IDLE: {Phase.HOLDING, Phase.WAITING},
    Phase.HOLDING: {Phase.WAITING, Phase.IDLE},
    Phase.WAITING: {Phase.CANCEL_REQUESTED, Phase.IDLE, Phase.HOLDING},
    Phase.CANCEL_REQUESTED: {Phase.CANCELLED, Phase.IDLE, Phase.HOLDING},
    Phase.CANCELLED: {Phase.CANCEL_REQUESTED, Phase.IDLE, Phase.HOLDING},
}
"""The legal moves."""


class PollRegistry(Protocol):
    """What a poll needs of the `LongPolls` that it belongs to."""

    endings: Counter[Ending]
    notifier: PollNotifier | None

    def register(self, poll: Stoppable, scope: Scope) -> OpenPolls | str:
        """Where `poll` counts as open from now on, or why it cannot be open; an empty text if the server stops."""
        ...

    def outcome(self, ending: Ending, value: Any, scope: Scope, applied: str | None, reason: str = "") -> Outcome[Any]:
        """Counts the ending of a wait, and makes its outcome."""
        ...


class WaitTarget(Protocol):
    """What is waited for."""

    def ending(self, error: Exception | None) -> Ending | None:
        """The ending of a wait that has returned, or has raised `error`; `None` if the error is to be raised."""

    def value(self) -> tuple[Any] | None:
        """What was waited for, in a tuple, if it was there when the wait was cancelled."""


class PollWait:
    """A `Poll`, except for what it can wait for.

    Args:
        polls: where it belongs.
        scope: of the request.
        client: of the request.
        timeout: the effective wait, in seconds.
        applied: the `Preference-Applied` header, if any.
        problem: the outcome of each wait, if something is wrong with the request.
    """

    __slots__ = (
        "__weakref__", "_applied", "_cancelling", "_client", "_ending", "_phase", "_polls", "_problem", "_registration",
        "_resting_phase", "_task", "scope", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        polls: PollRegistry,
        scope: Scope,
        client: Client,
        timeout: float,
        applied: str | None = None,
        problem: Outcome[Any] | None = None,
    ) -> None:
        self.scope = scope
        self.timeout = timeout
        """How long each wait takes at most, in seconds: what was requested, capped and spread. Give it to an operation of your
        own; it may be changed between two waits."""
        self._polls = polls
        self._client = client
        self._applied = applied
        self._problem = problem
        self._phase = self._resting_phase = Phase.IDLE
        """The second one is the phase between two waits: Phase.IDLE or Phase.HOLDING."""
        self._registration: OpenPolls | None = None
        """Where it counts as open."""
        self._ending: Ending | None = None
        """Why its wait is cancelled."""
        self._task: Task[Any] | None = None
        self._cancelling = 0
        """The task that waits, and how many cancellations it had pending when the wait began."""

    def hold(self) -> Outcome[Any] | None:
        """Stays one of the open polls until the end of the request, also between its waits: for streams.

        Returns:
            `None`, or the refusal, if too many are open.
        """
        refusal = self._register()
        if refusal is None:
            self._resting_phase = Phase.HOLDING
            if self._phase is Phase.IDLE:
                self._move(Phase.HOLDING)
        return refusal

    # -- for the client and the server

    def on_disconnect(self) -> None:
        """Ends the wait, if there is one: the client has disconnected."""
        self._request_cancel(Ending.GONE)

    def on_stop(self) -> None:
        """Ends the wait, if there is one: the server stops."""
        self._request_cancel(Ending.STOPPING)

    def on_request_end(self) -> None:
        """Ends what `hold` began. A wait that another task goes on with stays registered to its end."""
        self._resting_phase = Phase.IDLE
        if self._phase is Phase.HOLDING:
            self._move(Phase.IDLE)
            self._unregister()

    # -- one wait

    async def _until(self, waiting: Coroutine[Any, Any, T], target: WaitTarget) -> Outcome[T]:
        """Waits, unless it is refused, and makes an outcome of the result.

        Args:
            waiting: what to wait for; it is closed if there is no wait.
            target: the same, to be asked afterwards.
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
        notifier = self._polls.notifier
        started_at = 0.0 if notifier is None else notifier.notify_started(self)
        try:
            value = await waiting
            ending = target.ending(None)
        except CancelledError:
            ending = self._absorb_cancellation()
            if ending is None:
                raise
            found = target.value()
            if found is not None:
                ending, [value] = Ending.SATISFIED, found
        except Exception as error:
            ending = target.ending(error)
            if ending is None:
                raise
        finally:
            self._end()
            if notifier is not None:
                notifier.notify_ended(self, started_at, ending, exception())
        assert ending is not None
        return self._outcome(ending, value)

    def _begin(self) -> Outcome[Any] | None:
        """Begins a wait, or says why there is none."""
        if self._phase is not self._resting_phase:
            raise RuntimeError("cannot wait: this poll waits already; a second wait at the same time needs a poll of its own")
        task = current_task()
        if task is None:
            raise RuntimeError("cannot wait: this runs in no task")
        refusal = self._register()
        if refusal is not None:
            return refusal
        # We are not notified again of what the client did before now, perhaps in this very call.
        if self._client.error is not None or self._client.disconnected:
            self._leave()
            if self._client.error is not None:
                raise self._client.error
            return self._outcome(Ending.GONE)
        self._task, self._cancelling = task, task.cancelling()
        self._move(Phase.WAITING)
        return None

    def _register(self) -> Outcome[Any] | None:
        """Becomes one of the open polls, and listens to the client; or says why not."""
        if self._problem is not None:
            return self._refused()
        if self._registration is not None:
            return self._outcome(Ending.STOPPING) if self._registration.is_stopping else None
        registration = self._polls.register(self, self.scope)
        if isinstance(registration, str):
            return self._outcome(Ending.REFUSED if registration else Ending.STOPPING, reason=registration)
        self._registration = registration
        try:
            self._client.add_listener(self)
        except BaseException:
            self._unregister()
            raise
        return None

    def _leave(self) -> None:
        if self._resting_phase is Phase.IDLE:
            self._client.remove_listener(self)
            self._unregister()

    def _unregister(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.unregister(self)

    def _end(self) -> None:
        task, self._task = self._task, None
        if self._phase is Phase.CANCELLED and task is not None:  # and it was not absorbed
            task.uncancel()
        self._move(self._resting_phase)
        self._ending = None
        self._leave()

    def _request_cancel(self, ending: Ending) -> None:
        if self._phase is not Phase.WAITING:
            return
        self._move(Phase.CANCEL_REQUESTED)
        self._ending = ending
        if self._task is current_task():
            # From a hook that the wait's own first try has called: the wait may still end without being suspended.
            get_running_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._phase is Phase.CANCEL_REQUESTED and self._task is not None:
            self._move(Phase.CANCELLED)
            self._task.cancel()

    def _absorb_cancellation(self) -> Ending | None:
        """Takes our cancellation back, and says why the wait was cancelled; `None` if the cancellation is somebody else's."""
        if self._phase is not Phase.CANCELLED or self._task is None:
            return None
        self._move(Phase.CANCEL_REQUESTED)
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
