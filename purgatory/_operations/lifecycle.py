"""The life of an operation, from its first try to its result. Start reading the code here.

                       force_complete
               ┌──────────────────────────> COMPLETED   on_complete
               │       deadline
    PENDING ───┼──────────────────────────> EXPIRED     on_complete, on_expiration
               │       cancel, aclose, a try that raised
               └──────────────────────────> CANCELLED

    try_once         when it is first watched, by a check of a key, at the deadline; what a try ends is finished at once
    claim            the compare-and-set: out of PENDING, the wheel and all watch lists in one step
    run_hooks        `on_complete`, and `on_expiration` if it expired; what a hook raises is the result: `set_exception`
    wake_waiters     the tasks that await it are woken; after that the observers are notified

Every change of state goes through `claim`, which returns True to the one caller that made it. So no user code ever sees an
ended operation that is still in a list. The code that tries an operation also finishes it, even if a hook has claimed it
meanwhile. Code that claims one that is not being tried finishes it at once, or, within a hook, when that has returned: see
`_loop.dispatcher`.

These are functions, not methods: in a class that users subclass, names belong to them.
"""

from asyncio import Future, InvalidStateError, get_running_loop
from asyncio import _get_running_loop as running_loop
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from purgatory import _logs
from purgatory._arguments import describe
from purgatory._errors import OperationCancelled, WrongLoop
from purgatory._failure import Failure
from purgatory._loop.dispatcher import running_dispatcher
from purgatory._operations.watch_lists import UNWATCHED, Chunk, keys_of, steps_to_leave
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING, OperationState

if TYPE_CHECKING:
    from collections.abc import Hashable

    from purgatory._operations.engine import Engine

Operation = Any
"""A `DelayedOperation`."""

MOVES: Final[dict[OperationState, frozenset[OperationState]]] = {
    PENDING: frozenset({COMPLETED, EXPIRED, CANCELLED}),
    COMPLETED: frozenset(),
    EXPIRED: frozenset(),
    CANCELLED: frozenset(),
}
"""The states, and the others that each may change to."""

NO_RESULT: Final[Any] = OperationState
"""The result of an operation whose hooks have not run. A class, because it stays the same when it is copied or pickled."""

NO_KEY: Final[Any] = object()
"""In place of a key, which may be None."""


def claim(operation: Operation, state: OperationState) -> bool:
    """The compare-and-set: moves to `state`, and leaves the wheel and the watch lists; False if another call was first."""
    if state not in MOVES[operation._op_state]:
        return False
    operation._op_state = state
    engine: Engine | None = operation._op_engine
    if engine is None:
        return True
    if state is COMPLETED:
        engine.completed += 1
    elif state is EXPIRED:
        engine.expired += 1
    else:
        engine.cancelled += 1
    if operation._timer_chunk is not None:
        engine.wheel.remove(operation)
    links = operation._op_links
    if links is not UNWATCHED:
        if type(links) is tuple or type(links) is Chunk:
            engine.watchers.remove(operation, links)
        else:
            engine.watchers.remove_key(operation, links)
        if engine.notifier is None:
            operation._op_links = UNWATCHED
        if (not engine.by_key or engine.watchers.orphans) and engine.wheel.notify_empty:
            engine.loop_wheel.check_idle_later()
    return True


def try_once(engine: "Engine", operation: Operation, key: "Hashable", is_last: bool = False) -> None:
    """Tries a watched operation, which is the `current` one of the dispatcher, and finishes it if it has ended.

    Args:
        engine: where it is watched.
        operation: a pending one.
        key: the key that is checked; `NO_KEY` if none is.
        is_last: whether it expires if it does not complete.
    """
    try:
        if operation.try_complete() and operation._op_state is PENDING:
            raise not_completed(operation)
    except BaseException as error:
        try_failed(engine, operation, error)
    if is_last:
        claim(operation, EXPIRED)
    if operation._op_state is not PENDING:
        run_hooks(operation)
    if engine.notifier is not None:
        engine.notifier.on_retry(operation, key, is_last)


def not_completed(operation: Operation) -> TypeError:
    """The error of a try that returned true without completing: the operation would wait until its deadline."""
    return TypeError(f"try_complete of {describe(operation)} returned true, but did not call force_complete()")


def try_failed(engine: "Engine", operation: Operation, error: BaseException) -> None:
    """Ends an operation whose `try_complete` raised: it is cancelled, and the exception is its result."""
    if claim(operation, CANCELLED):
        try:
            set_exception(operation, error)
        finally:
            wake_waiters(operation)
        return
    # It was claimed before it raised, so its outcome does not change.
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        engine.dispatcher.defer(operation)
    engine.report(f"try_complete of {describe(operation)} raised", error)


def expire(operation: Operation) -> int:
    """Ends an operation whose deadline has come: a last try, and only then expiry.

    One that the last try completes is a missed trigger, unless a check of one of its keys was requested and is not over.

    Returns:
        How much work that was, in operations.
    """
    engine: Engine = operation._op_engine
    dispatcher, links = engine.dispatcher, operation._op_links
    key = engine.key_being_checked(links)
    dispatcher.current = operation
    try:
        try_once(engine, operation, key, is_last=True)
    finally:
        dispatcher.current = None
        # Others may be due in this iteration as well, so what the hooks have set off is left to the next one.
        dispatcher.continue_if_backlog()
    if operation._op_state is COMPLETED and key is NO_KEY:
        _count_missed_trigger(engine, operation, keys_of(links))
    return steps_to_leave(links)


