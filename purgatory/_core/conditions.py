"""The operations behind `wait_for` and `receive`: a condition, plain or asynchronous, and a value
that is delivered.

A check cannot await what an asynchronous predicate returns. So the waiting task awaits it, and from
then on calls the predicate itself, after each check that has requested it:

    the task              run, false; no request: wait             run, false; requested: run, true:
                                                                   complete
    check_and_complete                                      request              request
    the deadline          ends the operation, and with it a run in progress, as `asyncio.timeout`
                          would

The operation is registered in the same step in which the predicate is called first, and stays
registered until it has ended, so the next run finds a change that came during a run. There is at
least one iteration of the loop between two runs.
"""

from asyncio import Event, InvalidStateError, current_task, get_running_loop, isfuture, sleep
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from contextlib import suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from purgatory._core.arguments import describe
from purgatory._core.errors import OperationCancelled, OperationTimeout
from purgatory._core.failure import Failure
from purgatory._core.loop import running_loop
from purgatory._core.operation import (
    NO_RESULT,
    DelayedOperation,
    abandon,
    add_owner,
    has_result,
    owner_has_left,
    wake_owner,
)
from purgatory._core.states import CANCELLED, EXPIRED, PENDING
from purgatory._core.timeouts import Timeout

if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory

T = TypeVar("T")

NO_VALUE: Final[Any] = object()

_PLAIN: Final = frozenset({bool, type(None), int, float, str, bytes, list, tuple, dict, set})
"""Types whose values are not awaitable; `inspect.isawaitable` costs more than most predicates."""


class Condition(DelayedOperation[T | None]):
    """Waits until a predicate is true; the result is its first true value.

    Attributes:
        returned: the awaitable that an asynchronous predicate has returned, until the waiting task
            awaits it.
        recheck: is set by each check, if the predicate is asynchronous.
        value: the first true value, or None.
    """

    __slots__ = ("keys", "predicate", "recheck", "returned", "value")

    def __init__(
        self, predicate: Callable[[], Any], keys: Iterable[Hashable], timeout: float | None
    ) -> None:
        super().__init__(timeout)
        self.predicate = predicate
        self.keys = keys
        self.recheck: Event | None = None
        self.returned: Any = None
        self.value: T | None = None

    def try_complete(self) -> bool:
        if self.recheck is not None:
            self.recheck.set()
            return False
        value = self.predicate()
        if type(value) not in _PLAIN and isawaitable(value):
            self.recheck, self.returned = Event(), value
            wake_owner(self)
            return False
        if not value:
            return False
        self.value = value
        return self.force_complete()

    def on_complete(self) -> T | None:
        return self.value

    def _op_may_outlast(self) -> bool:  # the first run of an asynchronous predicate
        return self.recheck is not None

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
    purgatory: "Purgatory[Any]",
    predicate: Callable[[], Any],
    keys: Iterable[Hashable],
    timeout: float | None,
    give_back: Callable[[Any], object] | None,
) -> Any:
    """`Purgatory.wait_for`."""
    if not callable(predicate):
        raise TypeError(f"predicate must be a function, got {describe(predicate)}")
    if give_back is not None and not callable(give_back):
        raise TypeError(f"give_back must be a function or None, got {describe(give_back)}")
    if not isinstance(keys, (str, bytes, tuple)):
        with suppress(TypeError):  # which `try_complete_else_watch` explains
            keys = list(keys)
    condition: Condition[Any] = Condition(predicate, keys, timeout)
    try:
        purgatory.try_complete_else_watch(condition, keys)
        if condition.recheck is None and not has_result(condition):
            await add_owner(condition)
        if condition.recheck is not None:
            return await _until_true(purgatory, condition, condition.recheck, timeout)
        if condition._op_state is EXPIRED:
            raise _end_error(condition, timeout)
        return condition.result()
    except BaseException:
        if give_back is not None and condition.value is not None:
            _give_back(purgatory, condition, give_back)
        abandon(condition)
        if condition._op_state is CANCELLED and condition._op_record is None:
            condition._op_result = NO_RESULT  # a failure refers to frames that refer to it
        raise
    finally:
        unawaited = condition.returned
        if isinstance(unawaited, (Coroutine, Generator)):
            unawaited.close()
        elif isfuture(unawaited):
            unawaited.cancel()
        del condition, unawaited  # which would make a cycle with the traceback of its failure


