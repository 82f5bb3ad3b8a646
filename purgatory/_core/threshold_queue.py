"""The waits for one key's value to reach a threshold, in order of thresholds. It has no loop and no
clock.

    the value of "orders" is 41, with waiters for     42: A, D     45: B     60: C
    advance(47)                                       removes A, D and B, in this order; C keeps
                                                      waiting
    advance(46)                                       ValueError, without any change: values never
                                                      decrease

A dict has the waiters of each threshold, in order of arrival, and a heap has the thresholds. A
waiter that leaves is deleted from the dict alone. Its threshold stays in the heap until an advance
passes it, or until a new one arrives and less than half of the heap has waiters: so the heap never
has more than twice as many thresholds as have waited at once.

As in `heapq` and `sorted`, the order of thresholds must be total, and an exception of a comparison
is raised to the caller. The first comparison precedes every change, so the exception of two types
that cannot be compared changes nothing.

The code that removes a waiter from its queue decides its outcome: so there is exactly one outcome.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, where a skip list of (threshold, serial
    number) does this.
"""

from bisect import bisect_right
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Final

from purgatory._core.arguments import describe

UNKNOWN: Final[Any] = object()
"""The value of a key without one."""


def describe_value(value: Any) -> str:
    """The value of a key, for errors."""
    return "it has no value" if value is UNKNOWN else f"it has {describe(value)}"


def require_advance(key: object, value: Any, known: Any = UNKNOWN) -> None:
    """Raises `ValueError` if a key with the value `known` cannot advance to `value`: that is lower,
    or NaN, which is neither lower nor higher."""
    if value != value or not (known is UNKNOWN or known <= value):
        why = "NaN is no value" if value != value else "values never go backwards"
        what = f"advance {describe(key)} to {describe(value)}"
        raise ValueError(f"cannot {what}: {describe_value(known)}, and {why}")


class ThresholdQueue:
    """A key, its value, and its waiters, by threshold and then by arrival. A waiter is an object
    with a `threshold`.

    Attributes:
        key: the key, as the caller gave it.
        value: `UNKNOWN` for a key without one.
        by_threshold: the waiter of each threshold, or several as a dict in order of arrival.
        size: the number of waiters.
    """

    __slots__ = ("_heap", "by_threshold", "key", "size", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.by_threshold: dict[Any, Any] = {}
        self.size = 0
        self._heap: list[Any] = []

    def has_reached(self, threshold: Any) -> bool:
        """Whether the key has a value that is at least `threshold`."""
        return self.value is not UNKNOWN and bool(threshold <= self.value)

    def add(self, waiter: Any) -> None:
        """Adds `waiter`. Cost: O(log n) comparisons, amortized.

        Raises:
            TypeError: its threshold is not hashable, or cannot be compared with other thresholds;
                nothing has changed.
        """
        threshold, heap, groups = waiter.threshold, self._heap, self.by_threshold
        if threshold not in groups:
            if len(heap) > 2 * len(groups):
                heap[:] = groups
                heapify(heap)
            if heap:
                _ = threshold < heap[0]  # an exception in `heappush` would leave it there
            heappush(heap, threshold)
        both: dict[Any, None] = {}
        # From here on nothing may run a finalizer, in which other waiters leave: no call.
        group = groups[threshold] if threshold in groups else None  # noqa: SIM401
        if group is None:
            groups[threshold] = waiter
        elif group.__class__ is dict:
            group[waiter] = None
        else:
            both[group] = both[waiter] = None
            groups[threshold] = both
        self.size += 1

    def discard(self, waiter: Any) -> bool:
        """Removes `waiter`; False if it has been removed. Cost: O(1), without comparisons."""
        group = self.by_threshold.get(waiter.threshold)
        if type(group) is dict and waiter in group:
            del group[waiter]
        elif group is not waiter:
            return False
        if group is waiter or not group:
            del self.by_threshold[waiter.threshold]
        self.size -= 1
        return True

    def advance(self, value: Any) -> list[Any]:
        """Removes the waiters with a threshold of at most `value`, and returns them in order.

        Cost: one comparison if there is none; otherwise O(log n) comparisons for each threshold.

        Raises:
            ValueError: `value` is NaN, or below the key's value; nothing has changed.
            TypeError: it cannot be compared with that or with the thresholds; nothing has changed.
        """
        require_advance(self.key, value, self.value)
        heap = self._heap
        reached: list[Any] = []
        while heap and heap[0] <= value:
            if len(reached) > 16 + len(heap) // 32:  # many: to sort is faster than to pop
                heap.sort()
                end = bisect_right(heap, value)
                reached += heap[:end]
                del heap[:end]
                break
            reached.append(heappop(heap))
        self.value = value
        return self._take(reached) if reached else reached

    def take(self, above: Any = UNKNOWN) -> list[Any]:
        """Removes the waiters with a threshold above a value, by default all, and returns them in
        the order in which their thresholds arrived.

        Cost: one comparison for each threshold of the key.

        Raises:
            TypeError: `above` cannot be compared with the thresholds; nothing has changed.
        """
        return self._take(
            [each for each in list(self.by_threshold) if above is UNKNOWN or above < each]
        )

    def _take(self, thresholds: Iterable[Any]) -> list[Any]:
        """Removes the waiters of `thresholds`, and returns them in order."""
        waiters: list[Any] = []
        for threshold in thresholds:
            group = self.by_threshold.pop(threshold, None)
            if type(group) is dict:
                waiters += group
            elif group is not None:
                waiters.append(group)
        self.size -= len(waiters)
        return waiters

    @property
    def lowest(self) -> Any:
        """The lowest threshold with a waiter; there is one. Cost: as for an advance."""
        while self._heap[0] not in self.by_threshold:
            heappop(self._heap)
        return self._heap[0]
