"""The life of an operation, from its try to the answer.

    try_once    by a check of a key, or the last time, at the deadline; what the try has ended is finished at once
    claim       the compare-and-set: out of PENDING, the wheel and all watch lists in one step
    run_hooks   `on_complete`, and `on_expiration` of one that expired; then
    answer      whoever awaits it is woken; and after that the observers are told
    fail        a hook raised: its exception is the result

Every path goes through `claim`, which tells the caller whether it was the one that made the move, so no user code ever sees an
ended operation that is still in a list. The code that tries an operation also finishes it, whatever has claimed it meanwhile.
Code that claims one that is not being tried finishes it at once, or, within a hook, when that has returned: see `_dispatcher`.

The first try is made by `Purgatory.try_complete_else_watch`, which has the guard of `try_once` written out.

These are functions, not methods: in a class that users subclass, names belong to them.
"""

from asyncio import Future, InvalidStateError, get_running_loop
from asyncio import _get_running_loop as running_loop
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from threading import get_ident
from typing import Any, NoReturn, Protocol, cast

from purgatory import _logs
from purgatory._dispatcher import Dispatcher, running_dispatcher
from purgatory._errors import OperationCancelled, WrongLoop
from purgatory._failure import Failure
from purgatory._home import Home
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING, OperationState
from purgatory._timer import LoopWheel
from purgatory._watchers import NO_PLACES, Chunk, Watchers, keys_of

Operation = Any
"""A `DelayedOperation`."""


class Teller(Protocol):
    """Tells observers: see `_telling`."""

    def tried(self, operation: Operation, key: Hashable, is_last: bool, /) -> None: ...
    def ended(self, operation: Operation, /) -> None: ...


class Engine(Protocol):
    """The part of a purgatory that its operations use."""

    name: str
    loop: Any
    home: Home
    room: Dispatcher
    wheel: LoopWheel
    watchers: Watchers
    by_key: dict[Any, Any]
    teller: Any
    """A `Teller`, or None."""
    completed: int
    expired: int
    cancelled: int
    missed_triggers: int
    missed: deque[tuple[str, tuple[Hashable, ...], float | None, float]]
    """The last of these: the operation's kind, its keys, its timeout and its deadline."""

    def bind(self, doing: str) -> None: ...
    def report(self, message: str, error: BaseException | None) -> None: ...


def try_once(engine: Engine, operation: Operation, key: Hashable, is_last: bool = False) -> None:
    """Tries the `current` operation, and finishes it if it has ended.

    Args:
        engine: where it is watched.
        operation: a pending one.
        key: whose check this is; None for none.
        is_last: whether it expires if it does not complete.
    """
    try:
        if operation.try_complete() and operation._op_state is PENDING:
            refuse_true(operation)
    except BaseException as error:
        try_failed(engine, operation, error)
    if operation._op_state is COMPLETED:
        if is_last:
            engine.missed_triggers += 1
        # `run_hooks`, written out.
        try:
            operation._op_result = operation.on_complete()
        except BaseException as error:
            fail(operation, error)
        if operation._op_waiters is not None:
            answer(operation)
    elif is_last and operation._op_state is PENDING:
        claim(operation, EXPIRED)
        engine.expired += 1
        run_hooks(operation)
    if engine.teller is not None:
        engine.teller.tried(operation, key, is_last)


def expire(operation: Operation) -> None:
    """Ends an operation whose deadline has come: a last try, and only then expiry."""
    engine = operation._op_engine
    room = engine.room
    places = operation._op_places
    room.current = operation
    try:
        try_once(engine, operation, None, True)
    finally:
        room.current = None
    # Others may be due in this turn as well, so what the hooks have set off is left to the next one.
    if room.unsettled:
        room.continue_later()
    if operation._op_state is COMPLETED:
        kind, keys, timeout = type(operation).__name__, keys_of(places), operation._op_timeout
        engine.missed.append((kind, keys, timeout, operation._wheel_when))
        waited = None if timeout is None else engine.wheel.time() - (operation._wheel_when - timeout)
        _logs.missed_trigger(engine.name, kind, keys, waited)


def refuse_true(operation: Operation) -> NoReturn:
    """Raises if a try returned true without completing: the operation would wait until its deadline."""
    raise TypeError(f"try_complete of {operation!r} returned true, but did not call force_complete()")


def try_failed(engine: Engine, operation: Operation, error: BaseException) -> None:
    """Ends an operation whose `try_complete` raised. Whoever tried it finishes it; after an exit, the next turn does."""
    if operation._op_state is PENDING:
        claim(operation, CANCELLED)
        engine.cancelled += 1
        try:
            fail(operation, error)
        finally:
            if operation._op_waiters is not None:
                answer(operation)
        return
    # It was claimed before it raised, so its outcome stands.
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        engine.room.put_off(operation)
    engine.report(f"try_complete of {operation!r} raised", error)


