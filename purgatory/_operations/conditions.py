"""The operations behind `wait_for` and `receive`: a condition, plain or asynchronous, and a value that is delivered.

A check cannot await what an asynchronous predicate returns. So the waiting task awaits it, and from then on calls the predicate
itself, after each check that has requested it:

    the task              run, false; no request: wait             run, false; requested: run, true: complete
    check_and_complete                                      request              request
    the deadline          ends the operation, and with it a run in progress, as `asyncio.timeout` would

The operation is registered in the same step in which the predicate is called first, and stays registered until it has ended, so
what becomes true during a run is found by the next one. There is at least one iteration of the loop between two runs.
"""

from asyncio import Event, current_task, get_running_loop, isfuture, sleep
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from contextlib import suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from purgatory._arguments import describe
from purgatory._errors import OperationCancelled, OperationTimeout
from purgatory._operations.lifecycle import abandon, wake_waiters
from purgatory._operations.operation import DelayedOperation
from purgatory._state import CANCELLED, EXPIRED, PENDING
from purgatory._timers.timeouts import Timeout

if TYPE_CHECKING:
    from purgatory._operations.engine import Engine

T = TypeVar("T")

NO_VALUE: Final[Any] = object()

_PLAIN: Final = frozenset({bool, type(None), int, float, str, bytes, list, tuple, dict, set})
"""Types whose values are not awaitable; `inspect.isawaitable` costs more than most predicates."""

Watch = Callable[[Any, Iterable[Hashable]], bool]
"""`Purgatory.try_complete_else_watch`."""


class Condition(DelayedOperation[T]):
    """Waits until a predicate is true; the result is its first true value.

    Attributes:
        returned: what the predicate has returned, until the waiting task awaits it: `NO_VALUE`, or an awaitable.
        recheck: of an asynchronous predicate, is set by each check.
    """

    __slots__ = ("keys", "predicate", "recheck", "returned", "value")

    def __init__(self, predicate: Callable[[], Any], keys: Iterable[Hashable], timeout: float | None) -> None:
        super().__init__(timeout)
        self.predicate = predicate
        self.keys = keys
        self.recheck: Event | None = None
        self.returned = self.value = NO_VALUE

    def try_complete(self) -> bool:
        if self.recheck is not None:
            self.recheck.set()
            return False
        value = self.predicate()
        if type(value) not in _PLAIN and isawaitable(value):
            self.recheck, self.returned = Event(), value
            wake_waiters(self)
            return False
        self.value = value
        return bool(value) and self.force_complete()

    def on_complete(self) -> T:
        return self.value  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<wait for {self.keys!r} {self.state.value}>"


class Receiver(DelayedOperation[Any]):
    """Waits until a value is delivered under its key."""

    __slots__ = ("key", "value")

    def __init__(self, key: Hashable, timeout: float | None) -> None:
        super().__init__(timeout)
        self.key = key
        self.value = NO_VALUE

    def _op_is_decided(self) -> bool:  # a receiver that `deliver` has counted gets the value
        return self.value is not NO_VALUE

    def try_complete(self) -> bool:
        return self._op_is_decided() and self.force_complete()

    def on_complete(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"<receive {self.key!r} {self.state.value}>"


async def wait_for(
    engine: "Engine", watch: Watch, predicate: Callable[[], Any], keys: Iterable[Hashable], timeout: float | None
) -> Any:
    """`Purgatory.wait_for`."""
    if not callable(predicate):
        raise TypeError(f"predicate must be a function that tells whether the condition holds, not {describe(predicate)}")
    if not isinstance(keys, (str, bytes, tuple)):
        with suppress(TypeError):  # which `watch` explains
            keys = list(keys)
    condition: Condition[Any] = Condition(predicate, keys, timeout)
    try:
        watch(condition, keys)
        while condition._op_state is PENDING and condition.recheck is None:
            condition._op_waiters = woken = get_running_loop().create_future()
            await woken
        if condition.recheck is not None:
            return await _until_true(engine, condition, condition.recheck, timeout)
        if condition._op_state is EXPIRED:
            raise _end_error(condition, timeout)
        return condition.result()
    except BaseException:
        abandon(condition)
        raise
    finally:
        _discard(condition.returned)
        del condition  # which would make a cycle with the traceback of its failure


async def _until_true(engine: "Engine", condition: Condition[T], recheck: Event, allowed: float | None) -> T:
    """Awaits what the predicate has returned, and calls it again after each check, until it is true."""
    loop = get_running_loop()
    value: Any = None
    limit = Timeout(None)
    over, ended = loop.create_future(), loop.create_future()
    engine.async_waits[over] = current_task()
    try:
        async with limit:

            def interrupt(_: object) -> None:
                if not over.done():
                    limit.reschedule(loop.time())

            ended.add_done_callback(interrupt)
            if condition._op_state is PENDING:
                condition._op_waiters = ended
            else:
                interrupt(None)
            while True:
                value, condition.returned = condition.returned, NO_VALUE
                if isawaitable(value):
                    value = await value
                if value or condition._op_state is not PENDING:  # also if it has swallowed its cancellation
                    break
                await (sleep(0) if recheck.is_set() else recheck.wait())
                recheck.clear()
                condition.returned = condition.predicate()
    except TimeoutError:
        if not limit.expired():
            raise
        raise _end_error(condition, allowed) from None
    finally:
        del engine.async_waits[over]
        over.set_result(None)
    if not value:
        raise _end_error(condition, allowed)
    condition.value = value
    condition.force_complete()
    return value  # type: ignore[no-any-return]


def _end_error(condition: Condition[Any], timeout: float | None) -> Exception:
    """Why a wait has ended without a value."""
    if condition.state is CANCELLED:
        return OperationCancelled(f"{describe(condition)} was cancelled")
    return OperationTimeout(f"the condition on {describe(condition.keys)} did not hold within {timeout} s")


def _discard(awaitable: object) -> None:
    """Closes or cancels the result of a predicate that will not be awaited."""
    if isinstance(awaitable, (Coroutine, Generator)):
        awaitable.close()
    elif isfuture(awaitable):
        awaitable.cancel()


async def receive(wait: Callable[[Any, Iterable[Hashable]], Any], key: Hashable, timeout: float | None) -> Any:
    """`Purgatory.receive`, for the purgatory whose `wait` is given."""
    receiver = Receiver(key, timeout)
    value = await wait(receiver, (key,))
    if receiver.state is EXPIRED:
        raise OperationTimeout(f"nothing was delivered to {describe(key)} within {timeout} s")
    return value


def deliver(operations: Iterable[DelayedOperation[Any]], value: Any) -> int:
    """Gives `value` to those of `operations` that are receivers without a value; returns their number."""
    count = 0
    for operation in operations:
        if type(operation) is Receiver and operation.value is NO_VALUE:
            operation.value = value
            count += 1
    return count
