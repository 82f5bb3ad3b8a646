"""The pending operations of a shard, and the queues of their keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from purgatory._core.threshold_queue import UNKNOWN, ThresholdQueue


class StreamWaiter:
    """An operation in the queue of one of its keys."""

    __slots__ = ("operation_id", "threshold")

    def __init__(self, operation_id: str, threshold: int) -> None:
        self.operation_id = operation_id
        self.threshold = threshold


class StreamQueue(ThresholdQueue):
    """The queue of a key, with its waiters by operation id."""

    __slots__ = ("last_at", "waiters")

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.waiters: dict[str, StreamWaiter] = {}
        self.last_at: int | None = None
        """The instant of its last signal, if keys are forgotten. As long as it is set, the event
        queue has one check of this key."""

    def watch(self, operation_id: str, threshold: int) -> None:
        """Adds an operation."""
        waiter = self.waiters[operation_id] = StreamWaiter(operation_id, threshold)
        self.add(waiter)

    def unwatch(self, operation_id: str) -> None:
        """Removes an operation."""
        self.discard(self.waiters.pop(operation_id))

    @property
    def known(self) -> int | None:
        """Its value; `None` if it has none."""
        return None if self.value is UNKNOWN else int(self.value)

    def reach(self, value: int) -> Iterator[str]:
        """Raises the value of the key to `value`, and removes the operations that waited for it. A
        lower one has no effect."""
        if not self.has_reached(value):
            for waiter in self.advance(value):
                del self.waiters[waiter.operation_id]
                yield waiter.operation_id


@dataclass(slots=True)
class Pending:
    """A waiting operation; or an ended one, kept until its deadline to recognize copies."""

    deadline: int
    mode: str = ""
    requirements: tuple[tuple[str, int], ...] = ()
    """Empty if it has ended."""
    satisfied: set[str] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        return not self.requirements

    def is_complete(self) -> bool:
        return (
            len(self.satisfied) == len(self.requirements)
            if self.mode == "all"
            else bool(self.satisfied)
        )