def claim(operation: Operation, state: OperationState) -> bool:
    """The compare-and-set: leaves PENDING for `state`, the wheel and the watch lists; False if another came first."""
    if operation._op_state is not PENDING:
        return False
    operation._op_state = state
    places = operation._op_places
    if places is not NO_PLACES:
        engine = operation._op_engine
        bucket = operation._wheel_bucket
        if bucket is not None:
            # `Bucket.leave`, written out.
            del bucket[operation]
            operation._wheel_bucket = None
            if not bucket and not bucket.wheel.resting:
                bucket.wheel.emptied()
        if type(places) is tuple or type(places) is Chunk:
            engine.watchers.remove(operation, places)
        else:
            # What `Watchers.remove` does with one key.
            try:
                found = engine.by_key.pop(places, None)
            except BaseException as error:
                found = error
            if found is not operation:
                engine.watchers.has_strayed(operation, places, found)
        if (
            bucket is None
            and (not engine.by_key or engine.watchers.strays)
            and state is not EXPIRED
            and not engine.wheel.resting
        ):
            engine.wheel.emptied()
        if engine.teller is None:
            operation._op_places = NO_PLACES
    return True


def conclude(operation: Operation) -> None:
    """Does what remains to be done for an operation that was claimed."""
    engine = operation._op_engine
    if not is_answered(operation):
        run_hooks(operation)
    if engine is not None and engine.teller is not None:
        engine.teller.ended(operation)


def run_hooks(operation: Operation) -> None:
    """Runs the hooks of an operation that was claimed as completed or expired, and answers whoever awaits it."""
    try:
        operation._op_result = operation.on_complete()
    except BaseException as error:
        fail(operation, error)
    if operation._op_state is EXPIRED:
        try:
            operation.on_expiration()
        except BaseException as error:
            fail(operation, error)
    if operation._op_waiters is not None:
        answer(operation)


def fail(operation: Operation, error: BaseException) -> None:
    """Makes the exception of a hook the result; a second one is reported instead. Exits are passed on as well."""
    if type(getattr(operation, "_op_result", None)) is Failure:
        _report(f"a second hook of {operation!r} raised", error)
    else:
        operation._op_result = failure = Failure.of_hook(error)
        if operation._op_waiters is None:
            report_unseen(operation, failure)
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        if operation._op_waiters is not None:
            answer(operation)
        running_dispatcher().put_off(operation)  # what remains to be done for it, while the exit propagates
        running_dispatcher().continue_later()
        raise error


def report_unseen(operation: Operation, failure: Failure) -> None:
    """Reports a failure, unless somebody who awaits the operation has seen it by then.

    In the turn after the next: a task that begins to await it in this turn or the next sees it before.
    """
    with suppress(RuntimeError):  # outside any loop there is nobody to tell
        get_running_loop()
        running_dispatcher().report_soon(f"a hook of {operation!r} raised, and nobody awaits it", failure)


def answer(operation: Operation) -> None:
    """Wakes whoever awaits the operation."""
    waiters, operation._op_waiters = operation._op_waiters, None
    if type(waiters) is dict:
        for future in waiters:
            if not future.done():
                future.set_result(None)
    elif not waiters.done():
        waiters.set_result(None)


def forget_waiter(operation: Operation, future: "Future[None] | None") -> None:
    """The waiter of `future` has gone; if it was the last one, nobody will see a failure."""
    waiters = operation._op_waiters
    if waiters is future:
        operation._op_waiters = None
    elif type(waiters) is dict:
        waiters.pop(cast("Future[None]", future), None)
    failure = getattr(operation, "_op_result", None)
    if type(failure) is Failure and not failure.seen and operation._op_waiters is None:
        report_unseen(operation, failure)


def is_answered(operation: Operation) -> bool:
    return operation._op_state is CANCELLED or hasattr(operation, "_op_result")


def why_no_result(operation: Operation) -> Exception:
    if operation._op_state is CANCELLED:
        return OperationCancelled(f"{operation!r} has no result: it was cancelled")
    if operation._op_state is PENDING:
        return InvalidStateError(f"{operation!r} has no result yet: it is pending")
    return InvalidStateError(f"{operation!r} has no result yet: its on_complete has not run")


def check_loop(operation: Operation, doing: str) -> None:
    """Raises `WrongLoop` if this is not the loop of those who wait for the operation, or of its purgatory."""
    engine, waiters = operation._op_engine, operation._op_waiters
    if engine is not None:
        if get_ident() != engine.home.thread_id and running_loop() is not engine.home.stranger:
            engine.bind(f"{doing} {operation!r}")
    elif waiters is not None:
        loop = (next(iter(waiters)) if type(waiters) is dict else cast("Future[None]", waiters)).get_loop()
        if loop is not running_loop():
            raise WrongLoop(f"cannot {doing} {operation!r}: it is awaited on {loop!r}, this is {running_loop()!r}")


def complete_from_outside(operation: Operation) -> bool:
    """`force_complete` of an operation that no purgatory has seen.

    Raises:
        WrongLoop: it is awaited on another loop; nothing has changed.
    """
    check_loop(operation, "complete")
    if not claim(operation, COMPLETED):
        return False
    running_dispatcher().conclude(operation)
    return True


def _report(message: str, error: BaseException) -> None:
    get_running_loop().call_exception_handler({"message": message, "exception": error})
