"""The delayed operation: what users subclass.

`lifecycle` is what happens to it. Private attributes begin with `_op_`, because subclasses of users may have their own
`_state` or `_result`; those of the wheel begin with `_timer_`.

Kafka's counterpart is `DelayedOperation`, whose `completed` is an `AtomicBoolean`; asyncio's is `Future`, whose `result` and
whose handling of exceptions are the same.
"""

from abc import ABC, abstractmethod
from asyncio import Future, get_running_loop
from asyncio import _get_running_loop as running_loop
from collections.abc import Generator
from math import inf, isinf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from purgatory._arguments import seconds
from purgatory._failure import Failure
from purgatory._loop.dispatcher import running_dispatcher
from purgatory._operations import lifecycle
from purgatory._operations.lifecycle import NO_RESULT
from purgatory._operations.watch_lists import UNWATCHED, WatchLinks
from purgatory._state import COMPLETED, PENDING, OperationState
from purgatory._wheel.buckets import TimerEntry

if TYPE_CHECKING:
    from purgatory._operations.engine import Engine

R = TypeVar("R")


class DelayedOperation(TimerEntry, ABC, Generic[R]):
    """An operation that cannot be answered yet: it waits for a condition or for its deadline, whichever comes first.

    Subclasses say what the condition is (`try_complete`) and what to answer (`on_complete`). Give it to
    `Purgatory.wait`, or to `Purgatory.try_complete_else_watch` and await it, from any number of tasks. An operation
    serves once. A subclass with `__slots__` saves memory; one with an `__init__` has to call `super().__init__`.

    The hooks are plain functions, called on the loop's thread, one at a time for all operations of a loop: a hook
    may call anything here, and what it causes runs when it has returned. They run in the context of the code that completes
    the operation. An exception of a hook goes to the tasks that await the operation, or, if there is none by the next
    iteration of the loop, to the loop's exception handler.

    It can be copied and pickled until it is watched; then it is known by its identity, and `copy` raises `TypeError`.

    Args:
        timeout: seconds from when it is first watched; `None` and `inf` mean no deadline; zero and less mean that it is
            tried once and then expires.
        deadline: the same as an instant of the loop's time. Excludes `timeout`.

    Raises:
        ValueError: a time is NaN, or both were given.
        TypeError: a time is no number.
    """

    __slots__ = ("__weakref__", "_op_engine", "_op_links", "_op_result", "_op_state", "_op_timeout", "_op_waiters")

    _op_state: OperationState
    _op_timeout: float | None
    _op_engine: "Engine | None"
    _op_links: WatchLinks
    _op_result: Any  # the result, a Failure, or NO_RESULT until the hooks have run
    _op_waiters: "Future[None] | dict[Future[None], None] | None"

    def __init__(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        if type(timeout) is float and timeout > 0.0 and deadline is None:
            self._op_timeout = timeout
            self._timer_deadline = None
        else:
            self._op_set_deadline(timeout, deadline)
        self._timer_chunk = None
        self._op_state = PENDING
        self._op_engine = None
        self._op_links = UNWATCHED
        self._op_result = NO_RESULT
        self._op_waiters = None

    def _op_set_deadline(self, timeout: float | None, deadline: float | None) -> None:
        """Everything except a positive timeout becomes a deadline; a timeout of zero or less becomes `-inf`."""
        if timeout is not None and deadline is not None:
            raise ValueError(f"timeout ({timeout!r}) and deadline ({deadline!r}) exclude each other")
        if timeout is not None:
            timeout = seconds("timeout", timeout)
        elif deadline is not None:
            deadline = seconds("deadline", deadline)
        is_positive = timeout is not None and timeout > 0.0
        self._op_timeout = timeout if is_positive else None
        self._timer_deadline = deadline if timeout is None else None if is_positive else -inf

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._op_require_identity()

    @classmethod
    def _op_require_identity(cls) -> None:
        """Raises `TypeError` if two operations of this class may be equal, which a decorator may cause at any time."""
        if cls.__eq__ is not object.__eq__ or cls.__hash__ is not object.__hash__:
            raise TypeError(f"{cls.__name__} defines __eq__ or __hash__, but operations are told apart by identity")

    # -- for subclasses

    @abstractmethod
    def try_complete(self) -> bool:
        """Completes the operation if its condition holds: `return condition and self.force_complete()`.

        Called when the operation is first watched, at each `check_and_complete` of its keys, and once at its deadline.
        If it raises, the operation is cancelled and the exception goes to the tasks that await it.
        """

    def on_complete(self) -> R:
        """Called exactly once, when the operation has completed or expired (see `state`). What it returns is the
        result; what it raises is raised in the tasks that await the operation. By default the result is `None`."""
        return None  # type: ignore[return-value]  # unless R is, subclasses have their own

    def on_expiration(self) -> None:
        """Called after `on_complete`, if the operation has expired. By default nothing."""

    # -- for everyone

    def force_complete(self) -> bool:
        """Completes the operation, whether its condition holds or not.

        Returns:
            True for the one caller that completed it, False if it had ended before. When it returns, the operation is
            out of the wheel and of all watch lists; `on_complete` has run, unless a hook is running (this operation's own
            `try_complete` counts as one): then it runs when that hook has returned.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        engine = self._op_engine
        if engine is None or running_loop() is not engine.loop:
            lifecycle.check_loop(self, "complete")
        if not lifecycle.claim(self, COMPLETED):
            return False
        dispatcher = running_dispatcher() if engine is None else engine.dispatcher
        if dispatcher.current is not self and not dispatcher.is_being_tried(self):  # else the code that tries it runs the hooks
            dispatcher.finish(self)
        return True

    def cancel(self) -> bool:
        """Cancels the operation: tasks that await it get `OperationCancelled`, `on_complete` is not called.

        Returns:
            True for the one caller that cancelled it, False if it had ended before.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        lifecycle.check_loop(self, "cancel")
        return lifecycle.cancel(self)

    def result(self) -> R:
        """What `on_complete` returned.

        Raises:
            asyncio.InvalidStateError: there is no result yet.
            OperationCancelled: the operation was cancelled.
            BaseException: whatever a hook raised.
        """
        result: Any = self._op_result
        if result is NO_RESULT:
            raise lifecycle.no_result_error(self)
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
        """When it expires, in seconds of the loop's time; `None` until watched, or when there is none."""
        when: float | None = None if self._op_engine is None else self._timer_deadline
        return None if when is None or isinf(when) else when

    def __await__(self) -> Generator[Any, None, R]:
        if not lifecycle.has_result(self):
            lifecycle.check_loop(self, "await")
            future: Future[None] = get_running_loop().create_future()
            waiters = self._op_waiters
            if waiters is None:
                self._op_waiters = future
            elif type(waiters) is dict:
                waiters[future] = None
            else:
                self._op_waiters = {cast("Future[None]", waiters): None, future: None}
            try:
                yield from future
            except BaseException:
                lifecycle.remove_waiter(self, future)
                raise
            finally:
                del future, waiters
        try:
            return self.result()
        finally:
            del self

    _op_finish = lifecycle.finish
    _timer_expired = lifecycle.expire  # pyright: ignore[reportAssignmentType]  # which calls its argument otherwise

    def _op_is_decided(self) -> bool:
        """Whether the outcome is decided, though it has not ended: then it completes rather than being cancelled."""
        return False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For `copy` and `pickle`."""
        if self._op_engine is None and self._op_state is PENDING and self._op_waiters is None:
            return object.__reduce_ex__(self, protocol)
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        try:
            words = [self._op_state.value]
        except AttributeError:
            words = ["not initialised"]
        else:
            if self._op_state is PENDING and self._op_engine is None:
                words.append("unwatched")
            elif self.deadline is not None:
                words.append(f"deadline={self.deadline}")
        return f"<{type(self).__name__} {' '.join(words)}>"


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Op = TypeVarWithDefault("Op", bound=DelayedOperation[Any], default=DelayedOperation[Any])
else:
    Op = TypeVar("Op", bound=DelayedOperation[Any])
