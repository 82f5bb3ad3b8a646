"""What a poll waits for: an operation, a predicate, a threshold, a reply, or any awaitable.

A poll runs `wait` within a timeout, which cancels the task once: at the deadline of a target that
has none of its own (`has_deadline`), or when the client disconnects or the server stops. Then the
poll asks for the ending:

    wait returns, or raises an error    ending(error): an ending, or None if the error is to be raised
    the wait was interrupted            late_value(): a value that came before the cancellation
    the value cannot be returned        give_back()

One cancellation, as `Task.cancel` delivers it, lets foreign code clean up undisturbed. A cancelled
scope of anyio would cancel again in each iteration of the loop.
"""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Generic, Protocol, TypeVar, final

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    WrongLoop,
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

    has_deadline = True
    """Whether `wait` ends at its deadline by itself."""

    def __init__(self, start: Callable[[float], Coroutine[Any, Any, T]]) -> None:
        self._start = start

    def wait(self, seconds: float) -> Awaitable[T]:
        """Waits at most `seconds`."""
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
        """The value, in a tuple, if it had arrived before the wait was cancelled: else it would be
        lost."""
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


class Interruptible(Protocol):
    """The part of a poll that a predicate asks."""

    @property
    def is_interrupted(self) -> bool:
        """Whether the client has disconnected, or the server stops."""
        ...


@final
class PredicateTarget(Target[Any]):
    """A predicate, with its last value or exception.

    Args:
        poll: is not interrupted.
        purgatory, predicate, keys, give_back, kind: see `Poll.wait_for`.
    """

    __slots__ = (
        "_error",
        "_found",
        "_give_back",
        "_keys",
        "_kind",
        "_poll",
        "_predicate",
        "_purgatory",
    )

    def __init__(
        self,
        poll: Interruptible,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        give_back: Callable[[Any], object] | None,
        kind: str | None,
    ) -> None:
        self._poll = poll
        self._purgatory = purgatory
        self._predicate = predicate
        self._keys = tuple(keys) if isinstance(keys, Iterator) else keys
        self._give_back = give_back
        self._kind = kind
        self._found: tuple[Any] | None = None
        """Last value of the predicate, in a tuple, if it was true."""
        self._error: BaseException | None = None

    def wait(self, seconds: float) -> Awaitable[Any]:
        return self._purgatory.wait_for(self, self._keys, seconds, kind=self._kind)

    def __call__(self) -> Any:
        """The predicate of the wait."""
        if self._poll.is_interrupted:  # a value taken now could not be returned
            return None
        try:
            value = self._predicate()
        except BaseException as error:
            self._error = error
            raise
        return self._await(value) if isawaitable(value) else self._note(value)

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        try:
            value = await awaitable
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
        with suppress(WrongLoop):  # after its loop, the coroutine is only being closed
            for key in self._keys:  # for the next waiter
                self._purgatory.check_and_complete(key)
        return True


@final
class AwaitableTarget(Target[T]):
    """Any awaitable. It has no deadline of its own."""

    __slots__ = ("_awaitable", "_awaited")

    has_deadline = False

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable
        self._awaited = False

    def wait(self, seconds: float) -> Awaitable[T]:
        del seconds
        self._awaited = True
        return self._awaitable

    def ending(self, error: Exception | None) -> Ending | None:
        return Ending.SATISFIED if error is None else None

    def discard_unawaited(self) -> None:
        """Closes or cancels an awaitable that was not awaited, so that Python does not warn."""
        if not self._awaited:
            for method in ("close", "cancel"):  # a coroutine's, a future's
                if hasattr(self._awaitable, method):
                    getattr(self._awaitable, method)()
                    return
