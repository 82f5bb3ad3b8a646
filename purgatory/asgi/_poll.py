"""Waits of a request: for an operation, a predicate, a threshold, or any awaitable.
`LongPolls.poll` makes a `Poll`.

    outcome = await poll.wait(purgatory, operation, keys)            an operation of your own
    outcome = await poll.wait_for(purgatory, predicate, keys)        until predicate() is true
    value = await poll.result(purgatory, predicate, keys)            the same, or an exception that
                                                                     frameworks answer
    outcome = await poll.reach(thresholds, "orders", 42)             until the offset has reached 42
    outcome = await poll.receive(relay, "payments/7")                until a reply is delivered, by
                                                                     any process
    outcome = await poll.run(database.fetch("..."))                  no purgatory at all

Each ends with its result, at its deadline, when the client disconnects, or when the server stops:
see `_wait`. All waits of a poll share its `timeout`.
"""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    RelayUnavailable,
    ThresholdPurgatory,
    timeout,
)
from purgatory._core.arguments import describe
from purgatory.asgi._frameworks import framework_of
from purgatory.asgi._outcome import Ending, Outcome
from purgatory.asgi._wait import PollWait

if TYPE_CHECKING:
    from purgatory.relay import Relay

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)


@final
class Poll(PollWait):
    """A request that may wait, several times one after the other, for `timeout` seconds in total.
    `LongPolls.poll` makes it."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """What FastAPI asks of a parameter that is no dependency."""
        raise TypeError(
            "Poll is no parameter of a request: annotate with Annotated[Poll, long_poll(polls)], of"
            " purgatory.asgi.fastapi, and call long_poll"
        )

    def wait(
        self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]
    ) -> Coroutine[Any, Any, Outcome[R]]:
        """Waits until `operation` has ended, as `Purgatory.wait`; it has a timeout of its own, for
        instance `self.remaining`.

        Returns:
            `SATISFIED` with the operation's result; `DEADLINE` with its result at the expiry, which
            is `None` if it raises `OperationTimeout`; or another ending, and then the operation is
            in no purgatory any more.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: the exception of a hook; the errors of `try_complete_else_watch`; the
                exception of the server's `receive`.
        """
        return self._until(_Operation(purgatory, operation, keys))

    @overload
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Awaitable[T | None]],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[Any], object] | None = None,
    ) -> Coroutine[Any, Any, Outcome[Any]]:
        """Waits for at most `timeout` until `predicate()` is true, as `Purgatory.wait_for`; the
        outcome has its first true value.

        Args:
            purgatory: where to wait.
            predicate: is not called any more once the client has left or the server stops.
            keys: whose checks call it again.
            give_back: for a predicate that removes the value it returns. If the client leaves or
                the task is cancelled before the value is returned, `give_back` is called with it
                and the keys are checked: the outcome is `GONE`, and the next waiter gets the value.
                Without `give_back` the value is lost.

        Raises:
            BaseException: what `wait` raises.
        """
        return self._until(_Predicate(purgatory, predicate, keys, self, give_back))

    @overload
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Awaitable[T | None]],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> T: ...
    @overload
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> T: ...
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[Any], object] | None = None,
    ) -> Any:
        """Waits as `wait_for`, and returns the value alone.

        Raises:
            PollEnded: there is no value. FastAPI, Starlette and Litestar answer it with the status
                and the headers of its `outcome`, as their own HTTP exception; without a framework
                the middleware does. In a WebSocket they close it with its code and reason.
            BaseException: what `wait` raises.
        """
        outcome = await self.wait_for(purgatory, predicate, keys, give_back=give_back)
        if not outcome.is_satisfied:
            framework, is_socket = framework_of(self.scope), self.scope["type"] == "websocket"
            ended = framework.socket_ended if is_socket else framework.ended
            raise ended(outcome, self.scope)
        return outcome.value

    def reach(
        self, thresholds: ThresholdPurgatory[K, V], key: K, threshold: V
    ) -> Coroutine[Any, Any, Outcome[V]]:
        """Waits for at most `timeout` until the value of `key` is at least `threshold`, as
        `ThresholdPurgatory.wait`; the outcome has the value.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: the exception that `ThresholdPurgatory.fail` was given; the errors of
                `ThresholdPurgatory.wait`; the exception of the server's `receive`.
        """
        return self._until(_Threshold(thresholds, key, threshold))

    async def receive(self, relay: "Relay", key: str) -> Outcome[bytes]:
        """Waits for at most `timeout` for the value delivered to `key`, as `Relay.receive`; the
        outcome has the value. With a timeout of zero the store is asked once, which takes at most
        the `timeout` of the relay.

        Returns:
            `SATISFIED` with the value; `REFUSED` if the relay is unavailable; or another ending.

        Raises:
            RuntimeError: this poll waits already, or the relay was never opened.
            TypeError, ValueError, WrongLoop: as `Relay.receive`.
            BaseException: the exception of the server's `receive`.
        """
        try:
            return await self._until(_Delivery(relay, key))
        except RelayUnavailable:  # its text names the store's address, which is not for clients
            return self.refuse(f"cannot receive {describe(key)}: the store is unavailable")

    async def run(self, awaitable: Awaitable[T]) -> Outcome[T]:
        """Waits for at most `timeout` for any awaitable, for instance a query or a model; the
        outcome has its value.

        At the deadline, when the client disconnects and when the server stops, the awaitable is
        cancelled, and awaited until it has ended: its `except` and `finally` blocks are done when
        this returns. If it returns a value after its cancellation, the outcome is `SATISFIED`.

        Args:
            awaitable: a coroutine, which runs in this task; or a task or future, which is cancelled
                with the wait, unless it is in `asyncio.shield`. If there is no wait, a coroutine is
                closed, and a task or future cancelled.

        Raises:
            RuntimeError: this poll waits already.
            TypeError: `awaitable` cannot be awaited.
            BaseException: the exception of the awaitable, or of the server's `receive`.
        """
        if not isawaitable(awaitable):
            raise TypeError(f"cannot wait for {describe(awaitable)}: it is not awaitable")
        limited = _Limited(awaitable, self)
        try:
            return await self._until(limited)
        finally:
            limited.discard_unawaited()

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome for a value that needs no wait: `SATISFIED` with `value`."""
        return self._outcome(Ending.SATISFIED, value) if self._problem is None else self._refused()

    def refuse(self, reason: str) -> Outcome[Any]:
        """The outcome of a wait that cannot begin: `REFUSED`, 503 with `Retry-After`.

        Args:
            reason: for the client; at most 123 bytes of UTF-8 are sent.
        """
        return self._outcome(Ending.REFUSED, reason=reason)


