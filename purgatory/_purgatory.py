"""What users hold: `Purgatory`, where operations wait for the keys that may complete them or for their deadline.

The two hot paths are written out here, in the order in which the profiler counts: a check of the loop, one call of
`try_complete`, one dictionary operation for the watch list, one for the bucket. Everything that is rare is in `_engine`.

Kafka's counterpart is `DelayedOperationPurgatory`. `try_complete_else_watch` tries once where Kafka tries twice: on one
thread nothing happens between the check and the watch, and what the check itself sets off is put off until after it.
"""

from asyncio import _get_running_loop as running_loop
from asyncio import sleep
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from math import ceil, isnan
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final, overload
from warnings import warn

from purgatory._closing import close
from purgatory._conditions import NOT_YET, Condition, Receiver, is_asynchronous, until_true
from purgatory._engine import Engine
from purgatory._errors import OperationTimeout, WrongLoop
from purgatory._life import answer, fail, forget_waiter
from purgatory._observer import Observer
from purgatory._operation import DelayedOperation
from purgatory._state import COMPLETED, EXPIRED, PENDING
from purgatory._statistics import PurgatoryStatistics
from purgatory._timer import LoopWheel
from purgatory._watchers import Chunk, Watched, distinct
from purgatory._wheel import DEFAULT_WHEEL_SIZE

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Op = TypeVarWithDefault("Op", bound=DelayedOperation[Any], default=DelayedOperation[Any])
else:
    Op = TypeVar("Op", bound=DelayedOperation[Any])
R = TypeVar("R")
T = TypeVar("T")


