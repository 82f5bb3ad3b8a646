"""The delayed operation: what users subclass, its states, and the compare-and-set by which it ends exactly once.

                       force_complete
               ┌──────────────────────────> COMPLETED   on_complete
               │       deadline
    PENDING ───┼──────────────────────────> EXPIRED     on_complete, on_expiration
               │       cancel, aclose, a try that raised
               └──────────────────────────> CANCELLED

Every path goes through `_op_claim`, which makes the move if it is a legal one and tells the caller whether it was the
one that made it. The claim takes the operation out of the wheel and out of all its watch lists in the same breath, so
no user code ever sees an ended operation that something still holds. The hooks run after that, one at a time (`_engine`).

Names of private attributes begin with `_op_`: subclasses are the users' and `_state` or `_result` would be theirs.

Kafka's counterpart is `DelayedOperation`, whose `completed` is an `AtomicBoolean`; asyncio's is `Future`, from which
`result` and the way exceptions are handed on are taken.
"""

from abc import ABC, abstractmethod
from asyncio import Future, InvalidStateError, get_running_loop
from asyncio import _get_running_loop as running_loop
from collections.abc import Generator
from contextlib import suppress
from enum import Enum
from math import inf, isinf
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from purgatory._dispatcher import Dispatcher, running_dispatcher
from purgatory._errors import OperationCancelled, WrongLoop
from purgatory._failure import Failure
from purgatory._timer import LoopWheel
from purgatory._watchers import NO_PLACES, Places, Watchers
from purgatory._wheel import Entry

R = TypeVar("R")


