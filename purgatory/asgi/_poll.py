"""One request that waits, until what it waits for is there, its deadline has come, its client has left or the server stops.

The wait runs in the request's own task. Whoever ends it early, because the client has left or the server stops, cancels
the task, and the wait takes that cancellation back and answers with the ending, in the way of `asyncio.timeout`:

    task            await purgatory.wait(operation, keys)
    the client                        leaves -> _interrupt(GONE) -> task.cancel()
    purgatory                                                       the operation is cancelled, and freed, at once
    task            CancelledError, which is ours: uncancel()    -> Outcome(GONE)

An operation that has completed by then is `SATISFIED` all the same: the purgatory decides, and once. A cancellation that
is not ours passes through.
"""

from asyncio import CancelledError, Task, current_task, get_running_loop
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, final

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
)
from purgatory.asgi._client import Client
from purgatory.asgi._open import OpenPolls
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope

if TYPE_CHECKING:
    from purgatory.asgi._polls import LongPolls

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)


@final
class Poll:
    """A request that may wait, once or several times, one after the other. `LongPolls.poll` makes it.

    Args:
        polls: where it belongs.
        scope: of the request.
        client: of the request.
        timeout: the effective wait, in seconds.
        applied: what to tell the client of it, if anything.
        problem: what is wrong with the request; each wait is then refused, with 400.
    """

    __slots__ = (
        "__weakref__", "_applied", "_cancelled", "_cancelling", "_client", "_interrupted", "_is_held", "_place", "_polls",
        "_problem", "_task", "scope", "timeout",
    )  # fmt: skip

    def __init__(
        self, polls: "LongPolls", scope: Scope, client: Client, timeout: float, applied: str | None, problem: str | None
    ) -> None:
        self.scope = scope
        self.timeout = timeout
        """How long each wait takes at most, in seconds: what was asked for, capped and spread. For an operation's own
        timeout; may be changed between two waits."""
        self._is_held = False
        self._place: OpenPolls | None = None
        """Where it is open."""
        self._polls = polls
        self._client = client
        self._applied = applied
        self._problem = problem
        self._task: Task[Any] | None = None
        self._cancelling = 0
        self._interrupted: Ending | None = None
        self._cancelled = False

    async def wait(self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]) -> Outcome[R]:
        """Waits until `operation` has ended, as `Purgatory.wait`; its timeout is its own, for instance `self.timeout`.

        Returns:
            `SATISFIED` with the operation's result; `DEADLINE` with what it has to say at its expiry, which is nothing if
            it raises `OperationTimeout`; or another ending, and then the operation is in no purgatory any more.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what a hook raised; what is wrong with the arguments, as `try_complete_else_watch` has it; what
                the server's `receive` raised.
        """
        refusal = self._begin()
        if refusal is not None:
            return refusal
        value: R | None = None
        try:
            value = await purgatory.wait(operation, keys)
            ending = Ending.DEADLINE if operation.state is OperationState.EXPIRED else Ending.SATISFIED
        except BaseException as error:
            ended = self._ending_of(error)
            if ended is None or (ended is Ending.DEADLINE and operation.state is not OperationState.EXPIRED):
                raise
            ending = ended
            if isinstance(error, CancelledError) and operation.state is OperationState.COMPLETED:
                value, ending = await operation, Ending.SATISFIED
        finally:
            self._end()
        return self._outcome(ending, value)

    async def wait_for(self, purgatory: Purgatory[Any], predicate: Callable[[], T], keys: Iterable[Hashable]) -> Outcome[T]:
        """Waits for at most `timeout` until `predicate()` is true, as `Purgatory.wait_for`; its first true value is the
        outcome's. Raises what `wait` raises."""
        return await self.wait(purgatory, _Condition(predicate, self.timeout), keys)

    async def reach(self, thresholds: ThresholdPurgatory[K, V], key: K, threshold: V) -> Outcome[V]:
        """Waits for at most `timeout` until the value of `key` is at least `threshold`, as `ThresholdPurgatory.wait`; the
        value is the outcome's.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what `ThresholdPurgatory.fail` was given; what is wrong with the arguments; what the server's
                `receive` raised.
        """
        refusal = self._begin()
        if refusal is not None:
            return refusal
        value: V | None = None
        try:
            value = await thresholds.wait(key, threshold, self.timeout)
            ending = Ending.SATISFIED
        except BaseException as error:
            ended = self._ending_of(error)
            if ended is None:
                raise
            ending = ended
            now = thresholds.value(key)
            if isinstance(error, CancelledError) and now is not None and threshold <= now:
                value, ending = now, Ending.SATISFIED
        finally:
            self._end()
        return self._outcome(ending, value)

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome of a wait for what is there already: `SATISFIED` with `value`, without waiting."""
        if self._problem is not None:
            return self._outcome(Ending.REFUSED, None, 400, self._problem)
        return self._outcome(Ending.SATISFIED, value)

    def hold(self) -> Outcome[Any] | None:
        """Keeps a place among the open polls until the end of the request, also between its waits: for streams.

        Returns:
            `None`, or the refusal, if there is no place.
        """
        refusal = self._enter()
        self._is_held = refusal is None
        return refusal

    # -- for the client and the server

    def client_left(self) -> None:
        """Ends the wait, if there is one: its client has left."""
        self._interrupt(Ending.GONE)

    def server_stops(self) -> None:
        """Ends the wait, if there is one: the server stops."""
        self._interrupt(Ending.STOPPING)

    def request_ended(self) -> None:
        """Gives up the place that `hold` has kept."""
        self._is_held = False
        self._give_up_place()

    # -- one wait

    def _begin(self) -> Outcome[Any] | None:
        """Begins a wait, or says why there is none."""
        if self._task is not None:
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
            return self._outcome(Ending.GONE, None)
        self._task, self._cancelling = task, task.cancelling()
        return None

    def _enter(self) -> Outcome[Any] | None:
        """Takes a place among the open polls, and listens to the client."""
        if self._problem is not None:
            return self._outcome(Ending.REFUSED, None, 400, self._problem)
        if self._place is not None:
            return self._outcome(Ending.STOPPING, None) if self._place.is_stopping else None
        place = self._polls.enter(self)
        if isinstance(place, str):
            return self._outcome(Ending.REFUSED if place else Ending.STOPPING, None, reason=place)
        self._place = place
        try:
            self._client.attend(self)
        except BaseException:
            self._give_up_place()
            raise
        return None

    def _leave(self) -> None:
        if not self._is_held:
            self._client.ignore(self)
            self._give_up_place()

    def _give_up_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.leave(self)

    def _end(self) -> None:
        task, self._task = self._task, None
        if self._cancelled and task is not None:  # and nobody has taken it back
            task.uncancel()
        self._interrupted, self._cancelled = None, False
        self._leave()

    def _interrupt(self, ending: Ending) -> None:
        task = self._task
        if task is None or self._interrupted is not None:
            return
        self._interrupted = ending
        if task is current_task():
            # From a hook that the wait's own first try has called: it may yet end without being suspended.
            get_running_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and self._interrupted is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def _ending_of(self, error: BaseException) -> Ending | None:
        """The ending that an exception stands for; `None` if it is none of ours."""
        if isinstance(error, CancelledError):
            if not self._cancelled or self._task is None:
                return None
            self._cancelled = False
            if self._task.uncancel() > self._cancelling:
                return None  # somebody else has cancelled it as well
            if self._client.error is not None:
                raise self._client.error
            return self._interrupted
        if isinstance(error, OperationTimeout):
            return Ending.DEADLINE
        if isinstance(error, (OperationCancelled, PurgatoryClosed)):
            return Ending.STOPPING
        return Ending.REFUSED if isinstance(error, PurgatoryFull) else None

    def _outcome(self, ending: Ending, value: Any, status: int | None = None, reason: str | None = None) -> Outcome[Any]:
        return self._polls.outcome(self, ending, value, self._applied, status, reason)


class _Condition(DelayedOperation[T]):
    """Waits for a predicate, as the operation of `Purgatory.wait_for` does; that one cannot be asked how it has ended."""

    __slots__ = ("predicate", "value")

    def __init__(self, predicate: Callable[[], T], timeout: float) -> None:
        super().__init__(timeout)
        self.predicate = predicate

    def try_complete(self) -> bool:
        self.value = self.predicate()
        return bool(self.value) and self.force_complete()

    def on_complete(self) -> T:
        return self.value
