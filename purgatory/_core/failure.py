"""An exception, stored in place of a result."""

from typing import final


@final
class Failure:
    """In place of a result: an exception, with the traceback that it had when it was raised.

    Attributes:
        retrieved: whether it was raised in a task that awaits it, as in asyncio's "exception was
            never retrieved".
    """

    __slots__ = ("exception", "retrieved", "traceback")

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception
        self.traceback = exception.__traceback__
        self.retrieved = False

    @classmethod
    def of_hook(cls, exception: BaseException) -> "Failure":
        """The failure of a hook that raised, without the frame that caught it."""
        here = exception.__traceback__
        exception.__traceback__ = None if here is None else here.tb_next
        return cls(exception)
