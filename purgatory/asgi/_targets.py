"""What a poll waits for: an operation, a predicate, a threshold, a reply, or any awaitable.

A poll runs `wait` in the scope of its wait, and then asks for the ending:

    wait returns, or raises an error    ending(error): an ending, or None if the error is to be raised
    the scope was cancelled             late_value(): a value that came before the cancellation
    the value cannot be returned        give_back()

Cancelling a scope of anyio repeats the cancellation in each iteration of the loop until the scope is
left. Purgatories leave at once. Other code may take time to clean up, which the repetition would
interrupt, so `cancelled_once` delivers only the first cancellation.
"""

from asyncio import CancelledError, get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast, final

from anyio import CancelScope

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    timeout,
)
from purgatory._core.arguments import describe
from purgatory.asgi._outcome import Ending

R = TypeVar("R")
T = TypeVar("T")


class Target(Generic[T]):
    """The end of a coroutine that has a timeout, such as the wait for a threshold or a reply.

    Args:
        start: makes the coroutine, for a timeout in seconds.
    """

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[float], Coroutine[Any, Any, T]]) -> None:
        self._start = start

    def wait(self, seconds: float, scope: CancelScope) -> Coroutine[Any, Any, T]:
        """Waits at most `seconds`, in `scope`."""
        del scope
        return self._start(seconds)

    def ending(self, error: Exception | None) -> Ending | None:
        """The ending of a wait that has returned, or has raised `error`; `None` if the error is to
        be raised."""
        if error is None:
            return Ending.SATISFIED
        if isinstance(error, OperationTimeout):
            return Ending.DEADLINE
        if isinstance(error, (OperationCancelled, PurgatoryClosed)):
            return Ending.STOPPING
        return Ending.REFUSED if isinstance(error, PurgatoryFull) else None

    def late_value(self) -> tuple[T] | None:
        """The value, in a tuple, if it had arrived when the wait was cancelled, and would be lost
        otherwise."""
        return None

    def give_back(self) -> bool:
        """Gives back a value that cannot be returned; returns whether it could."""
        return False


@final
class OperationTarget(Target[R]):
    """An operation, which has a timeout of its own."""

    __slots__ = ("_operation",)

    def __init__(
        self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]
    ) -> None:
        super().__init__(lambda _: purgatory.wait(operation, keys))
        self._operation = operation

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None or isinstance(error, OperationTimeout):
            if self._operation.state is OperationState.EXPIRED:
                return Ending.DEADLINE
            return Ending.SATISFIED if error is None else None  # of a hook
        return super().ending(error)

    def late_value(self) -> tuple[R] | None:
        is_completed = self._operation.state is OperationState.COMPLETED
        return (self._operation.result(),) if is_completed else None


@final
class PredicateTarget(Target[Any]):
    """A predicate, with its last value or exception.

    Args:
        purgatory, predicate, keys, give_back: of `Poll.wait_for`.
    """

    __slots__ = ("_error", "_found", "_give_back", "_keys", "_predicate", "_purgatory", "_scope")

    _scope: CancelScope

    def __init__(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        give_back: Callable[[Any], object] | None,
    ) -> None:
        self._purgatory = purgatory
        self._predicate = predicate
        self._keys = tuple(keys) if isinstance(keys, Iterator) else keys
        self._give_back = give_back
        self._found: tuple[Any] | None = None
        """Its last value, in a tuple, if that was true."""
        self._error: BaseException | None = None

    def wait(self, seconds: float, scope: CancelScope) -> Coroutine[Any, Any, Any]:
        self._scope = scope
        return self._purgatory.wait_for(self, self._keys, seconds)

    def __call__(self) -> Any:
        """The predicate of the wait."""
        if self._scope.cancel_called:  # a value taken now could not be returned
            return None
        try:
            value = self._predicate()
        except BaseException as error:
            self._error = error
            raise
        return self._await(value) if isawaitable(value) else self._note(value)

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        try:
            value = await cancelled_once(awaitable, self._scope)
        except BaseException as error:
            self._error = error
            raise
        return self._note(value)

    def _note(self, value: Any) -> Any:
        self._found = (value,) if value else None
        return value

    def ending(self, error: Exception | None) -> Ending | None:
        if isinstance(error, OperationTimeout) and error is self._error:
            return None
        return super().ending(error)

    def late_value(self) -> tuple[Any] | None:
        return self._found

    def give_back(self) -> bool:
        found, self._found = self._found, None
        if self._give_back is None or found is None:
            return False
        try:
            self._give_back(*found)
        except Exception as error:
            get_running_loop().call_exception_handler(
                {"message": f"give_back {describe(self._give_back)} raised", "exception": error}
            )
        for key in self._keys:  # for the next waiter
            self._purgatory.check_and_complete(key)
        return True


@final
class AwaitableTarget(Target[T]):
    """Any awaitable, with a time limit."""

    __slots__ = ("_awaitable", "_awaited", "_limit")

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable
        self._awaited = False

    async def wait(self, seconds: float, scope: CancelScope) -> T:
        self._limit = timeout(seconds)
        async with self._limit:
            self._awaited = True
            return await cancelled_once(self._awaitable, scope)

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None:
            return Ending.SATISFIED
        is_late = self._awaited and self._limit.expired() and isinstance(error, TimeoutError)
        return Ending.DEADLINE if is_late else None

    def discard_unawaited(self) -> None:
        """Closes or cancels an awaitable that was not awaited, so that Python does not warn."""
        if not self._awaited:
            for method in ("close", "cancel"):  # a coroutine's, a future's
                if hasattr(self._awaitable, method):
                    getattr(self._awaitable, method)()
                    return


async def cancelled_once(awaitable: Awaitable[T], scope: CancelScope) -> T:
    """Awaits foreign code, which `scope` cancels once, as `Task.cancel` would."""
    value: Any = None
    with CancelScope() as cleanup:
        value = await _CancelledOnce(_awaited(awaitable), scope, cleanup)
    return cast("T", value)


@final
class _CancelledOnce(Generator[Any, Any, Any]):
    """The steps of a coroutine; after the first cancellation by `scope`, `cleanup`, a scope within
    it, is shielded."""

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


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
