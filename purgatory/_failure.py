"""How an exception is kept in place of a result, and released without the help of the garbage collector.

An operation holds the failure of its hook; the failure holds the exception, the exception its traceback, the traceback the
frame of the hook, and the frame `self`, which is the operation. The frames from which the hook was called are held as well,
by `f_back`, with what their variables were at their end. So when the exception has been handed on, the variables of hooks
that have ended are cleared, and those of this library's functions that had called them: the exception, its traceback and the
lines in it stay.
"""

from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Final, final

_MAY_GO_ON: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_OURS: Final = __name__.partition(".")[0] + "."


@final
class Failure:
    """In place of a result: an exception. `seen` once it was raised to somebody."""

    __slots__ = ("exception", "seen", "traceback")

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception
        self.traceback = exception.__traceback__
        self.seen = False

    @classmethod
    def of_hook(cls, exception: BaseException) -> "Failure":
        """The failure of a hook that raised, without the frame that caught it."""
        here = exception.__traceback__
        exception.__traceback__ = None if here is None else here.tb_next
        return cls(exception)

    def let_go(self) -> None:
        """Clears the variables of frames that have ended and may hold the operation."""
        traceback = self.traceback
        caller = None if traceback is None else traceback.tb_frame.f_back
        while traceback is not None:
            _clear(traceback.tb_frame)
            traceback = traceback.tb_next
        while caller is not None:
            if caller.f_globals.get("__name__", "").startswith(_OURS):
                _clear(caller)
            caller = caller.f_back


def _clear(frame: FrameType) -> None:
    if not frame.f_code.co_flags & _MAY_GO_ON:
        with suppress(RuntimeError):  # it has not ended
            frame.clear()
