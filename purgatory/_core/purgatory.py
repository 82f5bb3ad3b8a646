"""`Purgatory`, the public object, in which operations wait for the keys that may complete them or
for their deadline.

Kafka's `DelayedOperationPurgatory` tries twice where this tries once: on one thread nothing happens
between the check and the watch, and work that the check itself causes is deferred until after it.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar, cast, final, overload

from purgatory._core.arguments import describe, printable, require_drain, require_exception
from purgatory._core.closing import cancel_watching, close, open_again
from purgatory._core.conditions import (
    NO_VALUE,
    Condition,
    Receiver,
    Reply,
    end_error,
    run_until_true,
)
from purgatory._core.errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._core.home import Home
from purgatory._core.kernel import compiled, fields
from purgatory._core.key_check import KeyCheck
from purgatory._core.loop import (
    MAX_PER_ITERATION,
    REGISTRATIONS_PER_STEP,
    call_on,
    running_loop,
)
from purgatory._core.observers import DEADLINE, FIRST_TRY, KEY, NO_KEY, Cause, Record
from purgatory._core.operation import (
    NO_RESULT,
    DelayedOperation,
    Op,
    Operation,
    abandon,
    add_owner,
    cancel,
    claim,
    fail,
    has_result,
    owner_has_left,
    require_loop,
    try_once,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, PENDING
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watch_lists import Keys, WatchList, keys_of, unique_keys

R = TypeVar("R")
T = TypeVar("T")


@final
@fields
class Purgatory(Home, Generic[Op]):
    """Holds operations until a key completes them or their deadline comes, whichever is first,
    exactly once.

    Bound to the running event loop at first use; call every method except `..._threadsafe` on
    its thread. As an async context manager it is closed on exit, and may be entered again.
    The operations that wait keep it alive.

    Args:
        name: for errors, logs and statistics.
        tick: the timer's resolution in seconds, finite and at least a nanosecond: an operation
            expires at most this much late.
        wheel_size: how many buckets each level of the timing wheel spans, at least 2.
        max_pending: how many operations may wait at once; `None` for no limit.
        observer: is notified of each operation that has ended and of each check; or a sequence of
            observers.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = ()

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
            PurgatoryFull: it would have to wait, and `max_pending` operations are pending. While a
                check of one of its keys is in progress it is not tried, so it would have to wait.
            ValueError, TypeError: there are no keys, or one is not hashable, or `keys` is no
                collection, or a string.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.

        In each of these cases nothing has changed, and the operation can be given to a purgatory
        again.
        """
        if running_loop() is not self._loop:
            self._bind("watch {}", operation)
        watched = unique_keys(keys)
        # After the keys: their `__hash__` may watch the operation.
        try:
            is_new = (
                operation._op_home is None
                and operation._op_state is PENDING
                and operation._op_waiters is None
                and operation._op_validated is operation.__class__
            )
        except AttributeError:
            is_new = False
        if self._closed or not is_new:
            self._validate(operation)
        now = self._time()
        timeout = operation._op_timeout
        when = operation._timer_deadline if timeout is None else now + timeout
        is_behind = bool(self._checks) and (when is None or when > now) and self._is_behind(watched)

        dispatcher = self._dispatcher
        operation._op_home = self
        interrupted, dispatcher.current = dispatcher.current, operation
        try:
            if self._notifier is not None:
                operation._op_record = Record(watched, now)
            if not is_behind:
                try_once(operation, NO_KEY, FIRST_TRY)
            if operation._op_state is PENDING and (
                (self._max_pending is None and not self._closed and (when is None or when > now))
                or self._may_wait(operation, when, now)
            ):
                self._join(operation, watched, when, now)
            if self._notifier is not None:
                self._notifier.started(operation)
        except BaseException:
            self._undo_watch(operation)
            raise
        finally:
            dispatcher.current = interrupted
        if operation._op_state is not PENDING:
            dispatcher.perform(operation._op_finish)
        elif dispatcher.queue and interrupted is None:
            dispatcher.run_queue()
        return operation._op_state is not PENDING

    def _undo_watch(self, operation: Operation) -> None:
        """Restores the state of an operation that cannot wait, so that it can be watched again. If
        it has ended meanwhile, its hooks follow."""
        self._leave(operation)
        if operation._op_state is PENDING:
            operation._op_home = operation._op_record = None
        else:
            self._dispatcher.defer(operation._op_finish)
        self._dispatcher.continue_later()

    @compiled
    def check_and_complete(self, key: Hashable) -> int:
        """Tries the waits and operations under `key` again, in the order of arrival. Call it after
        each change that may have made their conditions true.

        If a key has very many waiters, about 500 are tried in this call, and the rest in the next
        iterations of the loop. If called in a hook, the check starts when the hook has returned.

        Returns:
            The number of operations completed by this call, and by checks that their hooks
            requested; later iterations are not counted.

        Cost: a dictionary look-up, and a call of `try_complete` for each operation that watches
            `key`.

        Raises:
            WrongLoop: called from another loop or thread than the first time. Before first use, no
                loop is needed.
            TypeError: `key` is not hashable.
        """
        try:
            operation = self._by_key.get(key)
        except TypeError as error:
            raise TypeError(f"cannot check {describe(key)}: {error}") from error
        if running_loop() is not self._loop and not self._is_used_here(
            "check {}", key, "check_and_complete_threadsafe"
        ):
            return 0
        dispatcher = self._dispatcher
        if dispatcher.current is not None:
            self._check_later(key)
            return 0
        if operation is None:
            return 0
        kind = operation.__class__
        if kind is WatchList or operation._op_state is not PENDING:
            return self._check_key(key)

        before = dispatcher.completed
        try:
            is_counted = try_once(operation, key, KEY)
        except BaseException:
            dispatcher.continue_later()
            raise
        completed = 1 if operation._op_state is COMPLETED else 0  # type: ignore[comparison-overlap]  # by now
        if is_counted and self._notifier is not None:
            self._notify_check(key, 1, completed)
        if dispatcher.queue:
            dispatcher.run_queue()
        return completed + dispatcher.completed - before

    checkAndComplete = check_and_complete  # noqa: N815  # Kafka's name

    def check_and_complete_threadsafe(self, key: Hashable) -> None:
        """Schedules `check_and_complete(key)` on the loop; may be called from any thread.

        All calls before the loop wakes up share one wake-up and one check of each key.
        Without effect if nothing can wait: before first use, after `aclose`, when the loop is
        closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        if self._loop_wheel.is_bound:
            self._inbox.put(key)

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
        kind: str | None = None,
    ) -> T: ...
    @overload
    async def wait_for(
        self,
        predicate: Callable[[], T | None],
        keys: Iterable[Hashable],
        timeout: float | None = None,
        *,
        give_back: Callable[[T], object] | None = None,
        kind: str | None = None,
    ) -> T: ...
    async def wait_for(
        self,
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        timeout: float | None = None,
        *,
        give_back: Callable[[Any], object] | None = None,
        kind: str | None = None,
    ) -> Any:
        """Waits until `predicate()` returns a true value, and returns that value.

            await jobs.wait_for(lambda: results.get("tea"), ["tea"], timeout=5)

        It is called now, after each `check_and_complete` of one of the keys, and at the deadline,
        in the `contextvars` context of this wait.

        A predicate may be asynchronous. It then runs in the calling task: first when the wait has
        been registered under its keys, then after checks, one run at a time. Checks during a run
        cause one more run. The last run starts before the deadline, so that it can finish: earlier
        by twice the longest run so far, but at most by a tenth of `timeout`. The deadline cancels a
        run in progress.

        If the predicate removes the value from somewhere, as `lambda: jobs.pop() if jobs else None`
        does, pass `give_back`. Otherwise the value is lost if the task is cancelled after the call
        and before this method returns.

        Args:
            predicate: a function or a coroutine function, called on the loop's thread.
            keys: at least one key; a check of any of them calls `predicate` again.
            timeout: seconds to wait; `None` for no limit; zero or less calls `predicate` once.
            give_back: called with a true value that cannot be returned, because the task was
                cancelled or the wait had ended before an asynchronous predicate did. The keys are
                then checked, so that the next waiter gets the value. Its exceptions go to the
                loop's exception handler.
            kind: name of the wait for observers and metrics; by default "Condition".

        Returns:
            The first true value.

        Raises:
            OperationTimeout: a `TimeoutError`; the predicate was still false at the deadline.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            BaseException: the exception of `predicate`; and the errors of
                `try_complete_else_watch`.
        """
        if give_back is not None and not callable(give_back):
            raise TypeError(f"give_back must be a function or None, got {describe(give_back)}")
        condition: Condition[Any] = Condition(predicate, keys, timeout, kind)
        try:
            self.try_complete_else_watch(condition, condition.keys)  # type: ignore[arg-type]  # of any kind
            if condition.runs is None and not has_result(condition):
                await add_owner(condition)
            if condition.runs is not None:
                return await run_until_true(self, condition, condition.runs, timeout)
            if condition._op_state is EXPIRED:
                raise end_error(condition, timeout)
            return condition.result()
        except BaseException:
            if condition._op_home is not None:
                if self._loop.is_closed():
                    self._leave_wait(condition, give_back)
                else:
                    call_on(self._loop, self._leave_wait, condition, give_back)
            if condition._op_state is CANCELLED and condition._op_record is None:
                condition._op_result = NO_RESULT  # a failure refers to frames that refer to it
            raise
        finally:
            if condition.runs is not None:
                condition.runs.close()
            del condition  # which would make a cycle with the traceback of its failure

    def _leave_wait(self, condition: Condition[T], give_back: Callable[[T], object] | None) -> None:
        """Ends a wait that returns no value: gives back the one that it has taken, and checks the
        keys, so that the next waiter gets it."""
        abandon(condition)
        value, condition.value = condition.value, None
        if value is None or give_back is None:
            return
        try:
            give_back(value)
        except BaseException as error:
            self._report(f"give_back of {describe(condition)} raised", error)
        # After its loop, the coroutine is only being closed.
        if running_loop() is self._loop:
            for key in condition.keys:
                self.check_and_complete(key)

    async def receive(
        self, key: Hashable, timeout: float | None = None, *, kind: str | None = None
    ) -> Any:
        """Waits for the value of a `deliver` under `key`: for instance a reply, by its id.

        Values delivered earlier are not received. To send a request between the two, use `expect`.

        Args:
            key: key of the value; any number of tasks may receive under it.
            timeout: seconds to wait; `None` for no limit.
            kind: name of the wait for observers and metrics; by default "Receiver".

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key` or `aclose`.
            PurgatoryError, ValueError, TypeError: see `try_complete_else_watch`.
        """
        receiver = Receiver(key, timeout, kind)
        try:
            return receiver.received(await self.wait(receiver, (key,)), timeout)
        finally:
            del receiver  # which would make a cycle with the traceback of its failure

    def expect(
        self, key: Hashable, timeout: float | None = None, *, kind: str | None = None
    ) -> Reply:
        """Accepts the value of a `deliver` under `key` within a block, also before it is awaited.

            with replies.expect(id, timeout=5) as reply:
                await send(id)
                value = await reply

        Leaving the block without awaiting leaves nothing behind.

        Args:
            key: key of the value; any number of tasks may expect one under it.
            timeout: seconds from entering; `None` for no limit. It bounds the wait, not the
                block: to bound a slow `send` as well, put both into a `purgatory.timeout`.
            kind: name of the wait for observers and metrics; by default "Receiver".

        Raises:
            ValueError, TypeError: `timeout` is NaN, or no number. Entering raises the errors of
                `try_complete_else_watch`; for the errors of `await` see `Reply`.
        """
        return Reply(self.try_complete_else_watch, key, timeout, kind)  # type: ignore[arg-type]  # of any kind

    def deliver(self, key: Hashable, value: Any) -> int:
        """Delivers `value` to all that receive or expect one under `key` now.

        Returns:
            How many received it. If there are very many, 512 are answered at once and the rest in
            the next iterations of the loop.

        Cost: O(operations that watch `key`).

        Raises:
            WrongLoop: called from another loop or thread than the first time. Before first use, no
                loop is needed.
            TypeError: `key` is not hashable.
        """
        if running_loop() is not self._loop and not self._is_used_here(
            "deliver to {}", key, "deliver_threadsafe"
        ):
            return 0
        waiting, count = self._by_key.get(key), 0
        for operation in waiting.entries() if type(waiting) is WatchList else (waiting,):
            if (
                type(operation) is Receiver
                and operation.value is NO_VALUE
                and operation._op_state is PENDING
                and not owner_has_left(operation)
            ):
                operation.value = value
                count += 1
        if count:
            self.check_and_complete(key)
        return count

    def deliver_threadsafe(self, key: Hashable, value: Any) -> None:
        """Schedules `deliver(key, value)` on the loop; may be called from any thread.

        Without effect before first use, and when the loop is closed.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        self._loop_wheel.call_threadsafe(self.deliver, key, value)

    def cancel_for_key(self, key: Hashable) -> list[Op]:
        """Cancels the operations that watch `key`, whatever else they watch; tasks that await one
        get `OperationCancelled`.

        Returns:
            The cancelled operations, in order of arrival.

        Cost: O(operations that watch `key`), at once: 100,000 block the loop for 0.2 s. Use
            `acancel_for_key` for large numbers.

        Raises:
            WrongLoop: called from another loop or thread than the first time. Before first use, no
                loop is needed.
        """
        if not self._is_used_here("cancel what watches {}", key):
            return []
        return [operation for operation in self._by_key.operations(key) if cancel(operation)]

    async def acancel_for_key(self, key: Hashable) -> list[Op]:
        """As `cancel_for_key`, but 512 per iteration of the loop, so that many do not block it.

        Operations that start to watch the key meanwhile are cancelled as well. If its own task is
        cancelled, it stops there.
        """
        self._bind("cancel what watches {}", key)
        return cast("list[Op]", await cancel_watching(self, (key,)))

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
            WrongLoop: called from another loop or thread than the first time. Before first use, no
                loop is needed.
        """
        require_exception(f"fail what watches {describe(key)}", exception)
        if not self._is_used_here("fail what watches {}", key):
            return 0
        return sum(fail(each, exception) for each in self._by_key.operations(key))

    def fail_all(self, exception: BaseException) -> int:
        """As `fail`, for the operations of all keys: when a connection is lost, tasks that wait
        for its replies get that error. Cost: O(all operations), at once."""
        require_exception(f"fail {printable(self.name)}", exception)
        if not self._is_used_here(f"fail {printable(self.name)}"):
            return 0
        return sum(
            fail(each, exception)
            for key in list(self._by_key)
            for each in self._by_key.operations(key)
        )

    async def aclose(self, drain: float = 0.0) -> list[Op]:
        """Refuses new operations, lets the pending ones end by themselves for a while, then cancels
        the rest.

        When it returns, nothing is pending and all tasks that awaited an operation are answered. If
        its own task is cancelled, it cancels the rest at once before it raises. Calling it again is
        allowed, also while it drains.

        Args:
            drain: how long pending operations may take to complete or expire, in seconds; zero or
                more.

        Returns:
            The operations that this call cancelled.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        drain = require_drain(drain)
        self._bind(f"close {self.name}")
        return cast("list[Op]", await close(self, drain))

    async def __aenter__(self) -> "Purgatory[Op]":
        open_again(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def pending(self) -> int:
        """How many operations wait. Exact. Cost: O(1)."""
        return self._pending

    @property
    def watched(self) -> int:
        """How many pairs of a waiting operation and a key that it watches there are. Exact. Cost:
        O(1)."""
        return self._watched

    def keys(self) -> Iterator[Hashable]:
        """The keys that operations watch now. The iterator ends with `RuntimeError` if one is added
        or removed meanwhile; copy it with `list`. Cost: O(1) for each."""
        return iter(self._by_key)

    def statistics(self) -> PurgatoryStatistics:
        """A snapshot of the counters. Cost: O(1)."""
        return PurgatoryStatistics(
            name=self.name,
            pending=self._pending,
            watched=self._watched,
            keys=len(self._by_key),
            completed=self._completed,
            expired=self._expired,
            cancelled=self._cancelled,
            missed_triggers=self._missed_triggers,
            wake_ups=self._loop_wheel.wake_ups,
            moves=self._wheel.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Purgatory {self.name!r} {state} pending={self.pending} watched={self.watched}>"

    # -- starting to wait

    def _validate(self, operation: Operation) -> None:
        """Raises an exception if `operation` cannot be watched here."""
        if self._closed:
            raise PurgatoryClosed(f"cannot watch {describe(operation)}: {self.name} is closed")
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"cannot watch {describe(operation)}: it is no DelayedOperation")
        if not hasattr(operation, "_op_state"):
            raise TypeError(
                f"cannot watch {describe(operation)}: its __init__ does not call super().__init__()"
            )
        if operation._op_home is not None or operation._op_state is not PENDING:
            why = "it is being watched" if operation._op_state is PENDING else "it has ended"
            raise OperationReused(
                f"cannot watch {describe(operation)}: {why}, and an operation serves once"
            )
        require_loop(operation, "watch")
        cls = type(operation)
        if cls.__eq__ is not object.__eq__ or cls.__hash__ is not DelayedOperation.__hash__:
            raise TypeError(
                f"cannot watch {describe(operation)}: its class defines __eq__ or __hash__, but "
                "operations are told apart by identity"
            )
        cls._op_validated = cls

    def _is_behind(self, keys: Keys) -> bool:
        """Whether a check must try other operations before a new operation, which then waits."""
        return any(key in self._checks and key in self._by_key for key in keys_of(keys))

    def _may_wait(self, operation: Operation, when: float | None, now: float) -> bool:
        """Whether a newcomer may wait until `when`. Ends the newcomer if it is too late.

        Raises:
            PurgatoryFull: `max_pending` operations are pending.
        """
        if self._closed:  # closed by the newcomer's own try
            cancel(operation, Cause.CLOSED)
        elif when is not None and when <= now and not operation._op_is_asynchronous():
            operation._timer_deadline = float(max(when, now))  # a clock may give ints
            claim(operation, self, EXPIRED, DEADLINE)
        elif self._max_pending is not None and self._pending >= self._max_pending:
            raise PurgatoryFull(
                f"cannot watch {describe(operation)}: max_pending ({self._max_pending}) operations "
                f"are pending in {self.name}"
            )
        return operation._op_state is PENDING

    # -- checks

    def _check_key(self, key: Hashable) -> int:
        """Tries the operations that wait for `key`, a bounded number now and the rest in the next
        iterations. Returns the number completed now."""
        check = self._checks.get(key)
        if check is not None:
            check.request_recheck()
            return 0
        before = self._dispatcher.completed
        check = self._checks[key] = KeyCheck(self, key)
        self._dispatcher.perform(check.run)
        return self._dispatcher.completed - before

    def _check_later(self, key: Hashable) -> None:
        """Queues a check of `key`, to run after the running hook and all work deferred earlier."""
        check = self._checks.get(key)
        if check is not None:
            check.request_recheck()
        else:
            check = self._checks[key] = KeyCheck(self, key)
            check.defer()

    def _queue_from_threads(self, keys: Iterable[Hashable], at_once: bool = False) -> int:
        """Queues a check of each different one of `keys`, of a bounded number; with `at_once`, tries
        an operation that waits alone, while nothing is queued. Returns the amount of this work, in
        operations."""
        seen: set[Hashable] = set()
        completed, taken, queue = 0, 0, self._dispatcher.queue
        for key in keys:
            taken += 1
            try:
                waiting = self._by_key.get(key)
                if waiting is None or key in seen:
                    continue
                seen.add(key)
                if at_once and not queue and type(waiting) is not WatchList:
                    completed += self.check_and_complete(key)
                else:
                    self._check_later(key)
            except BaseException as error:
                self._report(f"cannot check {describe(key)}, as another thread requested", error)
            if len(seen) + completed >= MAX_PER_ITERATION:
                break
        return len(seen) + completed + taken // REGISTRATIONS_PER_STEP