class OperationState(Enum):
    """Where an operation stands. It leaves `PENDING` exactly once."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


PENDING: Final = OperationState.PENDING
COMPLETED: Final = OperationState.COMPLETED
EXPIRED: Final = OperationState.EXPIRED
CANCELLED: Final = OperationState.CANCELLED

LEGAL_MOVES: Final = {
    PENDING: {COMPLETED, EXPIRED, CANCELLED},
    COMPLETED: set[OperationState](),
    EXPIRED: set[OperationState](),
    CANCELLED: set[OperationState](),
}
"""What `_op_claim` allows: as only `PENDING` can be left, it asks for no more than that."""


_NOTHING: Final = object()


class Engine(Protocol):
    """What an operation knows of the purgatory that it is in."""

    name: str
    loop: Any
    room: Dispatcher
    wheel: LoopWheel
    watchers: Watchers
    by_key: dict[Any, Any]
    completed: int
    cancelled: int
    observed: bool

    def bind(self, doing: str) -> None: ...
    def tell(self, operation: Any) -> None: ...
    def expire(self, operation: Any) -> None: ...


class DelayedOperation(Entry, ABC, Generic[R]):
    """An operation that cannot be answered yet: it waits for a condition or for its deadline, whichever comes first.

    Subclasses say what the condition is (`try_complete`) and what to answer (`on_complete`). Give it to
    `Purgatory.wait`, or to `Purgatory.try_complete_else_watch` and await it, from any number of tasks. An operation
    serves once. A subclass with `__slots__` saves memory; one with `__init__` calls this one's.

    The hooks are plain functions, called on the loop's thread, one at a time for all operations of a purgatory: a hook
    may call anything here, and what it sets off runs when it has returned. They run in the context of whoever completes
    the operation. An exception of a hook goes to those who await the operation, or, if nobody has done so by the next
    turn of the loop, to the loop's exception handler.

    Args:
        timeout: seconds from when it is first watched; `None` and `inf` mean no deadline; zero and less mean that it is
            tried once and then expires.
        deadline: the same as an instant of the loop's time. Excludes `timeout`.

    Raises:
        ValueError: a time is NaN, or both were given.
    """

    __slots__ = ("__weakref__", "_op_engine", "_op_places", "_op_result", "_op_state", "_op_timeout", "_op_waiters")

    _op_state: OperationState
    _op_timeout: float | None
    _op_engine: Engine | None
    _op_places: Places
    _op_result: Any  # the result or a Failure; unset until the hooks have run
    _op_waiters: "Future[None] | dict[Future[None], None] | None"

    def __init__(self, timeout: float | None = None, *, deadline: float | None = None) -> None:
        if timeout is None or deadline is not None or not timeout > 0.0:
            self._op_set_deadline(timeout, deadline)
            timeout = None
        self._op_timeout = timeout
        self._op_state = PENDING
        self._op_engine = None
        self._op_places = NO_PLACES
        self._op_waiters = None

    def _op_set_deadline(self, timeout: float | None, deadline: float | None) -> None:
        """Everything but a positive timeout comes down to a deadline; one that is over at once to `-inf`."""
        if timeout is not None and deadline is not None:
            raise ValueError(f"timeout ({timeout!r}) and deadline ({deadline!r}) exclude each other")
        if timeout != timeout or deadline != deadline:
            raise ValueError(f"{'deadline' if timeout is None else 'timeout'} cannot be NaN")
        self._wheel_when = deadline if timeout is None else -inf

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._op_require_identity()

    @classmethod
    def _op_require_identity(cls) -> None:
        """Raises `TypeError` if two operations of this class may be equal, which a decorator can bring about at any time."""
        if cls.__eq__ is not object.__eq__ or cls.__hash__ is not object.__hash__:
            raise TypeError(f"{cls.__name__} defines __eq__ or __hash__, but operations are told apart by identity")

    # -- for subclasses

    @abstractmethod
    def try_complete(self) -> bool:
        """Completes the operation if its condition holds: `return condition and self.force_complete()`.

        Called when the operation is first watched, at each `check_and_complete` of its keys, and once at its deadline.
        If it raises, the operation is cancelled and the exception goes to whoever awaits it.
        """

    def on_complete(self) -> R:
        """Called exactly once, when the operation has completed or expired (`state` tells). What it returns is the
        result; what it raises is raised to whoever awaits the operation. By default the result is `None`."""
        return None  # type: ignore[return-value]  # unless R is, subclasses have their own

    def on_expiration(self) -> None:
        """Called after `on_complete`, if the operation has expired. By default nothing."""

    # -- for everyone

    def force_complete(self) -> bool:
        """Completes the operation, whether its condition holds or not.

        Returns:
            True for the one caller that completed it, False if it had ended before. When it returns, the operation is
            out of the wheel and of all watch lists; `on_complete` has run, unless a hook is running, this operation's
            own `try_complete` included: then it runs when that hook has returned.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        engine = self._op_engine
        if engine is None or running_loop() is not engine.loop:
            return self._op_complete_from_outside()
        room = engine.room
        if not self._op_claim(COMPLETED):
            return False
        engine.completed += 1
        current = room.current
        if current is self:  # its own try: whoever called that runs the hooks
            return True
        if current is None:
            room.current = self
            try:
                self._op_run_hooks()
                if engine.observed:
                    engine.tell(self)
            finally:
                room.current = None
            if room.unsettled:
                room.settle()
        elif not room.is_trying(self):
            room.put_off(self)
        return True

    def cancel(self) -> bool:
        """Cancels the operation: whoever awaits it gets `OperationCancelled`, `on_complete` is not called.

        Returns:
            True for the one caller that cancelled it, False if it had ended before.

        Raises:
            WrongLoop: called from another loop or thread than the purgatory's; nothing has changed.
        """
        engine = self._op_engine
        self._op_check_loop("cancel")
        if not self._op_claim(CANCELLED):
            return False
        if self._op_waiters is not None:
            self._op_answer()
        if engine is not None:
            engine.cancelled += 1
            if engine.observed and not engine.room.is_trying(self):
                engine.room.conclude(self)
        return True

    def result(self) -> R:
        """What `on_complete` returned.

        Raises:
            asyncio.InvalidStateError: there is no result yet.
            OperationCancelled: the operation was cancelled.
            BaseException: whatever a hook raised.
        """
        result: Any
        try:
            result = self._op_result
        except AttributeError:
            result = _NOTHING
        if result is _NOTHING:
            raise self._op_no_result()
        if type(result) is Failure:
            result.seen = True
            result.let_go()
            try:
                raise result.exception.with_traceback(result.traceback)
            finally:
                del result, self  # which would make a cycle with the exception's traceback
        return result  # type: ignore[no-any-return]

    @property
    def state(self) -> OperationState:
        """Where the operation stands."""
        return self._op_state

    @property
    def is_completed(self) -> bool:
        """Whether the operation is no longer pending, however it ended."""
        return self._op_state is not PENDING

    @property
    def deadline(self) -> float | None:
        """When it expires, in seconds of the loop's time; `None` until watched, or when there is none."""
        when: float | None = None if self._op_engine is None else getattr(self, "_wheel_when", None)
        return None if when is None or isinf(when) else when

    def __await__(self) -> Generator[Any, None, R]:
        if self._op_state is PENDING or not self._op_is_answered():
            self._op_check_loop("await")
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
                self._op_forget(future)
                raise
            finally:
                del future, waiters
        try:
            return self.result()
        finally:
            del self

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

    # -- for the engine

    def _op_claim(self, state: OperationState) -> bool:
        """The compare-and-set: leaves PENDING for `state`, the wheel and the watch lists; False if another came first."""
        if self._op_state is not PENDING:
            return False
        self._op_state = state
        places = self._op_places
        if places is not NO_PLACES:
            engine = self._op_engine
            assert engine is not None
            bucket = self._wheel_bucket
            if bucket is not None:
                del bucket[self]
                self._wheel_bucket = None
                if not bucket and not bucket.wheel.resting:
                    bucket.wheel.emptied()
            if type(places) is tuple:
                engine.watchers.remove(self, places)
            else:
                # What `Watchers.remove` does with one key.
                try:
                    found = engine.by_key.pop(places, None)
                except BaseException as error:
                    found = error
                if found is not self:
                    engine.watchers.has_strayed(self, places, found)
            if bucket is None and not engine.by_key and state is not EXPIRED and not engine.wheel.resting:
                engine.wheel.emptied()
            if not engine.observed:
                self._op_places = NO_PLACES
        return True

    def _op_conclude(self) -> None:
        """Does what remains to be done for an operation that was claimed."""
        engine = self._op_engine
        if not self._op_is_answered():
            self._op_run_hooks()
        if engine is not None and engine.observed:
            engine.tell(self)

    def _op_run_hooks(self) -> None:
        """Runs the hooks of an operation that was claimed as completed or expired, and answers whoever awaits it."""
        try:
            self._op_result = self.on_complete()
        except BaseException as error:
            self._op_failed(error)
        if self._op_state is EXPIRED:
            try:
                self.on_expiration()
            except BaseException as error:
                self._op_failed(error)
        if self._op_waiters is not None:
            self._op_answer()

    def _op_failed(self, error: BaseException) -> None:
        """Makes the exception of a hook the result; a second one is reported instead. Exits are passed on as well."""
        if type(getattr(self, "_op_result", None)) is Failure:
            _report(f"a second hook of {self!r} raised", error)
        else:
            self._op_result = failure = Failure.of_hook(error)
            if self._op_waiters is None:
                self._op_report(failure)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            if self._op_waiters is not None:
                self._op_answer()
            running_dispatcher().put_off(self)  # what remains to be done for it, while the exit goes its way
            running_dispatcher().continue_later()
            raise error

    def _op_report(self, failure: Failure) -> None:
        """Reports a failure, unless somebody who awaits the operation has seen it by then.

        In the turn after the next: whoever begins to await it in this one or the next sees it before.
        """
        with suppress(RuntimeError):  # outside any loop there is nobody to tell
            get_running_loop()
            running_dispatcher().report_soon(f"a hook of {self!r} raised, and nobody awaits it", failure)

    def _op_answer(self) -> None:
        """Wakes whoever awaits the operation."""
        waiters, self._op_waiters = self._op_waiters, None
        for future in waiters if type(waiters) is dict else [cast("Future[None]", waiters)]:
            if not future.done():
                future.set_result(None)

    def _op_forget(self, future: "Future[None] | None") -> None:
        """Whoever waited for `future` does so no longer; if it was the last one, nobody will see a failure."""
        waiters = self._op_waiters
        if waiters is future:
            self._op_waiters = None
        elif type(waiters) is dict:
            waiters.pop(cast("Future[None]", future), None)
        failure = getattr(self, "_op_result", None)
        if type(failure) is Failure and not failure.seen and self._op_waiters is None:
            self._op_report(failure)

    def _op_is_answered(self) -> bool:
        return self._op_state is CANCELLED or hasattr(self, "_op_result")

    def _op_no_result(self) -> Exception:
        if self._op_state is CANCELLED:
            return OperationCancelled(f"{self!r} has no result: it was cancelled")
        if self._op_state is PENDING:
            return InvalidStateError(f"{self!r} has no result yet: it is pending")
        return InvalidStateError(f"{self!r} has no result yet: its on_complete has not run")

    def _op_check_loop(self, doing: str) -> None:
        """Raises `WrongLoop` if this is not the loop of those who wait for the operation, or of its purgatory."""
        engine, waiters = self._op_engine, self._op_waiters
        if engine is not None:
            if running_loop() is not engine.loop:
                engine.bind(f"{doing} {self!r}")
        elif waiters is not None:
            loop = (next(iter(waiters)) if type(waiters) is dict else cast("Future[None]", waiters)).get_loop()
            if loop is not running_loop():
                raise WrongLoop(f"cannot {doing} {self!r}: it is awaited on {loop!r}, this is {running_loop()!r}")

    def _op_complete_from_outside(self) -> bool:
        engine = self._op_engine
        self._op_check_loop("complete")
        if not self._op_claim(COMPLETED):
            return False
        if engine is not None:
            engine.completed += 1
        running_dispatcher().conclude(self)
        return True

    def _wheel_due(self) -> None:
        engine = self._op_engine
        assert engine is not None
        engine.expire(self)


def _report(message: str, error: BaseException) -> None:
    get_running_loop().call_exception_handler({"message": message, "exception": error})
