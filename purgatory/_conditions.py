"""The operations behind `wait_for` and `receive`: a predicate, an asynchronous predicate, and a value that is delivered.

A check cannot run an asynchronous predicate, because a check does not wait. So what stands under the keys is a bell:

    the waiter's task       watch the bell, run, false; nothing rang: sleep      run, false; rang meanwhile: run, true
    check_and_complete                                              ring                ring
    the deadline            ends the bell, and with it a run in progress or the sleep

It is watched before the first run begins, and rung by each check, so what becomes true during a run is seen by the next one.
"""

from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from purgatory._errors import OperationCancelled, OperationTimeout, WrongLoop
from purgatory._operation import DelayedOperation
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING
from purgatory._timeouts import Timeout

T = TypeVar("T")

NOT_YET: Final[Any] = object()


class Condition(DelayedOperation[T]):
    """Waits until a predicate is true; the result is its first true value."""

    __slots__ = ("keys", "predicate", "value")

    def __init__(self, predicate: Callable[[], T], keys: Iterable[Hashable], timeout: float | None) -> None:
        super().__init__(timeout)
        self.predicate = predicate
        self.keys = keys

    def try_complete(self) -> bool:
        self.value = self.predicate()
        return bool(self.value) and self.force_complete()

    def on_complete(self) -> T:
        return self.value

    def __repr__(self) -> str:
        return _repr(self, f"wait for {list(self.keys)!r}")


class Receiver(DelayedOperation[Any]):
    """Waits until a value is delivered under its key."""

    __slots__ = ("key", "value")

    def __init__(self, key: Hashable, timeout: float | None) -> None:
        super().__init__(timeout)
        self.key = key
        self.value = NOT_YET

    def try_complete(self) -> bool:
        return self.value is not NOT_YET and self.force_complete()

    def on_complete(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return _repr(self, f"receive {self.key!r}")


class Bell(DelayedOperation[None]):
    """Stands in for an asynchronous predicate, and is rung by each try."""

    __slots__ = ("has_rung", "keys", "sleeping")

    def __init__(self, keys: Iterable[Hashable], deadline: float | None) -> None:
        super().__init__(deadline=deadline)
        self.keys = keys
        self.has_rung = False
        self.sleeping: Future[None] | None = None

    def try_complete(self) -> bool:
        self.has_rung = True
        if self.sleeping is not None and not self.sleeping.done():
            self.sleeping.set_result(None)
        return False

    async def ring(self) -> None:
        """Waits until it has rung since `has_rung` was last set to false."""
        if not self.has_rung:
            self.sleeping = get_running_loop().create_future()
            await self.sleeping

    def __repr__(self) -> str:
        return _repr(self, f"wait for {list(self.keys)!r}")


def _repr(operation: DelayedOperation[Any], what: str) -> str:
    return f"<{what} {operation.state.value}>"


async def wait_until(
    wait: Callable[[Any, Iterable[Hashable]], Awaitable[Any]],
    watch: Callable[[Any, Iterable[Hashable]], bool],
    predicate: Callable[[], Any],
    keys: Iterable[Hashable],
    timeout: float | None,
) -> Any:
    """`Purgatory.wait_for`, of the purgatory whose `wait` and `try_complete_else_watch` are given."""
    if not isinstance(keys, (str, bytes)):
        keys = list(keys)
    condition = Condition(predicate, keys, timeout)
    try:
        value = await wait(condition, keys)
        if condition.state is EXPIRED:
            raise OperationTimeout(f"the condition on {keys!r} did not hold within {timeout} s")
        if is_asynchronous(value):
            deadline = condition.deadline
            if deadline is None and timeout is not None:
                deadline = get_running_loop().time() + timeout
            return await until_true(watch, predicate, value, keys, deadline)
        return value
    finally:
        del condition  # which would make a cycle with the traceback of its failure


async def wait_for_delivery(
    wait: Callable[[Any, Iterable[Hashable]], Awaitable[Any]], key: Hashable, timeout: float | None
) -> Any:
    """`Purgatory.receive`, of the purgatory whose `wait` is given."""
    receiver = Receiver(key, timeout)
    value = await wait(receiver, [key])
    if receiver.state is EXPIRED:
        raise OperationTimeout(f"nothing was delivered to {key!r} within {timeout} s")
    return value


def deliver(operations: Iterable[DelayedOperation[Any]], value: Any) -> int:
    """Gives `value` to those of `operations` that receive, and have nothing yet; to how many."""
    count = 0
    for operation in operations:
        if type(operation) is Receiver and operation.value is NOT_YET:
            operation.value = value
            count += 1
    return count


def is_asynchronous(value: object) -> bool:
    """Whether what a predicate has returned has to be awaited."""
    return hasattr(type(value), "__await__")


def give_up(awaitable: object) -> None:
    """Closes a coroutine that is not going to be awaited."""
    if (close := getattr(awaitable, "close", None)) is not None:
        close()


async def until_true(
    watch: Callable[[Any, Iterable[Hashable]], bool],
    predicate: Callable[[], Awaitable[T]],
    first: Awaitable[T],
    keys: Iterable[Hashable],
    deadline: float | None,
) -> T:
    """Runs an asynchronous predicate until it is true, in the task that calls. See `Purgatory.wait_for`.

    Args:
        watch: `try_complete_else_watch` of the purgatory.
        predicate: makes an awaitable for each run.
        first: the one for the first run.
        keys: under which checks ask for another run.
        deadline: in seconds of the loop's time.
    """
    bell = Bell(keys, deadline)
    try:
        watch(bell, keys)
    except BaseException:
        give_up(first)
        raise
    limit, is_over = Timeout(None), False

    def end(_: object) -> None:
        """The bell has ended, and not because the predicate is true."""
        if not is_over and bell.state is not COMPLETED:
            limit.reschedule(get_running_loop().time())

    ended = get_running_loop().create_future()
    ended.add_done_callback(end)
    try:
        async with limit:
            if bell.state is PENDING:
                bell._op_waiters = ended
            else:
                end(None)
            bell.has_rung = False
            value = await first
            while not value:
                await bell.ring()
                bell.has_rung = False
                value = await predicate()
            bell.force_complete()
            return value
    except TimeoutError:
        if not limit.expired():
            raise
        raise _why(bell, keys) from None
    finally:
        is_over = True
        with suppress(WrongLoop):  # a generator that is closed when its loop is gone has nothing left to clean up
            bell.cancel()


def _why(bell: Bell, keys: Iterable[Hashable]) -> Exception:
    if bell.state is CANCELLED:
        return OperationCancelled(f"{bell!r} was cancelled")
    return OperationTimeout(f"the condition on {list(keys)!r} did not hold in time")
