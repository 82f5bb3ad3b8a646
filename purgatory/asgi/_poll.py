"""What a request can wait for: an operation, a predicate, a threshold, or whatever can be awaited. `LongPolls.poll` makes it.

    outcome = await poll.wait(purgatory, operation, keys)            an operation of your own
    outcome = await poll.wait_for(purgatory, predicate, keys)        until predicate() is true
    outcome = await poll.reach(thresholds, "orders", 42)             until the offset has reached 42
    outcome = await poll.run(database.fetch("..."))                  no purgatory at all

Each ends when what it waits for is there, at its deadline, when the client disconnects or when the server stops: see `_wait`.
All waits of a poll share its `timeout`.
"""

from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from inspect import isawaitable
from typing import Any, Generic, TypeVar, final, overload

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
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._wait import PollWait

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)


@final
class Poll(PollWait):
    """A request that may wait, several times one after the other, for `timeout` seconds in all. `LongPolls.poll` makes it."""

    __slots__ = ()

    def wait(
        self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[R]]:
        """Waits until `operation` has ended, as `Purgatory.wait`; its timeout is its own, for instance `self.remaining`.

        Returns:
            `SATISFIED` with the operation's result; `DEADLINE` with what it returns at its expiry, which is `None` if
            it raises `OperationTimeout`; or another ending, and then the operation is in no purgatory any more.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what a hook raised; what is wrong with the arguments, as in `try_complete_else_watch`; what
                the server's `receive` raised.
        """
        return self._until(_Operation(purgatory, operation, keys))

    @overload
    def wait_for(
        self, purgatory: Purgatory[Any], predicate: Callable[[], Awaitable[T | None]], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def wait_for(
        self, purgatory: Purgatory[Any], predicate: Callable[[], T | None], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    def wait_for(
        self, purgatory: Purgatory[Any], predicate: Callable[[], Any], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[Any]]:
        """Waits for at most `timeout` until `predicate()` is true, as `Purgatory.wait_for`; the outcome has its first true
        value. Raises what `wait` raises."""
        return self._until(_Predicate(purgatory, predicate, keys, self))

    def reach(self, thresholds: ThresholdPurgatory[K, V], key: K, threshold: V) -> Coroutine[Any, Any, Outcome[V]]:
        """Waits for at most `timeout` until the value of `key` is at least `threshold`, as `ThresholdPurgatory.wait`; the
        outcome has the value.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: what `ThresholdPurgatory.fail` was given; what is wrong with the arguments; what the server's
                `receive` raised.
        """
        return self._until(_Threshold(thresholds, key, threshold))

    async def run(self, awaitable: Awaitable[T]) -> Outcome[T]:
        """Waits for at most `timeout` for whatever can be awaited, a query or a model for instance; the outcome has its value.

        At the deadline, when the client disconnects and when the server stops it is cancelled, and awaited until it has ended:
        its `except` and `finally` blocks are done when this returns. If it returns a value all the same, that counts.

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
        limited = _Limited(awaitable, self)
        try:
            return await self._until(limited)
        finally:
            limited.discard_unawaited()

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome of a wait for something that is there already: `SATISFIED` with `value`, without waiting."""
        return self._outcome(Ending.SATISFIED, value) if self._problem is None else self._refused()


class _PurgatoryTarget:
    """Something that a purgatory waits for."""

    __slots__ = ()

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None:
            return Ending.SATISFIED
        if isinstance(error, (OperationCancelled, PurgatoryClosed)):
            return Ending.STOPPING
        return Ending.REFUSED if isinstance(error, PurgatoryFull) else None


class _Predicate(_PurgatoryTarget):
    """A predicate, and what it has returned or raised last."""

    __slots__ = ("error", "found", "keys", "poll", "predicate", "purgatory")

    def __init__(
        self, purgatory: Purgatory[Any], predicate: Callable[[], Any], keys: Iterable[Hashable], poll: PollWait
    ) -> None:
        self.purgatory = purgatory
        self.predicate = predicate
        self.keys = keys
        self.poll = poll
        self.found: tuple[Any] | None = None
        """Its last value, in a tuple, if that was true."""
        self.error: BaseException | None = None

    def wait(self, timeout: float) -> Coroutine[Any, Any, Any]:
        return self.purgatory.wait_for(self, self.keys, timeout)

    def __call__(self) -> Any:
        try:
            value = self.predicate()
        except BaseException as error:
            self.error = error
            raise
        return self._await(value) if isawaitable(value) else self._note(value)

    def ending(self, error: Exception | None) -> Ending | None:
        if isinstance(error, OperationTimeout) and error is not self.error:
            return Ending.DEADLINE
        return super().ending(error)

    def value(self) -> tuple[Any] | None:
        return self.found

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        try:
            value = await self.poll.cancelled_once(awaitable)
        except BaseException as error:
            self.error = error
            raise
        return self._note(value)

    def _note(self, value: Any) -> Any:
        self.found = (value,) if value else None
        return value


class _Operation(_PurgatoryTarget, Generic[R]):
    """An operation."""

    __slots__ = ("keys", "operation", "purgatory")

    def __init__(self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]) -> None:
        self.purgatory = purgatory
        self.operation = operation
        self.keys = keys

    def wait(self, timeout: float) -> Coroutine[Any, Any, R]:
        del timeout  # it has its own
        return self.purgatory.wait(self.operation, self.keys)

    def ending(self, error: Exception | None) -> Ending | None:
        if self.operation.state is OperationState.EXPIRED and (error is None or isinstance(error, OperationTimeout)):
            return Ending.DEADLINE
        return super().ending(error)

    def value(self) -> tuple[R] | None:
        return (self.operation.result(),) if self.operation.state is OperationState.COMPLETED else None


class _Threshold(_PurgatoryTarget, Generic[V]):
    """A threshold."""

    __slots__ = ("key", "threshold", "thresholds")

    def __init__(self, thresholds: ThresholdPurgatory[Any, V], key: Hashable, threshold: V) -> None:
        self.thresholds = thresholds
        self.key = key
        self.threshold = threshold

    def wait(self, timeout: float) -> Coroutine[Any, Any, V]:
        return self.thresholds.wait(self.key, self.threshold, timeout)

    def ending(self, error: Exception | None) -> Ending | None:
        return Ending.DEADLINE if isinstance(error, OperationTimeout) else super().ending(error)

    def value(self) -> tuple[V] | None:
        now = self.thresholds.value(self.key)
        return (now,) if now is not None and self.threshold <= now else None


class _Limited(Generic[T]):
    """Whatever can be awaited, for a limited time."""

    __slots__ = ("awaitable", "awaited", "limit", "poll")

    def __init__(self, awaitable: Awaitable[T], poll: PollWait) -> None:
        self.awaitable = awaitable
        self.poll = poll
        self.awaited = False

    async def wait(self, seconds: float) -> T:
        self.limit = timeout(seconds)
        async with self.limit:
            self.awaited = True
            return await self.poll.cancelled_once(self.awaitable)  # type: ignore[no-any-return]

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None:
            return Ending.SATISFIED
        return Ending.DEADLINE if self.awaited and self.limit.expired() and isinstance(error, TimeoutError) else None

    def value(self) -> None:
        """If there were one, the wait would have returned it."""

    def discard_unawaited(self) -> None:
        """Closes or cancels what was not awaited, so that Python does not warn of it."""
        if not self.awaited:
            for method in ("close", "cancel"):  # a coroutine's, a future's
                if hasattr(self.awaitable, method):
                    getattr(self.awaitable, method)()
                    return
