"""The delayed operation, which users subclass, and its life from first try to result. Start reading
the code here.

                       force_complete
               ┌──────────────────────────> COMPLETED   on_complete
               │       deadline
    PENDING ───┼──────────────────────────> EXPIRED     on_complete, on_expiration
               │       cancel, aclose, a try that raised
               └──────────────────────────> CANCELLED

    try_once         when first watched, by a check of a key, at the deadline
    claim            the compare-and-set: out of PENDING, the wheel and all watch lists in one step
    finish           `on_complete`, and `on_expiration` if it expired; an exception of a hook
                     becomes the result. Then the tasks that await it are woken, and the observers
                     notified

Every change of state goes through `claim`, which returns True to exactly one caller. So user code
never sees an ended operation that is still in a list. The code that tries an operation also
finishes it, even if a hook has claimed it meanwhile. Code that claims another operation finishes it
at once, or, within a hook, when that hook has returned: see `dispatcher`. To finish an operation
twice does nothing.

An operation knows its `home`, and not the purgatory above it. The steps are functions, not methods,
and private attributes start with `_op_`, because the other names of a class that users subclass
belong to them.

Kafka's counterpart is `DelayedOperation`, with an `AtomicBoolean` for the claim; asyncio's is
`Future`, with the same `result` and handling of exceptions.
"""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future, InvalidStateError, events
from collections.abc import Generator, Hashable
from contextvars import Context
from inspect import iscoroutinefunction
from math import inf, isinf
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from purgatory._core.arguments import describe, seconds
from purgatory._core.dispatcher import Dispatcher, dispatcher_of
from purgatory._core.errors import OperationCancelled, WrongLoop
from purgatory._core.failure import Failure
from purgatory._core.home import Home, OperationSlots
from purgatory._core.kernel import compiled, constants, fields
from purgatory._core.loop import call_on, report, running_loop
from purgatory._core.observers import DEADLINE, FIRST_TRY, FORCED, KEY, NO_KEY, Cause, Record
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, PENDING, OperationState
from purgatory._core.watch_lists import UNWATCHED, keys_of, steps_to_leave

R_co = TypeVar("R_co", covariant=True)

EXITS: Final = (SystemExit, KeyboardInterrupt)
"""Raised out of the loop, as by asyncio's tasks."""

NO_RESULT: Final[Any] = object()
"""The result of an operation until its hooks have run."""


