"""The life of a poll: the waits of one request, one after the other. `LongPolls.poll` makes a `Poll`.

    outcome = await poll.wait(purgatory, operation, keys)            an operation of your own
    outcome = await poll.wait_for(purgatory, predicate, keys)        until predicate() is true
    value = await poll.result(purgatory, predicate, keys)            the same, or an exception that
                                                                     frameworks answer
    outcome = await poll.reach(thresholds, "orders", 42)             until the offset has reached 42
    outcome = await poll.receive(relay, "payments/7")                until a reply is delivered, by
                                                                     any process
    outcome = await poll.run(database.fetch("..."))                  no purgatory at all

Each ends with its result, at its deadline, when the client disconnects, or when the server stops.
It runs in the request's own task, within a timeout, which a disconnect and the stop bring forward:

    _register       it counts as an open poll, and listens to its client; or it is refused
    _until          async with timeout: await target.wait(seconds)
    the client      disconnects -> on_disconnect -> interrupt(GONE) -> timeout.reschedule(now)
    the timeout     cancels the task, once, in the next iteration of the loop
    the purgatory   cancels and frees the operation
    _until          leaves the timeout, which has expired -> Outcome(GONE)

A wait that has completed by then is `SATISFIED`: the purgatory decides, and once. A cancellation
that is not the timeout's passes through.

The time that a client requests starts with the first wait of its request; all its waits share it.
"""

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from functools import partial
from inspect import isawaitable
from math import inf
from sys import exception
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final, overload

from purgatory import (
    DelayedOperation,
    Purgatory,
    RelayUnavailable,
    ThresholdPurgatory,
    Timeout,
    timeout,
    timeout_at,
)
from purgatory._core.arguments import describe
from purgatory.asgi._open import REPLACED, OpenPolls, Stoppable
from purgatory.asgi._outcome import Ending, Outcome, PollNotifier, framework_of, outcome_of
from purgatory.asgi._request import Client, Scope
from purgatory.asgi._targets import AwaitableTarget, OperationTarget, PredicateTarget, Target

if TYPE_CHECKING:
    from purgatory.relay import Relay
else:
    Relay = Any  # for `get_type_hints`: the package is imported only where it is in use

STOP_LIMIT: Final = 1.0
"""Seconds that a held poll's request has for its end when the server stops. A stream needs them only
if its client reads slowly, or not at all."""

R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Any)


class Home(Protocol):
    """The part of `LongPolls` that a poll uses."""

    notifier: PollNotifier | None

    def register(self, poll: Stoppable, scope: Scope) -> OpenPolls | str:
        """Counts `poll` as open, or returns why it is refused."""
        ...

    def count(self, ending: Ending) -> None:
        """Counts the ending of a wait."""

    def pause(self) -> int:
        """Seconds for `Retry-After`."""
        ...


