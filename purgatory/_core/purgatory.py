"""`Purgatory`, the public object, in which operations wait for the keys that may complete them or
for their deadline.

Kafka's `DelayedOperationPurgatory` tries twice where this tries once: on one thread nothing happens
between the check and the watch, and work that the check itself causes is deferred until after it.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast, final, overload
from warnings import warn

from purgatory._core import conditions
from purgatory._core.arguments import (
    check_drain,
    check_limit,
    describe,
    printable,
    require_exception,
)
from purgatory._core.closing import cancel_key, close, in_batches, reopen
from purgatory._core.engine import Engine
from purgatory._core.kernel import compiled, fields
from purgatory._core.key_check import KeyCheck
from purgatory._core.loop import running_loop
from purgatory._core.loop_wheel import LoopTimingWheel
from purgatory._core.notifier import Record
from purgatory._core.observers import Observer
from purgatory._core.operation import (
    DelayedOperation,
    Op,
    abandon,
    add_owner,
    cancel,
    fail,
    has_result,
    not_completed,
    try_failed,
    try_once,
)
from purgatory._core.states import COMPLETED, PENDING
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watch_lists import Chunk, Keys, unique_keys
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE

R = TypeVar("R")
T = TypeVar("T")


@final
@fields
class Purgatory(Generic[Op]):
    """Holds operations until a key completes them or their deadline comes, whichever is first,
    exactly once.

    Bound to the running event loop at first use; every method but the `..._threadsafe` ones belongs
    on its thread. As an async context manager it is closed on exit, and may be entered again.
    Dropping it while operations wait warns with `ResourceWarning`; they still complete or expire.

    Args:
        name: for errors, logs and statistics.
        tick: the grain of deadlines in seconds, positive and finite: an operation expires late by
            this much at most.
        wheel_size: how many buckets each level of the timing wheel spans, at least 2.
        max_pending: how many operations may wait at once; `None` for no limit.
        observer: is notified of each operation that has ended and of each check; or a sequence of
            observers.

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
        check_limit("max_pending", max_pending)
        self._engine = Engine(name, LoopTimingWheel(tick, wheel_size), max_pending, observer)

    @compiled
    def try_complete_else_watch(self, operation: Op, keys: Iterable[Hashable]) -> bool:
        """Tries `operation`, and has it wait if its condition does not hold yet.

        Args:
            operation: a new operation.
            keys: the keys that may complete it; at least one, and a repeated key counts once.

        Returns:
            Whether the operation has ended: completed, or expired if its deadline had passed. False
                if it waits.

        Cost: O(number of keys), however many operations are pending.

        Raises:
            OperationReused: the operation was given to a purgatory before, or has ended.
            PurgatoryClosed: `aclose` was called.
            PurgatoryFull: it would have to wait, and `max_pending` operations do already. If a
                check of one of its keys is in progress it has to wait for that, untried.
            ValueError, TypeError: there are no keys, or one is not hashable, or `keys` is no
                collection, or a string.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.

        In each of these cases nothing has changed, and the operation can be given to a purgatory
        again.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("watch {}", operation)
        watched: Keys
        if (type(keys) is tuple or type(keys) is list) and len(keys) == 1:
            [watched] = keys
            hash(watched)
            if type(watched) is tuple:
                watched = (watched,)
        else:
            watched = unique_keys(keys)
        # After the keys, whose `__hash__` may watch the operation.
        if (
            engine.closed
            or not operation._op_is_known
            or operation._op_home is not None
            or operation._op_state is not PENDING
            or operation._op_waiters is not None
        ):
            engine.validate(operation)
        now = engine.time()
        timeout = operation._op_timeout
        when = operation._timer_deadline if timeout is None else now + timeout
        checks: Sequence[KeyCheck] = ()
        if engine.checks and (when is None or when > now):
            checks = engine.checks_ahead(watched)
            if operation._op_home is not None:
                engine.validate(operation)
        notifier = engine.notifier
        record = None
        if notifier is not None:
            record = operation._op_record = Record()
            record.keys, record.started_at, record.failed_tries = watched, now, None

        dispatcher = engine.dispatcher
        interrupted = dispatcher.current
        operation._op_home = engine
        # `dispatcher.nested`, without its calls.
        if interrupted is not None:
            dispatcher.interrupted.append(interrupted)
        dispatcher.current = operation
        try:
            if not checks:
                # As in `try_once`, without a call.
                try:
                    if operation.try_complete() and operation._op_state is PENDING:
                        raise not_completed(operation)
                except BaseException as error:
                    try_failed(operation, error)
            # To join is a part of the try: a finalizer may run whenever something is allocated, and
            # may check a key.
            if operation._op_state is PENDING and (
                not (engine.has_limits or (when is not None and when <= now))
                or engine.may_wait(operation, when, now)
            ):
                if type(watched) is tuple:
                    engine.watchers.add(operation, watched)
                else:
                    waiting = engine.by_key.setdefault(watched, operation)
                    operation._op_links = (
                        watched
                        if waiting is operation
                        else engine.watchers.join(watched, waiting, operation)
                    )
                    engine.watchers.pending += 1
                if operation._op_state is not PENDING:
                    engine.leave(operation)
                elif when is not None:
                    engine.wheel.add(operation, when, now)
                    if operation._op_state is not PENDING:
                        engine.wheel.remove(operation)
        except BaseException:
            engine.undo_watch(operation)
            raise
        finally:
            dispatcher.current = interrupted
            if interrupted is not None:
                dispatcher.interrupted.pop()
        if operation._op_state is not PENDING:
            engine.finish_newcomer(operation)
            return True
        for check in checks:
            check.on_join(operation)
        if record is not None and notifier is not None:
            record.failed_tries = 0 if checks else 1
            if notifier.wants_starts:
                notifier.started(operation)
        if dispatcher.has_backlog and interrupted is None:
            dispatcher.run_backlog()
            return operation._op_state is not PENDING
        return False

    @compiled
    def check_and_complete(self, key: Hashable) -> int:
        """Tries the operations that watch `key`, in the order in which they came; call it when
        their condition may hold.

        Returns:
            The number of operations completed by this call and by checks that their hooks
            requested. Of very many waiters some 500 are tried at once, and the rest, not counted,
            in the next iterations of the loop. In a hook it begins when that has returned.

        Cost: a dictionary look-up, and a call of `try_complete` for each operation that watches
            `key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            TypeError: `key` is not hashable.
        """
        engine = self._engine
        if running_loop() is not engine.loop:
            engine.bind("check {}", key, "check_and_complete_threadsafe")
        try:
            operation = engine.by_key.get(key)
        except TypeError as error:
            raise TypeError(f"cannot check {describe(key)}: {error}") from error
        dispatcher = engine.dispatcher
        if dispatcher.current is not None:
            engine.check_later(key)
            return 0
        if operation is None:
            return 0
        if type(operation) is Chunk or operation._op_state is not PENDING:
            return engine.check(key)

        dispatcher.current = operation
        try:
            try_once(engine, operation, key)
        finally:
            dispatcher.current = None
        completed = 1 if operation._op_state is COMPLETED else 0  # type: ignore[comparison-overlap]  # by now
        if engine.notifier is not None and engine.notifier.wants_checks:
            engine.notifier.checked(key, 1, completed)
        return completed + dispatcher.run_backlog() if dispatcher.has_backlog else completed

    checkAndComplete = check_and_complete  # noqa: N815  # Kafka's name

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """Has `check_and_complete(key)` called on the loop soon; to be called from any thread.

        However many calls come before the loop wakes up, it is woken once and checks each key once.
        Without effect if nothing can wait: before first use, after `aclose`, when the loop is
        closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        engine = self._engine
        if engine.loop_wheel.is_bound:
            engine.inbox.put(key)

    async def wait(self, operation: DelayedOperation[R], keys: Iterable[Hashable]) -> R:
        """Tries `operation`, waits until it has ended, and returns its result. The operation
        belongs to the call: cancelling the task cancels the operation.

        If the task is cancelled after the operation has completed, before this could return, the
        operation stays `COMPLETED`, and `operation.result()` returns its value.

        Args:
            operation: a new operation.
            keys: the keys that may complete it; at least one.

        Raises:
            OperationCancelled: the operation was cancelled, by `cancel`, `cancel_for_key` or
                `aclose`.
            BaseException: the exception of a hook; and the errors of `try_complete_else_watch`.
        """
        has_ended = self.try_complete_else_watch(operation, keys)  # type: ignore[arg-type]  # of any kind: only the caller gets it
        try:
            if not (has_ended and has_result(operation)):
                await add_owner(operation)
            return operation.result()
        except BaseException:
            abandon(operation)
            raise
        finally:
            del operation  # which would make a cycle with the traceback of its failure

    @overload
    async def wait_for(
        self,
        predicate: Callable[[], Awaitable[T | None]],
        keys: Iterable[Hashable],
        timeout: float | None = None,
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> T: ...
    @overload
    async def wait_for(
        self,
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        timeout: float | None = None,
        *,
        give_back: Callable[[T], object] | None = None,
    ) -> T: ...
    async def wait_for(
        self,
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        timeout: float | None = None,
        *,
        give_back: Callable[[Any], object] | None = None,
    ) -> Any:
        """Waits until `predicate()` is true: it is called now, at each `check_and_complete` of a
        key, and at the deadline.

        If it returns an awaitable, that is awaited: an asynchronous predicate runs in the calling
        task, after it was registered under the keys, and again after each check, but never two at a
        time. The checks that come during a run count as one. The deadline ends a run in progress,
        as `asyncio.timeout` would.

        A predicate may take its value, as `lambda: jobs.pop() if jobs else None` does. It is not
        called any more once the task is cancelled; but the task may be cancelled after the call,
        before it could return the value. Without `give_back` that value is lost.

        Args:
            predicate: a function or a coroutine function, called on the loop's thread.
            keys: the keys whose checks call it; at least one.
            timeout: in seconds; `None` for no limit, zero and less to call `predicate` once.
            give_back: called with a true value that cannot be returned, because the wait was
                cancelled. Then the keys are checked, so that the next waiter gets the value. Its
                exceptions go to the loop's exception handler.

        Returns:
            The first true value.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing true came in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            BaseException: the exception of `predicate`; and the errors of
                `try_complete_else_watch`.
        """
        return await conditions.wait_for(self, predicate, keys, timeout, give_back)

    async def receive(self, key: Hashable, timeout: float | None = None) -> Any:
        """Waits for the value of a `deliver` under `key`: for instance a reply, by its id.

        Values delivered earlier are not received. To send a request between the two, use `expect`.

        Args:
            key: any number may receive under it.
            timeout: in seconds; `None` for no limit.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            PurgatoryError, ValueError, TypeError: see `try_complete_else_watch`.
        """
        return await conditions.receive(self, key, timeout)

    def expect(self, key: Hashable, timeout: float | None = None) -> conditions.Reply:
        """Accepts the value of a `deliver` under `key` within a block, also before it is awaited.

            with replies.expect(id, timeout=5) as reply:
                await send(id)
                value = await reply

        Leaving the block without awaiting leaves nothing behind.

        Args:
            key: any number may expect a value under it.
            timeout: in seconds from entering; `None` for no limit.

        Raises:
            ValueError, TypeError: `timeout` is NaN, or no number. Entering raises the errors of
                `try_complete_else_watch`; for the errors of `await` see `Reply`.
        """
        return conditions.Reply(self, key, timeout)

    def deliver(self, key: Hashable, value: Any) -> int:
        """Delivers `value` to all that receive or expect one under `key` now.

        Returns:
            How many received it. If there are very many, 512 are answered at once and the rest in
            the next iterations of the loop.

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

        Without effect before first use, and when the loop is closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        self._engine.loop_wheel.call_threadsafe(self.deliver, key, value)

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Cancels the operations that watch `key`, whatever else they watch; tasks that await one
        get `OperationCancelled`.

        Returns:
            The cancelled operations, in order of arrival.

        Cost: O(operations that watch `key`), at once: 100,000 block the loop for 0.2 s. Use
            `acancel_for_key` for large numbers.

        Raises:
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        self._engine.bind("cancel what watches {}", key)
        return [
            cast("Op", operation)
            for operation in self._engine.watchers.operations(key)
            if cancel(operation)
        ]

    async def acancel_for_key(self, key: Hashable) -> list[Op]:
        """As `cancel_for_key`, but 512 per iteration of the loop, so that many do not block it.

        Operations that begin to watch the key meanwhile are cancelled as well. If its own task is
        cancelled, it stops there.
        """
        self._engine.bind("cancel what watches {}", key)
        return cast("list[Op]", await in_batches(cancel_key(self._engine, key)))

    def fail(self, key: Hashable, exception: BaseException) -> int:
        """Ends the operations that watch `key`, whatever else they watch; tasks that await one get
        `exception`. New ones may be watched.

        Args:
            exception: an instance; each task raises it.

        Returns:
            How many operations it ended. A receiver that `deliver` has counted gets its value.

        Cost: O(operations that watch `key`), at once.

        Raises:
            TypeError: `exception` is not an exception (a class, for instance); or `key` is not
                hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        require_exception(f"fail what watches {describe(key)}", exception)
        self._engine.bind("fail what watches {}", key)
        return sum(fail(each, exception) for each in self._engine.watchers.operations(key))

    def fail_all(self, exception: BaseException) -> int:
        """As `fail`, for the operations of all keys: when a connection is lost, those who wait for
        its replies want that error. Cost: O(all operations), at once."""
        require_exception(f"fail {printable(self.name)}", exception)
        self._engine.bind(f"fail {printable(self.name)}")
        watchers, count = self._engine.watchers, 0
        for key in list(watchers.by_key):
            count += sum(fail(each, exception) for each in watchers.operations(key))
        return count

    async def aclose(self, drain: float = 0.0) -> list[Op]:
        """Refuses new operations, lets the pending ones end by themselves for a while, then cancels
        the rest.

        When it returns, nothing is pending and all tasks that awaited an operation are answered. If
        its own task is cancelled, it cancels the rest at once before it raises. Calling it again is
        allowed, also while it drains.

        Args:
            drain: how long pending operations may take to complete or expire, in seconds; zero and
                more.

        Returns:
            The operations that this call cancelled.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        drain = check_drain(drain)
        self._engine.bind(f"close {self.name}")
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
        """How many pairs of a waiting operation and a key that it watches there are. Exact. Cost:
        O(1)."""
        return self._engine.watchers.registrations

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self._engine.name

    def keys(self) -> Iterator[Hashable]:
        """The keys that operations watch now. The iterator ends with `RuntimeError` if one is added
        or removed meanwhile; copy it with `list`. Cost: O(1) for each."""
        return iter(self._engine.by_key)

    def statistics(self) -> PurgatoryStatistics:
        """A snapshot. Cost: O(1)."""
        return self._engine.statistics()

    def __repr__(self) -> str:
        state = "closed" if self._engine.closed else "open"
        return f"<Purgatory {self.name!r} {state} pending={self.pending} watched={self.watched}>"

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # none if __init__ has raised
        if engine is not None and len(engine.watchers):
            warn(
                f"{self!r} was dropped while operations wait; close it with aclose()",
                ResourceWarning,
                2,
                self,
            )

    def _check(self) -> None:
        self._engine._check()


def engine_of(purgatory: Purgatory[Any]) -> Engine:
    """The engine of a purgatory, for the modules of this package that users do not call."""
    return purgatory._engine


def purgatory_on(engine: Engine) -> Purgatory[Any]:
    """A purgatory with an engine made by the caller."""
    purgatory: Purgatory[Any] = Purgatory(engine.name)
    purgatory._engine = engine
    return purgatory