def _count_missed_trigger(engine: "Engine", operation: Operation, keys: "tuple[Hashable, ...]") -> None:
    kind, timeout, deadline = type(operation).__name__, operation._op_timeout, operation._timer_deadline
    engine.missed_triggers += 1
    engine.recent_missed_triggers.append((kind, keys, timeout, deadline))
    _logs.missed_trigger(engine.name, kind, keys, None if timeout is None else engine.time() - (deadline - timeout))


def finish(operation: Operation) -> None:
    """Does what remains to be done for an operation that was claimed."""
    engine: Engine | None = operation._op_engine
    if not has_result(operation):
        run_hooks(operation)
    if engine is not None and engine.notifier is not None:
        engine.notifier.on_end(operation)


def cancel(operation: Operation) -> bool:
    """Cancels an operation; one whose outcome is decided already completes instead. False if it was not cancelled."""
    if operation._op_is_decided():
        operation.force_complete()
        return False
    if not claim(operation, CANCELLED):
        return False
    wake_waiters(operation)
    engine: Engine | None = operation._op_engine
    if engine is not None and engine.notifier is not None and not engine.dispatcher.is_being_tried(operation):
        engine.dispatcher.finish(operation)
    return True


def run_hooks(operation: Operation) -> None:
    """Runs the hooks of an operation that has ended, none if it was cancelled, and wakes the tasks that await it."""
    if operation._op_state is CANCELLED:
        return
    try:
        operation._op_result = operation.on_complete()
    except BaseException as error:
        set_exception(operation, error)
    if operation._op_state is EXPIRED:
        try:
            operation.on_expiration()
        except BaseException as error:
            set_exception(operation, error)
    if operation._op_waiters is not None:
        wake_waiters(operation)


def set_exception(operation: Operation, error: BaseException) -> None:
    """Makes the exception of a hook the result; a second one is reported instead. Exits are passed on as well."""
    if type(operation._op_result) is Failure:
        message = f"a second hook of {describe(operation)} raised"
        get_running_loop().call_exception_handler({"message": message, "exception": error})
    else:
        operation._op_result = failure = Failure.of_hook(error)
        if operation._op_waiters is None:
            report_unretrieved(operation, failure)
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        wake_waiters(operation)
        running_dispatcher().defer(operation)  # what remains to be done for it, while the exit propagates
        running_dispatcher().continue_later()
        raise error


def report_unretrieved(operation: Operation, failure: Failure) -> None:
    """Reports an exception that nobody retrieves within two iterations of the loop.

    So a task that begins to await the operation in this iteration or the next can retrieve it.
    """
    with suppress(RuntimeError):  # there is no loop to report to
        get_running_loop()
        running_dispatcher().report_unretrieved(f"a hook of {describe(operation)} raised, and nobody awaits it", failure)


def wake_waiters(operation: Operation) -> None:
    """Wakes the tasks that await the operation."""
    waiters, operation._op_waiters = operation._op_waiters, None
    if waiters is None:
        return
    for future in waiters if type(waiters) is dict else (waiters,):
        if not future.done():
            future.set_result(None)


def remove_waiter(operation: Operation, future: "Future[None] | None") -> None:
    """Removes the waiter of `future`; if it was the last one, an exception will not be retrieved, and is reported."""
    waiters = operation._op_waiters
    if waiters is future:
        operation._op_waiters = None
    elif type(waiters) is dict:
        waiters.pop(cast("Future[None]", future), None)
    failure = operation._op_result
    if type(failure) is Failure and not failure.retrieved and operation._op_waiters is None:
        report_unretrieved(operation, failure)


def abandon(operation: Operation) -> None:
    """Cancels an operation whose owner, a task that waited for it, has ended."""
    if operation._op_state is not PENDING:
        remove_waiter(operation, None)
        return
    with suppress(WrongLoop):  # a coroutine that is closed after its loop has nothing to clean up
        check_loop(operation, "cancel")
        cancel(operation)


def has_result(operation: Operation) -> bool:
    """Whether the operation has a result, or was cancelled."""
    return operation._op_state is CANCELLED or operation._op_result is not NO_RESULT


def no_result_error(operation: Operation) -> Exception:
    """The error that says why the operation has no result."""
    if operation._op_state is CANCELLED:
        return OperationCancelled(f"{describe(operation)} has no result: it was cancelled")
    if operation._op_state is PENDING:
        return InvalidStateError(f"{describe(operation)} has no result yet: it is pending")
    return InvalidStateError(f"{describe(operation)} has no result yet: its on_complete has not run")


def check_loop(operation: Operation, action: str) -> None:
    """Raises `WrongLoop` if this is not the loop of its purgatory, or of the tasks that await it."""
    engine, waiters = operation._op_engine, operation._op_waiters
    loop = running_loop()
    if engine is not None:
        if loop is not engine.loop:
            engine.bind(action + " {}", operation)
    elif waiters is not None:
        home = (next(iter(waiters)) if type(waiters) is dict else cast("Future[None]", waiters)).get_loop()
        if loop is not home:
            raise WrongLoop(f"cannot {action} {describe(operation)}: it is awaited on {home!r}, this is {loop!r}")
