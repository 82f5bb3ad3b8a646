"""The waits of one request, one after the other, and how a wait returns that is ended early.

A wait runs in the request's own task, in a scope of anyio. A disconnect of the client and the stop
of the server cancel the scope:

    the task        with scope: await purgatory.wait(operation, keys)
    the client      disconnects -> on_disconnect -> scope.cancel()
    the purgatory   cancels and frees the operation
    the task        leaves the scope; scope.cancelled_caught -> Outcome(GONE)

A wait that has completed by then is `SATISFIED`: the purgatory decides, and once. A cancellation
that is not the scope's passes through.

The time that a client requests starts with the first wait of its request; all its waits share it.
"""

from asyncio import CancelledError, get_running_loop
from collections import Counter
from collections.abc import Awaitable, Coroutine, Generator
from sys import exception
from typing import Any, Final, Protocol, TypeVar, final

from anyio import CancelScope

from purgatory.asgi._client import Client
from purgatory.asgi._notifier import PollNotifier
from purgatory.asgi._open import OpenPolls, Stoppable
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope

STOP_LIMIT: Final = 1.0
"""Seconds that a held stream has for its end when the server stops. It needs them only if its
client reads slowly, or not at all."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PollRegistry(Protocol):
    """The part of `LongPolls` that a poll uses."""

    endings: Counter[Ending]
    notifier: PollNotifier | None

    def register(self, poll: Stoppable, scope: Scope) -> OpenPolls | str:
        """Where `poll` counts as open from now on, or why it cannot be open; an empty text if the
        server stops."""
        ...

    def outcome(
        self, ending: Ending, value: Any, scope: Scope, applied: str | None, reason: str = ""
    ) -> Outcome[Any]:
        """Counts the ending of a wait, and makes its outcome."""
        ...


class WaitTarget(Protocol[T_co]):
    """The source of a wait's value."""

    def wait(self, timeout: float, /) -> Coroutine[Any, Any, T_co]:
        """Waits at most `timeout` seconds."""
        ...

    def ending(self, error: Exception | None) -> Ending | None:
        """The ending of a wait that has returned, or has raised `error`; `None` if the error is to
        be raised."""

    def value(self) -> tuple[T_co] | None:
        """The value, in a tuple, if it had arrived when the wait was cancelled."""

    def give_back(self) -> bool:
        """Gives back a value that cannot be returned; returns whether it could."""
        ...


