"""What a request can wait for: an operation, a predicate, a threshold, or whatever can be awaited. `LongPolls.poll` makes it.

    outcome = await poll.wait(purgatory, operation, keys)            an operation of your own
    outcome = await poll.wait_for(purgatory, predicate, keys)        until predicate() is true
    outcome = await poll.reach(thresholds, "orders", 42)             until the offset is there
    outcome = await poll.run(database.fetch("..."))                  no purgatory at all

Each ends when what it waits for is there, at its deadline, when the client leaves or when the server stops: see `_waiter`.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from inspect import isawaitable
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

        def ended(_: object) -> Ending:
            return Ending.DEADLINE if operation.state is OperationState.EXPIRED else Ending.SATISFIED

        def after_all() -> tuple[R] | None:
            return (operation.result(),) if operation.state is OperationState.COMPLETED else None

        return await self._until(partial(_ended, partial(purgatory.wait, operation, keys), ended), after_all)

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

        def ended(error: object) -> Ending:
            return Ending.SATISFIED if error is None else Ending.DEADLINE

        def after_all() -> tuple[V] | None:
            now = thresholds.value(key)
            return (now,) if now is not None and threshold <= now else None

        return await self._until(partial(_ended, partial(thresholds.wait, key, threshold, self.timeout), ended), after_all)

    async def run(self, awaitable: Awaitable[T]) -> Outcome[T]:
        """Waits for at most `timeout` for whatever can be awaited, a query or a model for instance, and returns its value.

        At the deadline, when the client leaves and when the server stops it is cancelled, and awaited until it has ended: what
        it does in `except` and `finally` is done when this returns. Should it end with a value all the same, that counts.

        Args:
            awaitable: a coroutine, which runs in this task; or a task or future, which is cancelled with the wait, unless it
                stands in `asyncio.shield`. If there is no wait, the coroutine is closed unbegun, the task or future cancelled.

        Raises:
            RuntimeError: this poll waits already.
            TypeError: `awaitable` is none.
            BaseException: what it raised, whatever that is; what the server's `receive` raised.
        """
        if not isawaitable(awaitable):
            raise TypeError(f"cannot wait for {awaitable!r}: it is not awaitable")
        begun = False

        async def within_time() -> tuple[Ending, T | None]:
            nonlocal begun
            limit = timeout(self.timeout)
            try:
                async with limit:
                    begun = True
                    return Ending.SATISFIED, await awaitable
            except TimeoutError:
                if not limit.expired():
                    raise
                return Ending.DEADLINE, None

        try:
            return await self._until(within_time, lambda: None)
        finally:
            if not begun:
                _discard(awaitable)

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome of a wait for what is there already: `SATISFIED` with `value`, without waiting."""
        return self._outcome(Ending.SATISFIED, value) if self._problem is None else self._refused()


class _Condition(DelayedOperation[T]):
    """Waits for a predicate. Unlike a call of `Purgatory.wait_for`, it can be asked how it has ended, and raises nothing at its
    expiry, which a client that leaves in that very turn would leave unseen: its result is what `predicate` said last."""

    __slots__ = ("predicate", "value")

    def __init__(self, predicate: Callable[[], T], timeout: float) -> None:
        super().__init__(timeout)
        self.predicate = predicate

    def try_complete(self) -> bool:
        self.value = self.predicate()
        return bool(self.value) and self.force_complete()

    def on_complete(self) -> T:
        return self.value


async def _ended(waiting: Callable[[], Awaitable[T]], ended: Callable[[object], Ending]) -> tuple[Ending, T | None]:
    """Waits in a purgatory, and tells its errors from endings.

    Args:
        waiting: begins the wait.
        ended: the ending of a wait that returned (`None`) or raised an `OperationTimeout`; `SATISFIED` if that one is not of
            the wait, but of what was waited for.
    """
    try:
        value = await waiting()
    except OperationTimeout as error:
        if ended(error) is Ending.DEADLINE:
            return Ending.DEADLINE, None
        raise
    except (OperationCancelled, PurgatoryClosed):
        return Ending.STOPPING, None
    except PurgatoryFull:
        return Ending.REFUSED, None
    return ended(None), value


def _discard(awaitable: Any) -> None:
    """Has nobody wait for `awaitable`, and no warning that nobody did."""
    for method in ("close", "cancel"):  # a coroutine's, a future's
        if hasattr(awaitable, method):
            getattr(awaitable, method)()
            return
