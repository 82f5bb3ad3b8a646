"""An empty purgatory: it keeps nothing. So its cost is the generator's own share."""

from collections.abc import Hashable, Sequence

from benchmarks.baselines.implementations.interface import Request


class Unkept(Request):
    """A request that is not kept. It is counted when it is completed, and never expires."""

    __slots__ = ()

    def force_complete(self) -> bool:
        if self.done:
            return False
        self.done = True
        self.on_complete()
        return True


class EmptyPurgatory:
    """A purgatory without anything in it."""

    def __init__(self) -> None:
        self.new_request = Unkept
        self.complete = Unkept.force_complete

    def watch(self, request: Unkept, keys: Sequence[Hashable]) -> None:
        """Keeps nothing."""

    def check_and_complete(self, key: Hashable) -> int:
        return 0

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        """Does nothing."""
