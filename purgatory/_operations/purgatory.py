"""What users hold: `Purgatory`, where operations wait for the keys that may complete them or for their deadline.

Kafka's `DelayedOperationPurgatory` tries twice where this tries once: on one thread nothing happens between the check and the
watch, and what the check itself sets off is deferred until after it.
"""

from asyncio import _get_running_loop as running_loop
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from operator import index
from typing import Any, Generic, TypeVar, cast, final, overload
from warnings import warn

from purgatory._failure import Failure
from purgatory._loop.closing import cancel_in_batches, check_drain, close, reopen
from purgatory._observers.observer import Observer
from purgatory._operations import conditions
from purgatory._operations.engine import Engine
from purgatory._operations.lifecycle import abandon, cancel, not_completed, try_failed, try_once
from purgatory._operations.operation import DelayedOperation, Op
from purgatory._operations.watch_lists import Chunk, Keys, unique_keys
from purgatory._state import CANCELLED, COMPLETED, PENDING
from purgatory._statistics import PurgatoryStatistics
from purgatory._wheel.loop_wheel import LoopTimingWheel
from purgatory._wheel.wheel import DEFAULT_WHEEL_SIZE

R = TypeVar("R")
T = TypeVar("T")


@final
class Purgatory(Generic[Op]):
    """Holds operations until a key completes them or their deadline comes, whichever is first, exactly once.

    Bound to the running event loop at first use; every method but the `..._threadsafe` ones belongs on its thread.
    As an async context manager it is closed on exit, and may be entered again. Dropping it while operations wait warns with
    `ResourceWarning`; they still complete or expire.

    Args:
        name: for errors, logs and statistics.
        tick: the grain of deadlines in seconds, positive and finite: an operation expires late by this much at most.
        wheel_size: how many buckets each level of the timing wheel spans, at least 2.
        max_pending: how many operations may wait at once; `None` for no limit.
        observer: is notified of each operation that has ended and of each check; or a sequence of observers.

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
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        if max_pending is not None and index(max_pending) < 1:
            raise ValueError(f"max_pending must be at least 1, or None for no limit, not {max_pending!r}")
        self._engine = Engine(name, LoopTimingWheel(tick, wheel_size), max_pending, observer)

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
            ValueError, TypeError: there are no keys, or one is not hashable, or `keys` is no collection, or a string.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.

        In each of these cases nothing has changed, and the operation can be given to a purgatory again.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("watch {}", operation)
        if (
            type(operation) not in engine.known_types
            or operation._op_engine is not None
            or operation._op_state is not PENDING
            or operation._op_waiters is not None
        ):
            engine.validate(operation)
        watched: Keys
        if (type(keys) is tuple or type(keys) is list) and len(keys) == 1:
            [watched] = keys
            hash(watched)
            if type(watched) is tuple:
                watched = (watched,)
        else:
            watched = unique_keys(keys)
        now = engine.time()
        timeout = operation._op_timeout
        when = operation._timer_deadline if timeout is None else now + timeout
        checks = engine.checks_ahead(watched) if engine.checks and (when is None or when > now) else ()

        dispatcher = engine.dispatcher
        interrupted = dispatcher.current
        if interrupted is not None:
            dispatcher.interrupted.append(interrupted)
        operation._op_engine = engine
        dispatcher.current = operation
        try:
            if not checks:
                # The guard of `try_once`.
                try:
                    if operation.try_complete() and operation._op_state is PENDING:
                        raise not_completed(operation)
                except BaseException as error:
                    try_failed(engine, operation, error)
            # To join is a part of the try: a finalizer may run whenever something is allocated, and may check a key.
            if operation._op_state is PENDING and (
                not (engine.has_limits or (when is not None and when <= now)) or engine.may_wait(operation, when, now)
            ):
                if type(watched) is tuple:
                    engine.watchers.add(operation, watched)
                else:
                    waiting = engine.by_key.setdefault(watched, operation)
                    operation._op_links = watched if waiting is operation else engine.watchers.join(watched, waiting, operation)
                if operation._op_state is not PENDING:
                    engine.watchers.remove(operation, operation._op_links)
                elif when is not None:
                    engine.wheel.add(operation, when, now)
        except BaseException:
            engine.undo_watch(operation)
            raise
        finally:
            dispatcher.current = interrupted
            if interrupted is not None:
                dispatcher.interrupted.pop()
        if operation._op_state is not PENDING:
            engine.finish_newcomer(operation, watched)
            return True
        if checks:
            for check in checks:
                check.on_join(operation)
        if engine.notifier is not None:
            engine.notifier.on_watch(operation, now, was_tried=not checks)
        if dispatcher.has_backlog and interrupted is None:
            dispatcher.run_backlog()
            return operation._op_state is not PENDING
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Tries the operations that watch `key`, in the order in which they came; call it when their condition may hold.

        Returns:
            How many operations this call completed, and checks that their hooks requested. Of very many waiters some 500
            are tried at once, and the rest, not counted, in the next iterations of the loop. In a hook it begins when that has
            returned.

        Cost: a dictionary look-up, and a call of `try_complete` for each operation that watches `key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            TypeError: `key` is not hashable.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("check {}", key, "check_and_complete_threadsafe")
        operation = engine.by_key.get(key)
        dispatcher = engine.dispatcher
        if dispatcher.current is not None:
            engine.check_later(key)
            return 0
        if operation is None:
            return engine.hint_similar_key(key) if engine.is_debugging else 0
        if type(operation) is Chunk or operation._op_state is not PENDING:
            return engine.check(key)

        dispatcher.current = operation
        try:
            try_once(engine, operation, key)
        finally:
            dispatcher.current = None
        completed = 1 if operation._op_state is COMPLETED else 0  # type: ignore[comparison-overlap]  # by now
        if engine.notifier is not None and engine.notifier.wants_checks:
            engine.notifier.on_check(key, 1, completed)
        return completed + dispatcher.run_backlog() if dispatcher.has_backlog else completed

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
        if engine.loop_wheel.is_bound:
            engine.inbox.put(key)

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
                # What `await operation` and `result` do, without their calls.
                operation._op_waiters = future = self._engine.loop.create_future()
                await future
                is_cancelled = operation._op_state is CANCELLED  # type: ignore[comparison-overlap]  # by now
                if not is_cancelled and type(operation._op_result) is not Failure:
                    return operation._op_result  # type: ignore[no-any-return]
            return await operation
        except BaseException:
            abandon(operation)
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

        If it returns an awaitable, that is awaited: an asynchronous predicate runs in the calling task, after it was registered
        under the keys, and again after each check, but never two at a time. The checks that come during a run count as one. The
        deadline ends a run in progress, as `asyncio.timeout` would.

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
        return await conditions.wait_for(self._engine, self.try_complete_else_watch, predicate, keys, timeout)

    async def receive(self, key: Hashable, timeout: float | None = None) -> Any:
        """Waits for the value of a `deliver` under `key`: for instance a reply, by its id.

        Nothing is kept: what was delivered before is not received. So begin to receive before you send the question.

        Args:
            key: any number may receive under it.
            timeout: in seconds; `None` for no limit.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            PurgatoryError, ValueError, TypeError: see `try_complete_else_watch`.
        """
        return await conditions.receive(self.wait, key, timeout)

    def deliver(self, key: Hashable, value: Any) -> int:
        """Delivers `value` to all tasks that receive under `key` now.

        Returns:
            How many received it. If there are very many, 512 are answered at once and the rest in the next iterations of the
            loop.

        Cost: O(operations that watch `key`).

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            TypeError: `key` is not hashable.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("deliver to {}", key, "deliver_threadsafe")
        count = conditions.deliver(engine.watchers.operations(key), value)
        if count:
            self.check_and_complete(key)
        return count

    def deliver_threadsafe(self, key: Hashable, value: Any) -> None:
        """Has `deliver(key, value)` called on the loop soon; to be called from any thread.

        Without effect if nobody can receive: before first use, when the loop is closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        self._engine.loop_wheel.call_threadsafe(self.deliver, key, value)

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Cancels the operations that watch `key`, whatever else they watch; tasks that await one get `OperationCancelled`.

        Returns:
            Those that it cancelled, in the order in which they came.

        Cost: O(operations that watch `key`), at once: 100,000 block the loop for 0.2 s. For so many there is `acancel_for_key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        self._engine.bind("cancel what watches {}", key)
        return [cast(Op, operation) for operation in self._engine.watchers.operations(key) if cancel(operation)]

    async def acancel_for_key(self, key: Hashable) -> list[Op]:
        """As `cancel_for_key`, but 512 per iteration of the loop, so that many do not block it.

        Operations that begin to watch the key meanwhile are cancelled as well. If its own task is cancelled, it stops there.
        """
        self._engine.bind("cancel what watches {}", key)
        return cast("list[Op]", await cancel_in_batches(self._engine.iter_cancel_key(key)))

    async def aclose(self, drain: float = 0.0) -> list[Op]:
        """Refuses new operations, lets what is pending end by itself for a while, then cancels the rest.

        When it returns, nothing is pending and all tasks that awaited an operation are answered. If its own task is
        cancelled, it cancels the rest at once before it raises. Calling it again is allowed, also while it drains.

        Args:
            drain: how long pending operations may take to complete or expire, in seconds; zero and more.

        Returns:
            The operations that this call cancelled.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        drain = check_drain(drain)
        self._engine.bind(f"close {self._engine.name}")
        return cast("list[Op]", await close(self._engine, drain))

    async def __aenter__(self) -> "Purgatory[Op]":
        reopen(self._engine)
        return self

    async def __aexit__(self, *_: object) -> None:
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
        return self._engine.statistics()

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else "open"
        return f"<Purgatory {self._engine.name!r} {state} pending={self.pending} watched={self.watched}>"

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # none if __init__ has raised
        if engine is not None and len(engine.watchers):
            warn(f"{self!r} was dropped while operations wait; close it with aclose()", ResourceWarning, 2, self)

    def _check(self) -> None:
        self._engine._check()
