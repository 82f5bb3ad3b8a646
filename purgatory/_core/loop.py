"""The event loop that an object belongs to: the one in which it is used first; and how much work
is done in one of its iterations.

Each public method begins with the check `running_loop() is binding.loop`, as in asyncio; if it
fails, the method calls `bind`, which binds the object at its first use and refuses the call
otherwise.
"""

import os
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop, _set_running_loop, events
from collections.abc import Callable
from contextvars import Context
from threading import RLock
from time import monotonic
from typing import Any, Final

from purgatory._core.arguments import describe
from purgatory._core.errors import WrongLoop
from purgatory._core.kernel import PYPY, constants, fields

Report = Callable[[str, BaseException | None], object]
"""Called with a message, and the exception of user code or None. Does not raise: see `report`."""

UNBOUND: Final[Any] = object()
"""In place of a loop, until there is one. Not `None`, which `running_loop` returns outside any
loop."""

running_loop: Callable[[], AbstractEventLoop | None] = _get_running_loop
"""The loop that runs in this thread, or None."""
if PYPY:
    # Python's own asks the system for the process id at each call: 160 ns there, this one 6 ns.
    _running: Final[Any] = getattr(events, "_running_loop")  # noqa: B009  # typeshed has none

    def _pypy_running_loop() -> AbstractEventLoop | None:
        return _running.loop_pid[0]  # type: ignore[no-any-return]

    running_loop = _pypy_running_loop
    # The loop runs in the parent alone; CPython compares the process id for that reason.
    os.register_at_fork(after_in_child=lambda: _set_running_loop(None))

constants(running_loop=running_loop)

MAX_PER_ITERATION: Final = 512
"""Limit of the work in one iteration of the loop before other callbacks can run: the number of
operations tried or ended, or of entries moved. It takes about a millisecond."""

REGISTRATIONS_PER_STEP: Final = 8
"""Watch lists from which an operation can be removed at the cost of trying one."""

_binding: Final = RLock()
"""Two threads, or a signal handler, may use an object for the first time at once; so rare that all
objects share a lock."""


@fields
class LoopBinding:
    """The loop of an object.

    Attributes:
        loop: the event loop; `UNBOUND` until there is one.
        time: its clock, in seconds.
    """

    __slots__ = ("loop", "time")

    def __init__(self) -> None:
        self.loop: AbstractEventLoop = UNBOUND
        self.time: Callable[[], float] = float

    @property
    def is_bound(self) -> bool:
        return self.loop is not UNBOUND

    def bind(
        self, action: str, value: object = UNBOUND, pending: int = 0, threadsafe: str = ""
    ) -> bool:
        """Binds the object to the running loop, or checks that it is bound to it. If its loop is
        closed and nothing is pending, it is bound to the running loop.

        Args:
            action: what could not be done, for the error.
            value: replaces `{}` in it. It is described only if there is an error.
            pending: how many operations wait in the object.
            threadsafe: the method that does the same from other threads, if there is one, for the
                error.

        Returns:
            Whether it is bound to another loop than before.

        Raises:
            WrongLoop: no loop is running here, or another one.
        """
        loop = running_loop()
        if loop is not None:
            with _binding:
                if self.loop is UNBOUND or (
                    self.loop is not loop and self.loop.is_closed() and not pending
                ):
                    self.loop, self.time = loop, clock_of(loop)
                    return True
            if loop is self.loop:
                return False
        if value is not UNBOUND:
            action = action.replace("{}", describe(value), 1)
        raise WrongLoop(f"cannot {action}: {self._wrong_loop_reason(loop, pending, threadsafe)}")

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """Has `function(*args)` called on the loop soon, in an empty context; from any thread,
        signal handler or finalizer.

        Returns:
            `False` if there is no loop yet, or it is closed.
        """
        if not self.is_bound or self.loop.is_closed():
            return False
        try:
            self.loop.call_soon_threadsafe(function, *args, context=Context())
        except RuntimeError:
            if self.loop.is_closed():  # since a moment ago; any other reason is unexpected
                return False
            raise
        return True

    def _wrong_loop_reason(
        self, running: AbstractEventLoop | None, pending: int, threadsafe: str
    ) -> str:
        if self.loop is UNBOUND:
            hint = f"; from a thread without one, call {threadsafe}" if threadsafe else ""
            return f"no event loop is running in this thread to be bound to{hint}"
        if self.loop.is_closed():
            waiting = f", and {pending} wait there for ever" if pending else ""
            why = (
                f"that loop is closed{waiting}; use one for each loop, or close it before its loop"
            )
        elif self.loop.is_running():
            allowed = (
                f"call {threadsafe}"
                if threadsafe
                else "only the *_threadsafe methods may be called"
            )
            why = f"this is another thread; from there {allowed}"
        elif running is None:
            why = "no event loop is running"
        else:
            why = f"the running loop is {running!r}"
        return f"bound to {self.loop!r}, but {why}"


def clock_of(loop: AbstractEventLoop) -> Callable[[], float]:
    """The clock of `loop`: `time.monotonic` itself where `loop.time` only calls that (5 % of an
    operation's cycle)."""
    if getattr(loop.time, "__func__", None) is BaseEventLoop.time:
        return monotonic
    return loop.time


def report(loop: AbstractEventLoop, message: str, error: BaseException | None) -> None:
    """Passes an error in user code to the exception handler of `loop`. Does not raise, because the
    caller may have work left: an exit of the handler is raised in the next iteration."""
    context: dict[str, Any] = {"message": message}
    if error is not None:
        context["exception"] = error
    try:
        loop.call_exception_handler(context)
    except BaseException as handler_error:
        raise_later(loop, handler_error)


def raise_later(loop: AbstractEventLoop, error: BaseException) -> None:
    """Raises an exit in the next iteration of the loop, out of `run_forever`."""
    loop.call_soon(_raise, error, context=Context())


def _raise(error: BaseException) -> None:
    raise error