class PollWait:
    """A `Poll` without its targets.

    Args:
        polls: registry of the application's polls.
        scope: scope of the request.
        client: client of the request.
        timeout: effective wait, in seconds.
        applied: `Preference-Applied` header, if any.
        problem: outcome of each wait if the request is malformed.
    """

    __slots__ = (
        "__weakref__", "_applied", "_client", "_deadline", "_ending", "_is_held", "_polls",
        "_problem", "_registration",
        "_timeout", "_wait_scope", "hold_scope", "scope",
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
        self._timeout = timeout
        self._deadline: float | None = None
        """Loop time at which the requested time is over; `None` before the first wait."""
        self._polls = polls
        self._client = client
        self._applied = applied
        self._problem = problem
        self._is_held = False
        """Whether it stays registered between two waits."""
        self.hold_scope: CancelScope | None = None
        """Scope in which a held poll sends its stream; None if it is not held."""
        self._registration: OpenPolls | None = None
        """Open polls among which it counts; None if it is not open."""
        self._wait_scope: CancelScope | None = None
        """Scope of its wait; None between waits."""
        self._ending: Ending | None = None
        """Why its wait is cancelled."""

    @property
    def is_ending(self) -> bool:
        """Whether its wait is being ended: its client has left, or the server stops."""
        return self._ending is not None

    @property
    def timeout(self) -> float:
        """Limit of all its waits together, in seconds: the requested time, capped and spread. It
        starts with the first wait; a value that you set starts with the next one."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout, self._deadline = seconds, None

    @property
    def remaining(self) -> float:
        """Rest of `timeout`, in seconds, zero and more; for operations of your own."""
        return (
            self._timeout
            if self._deadline is None
            else max(self._deadline - get_running_loop().time(), 0.0)
        )

    def hold(self) -> Outcome[Any] | None:
        """Keeps this poll open until the end of the request, also between its waits: for streams.

        Returns:
            `None`, or the refusal: too many polls are open, the server stops, or the request is
            over.
        """
        refusal = self._register()
        if refusal is None:
            self._is_held, self.hold_scope = True, self.hold_scope or CancelScope()
        return refusal

    # -- for the client and the server

    def on_disconnect(self) -> None:
        """Ends the wait, if there is one: the client has disconnected."""
        self._cancel(Ending.GONE)

    def on_stop(self) -> None:
        """Ends the wait, if there is one, and soon the stream of a held poll, which may be sending
        to a client that does not read: the server stops."""
        self._cancel(Ending.STOPPING)
        if self.hold_scope is not None:
            self.hold_scope.deadline = get_running_loop().time() + STOP_LIMIT

    def on_request_end(self) -> None:
        """Ends `hold`. A wait that another task continues stays registered to its end."""
        self._is_held = False
        if self._wait_scope is None:
            self._unregister()

    # -- one wait

    async def _until(self, target: WaitTarget[T]) -> Outcome[T]:
        """Waits for `target`, unless it is refused, and makes an outcome of the result."""
        refusal = self._begin()
        if refusal is not None:
            return refusal
        self._wait_scope = scope = CancelScope()
        timeout = self.remaining
        if self._deadline is None:
            self._deadline = get_running_loop().time() + timeout
        value: T | None = None
        ending: Ending | None = None
        notifier = self._polls.notifier
        started_at = 0.0 if notifier is None else notifier.notify_started(self)
        try:
            with scope:
                value = await target.wait(timeout)
            if not scope.cancelled_caught:
                ending = target.ending(None)
            elif self._client.error is not None:
                raise self._client.error
            else:
                ending, found = self._ending, target.value()
                if found is not None:
                    ending, [value] = Ending.SATISFIED, found
            if self._client.disconnected and ending is Ending.SATISFIED and target.give_back():
                ending, value = Ending.GONE, None
        except CancelledError:
            target.give_back()
            raise
        except Exception as error:
            ending = None if error is self._client.error else target.ending(error)
            if ending is None:
                raise
        finally:
            self._wait_scope = self._ending = None
            self._leave()
            if notifier is not None:
                notifier.notify_ended(self, timeout, started_at, ending, exception())
        assert ending is not None
        return self._outcome(ending, value)

    def _begin(self) -> Outcome[Any] | None:
        """Prepares a wait, or returns the outcome of a refused one."""
        if self._wait_scope is not None:
            raise RuntimeError(
                "cannot wait: this poll waits already; a second wait at the same time needs "
                "another poll"
            )
        return self._register()

    def _register(self) -> Outcome[Any] | None:
        """Joins the open polls and listens to the client, or returns the outcome of a refusal."""
        if self._problem is not None:
            return self._refused()
        client = self._client
        if client.is_over:  # it would stay registered, and its answer is not read
            return self._outcome(Ending.GONE)
        if self._registration is None:
            registration = self._polls.register(self, self.scope)
            if isinstance(registration, str):
                return self._outcome(
                    Ending.REFUSED if registration else Ending.STOPPING, reason=registration
                )
            self._registration = registration
            try:
                client.add_listener(self)
            except BaseException:
                self._unregister()
                raise
        elif self._registration.is_stopping:
            return self._outcome(Ending.STOPPING)
        # The listener is not notified of earlier events, including events during this call.
        if client.error is not None or client.disconnected:
            self._leave()
            if client.error is not None:
                raise client.error
            return self._outcome(Ending.GONE)
        return None

    def _leave(self) -> None:
        if not self._is_held:
            self._client.remove_listener(self)
            self._unregister()

    def _unregister(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.unregister(self)

    def _cancel(self, ending: Ending) -> None:
        if self._wait_scope is not None and self._ending is None:
            self._ending = ending
            self._wait_scope.cancel()

    async def cancelled_once(self, awaitable: Awaitable[Any]) -> Any:
        """Awaits foreign code for a target; cleaning up after a cancellation may take time."""
        assert self._wait_scope is not None
        with CancelScope() as cleanup:
            return await _CancelledOnce(_awaited(awaitable), self._wait_scope, cleanup)

    # -- its outcome

    def _outcome(self, ending: Ending, value: Any = None, reason: str = "") -> Outcome[Any]:
        return self._polls.outcome(ending, value, self.scope, self._applied, reason)

    def _refused(self) -> Outcome[Any]:
        assert self._problem is not None
        self._polls.endings[Ending.REFUSED] += 1
        return self._problem


@final
class _CancelledOnce(Generator[Any, Any, Any]):
    """The steps of a coroutine that `scope` cancels once, as `Task.cancel` would.

    anyio repeats a scope's cancellation in each iteration of the loop until the scope is left. That
    would interrupt the cleanup and keep the loop busy. So `cleanup`, a scope within it, is shielded
    after the first cancellation.
    """

    __slots__ = ("_cleanup", "_coroutine", "_scope")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], scope: CancelScope, cleanup: CancelScope
    ) -> None:
        self._coroutine = coroutine
        self._scope = scope
        self._cleanup = cleanup

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, error: Any, *traceback: Any) -> Any:
        if isinstance(error, CancelledError) and self._scope.cancel_called:
            self._cleanup.shield = True
        try:
            return self._coroutine.throw(error, *traceback)
        finally:
            del error, traceback  # which would make a cycle with the frame of this call


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
