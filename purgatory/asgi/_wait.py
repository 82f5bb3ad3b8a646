"""The waits of one request, one after the other, and how one that is ended early returns.

A wait runs in the request's own task, in a scope of anyio. Whoever ends it early, because the client has disconnected or the
server stops, cancels the scope:

    the task        with scope: await purgatory.wait(operation, keys)
    the client      disconnects -> on_disconnect -> scope.cancel()
    the purgatory   cancels and frees the operation
    the task        leaves the scope; scope.cancelled_caught -> Outcome(GONE)

What had completed by then is `SATISFIED` all the same: the purgatory decides, and once. A cancellation that is not the scope's
passes through.

The wait that a client asks for begins with the first wait of its request, and all of them share it.
"""

from asyncio import CancelledError, get_running_loop
from collections import Counter
from collections.abc import Awaitable, Coroutine, Generator
from sys import exception
from typing import Any, Protocol, TypeVar, final

from anyio import CancelScope

from purgatory.asgi._client import Client
from purgatory.asgi._notifier import PollNotifier
from purgatory.asgi._open import OpenPolls, Stoppable
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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


class WaitTarget(Protocol[T_co]):
    """What is waited for."""

    def wait(self, timeout: float, /) -> Coroutine[Any, Any, T_co]:
        """Waits for so many seconds."""
        ...

    def ending(self, error: Exception | None) -> Ending | None:
        """The ending of a wait that has returned, or has raised `error`; `None` if the error is to be raised."""

    def value(self) -> tuple[T_co] | None:
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
        "__weakref__", "_applied", "_client", "_deadline", "_ending", "_is_held", "_polls", "_problem", "_registration",
        "_timeout", "_wait_scope", "scope",
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
        """When the wait is over that the client has asked for; `None` until it begins."""
        self._polls = polls
        self._client = client
        self._applied = applied
        self._problem = problem
        self._is_held = False
        """Whether it stays registered between two waits."""
        self._registration: OpenPolls | None = None
        """Where it counts as open."""
        self._wait_scope: CancelScope | None = None
        """While it waits."""
        self._ending: Ending | None = None
        """Why its wait is cancelled."""

    @property
    def timeout(self) -> float:
        """How long it may wait in all, in seconds: what was requested, capped and spread. It begins with the first wait; what
        you set it to begins with the next one."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout, self._deadline = seconds, None

    @property
    def remaining(self) -> float:
        """What is left of `timeout`, in seconds, zero and more. Give it to an operation of your own."""
        return self._timeout if self._deadline is None else max(self._deadline - get_running_loop().time(), 0.0)

    def hold(self) -> Outcome[Any] | None:
        """Stays one of the open polls until the end of the request, also between its waits: for streams.

        Returns:
            `None`, or the refusal, if too many are open.
        """
        refusal = self._register()
        if refusal is None:
            self._is_held = True
        return refusal

    # -- for the client and the server

    def on_disconnect(self) -> None:
        """Ends the wait, if there is one: the client has disconnected."""
        self._cancel(Ending.GONE)

    def on_stop(self) -> None:
        """Ends the wait, if there is one: the server stops."""
        self._cancel(Ending.STOPPING)

    def on_request_end(self) -> None:
        """Ends what `hold` began. A wait that another task goes on with stays registered to its end."""
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
        """Prepares a wait, or says why there is none."""
        if self._wait_scope is not None:
            raise RuntimeError("cannot wait: this poll waits already; a second wait at the same time needs a poll of its own")
        refusal = self._register()
        if refusal is not None:
            return refusal
        # We are not notified again of what the client did before now, perhaps in this very call.
        if self._client.error is not None or self._client.disconnected:
            self._leave()
            if self._client.error is not None:
                raise self._client.error
            return self._outcome(Ending.GONE)
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
        """For what it waits for: awaits what is not ours, and may take its time to clean up."""
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

    anyio cancels what runs in a scope again in each iteration of the loop, until the scope is left. That would break off what
    cleans up, and keep the loop busy meanwhile. So `cleanup`, a scope within it, is shielded once the cancellation has come.
    """

    __slots__ = ("_cleanup", "_coroutine", "_scope")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: CancelScope, cleanup: CancelScope) -> None:
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