def _give_back(
    purgatory: "Purgatory[Any]", condition: Condition[T], give_back: Callable[[Any], object]
) -> None:
    """Gives back the value that a wait has taken and cannot return, and has the keys checked, so
    that the next waiter gets it."""
    value, condition.value = condition.value, None
    try:
        give_back(value)
    except BaseException as error:
        purgatory._report(f"give_back of {describe(condition)} raised", error)
    if running_loop() is purgatory._loop:  # else the coroutine is being closed, after its loop
        for key in condition.keys:
            purgatory.check_and_complete(key)


async def _until_true(
    purgatory: "Purgatory[Any]", condition: Condition[T], recheck: Event, allowed: float | None
) -> T:
    """Awaits the result of the predicate, and calls it again after each check, until it is
    true."""
    loop = get_running_loop()
    value: Any = None
    limit = Timeout(None)
    over, ended = loop.create_future(), loop.create_future()
    purgatory._async_waits[over] = current_task()

    def interrupt(_: object) -> None:  # a run in progress, as the deadline of a timeout would
        if not over.done():
            limit.reschedule(loop.time())

    ended.add_done_callback(interrupt)
    condition._op_owner = ended
    try:
        async with limit:
            if condition._op_state is not PENDING:
                interrupt(None)
            while True:
                value, condition.returned = condition.returned, None
                if isawaitable(value):
                    value = await value
                # Its state is looked at because a predicate may swallow its cancellation.
                if value or condition._op_state is not PENDING:
                    break
                await (sleep(0) if recheck.is_set() else recheck.wait())
                recheck.clear()
                condition.returned = condition.predicate()
    except TimeoutError:
        if not limit.expired():
            raise
        raise _end_error(condition, allowed) from None
    finally:
        del purgatory._async_waits[over]
        over.set_result(None)
    if not value:
        raise _end_error(condition, allowed)
    condition.value = value
    condition.force_complete()
    return value  # type: ignore[no-any-return]


def _end_error(condition: Condition[Any], timeout: float | None) -> BaseException:
    """Why a wait has ended without a value."""
    if type(failure := condition._op_result) is Failure:
        return failure.exception.with_traceback(failure.traceback)
    if condition.state is CANCELLED:
        return OperationCancelled(f"{describe(condition)} was cancelled")
    return OperationTimeout(
        f"the condition on {describe(condition.keys)} did not hold within {timeout} s"
    )


async def receive(purgatory: "Purgatory[Any]", key: Hashable, timeout: float | None) -> Any:
    """`Purgatory.receive`."""
    receiver = Receiver(key, timeout)
    return _received(receiver, await purgatory.wait(receiver, (key,)), timeout)


def _received(receiver: Receiver, value: Any, timeout: float | None) -> Any:
    if receiver.state is EXPIRED:
        key = describe(receiver.key)
        raise OperationTimeout(f"nothing was delivered to {key} within {timeout} s")
    return value


def deliver(operations: Iterable[DelayedOperation[Any]], value: Any) -> int:
    """Gives `value` to each receiver without a value among `operations`; returns their number."""
    count = 0
    for operation in operations:
        if (
            type(operation) is Receiver
            and operation.value is NO_VALUE
            and not owner_has_left(operation)
        ):
            operation.value = value
            count += 1
    return count


@final
class Reply:
    """A value that is expected under a key; made by `Purgatory.expect`. A context manager: the
    value is accepted from entering on, and `await` it within the block.

    A cancelled `await` may be repeated within the block.
    """

    __slots__ = ("_purgatory", "_receiver", "_timeout")

    def __init__(self, purgatory: "Purgatory[Any]", key: Hashable, timeout: float | None) -> None:
        self._purgatory = purgatory
        self._receiver = Receiver(key, timeout)
        self._timeout = timeout

    def __enter__(self) -> "Reply":
        self._purgatory.try_complete_else_watch(self._receiver, (self._receiver.key,))
        return self

    def __exit__(self, *_: object) -> None:
        abandon(self._receiver)

    def __await__(self) -> Generator[Any, None, Any]:
        """The value.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key`, `aclose` or the end of the
                block.
            asyncio.InvalidStateError: the block has not been entered.
        """
        if self._receiver._op_home is None:
            raise InvalidStateError(f"cannot await {describe(self)}: its block was not entered")
        value = yield from self._receiver.__await__()
        return _received(self._receiver, value, self._timeout)

    def __repr__(self) -> str:
        return f"<Reply {self._receiver.key!r} {self._receiver.state.value}>"
