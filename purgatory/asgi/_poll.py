"""What a request can wait for: an operation, a predicate, a threshold, or whatever can be awaited. `LongPolls.poll` makes it.

    outcome = await poll.wait(purgatory, operation, keys)            an operation of your own
    outcome = await poll.wait_for(purgatory, predicate, keys)        until predicate() is true
    outcome = await poll.reach(thresholds, "orders", 42)             until the offset has reached 42
    outcome = await poll.run(database.fetch("..."))                  no purgatory at all

Each ends when what it waits for is there, at its deadline, when the client leaves or when the server stops: see `_waiter`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
    timeout,
)
from purgatory.asgi._client import Client
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._types import Scope
from purgatory.asgi._waiter import Waiter

if TYPE_CHECKING:
    from purgatory.asgi._polls import LongPolls

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)


@final
class Poll(Waiter):
    """A request that may wait, once or several times, one after the other. `LongPolls.poll` makes it.

    Args:
        polls: where it belongs.
        scope: of the request.
        client: of the request.
        timeout: the effective wait, in seconds.
        applied: what to tell the client of it, if anything.
        problem: the outcome of each wait, if something is wrong with the request.
    """

    __slots__ = ("timeout",)

    def __init__(
        self,
        polls: "LongPolls",
        scope: Scope,
        client: Client,
        timeout: float,
        applied: str | None = None,
        problem: Outcome[Any] | None = None,
    ) -> None:
        super().__init__(polls, scope, client, applied, problem)
        self.timeout = timeout
        """How long each wait takes at most, in seconds: what was asked for, capped and spread. For an operation's own
        timeout; may be changed between two waits."""

    def wait(
        self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[R]]:
        """Waits until `operation` has ended, as `Purgatory.wait`; its timeout is its own, for instance `self.timeout`.

        Returns:
            `SATISFIED` with the operation's result; `DEADLINE` with what it returns at its expiry, which is `None` if
            it raises `OperationTimeout`; or another ending, and then the operation is in no purgatory any more.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what a hook raised; what is wrong with the arguments, as in `try_complete_else_watch`; what
                the server's `receive` raised.
        """
        return self._until(purgatory.wait(operation, keys), _Operation(operation))

    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], T] | Callable[[], Awaitable[T]],
        keys: Iterable[Hashable],
    ) -> Coroutine[Any, Any, Outcome[T]]:
        """Waits for at most `timeout` until `predicate()` is true, as `Purgatory.wait_for`; its first true value is the
        outcome's. Raises what `wait` raises."""
        seen = _Predicate(predicate)
        return self._until(purgatory.wait_for(seen, keys, self.timeout), seen)

    def reach(self, thresholds: ThresholdPurgatory[K, V], key: K, threshold: V) -> Coroutine[Any, Any, Outcome[V]]:
        """Waits for at most `timeout` until the value of `key` is at least `threshold`, as `ThresholdPurgatory.wait`; the
        value is the outcome's.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what `ThresholdPurgatory.fail` was given; what is wrong with the arguments; what the server's
                `receive` raised.
        """
        return self._until(thresholds.wait(key, threshold, self.timeout), _Threshold(thresholds, key, threshold))

    async def run(self, awaitable: Awaitable[T]) -> Outcome[T]:
        """Waits for at most `timeout` for whatever can be awaited, a query or a model for instance, and returns its value.

        At the deadline, when the client leaves and when the server stops it is cancelled, and awaited until it has ended: what
        it does in `except` and `finally` is done when this returns. If it ends with a value all the same, that counts.

        Args:
            awaitable: a coroutine, which runs in this task; or a task or future, which is cancelled with the wait, unless it
                is in `asyncio.shield`. If there is no wait, a coroutine is closed, and a task or future cancelled.

        Raises:
            RuntimeError: this poll waits already.
            TypeError: `awaitable` cannot be awaited.
            BaseException: what it raised, whatever that is; what the server's `receive` raised.
        """
        if not isawaitable(awaitable):
            raise TypeError(f"cannot wait for {awaitable!r}: it is not awaitable")
        limited = _Limited(awaitable)
        try:
            return await self._until(limited.wait(self.timeout), limited)
        finally:
            limited.discard_unbegun()

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome of a wait for something that is there already: `SATISFIED` with `value`, without waiting."""
        return self._outcome(Ending.SATISFIED, value) if self._problem is None else self._refused()


class _Predicate:
    """A predicate, as the subject of a wait, and what it has returned or raised last."""

    __slots__ = ("error", "holds", "predicate", "value")

    def __init__(self, predicate: Callable[[], Any]) -> None:
        self.predicate = predicate
        self.value: Any = None
        self.holds = False
        self.error: BaseException | None = None

    def __call__(self) -> Any:
        try:
            value = self.predicate()
        except BaseException as error:
            self.error = error
            raise
        return self._see_soon(value) if isawaitable(value) else self._see(value)

    def ending(self, error: Exception | None) -> Ending | None:
        if isinstance(error, OperationTimeout) and error is not self.error:
            return Ending.DEADLINE
        return Ending.SATISFIED if error is None else _ending_by_purgatory(error)

    def found(self) -> tuple[Any] | None:
        return (self.value,) if self.holds else None

    async def _see_soon(self, awaitable: Awaitable[Any]) -> Any:
        try:
            value = await awaitable
        except BaseException as error:
            self.error = error
            raise
        return self._see(value)

    def _see(self, value: Any) -> Any:
        self.value, self.holds = value, bool(value)
        return value


class _Operation:
    """An operation, as the subject of a wait."""

    __slots__ = ("operation",)

    def __init__(self, operation: DelayedOperation[Any]) -> None:
        self.operation = operation

    def ending(self, error: Exception | None) -> Ending | None:
        if self.operation.state is OperationState.EXPIRED and (error is None or isinstance(error, OperationTimeout)):
            return Ending.DEADLINE
        return Ending.SATISFIED if error is None else _ending_by_purgatory(error)

    def found(self) -> tuple[Any] | None:
        return (self.operation.result(),) if self.operation.state is OperationState.COMPLETED else None


class _Threshold:
    """A threshold, as the subject of a wait."""

    __slots__ = ("key", "threshold", "thresholds")

    def __init__(self, thresholds: ThresholdPurgatory[Any, Any], key: Hashable, threshold: Any) -> None:
        self.thresholds = thresholds
        self.key = key
        self.threshold = threshold

    def ending(self, error: Exception | None) -> Ending | None:
        if isinstance(error, OperationTimeout):
            return Ending.DEADLINE
        return Ending.SATISFIED if error is None else _ending_by_purgatory(error)

    def found(self) -> tuple[Any] | None:
        now = self.thresholds.value(self.key)
        return (now,) if now is not None and self.threshold <= now else None


class _Limited(Generic[T]):
    """Whatever can be awaited, for a limited time, as the subject of a wait."""

    __slots__ = ("awaitable", "begun", "limit")

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self.awaitable = awaitable
        self.begun = False

    async def wait(self, seconds: float) -> T:
        self.limit = timeout(seconds)
        async with self.limit:
            self.begun = True
            return await self.awaitable

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None:
            return Ending.SATISFIED
        return Ending.DEADLINE if self.begun and self.limit.expired() and isinstance(error, TimeoutError) else None

    def found(self) -> None:
        """If it had ended, the wait would have returned."""

    def discard_unbegun(self) -> None:
        """Closes it if nobody has awaited it, so that Python does not warn that nobody did."""
        if not self.begun:
            for method in ("close", "cancel"):  # a coroutine's, a future's
                if hasattr(self.awaitable, method):
                    getattr(self.awaitable, method)()
                    return


def _ending_by_purgatory(error: Exception) -> Ending | None:
    """The ending that an error of a purgatory stands for."""
    if isinstance(error, (OperationCancelled, PurgatoryClosed)):
        return Ending.STOPPING
    return Ending.REFUSED if isinstance(error, PurgatoryFull) else None