class _PurgatoryTarget:
    """Something that a purgatory waits for."""

    __slots__ = ()

    def give_back(self) -> bool:
        return False

    def ending(self, error: Exception | None) -> Ending | None:
        if error is None:
            return Ending.SATISFIED
        if isinstance(error, (OperationCancelled, PurgatoryClosed)):
            return Ending.STOPPING
        return Ending.REFUSED if isinstance(error, PurgatoryFull) else None


class _Predicate(_PurgatoryTarget):
    """A predicate, with its last value or exception."""

    __slots__ = ("error", "found", "keys", "poll", "predicate", "purgatory", "returns")

    def __init__(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        poll: PollWait,
        returns: Callable[[Any], object] | None,
    ) -> None:
        self.purgatory = purgatory
        self.predicate = predicate
        self.keys = tuple(keys) if isinstance(keys, Iterator) else keys
        self.poll = poll
        self.returns = returns
        """`give_back`: called with a value that cannot be returned."""
        self.found: tuple[Any] | None = None
        """Its last value, in a tuple, if that was true."""
        self.error: BaseException | None = None

    def wait(self, timeout: float) -> Coroutine[Any, Any, Any]:
        return self.purgatory.wait_for(self, self.keys, timeout)

    def __call__(self) -> Any:
        if self.poll.is_ending:  # a value taken now could not be returned
            return None
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

    def give_back(self) -> bool:
        found, self.found = self.found, None
        if self.returns is None or found is None:
            return False
        try:
            self.returns(*found)
        except Exception as error:
            get_running_loop().call_exception_handler(
                {"message": f"give_back {describe(self.returns)} raised", "exception": error}
            )
        for key in self.keys:  # for the next waiter
            self.purgatory.check_and_complete(key)
        return True

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

    def __init__(
        self, purgatory: Purgatory[Any], operation: DelayedOperation[R], keys: Iterable[Hashable]
    ) -> None:
        self.purgatory = purgatory
        self.operation = operation
        self.keys = keys

    def wait(self, timeout: float) -> Coroutine[Any, Any, R]:
        del timeout  # it has its own
        return self.purgatory.wait(self.operation, self.keys)

    def ending(self, error: Exception | None) -> Ending | None:
        if self.operation.state is OperationState.EXPIRED and (
            error is None or isinstance(error, OperationTimeout)
        ):
            return Ending.DEADLINE
        return super().ending(error)

    def value(self) -> tuple[R] | None:
        return (
            (self.operation.result(),) if self.operation.state is OperationState.COMPLETED else None
        )


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


class _Delivery(_PurgatoryTarget):
    """A value that is delivered to a key of a relay."""

    __slots__ = ("key", "relay")

    def __init__(self, relay: "Relay", key: str) -> None:
        self.relay = relay
        self.key = key

    def wait(self, timeout: float) -> Coroutine[Any, Any, bytes]:
        return self.relay.receive(self.key, timeout)

    def ending(self, error: Exception | None) -> Ending | None:
        return Ending.DEADLINE if isinstance(error, OperationTimeout) else super().ending(error)

    def value(self) -> None:
        """Always None here: the store keeps the value for the next request."""


class _Limited(Generic[T]):
    """Any awaitable, with a time limit."""

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
        return (
            Ending.DEADLINE
            if self.awaited and self.limit.expired() and isinstance(error, TimeoutError)
            else None
        )

    def value(self) -> None:
        """Always None here: the wait would have returned it."""

    def give_back(self) -> bool:
        return False

    def discard_unawaited(self) -> None:
        """Closes or cancels an awaitable that was not awaited, so that Python does not warn."""
        if not self.awaited:
            for method in ("close", "cancel"):  # a coroutine's, a future's
                if hasattr(self.awaitable, method):
                    getattr(self.awaitable, method)()
                    return