@final
class Poll:
    """A request that may wait, several times one after the other, for `timeout` seconds in total.
    `LongPolls.poll` makes it.

    Args:
        polls: the application's `LongPolls`.
        scope: scope of the request.
        client: client of the request.
        timeout: effective wait, in seconds.
        applied: `Preference-Applied` header, if any.
        problem: outcome of each wait if the request is malformed.
    """

    __slots__ = (
        "__weakref__", "_applied", "_client", "_deadline", "_ending", "_is_held", "_limit", "_polls",
        "_problem", "_reason", "_registration", "_timeout", "scope",
    )  # fmt: skip

    def __init__(
        self,
        polls: Home,
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
        self._registration: OpenPolls | None = None
        """Open polls among which it counts; None if it is not open."""
        self._limit: Timeout | None = None
        """Cancels its wait; None between waits."""
        self._ending: Ending | None = None
        """Why its wait is interrupted."""
        self._reason = ""
        """The reason for the client, if it is not the usual one of the ending."""

    @property
    def timeout(self) -> float:
        """Limit of all its waits together, in seconds: the requested time, capped and spread. It
        starts with the first wait; a value that you set starts with the next one."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._timeout, self._deadline = seconds, None

    @property
    def is_interrupted(self) -> bool:
        """Whether its wait is to end, because the client has disconnected or the server stops."""
        return self._ending is not None

    @property
    def remaining(self) -> float:
        """Rest of `timeout`, in seconds, zero and more; for operations of your own."""
        if self._deadline is None:
            return self._timeout
        return max(self._deadline - get_running_loop().time(), 0.0)

    def hold(self) -> Outcome[Any] | None:
        """Keeps this poll open until the end of the request, also between its waits: for streams.

        When the server stops, its wait ends, and the request has a second to end. Then it is
        cancelled: a client that has stopped reading would block it for ever.

        Returns:
            `None`, or the refusal: too many polls are open, the server stops, or the request is
            over.
        """
        refusal = self._register()
        if refusal is None:
            self._is_held = True
        return refusal

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """What FastAPI asks of a parameter that is no dependency."""
        raise TypeError(
            "Poll is no parameter of a request: annotate with Annotated[Poll, long_poll(polls)], of"
            " purgatory.asgi.fastapi, and call long_poll"
        )

    # -- the waits

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
        return self._until(OperationTarget(purgatory, operation, keys))

    @overload
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Awaitable[T | None]],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    @overload
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, Outcome[T]]: ...
    def wait_for(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[Any], object] | None = None,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, Outcome[Any]]:
        """Waits for at most `timeout` until `predicate()` is true, as `Purgatory.wait_for`; the
        outcome has its first true value.

        Args:
            purgatory: where to wait.
            predicate: is not called any more once the client has left or the server stops.
            keys: their checks call it again.
            give_back: for a predicate that removes the value it returns. If the client has left,
                the task is cancelled or the wait has ended before the value is returned,
                `give_back` is called with it and the keys are checked, so that the next waiter gets
                the value. Without `give_back` the value is lost.
            kind: name of this wait in metrics and journals; by default as in
                `Purgatory.wait_for`.

        Raises:
            BaseException: what `wait` raises.
        """
        return self._until(PredicateTarget(self, purgatory, predicate, keys, give_back, kind))

    @overload
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Awaitable[T | None]],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
        kind: str | None = None,
    ) -> T: ...
    @overload
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[T], object] | None = None,
        kind: str | None = None,
    ) -> T: ...
    async def result(
        self,
        purgatory: Purgatory[Any],
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        *,
        give_back: Callable[[Any], object] | None = None,
        kind: str | None = None,
    ) -> Any:
        """Waits as `wait_for`, and returns the value alone.

        Raises:
            PollEnded: there is no value. FastAPI, Starlette and Litestar answer it with the status
                and the headers of its `outcome`, as their own HTTP exception; without a framework
                the middleware does. In a WebSocket they close it with its code and reason.
            BaseException: what `wait` raises.
        """
        outcome = await self.wait_for(purgatory, predicate, keys, give_back=give_back, kind=kind)
        if not outcome.is_satisfied:
            framework, is_socket = framework_of(self.scope), self.scope["type"] == "websocket"
            ended = framework.socket_ended if is_socket else framework.ended
            raise ended(outcome, self.scope)
        return outcome.value

    def reach(
        self,
        thresholds: ThresholdPurgatory[K, V],
        key: K,
        threshold: V,
        *,
        kind: str | None = None,
    ) -> Coroutine[Any, Any, Outcome[V]]:
        """Waits for at most `timeout` until the value of `key` is at least `threshold`, as
        `ThresholdPurgatory.wait`; the outcome has the value. `kind` is what figures of the
        thresholds call this wait.

        Raises:
            RuntimeError: this poll waits already.
            BaseException: the exception that `ThresholdPurgatory.fail` was given; the errors of
                `ThresholdPurgatory.wait`; the exception of the server's `receive`.
        """
        wait = thresholds.wait if kind is None else partial(thresholds.wait, kind=kind)
        return self._until(Target(partial(wait, key, threshold)))

    async def receive(self, relay: Relay, key: str) -> Outcome[bytes]:
        """Waits for at most `timeout` for the value delivered to `key`, as `Relay.receive`; the
        outcome has the value. With a timeout of zero the store is asked once, which takes at most
        the `timeout` of the relay.

        Returns:
            `SATISFIED` with the value; `REFUSED` if the relay is unavailable; or another ending.

        Raises:
            RuntimeError: this poll waits already, or the relay was never opened.
            TypeError, ValueError, WrongLoop: see `Relay.receive`.
            BaseException: the exception of the server's `receive`.
        """
        try:
            return await self._until(Target(partial(relay.receive, key)))
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
        target = AwaitableTarget(awaitable)
        try:
            return await self._until(target)
        finally:
            target.discard_unawaited()

    def at_once(self, value: T) -> Outcome[T]:
        """The outcome for a value that needs no wait: `SATISFIED` with `value`."""
        return self._outcome(Ending.SATISFIED, value) if self._problem is None else self._refused()

    def refuse(self, reason: str) -> Outcome[Any]:
        """The outcome of a wait that cannot start: `REFUSED`, 503 with `Retry-After`.

        Args:
            reason: text for the client; at most 123 bytes of UTF-8 are sent.
        """
        return self._outcome(Ending.REFUSED, reason=reason)

    # -- for the client and the server

    def on_disconnect(self) -> None:
        """Ends the wait, if there is one: the client has disconnected."""
        self.interrupt(Ending.GONE)

    def on_stop(self) -> None:
        """Ends this poll: the server stops."""
        self._end(Ending.STOPPING)

    def on_replaced(self, reason: str) -> None:
        """Ends this poll: a newer one takes its place."""
        self._end(Ending.REFUSED, reason)

    def interrupt(self, ending: Ending, reason: str = "") -> None:
        """Ends the wait, if there is one, with `ending`, unless it is ending already."""
        limit = self._limit
        if limit is not None and self._ending is None and not limit.expired():
            self._ending, self._reason = ending, reason
            limit.reschedule(-inf)

    def cut_off(self) -> None:
        """Cancels the request."""
        self._client.cut_off()

    def on_request_end(self) -> None:
        """Ends `hold`. A wait that another task continues stays registered to its end."""
        self._is_held = False
        if self._limit is None:
            self._unregister()

    # -- one wait

    async def _until(self, target: Target[T]) -> Outcome[T]:
        """Waits for `target`, unless it is refused, and makes an outcome of the result."""
        if self._limit is not None:
            raise RuntimeError(
                "cannot wait: this poll waits already; a second wait at the same time needs "
                "another poll"
            )
        refusal = self._register()
        if refusal is not None:
            return refusal
        seconds = self.remaining
        if self._deadline is None:
            self._deadline = get_running_loop().time() + seconds
        self._limit = limit = timeout_at(None) if target.has_deadline else timeout(seconds)
        value: T | None = None
        ending: Ending | None = None
        reason = ""
        notifier = self._polls.notifier
        started_at = 0.0 if notifier is None else notifier.notify_started(self)
        try:
            try:
                async with limit:
                    value = await target.wait(seconds)
                ending = target.ending(None)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                if self._ending is Ending.GONE and self._client.error is not None:
                    raise self._client.error from None
                ending, reason = self._ending or Ending.DEADLINE, self._reason
                if (found := target.late_value()) is not None:
                    ending, [value] = Ending.SATISFIED, found
                del error
            if self._client.disconnected and ending is Ending.SATISFIED and target.give_back():
                ending, value = Ending.GONE, None
        except Exception as error:
            ending = None if error is self._client.error else target.ending(error)
            if ending is None:
                raise
        finally:
            self._limit = self._ending = None
            self._leave()
            if notifier is not None:
                notifier.notify_ended(self, seconds, started_at, ending, exception())
            if ending is not Ending.SATISFIED:  # last: it is the user's code
                target.give_back()
        assert ending is not None
        return self._outcome(ending, value, reason)

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
        elif self._registration.has_stopped:
            return self._outcome(Ending.STOPPING)
        elif self not in self._registration.polls:
            return self._outcome(Ending.REFUSED, reason=REPLACED)
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

    def _end(self, ending: Ending, reason: str = "") -> None:
        """Ends the wait, if there is one, and soon the request of a held poll, which may be sending
        to a client that does not read."""
        self.interrupt(ending, reason)
        if self._is_held:
            get_running_loop().call_later(STOP_LIMIT, self._client.cut_off)

    # -- its outcome

    def _outcome(self, ending: Ending, value: Any = None, reason: str = "") -> Outcome[Any]:
        """Counts the ending of a wait, and makes its outcome."""
        self._polls.count(ending)
        pause = self._polls.pause() if ending in (Ending.STOPPING, Ending.REFUSED) else 0
        return outcome_of(ending, value, self.scope, self._applied, pause, reason)

    def _refused(self) -> Outcome[Any]:
        assert self._problem is not None
        self._polls.count(Ending.REFUSED)
        return self._problem