@fields
class DelayedOperation(OperationSlots, ABC, Generic[R_co]):
    """An operation that cannot be answered yet: it waits for a condition or for its deadline,
    whichever comes first.

    Subclasses define the condition (`try_complete`) and the result (`on_complete`). Give it to
    `Purgatory.wait`, or to `Purgatory.try_complete_else_watch` and await it, from any number of
    tasks. An operation serves once. A subclass with `__slots__` saves memory; one with an
    `__init__` has to call `super().__init__`.

    The hooks are plain functions, called on the loop's thread, one at a time for all operations of
    a loop: a hook may call anything here; work that it causes runs when it has returned. They run
    in the context of the code that completes the operation. An exception of a hook goes to the
    tasks that await the operation, or, if there is none by the next iteration of the loop, to the
    loop's exception handler.

    It is known by its identity: `copy` and `pickle` raise `TypeError`.

    Args:
        timeout: seconds from when it is first watched; `None` and `inf` mean no deadline; zero and
            less mean that it is tried once and then expires.
        deadline: instant at which it expires, in seconds of the loop's time; excludes `timeout`.

    Raises:
        ValueError: a time is NaN, or both were given.
        TypeError: a time is not a number.
    """

    __slots__ = ()

    @compiled
    def __init__(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        """Makes an operation that is not watched yet; for the arguments see the class."""
        if timeout is not None and deadline is not None:
            raise ValueError(
                f"timeout ({timeout!r}) and deadline ({deadline!r}) exclude each other"
            )
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        elif deadline is not None:
            deadline = seconds("deadline", deadline)
        is_positive = timeout is not None and timeout > 0.0
        self._timer_bucket = None
        self._op_timeout = timeout if is_positive else None
        self._timer_deadline = deadline if timeout is None else None if is_positive else -inf
        self._op_state = PENDING
        self._op_home = None
        self._op_keys = UNWATCHED
        self._op_result = NO_RESULT
        self._op_owner = self._op_waiters = None
        self._op_record: Record | None = None  # pyright would infer None alone

    _op_validated: ClassVar[type | None] = None
    """The class, once a purgatory has checked that its operations are told apart by identity."""

    # -- for subclasses

    @abstractmethod
    def try_complete(self) -> bool:
        """Completes the operation if its condition holds: `return condition and
        self.force_complete()`.

        Called when the operation is first watched, at each `check_and_complete` of its keys, and
        once at its deadline. If it raises, the operation is cancelled and the exception goes to the
        tasks that await it.
        """

    def on_complete(self) -> R_co:
        """Called exactly once, when the operation has completed or expired (see `state`). Its
        return value is the result; its exception is raised in the tasks that await the operation.
        By default the result is `None`."""
        return None  # type: ignore[return-value]  # unless it is, subclasses have their own

    def on_expiration(self) -> None:
        """Called after `on_complete`, if the operation has expired. By default nothing."""

    # -- for callers and subclasses

    @compiled
    def force_complete(self) -> bool:
        """Completes the operation, whether its condition holds or not.

        Returns:
            True for the one caller that completed it, False if it had ended before. When it
            returns, the operation is out of the wheel and of all watch lists; `on_complete` has
            run, unless a hook is running (this operation's own `try_complete` counts as one): then
            it runs when that hook has returned.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        home = self._op_home
        if home is None or running_loop() is not home._loop:
            require_loop(self, "complete")
        dispatcher = _dispatcher_here(self) if home is None else home._dispatcher
        if not claim(self, home, COMPLETED, FORCED):
            return False
        if dispatcher.current is not self:  # else the code that tries it runs the hooks
            dispatcher.perform(self._op_finish)
        return True

    def cancel(self) -> bool:
        """Cancels the operation: tasks that await it get `OperationCancelled`, `on_complete` is not
        called.

        Returns:
            True for the one caller that cancelled it, False if it had ended before.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        require_loop(self, "cancel")
        return cancel(self)

    def result(self) -> R_co:
        """The return value of `on_complete`.

        Raises:
            asyncio.InvalidStateError: there is no result yet.
            OperationCancelled: the operation was cancelled.
            BaseException: the exception of a hook.
        """
        result: Any = self._op_result
        if result is NO_RESULT:
            raise _no_result_error(self)
        if type(result) is Failure:
            result.retrieved = True
            try:
                raise result.exception.with_traceback(result.traceback)
            finally:
                del result, self  # which would make a cycle with the exception's traceback
        return result  # type: ignore[no-any-return]

    @property
    def state(self) -> OperationState:
        """The state of the operation."""
        return self._op_state

    @property
    def is_completed(self) -> bool:
        """Whether the operation is no longer pending, however it ended."""
        return self._op_state is not PENDING

    @property
    def deadline(self) -> float | None:
        """When it expires, in seconds of the loop's time; `None` until watched, or without a
        deadline."""
        when: float | None = None if self._op_home is None else self._timer_deadline
        return None if when is None or isinf(when) else when

    def __await__(self) -> Generator[Any, None, R_co]:
        if not has_result(self):
            require_loop(self, "await")
            future = add_waiter(self)
            try:
                yield from future
            except BaseException:
                call_on(future.get_loop(), remove_waiter, self, future)
                raise
            finally:
                del future
        try:
            return self.result()
        finally:
            del self

    @compiled
    def _op_finish(self, budget: int = 0) -> None:  # noqa: ARG002 - it takes one step
        finish(self)

    @compiled
    def _timer_expired(self) -> int:
        return expire(self)

    def _op_is_decided(self) -> bool:
        """Whether the outcome is decided, though it has not ended: then it completes rather than
        being cancelled."""
        return False

    def _op_is_asynchronous(self) -> bool:
        """Whether its task runs the condition, so that a try requests a run and no more. Then it may
        wait for an iteration of the loop, though its deadline has passed."""
        return False

    def __repr__(self) -> str:
        try:
            words = [self._op_state.value]
        except AttributeError:
            words = ["not initialised"]
        else:
            if self._op_state is PENDING and self._op_home is None:
                words.append("unwatched")
            elif self.deadline is not None:
                words.append(f"deadline={self.deadline}")
        return f"<{type(self).__name__} {' '.join(words)}>"


Operation = DelayedOperation[Any]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Op = TypeVarWithDefault("Op", bound=Operation, default=Operation)
else:
    Op = TypeVar("Op", bound=DelayedOperation[Any])


# -- trying


def try_once(operation: Operation, key: Hashable, cause: Cause, is_last: bool = False) -> bool:
    """Tries a watched operation, as the `current` one of the dispatcher, and finishes it if it has
    ended.

    Args:
        operation: a pending one.
        key: the key that is checked; `NO_KEY` without one.
        cause: recorded for observers if it completes. After a `FIRST_TRY` the caller finishes it,
            once observers were notified of its start.
        is_last: whether it expires if it does not complete.

    Returns:
        Whether observers learn of this try. The run of an asynchronous condition is notified when
        it has ended.
    """
    record, is_counted = operation._op_record, True
    dispatcher: Dispatcher = operation._op_home._dispatcher  # type: ignore[union-attr]  # it has one
    interrupted, dispatcher.current = dispatcher.current, operation
    try:
        if operation._op_owner is None or not owner_has_left(operation):
            try:
                if operation.try_complete() and operation._op_state is PENDING:
                    raise _not_completed(operation)
            except BaseException as error:
                _try_failed(operation, error)
            if record is not None:
                is_counted = _record_try(operation, record, key, cause)
            if is_last:
                claim(operation, operation._op_home, EXPIRED, DEADLINE)
    finally:
        try:
            if operation._op_state is not PENDING and cause is not FIRST_TRY:
                finish(operation)
        finally:
            dispatcher.current = interrupted
    return is_counted


def expire(operation: Operation) -> int:
    """Ends an operation at its deadline: by a last try, and only then by expiry.

    A completion by the last try counts as a missed trigger, unless a check of one of its keys is
    queued or in progress.

    Returns:
        The work this was, in steps.
    """
    home = operation._op_home
    if home is None or operation._op_state is not PENDING:  # cancelled by a finalizer
        return 1
    dispatcher, keys = home._dispatcher, operation._op_keys
    queued = home._queue_from_threads(home._inbox.take()) if home._inbox else 0
    key = home._key_being_checked(keys) if home._checks else NO_KEY
    try:
        try_once(operation, key, DEADLINE if key is NO_KEY else KEY, is_last=True)
    finally:
        # More operations may be due in this iteration, so work caused by the hooks waits for the
        # next iteration.
        dispatcher.continue_later()
    if operation._op_state is COMPLETED and key is NO_KEY:  # type: ignore[comparison-overlap]  # by now
        home._count_missed_trigger(operation, keys_of(keys))
    return queued + steps_to_leave(keys)


def _record_try(operation: Operation, record: Record, key: Hashable, cause: Cause) -> bool:
    """Notes a try of an observed operation; False if it has requested a run and no more."""
    if operation._op_state is not PENDING:
        record.key = key
    elif operation._op_is_asynchronous():
        if record.key is NO_KEY:
            record.key = key
        return False
    if operation._op_state is COMPLETED:
        record.cause = cause
    else:
        record.failed_tries += 1
    return True


def owner_has_left(operation: Operation) -> bool:
    """Whether the task that an operation belongs to was cancelled; then the operation ends.

    The task learns of it in the next iteration of the loop only. Until then it must not take what
    the next waiter needs.
    """
    owner = operation._op_owner
    return owner is not None and owner.cancelled() and (cancel(operation) or True)


def _not_completed(operation: Operation) -> TypeError:
    """The error of a try that returned true without completing: the operation would wait until its
    deadline."""
    if iscoroutinefunction(operation.try_complete):
        return TypeError(
            f"try_complete of {describe(operation)} is async, and hooks are plain functions: for a "
            "condition that awaits, use `wait_for` with an async predicate"
        )
    return TypeError(
        f"try_complete of {describe(operation)} returned true, but did not call force_complete()"
    )


def _try_failed(operation: Operation, error: BaseException) -> None:
    """Ends an operation after its `try_complete` raised: it is cancelled, and the exception is its
    result."""
    if claim(operation, operation._op_home, CANCELLED, Cause.FAILED):
        _set_exception(operation, error)
        wake_waiters(operation)
        return
    # It was claimed before it raised, so its outcome does not change.
    if isinstance(error, EXITS):
        raise error
    if operation._op_home is not None:
        operation._op_home._report(f"try_complete of {describe(operation)} raised", error)


# -- ending


def claim(
    operation: Operation,
    home: Home | None,
    state: OperationState,
    cause: Cause,
    key: Hashable = NO_KEY,
) -> bool:
    """The compare-and-set: moves to `state`, and leaves the wheel and the watch lists of `home`;
    False if another call was first. Observers are notified of `cause`, and of the checked key.

    `home` is bound to the running loop, as the caller has checked: another thread may watch the
    operation since, and then finds that it has ended.
    """
    if operation._op_state is not PENDING:
        return False
    operation._op_state = state
    record = operation._op_record
    if record is not None:
        record.cause, record.key = cause, key
    if home is not None:
        if state is COMPLETED:
            home._completed += 1
        elif state is EXPIRED:
            home._expired += 1
        else:
            home._cancelled += 1
        home._leave(operation)
    return True


@compiled
def cancel(operation: Operation, cause: Cause = Cause.CANCELLED) -> bool:
    """Cancels an operation; a decided one completes instead. False if it was not cancelled."""
    return _end_early(operation, NO_RESULT, cause)


def fail(operation: Operation, exception: BaseException) -> bool:
    """As `cancel`, with `exception` as the result."""
    failure = Failure(exception)
    failure.retrieved = True  # the caller already has the exception
    return _end_early(operation, failure, Cause.FAILED)


def _end_early(operation: Operation, result: Any, cause: Cause) -> bool:
    home = operation._op_home
    if operation._op_is_decided():
        operation.force_complete()
        return False
    if not claim(operation, home, CANCELLED, cause):
        return False
    operation._op_result = result
    wake_waiters(operation)
    if (
        operation._op_record is not None
        and home is not None
        and home._dispatcher.current is not operation
    ):
        home._dispatcher.perform(operation._op_finish)
    return True


def finish(operation: Operation) -> None:
    """Runs the hooks of an operation that has ended, wakes the tasks that await it, and notifies
    the observers; each once. No hook runs if it was cancelled."""
    try:
        if operation._op_state is not CANCELLED and operation._op_result is NO_RESULT:
            try:
                operation._op_result = operation.on_complete()
            except BaseException as error:
                _set_exception(operation, error)
            if operation._op_state is EXPIRED:
                try:
                    operation.on_expiration()
                except BaseException as error:
                    _set_exception(operation, error)
            if operation._op_owner is not None or operation._op_waiters is not None:
                wake_waiters(operation)
    finally:
        record, home = operation._op_record, operation._op_home
        if record is not None and home is not None and home._notifier is not None:
            operation._op_record = None
            home._notifier.operation_ended(operation, record, home._time())


def _set_exception(operation: Operation, error: BaseException) -> None:
    """Makes the exception of a hook the result; a second one is reported instead. Raises an
    exit."""
    if type(operation._op_result) is Failure:
        report(events.get_running_loop(), f"a second hook of {describe(operation)} raised", error)
    else:
        operation._op_result = Failure.of_hook(error)
        _report_unretrieved_later(operation)
    if isinstance(error, EXITS):
        wake_waiters(operation)
        raise error


def _report_unretrieved_later(operation: Operation) -> None:
    """Reports the exception of a hook unless it is retrieved within two iterations of the loop, so
    that a task which awaits the operation from the next iteration on can retrieve it. One
    callback serves all operations of an iteration."""
    if _is_unretrieved(operation) and (loop := events._get_running_loop()) is not None:
        failed = dispatcher_of(loop).failed
        failed.append(operation)
        if len(failed) == 1:
            loop.call_soon(_report_in_next_iteration, loop, context=Context())


def _report_in_next_iteration(loop: AbstractEventLoop) -> None:
    dispatcher = dispatcher_of(loop)
    loop.call_soon(_report_unretrieved, loop, dispatcher.failed, context=Context())
    dispatcher.failed = []


def _is_unretrieved(operation: Operation) -> bool:
    return (
        type(operation._op_result) is Failure
        and not operation._op_result.retrieved
        and not operation._op_waiters
        and operation._op_owner is None
    )


def _report_unretrieved(loop: AbstractEventLoop, failed: list[Operation]) -> None:
    for operation in filter(_is_unretrieved, failed):
        report(
            loop,
            f"a hook of {describe(operation)} raised, and no task awaits it",
            operation._op_result.exception,
        )


# -- waiting for it


def has_result(operation: Operation) -> bool:
    """Whether the operation has a result, or was cancelled."""
    return operation._op_result is not NO_RESULT or operation._op_state is CANCELLED


def add_waiter(operation: Operation) -> "Future[None]":
    """A future that is done when the operation has a result."""
    future, waiters = _new_future(operation), operation._op_waiters
    if waiters is None:
        operation._op_waiters = future  # a dictionary of one takes 200 bytes
    elif type(waiters) is dict:
        waiters[future] = None
    else:
        operation._op_waiters = {cast("Future[None]", waiters): None, future: None}
    return future


def add_owner(operation: Operation) -> "Future[None]":
    """A future that is done when the operation has a result, for the task that it belongs to."""
    operation._op_owner = future = _new_future(operation)
    return future


def _new_future(operation: Operation) -> "Future[None]":
    home = operation._op_home
    loop = events.get_running_loop() if home is None else home._loop
    future: Future[None] = loop.create_future()
    if has_result(operation):  # a finalizer has cancelled it meanwhile
        future.set_result(None)
    return future


def remove_waiter(operation: Operation, future: "Future[None]") -> None:
    """Removes a future of `add_waiter`. If it was the last, an exception of a hook is reported."""
    waiters = operation._op_waiters
    if waiters is future:
        operation._op_waiters = None
    elif type(waiters) is dict:
        waiters.pop(future, None)
    _report_unretrieved_later(operation)


def wake_waiters(operation: Operation) -> None:
    """Wakes the tasks that await the operation."""
    owner, waiters = operation._op_owner, operation._op_waiters
    if owner is not None:
        operation._op_owner = None
        if not owner.done():
            owner.set_result(None)
    if waiters is not None:
        operation._op_waiters = None
        for future in waiters if type(waiters) is dict else (cast("Future[None]", waiters),):
            if not future.done():
                future.set_result(None)


def wake_owner(operation: Operation) -> None:
    """Wakes the task that the operation belongs to, and no other."""
    owner, operation._op_owner = operation._op_owner, None
    if owner is not None and not owner.done():
        owner.set_result(None)


def abandon(operation: Operation) -> None:
    """Cancels an operation when its owner, the task that waited for it, has ended."""
    operation._op_owner = None
    home = operation._op_home
    if home is not None:
        if operation._op_state is PENDING:
            call_on(home._loop, cancel, operation)
        elif type(operation._op_result) is Failure:
            call_on(home._loop, _report_unretrieved_later, operation)


def _no_result_error(operation: Operation) -> Exception:
    """The error that says why the operation has no result."""
    if operation._op_state is CANCELLED:
        return OperationCancelled(f"{describe(operation)} has no result: it was cancelled")
    if operation._op_state is PENDING:
        return InvalidStateError(f"{describe(operation)} has no result yet: it is pending")
    return InvalidStateError(
        f"{describe(operation)} has no result yet: its on_complete has not run"
    )


def _dispatcher_here(operation: Operation) -> Dispatcher:
    """The dispatcher of the running loop, for an operation that was never watched."""
    loop = events._get_running_loop()
    if loop is None:
        raise WrongLoop(f"cannot complete {describe(operation)}: no event loop is running here")
    return dispatcher_of(loop)


def require_loop(operation: Operation, action: str) -> None:
    """Raises `WrongLoop` if this is not the loop of its purgatory, or of the tasks that await
    it."""
    home, waiters = operation._op_home, operation._op_waiters
    if home is not None:
        if running_loop() is not home._loop:
            home._bind(action + " {}", operation)
    elif waiters is not None:
        loop = events._get_running_loop()
        first = next(iter(waiters)) if type(waiters) is dict else cast("Future[None]", waiters)
        awaited_on = first.get_loop()
        if loop is not awaited_on:
            raise WrongLoop(
                f"cannot {action} {describe(operation)}: it is awaited on {awaited_on!r}, this "
                f"is {loop!r}"
            )


constants(NO_RESULT=NO_RESULT)
constants(_set_exception=_set_exception, try_failed=_try_failed, not_completed=_not_completed)
constants(try_once=try_once, wake_waiters=wake_waiters)