@final
class Purgatory(Generic[Op]):
    """Holds operations until a key completes them or their deadline comes, whichever is first, exactly once.

    Bound to the running event loop at first use; every method but `check_and_complete_threadsafe` belongs on its thread.
    As an async context manager it is closed on exit. Dropping it while operations wait warns with `ResourceWarning`;
    they still complete or expire.

    Args:
        name: for errors, logs and statistics.
        tick: the grain of deadlines in seconds, positive and finite: an operation expires at most so late.
        wheel_size: how many buckets a level of the timing wheel has in reach, at least 2.
        max_pending: how many operations may wait at once; `None` for no limit.
        observer: is told of each operation that has ended and of each check.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ("__weakref__", "_engine")

    def __init__(
        self,
        name: str = "purgatory",
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        max_pending: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        if max_pending is not None and index(max_pending) < 1:
            raise ValueError(f"max_pending must be at least 1, or None for no limit, not {max_pending!r}")
        self._engine = Engine(name, LoopWheel(tick, wheel_size), max_pending, observer)

    def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable]) -> bool:
        """Tries `operation`, and has it wait if its condition does not hold yet.

        Args:
            operation: a new operation.
            keys: what may complete it; at least one, and a repeated key counts once.

        Returns:
            Whether the operation has ended: completed, or expired if its deadline had passed. False if it waits.

        Cost: O(number of keys), whatever is pending.

        Raises:
            OperationReused: the operation was given to a purgatory before, or has ended.
            PurgatoryClosed: `aclose` was called.
            PurgatoryFull: it would have to wait, and `max_pending` operations do already.
            ValueError, TypeError: there are no keys, or one is not hashable, or `keys` is a string.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            In each case nothing has changed, and the operation can be given to a purgatory again.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind(f"watch {operation!r}")
        try:
            timeout = operation._op_timeout
        except AttributeError:
            engine.refuse(operation)
            raise
        if (
            operation._op_engine is not None
            or operation._op_state is not PENDING
            or operation._op_waiters is not None
            or type(operation) not in engine.kinds
        ):
            engine.refuse(operation)
        number = len(keys) if type(keys) is list or type(keys) is tuple else 0
        if number == 1:
            watched: Watched
            [watched] = keys
            if type(watched) is tuple:
                watched = (watched,)
        elif number and len({*keys}) == number:
            watched = keys if type(keys) is tuple else tuple(keys)
        else:
            watched = distinct(keys)
        if engine.checks and engine.comes_late(operation, watched):
            return engine.watch_untried(operation, watched)

        room = engine.room
        operation._op_engine = engine
        outer = room.current
        if outer is not None:
            room.outer.append(outer)
        room.current = operation
        try:
            if operation.try_complete() and operation._op_state is PENDING:
                engine.refuse_true(operation)
        except BaseException as error:
            engine.try_failed(operation, error)
        finally:
            room.current = outer
            if outer is not None:
                room.outer.pop()
        if operation._op_state is not PENDING:
            engine.ended_at_once(operation, watched)
            return True
        if timeout is None or engine.limited:
            return engine.watch(operation, watched)

        # From here on the common case: a timeout and no limit. It does what `Engine.watch` does.
        time = engine.time
        when = time() + timeout
        wheel = engine.wheel
        if wheel.after < when < wheel.until:
            bucket = wheel.last
        else:
            try:
                bucket = engine.recent[ceil(when * engine.rate)]
            except (KeyError, OverflowError):
                return engine.watch(operation, watched)
        try:
            if type(watched) is tuple:
                engine.watchers.add(operation, watched)
            else:
                waiting = engine.by_key.setdefault(watched, operation)
                if waiting is operation:
                    operation._op_places = watched
                else:
                    engine.watchers.join(watched, waiting, operation)
        except BaseException:
            engine.take_back(operation)
            raise
        bucket[operation] = None
        operation._wheel_when = when
        operation._wheel_bucket = bucket
        if room.unsettled and outer is None:
            room.settle()
            return operation._op_state is not PENDING
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Tries the operations that watch `key`, in the order in which they came; call it when their condition may hold.

        Returns:
            How many operations this call completed. With very many waiters a portion is tried at once and the rest in
            the next turns of the loop, in order; called from a hook, the check begins when the hook has returned. What
            is put off is not counted here, but for checks by hooks, which the call that set them off counts as its own.

        Cost: a dictionary look-up, and a call of `try_complete` for each operation that watches `key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            TypeError: `key` is not hashable.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind(f"check {key!r}")
        operation = engine.by_key.get(key)
        room = engine.room
        if room.current is not None:
            engine.check_later(key)
            return 0
        if operation is None:
            return 0
        if type(operation) is Chunk or operation._op_state is not PENDING:
            return engine.check(key)

        # From here on the common case: one operation. It does what `KeyCheck.advance` does.
        completed = 0
        room.current = operation
        try:
            try:
                if operation.try_complete() and operation._op_state is PENDING:
                    engine.refuse_true(operation)
            except BaseException as error:
                engine.try_failed(operation, error)
            if operation._op_state is COMPLETED:  # type: ignore[comparison-overlap]  # the try may have claimed it
                completed = 1
                try:
                    operation._op_result = operation.on_complete()
                except BaseException as error:
                    fail(operation, error)
                if operation._op_waiters is not None:
                    answer(operation)
            if engine.observed:
                engine.tell_of_one(operation, key)
        finally:
            room.current = None
        return completed + room.settle() if room.unsettled else completed

    checkAndComplete = check_and_complete  # noqa: N815  # Kafka's name

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """Has `check_and_complete(key)` called on the loop soon; to be called from any thread.

        However many calls come before the loop wakes up, it is woken once and checks each key once. Without effect if
        nothing can wait: before first use, after `aclose`, when the loop is closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        engine = self._engine
        if engine.wheel.is_bound:
            engine.signals.put(key)

    async def wait(self, operation: DelayedOperation[R], keys: Iterable[Hashable]) -> R:
        """Tries `operation`, waits until it has ended, and returns its result. The operation belongs to the call:
        cancelling the task cancels the operation.

        Args:
            operation: a new operation.
            keys: what may complete it; at least one.

        Raises:
            OperationCancelled: the operation was cancelled, by `cancel`, `cancel_for_key` or `aclose`.
            BaseException: what a hook raised; and the errors of `try_complete_else_watch`.
        """
        self.try_complete_else_watch(operation, keys)  # type: ignore[arg-type]  # of any kind: only the caller gets it
        try:
            if operation._op_state is PENDING and operation._op_waiters is None:
                # What `await operation` does, without its generator.
                operation._op_waiters = future = self._engine.loop.create_future()
                await future
                return operation.result()
            return await operation
        except BaseException:
            if operation._op_state is PENDING:
                # If this is a generator being closed when its loop is gone, there is nothing left to clean up.
                with suppress(WrongLoop):
                    operation.cancel()
            else:
                forget_waiter(operation, None)
            raise
        finally:
            del operation  # which would make a cycle with the traceback of its failure

    @overload
    async def wait_for(
        self, predicate: Callable[[], Awaitable[T | None]], keys: Iterable[Hashable], timeout: float | None = None
    ) -> T: ...
    @overload
    async def wait_for(
        self, predicate: Callable[[], T | None], keys: Iterable[Hashable], timeout: float | None = None
    ) -> T: ...
    async def wait_for(self, predicate: Callable[[], Any], keys: Iterable[Hashable], timeout: float | None = None) -> Any:
        """Waits until `predicate()` is true: it is called now, at each `check_and_complete` of a key, and at the deadline.

        What it returns is awaited, if it can be: an asynchronous predicate is run in the task that calls, once it is
        registered under the keys, and again after each check, but never two at a time. The checks that come during a run
        count as one. The deadline ends a run in progress, as `asyncio.timeout` would.

        Args:
            predicate: a function or a coroutine function, called on the loop's thread.
            keys: what may make it true; at least one.
            timeout: in seconds; `None` for no limit, zero and less to call `predicate` once.

        Returns:
            The first true value.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing true came in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            BaseException: what `predicate` raised; and the errors of `try_complete_else_watch`.
        """
        if not isinstance(keys, (str, bytes)):
            keys = list(keys)
        condition = Condition(predicate, keys, timeout)
        try:
            value = await self.wait(condition, keys)
            if condition._op_state is EXPIRED:
                raise OperationTimeout(f"the condition on {keys!r} did not hold within {timeout} s")
            if is_asynchronous(value):
                deadline = condition.deadline
                if deadline is None and timeout is not None:
                    deadline = self._engine.time() + timeout
                return await until_true(self.try_complete_else_watch, predicate, value, keys, deadline)
            return value
        finally:
            del condition  # as in `wait`

    async def receive(self, key: Hashable, timeout: float | None = None) -> Any:
        """Waits for the value that `deliver` brings under `key`: a reply by its id, the answer of somebody else.

        Nothing is kept: what was delivered before is not received. Whoever sends the question begins to receive first.

        Args:
            key: any number may receive under it.
            timeout: in seconds; `None` for no limit.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            PurgatoryError, ValueError, TypeError: see `try_complete_else_watch`.
        """
        receiver = Receiver(key, timeout)
        value = await self.wait(receiver, [key])
        if receiver._op_state is EXPIRED:
            raise OperationTimeout(f"nothing was delivered to {key!r} within {timeout} s")
        return value

    def deliver(self, key: Hashable, value: Any) -> int:
        """Brings `value` to everyone who receives under `key` now.

        Returns:
            To how many. Of very many, 512 are answered at once and the rest in the next turns of the loop.

        Cost: O(operations that watch `key`).

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            TypeError: `key` is not hashable.
        """
        engine = self._engine
        engine.bind(f"deliver to {key!r}")
        count = 0
        for operation in engine.watchers.of(key):
            if type(operation) is Receiver and operation.value is NOT_YET:
                operation.value = value
                count += 1
        if count:
            self.check_and_complete(key)
        return count

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Cancels the operations that watch `key`, whatever else they watch; whoever awaits one is told.

        Returns:
            Those that it cancelled, in the order in which they came.

        Cost: O(operations that watch `key`), at once, some 2 us for each: 100,000 hold the loop for a fifth of a second.
        For so many there is `acancel_for_key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        self._engine.bind(f"cancel what watches {key!r}")
        return [cast(Op, operation) for operation in self._engine.watchers.of(key) if operation.cancel()]

    async def acancel_for_key(self, key: Hashable) -> list[Op]:
        """As `cancel_for_key`, but 512 per turn of the loop, so that a crowd does not hold it up.

        Who begins to watch the key meanwhile is cancelled as well. If its task is cancelled, the rest is left alone.

        Returns:
            Those that it cancelled, in the order in which they came.

        Raises:
            WrongLoop: called from another loop or thread than the first time.
        """
        engine = self._engine
        engine.bind(f"cancel what watches {key!r}")
        cancelled: list[Op] = []
        while found := engine.watchers.first_of(key):
            cancelled += [cast(Op, operation) for operation in found if operation.cancel()]
            await sleep(0)
        return cancelled

    async def aclose(self, drain: float = 0.0) -> list[Op]:
        """Refuses new operations, lets what is pending end by itself for a while, then cancels the rest.

        When it returns, nothing is pending and everybody who awaited an operation has been answered. If its own task is
        cancelled, it cancels the rest at once before it raises. Calling it again is allowed, also while it drains.

        Args:
            drain: how long pending operations may take to complete or expire, in seconds; zero and more.

        Returns:
            The operations that this call cancelled.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        if isnan(drain) or drain < 0.0:
            raise ValueError(f"drain must be zero or more seconds, not {drain!r}")
        engine = self._engine
        engine.bind(f"close {engine.name}")
        return cast("list[Op]", await close(engine, drain))

    async def __aenter__(self) -> "Purgatory[Op]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def pending(self) -> int:
        """How many operations wait. Exact. Cost: O(1)."""
        return len(self._engine.watchers)

    @property
    def watched(self) -> int:
        """How many pairs of a waiting operation and a key that it watches there are. Exact. Cost: O(1)."""
        return self._engine.watchers.registrations

    def statistics(self) -> PurgatoryStatistics:
        """A snapshot. Cost: O(1)."""
        engine = self._engine
        return PurgatoryStatistics(
            name=engine.name,
            pending=len(engine.watchers),
            watched=engine.watchers.registrations,
            keys=engine.watchers.keys,
            completed=engine.completed,
            expired=engine.expired,
            cancelled=engine.cancelled,
            missed_triggers=engine.missed_triggers,
            wake_ups=engine.wheel.wake_ups,
            moves=engine.wheel.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else "open"
        return f"<Purgatory {self._engine.name!r} {state} pending={self.pending} watched={self.watched}>"

    def __del__(self) -> None:
        # An instance whose __init__ raised has no engine.
        engine = getattr(self, "_engine", None)
        if engine is not None and len(engine.watchers):
            warn(f"{self!r} was dropped while operations wait; close it with aclose()", ResourceWarning, 2, self)

    def _check(self) -> None:
        """Asserts the whole invariant. For tests."""
        self._engine._check()
