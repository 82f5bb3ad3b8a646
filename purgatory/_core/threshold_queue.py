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

The code that removes a waiter from its queue decides its outcome: so there is exactly one outcome.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, where a skip list of (threshold, serial
    number) does this.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Final

from purgatory._core.arguments import describe

UNKNOWN: Final[Any] = object()
"""In place of a value, for a key without one."""


def has_reached(key: object, value: Any, threshold: Any) -> bool:
    """Whether a key whose value is `value` has reached `threshold`.

    Raises:
        ValueError: `threshold` is NaN, or has one in it.
        TypeError: the two cannot be compared, or are not in one order, as two sets may be.
    """
    try:
        if _is_nan(threshold):
            wait = f"wait for {describe(key)} to reach {describe(threshold)}"
            raise ValueError(f"cannot {wait}: nothing ever does; {describe_value(value)}")
        if value is UNKNOWN:
            return False
        if threshold <= value:
            return True
        if value < threshold:
            return False
        why = "neither below nor past it"
    except (TypeError, ArithmeticError) as error:  # Decimal's signalling NaN raises the latter
        why = f"and {error}"
    what = f"cannot tell whether {describe(key)} has reached {describe(threshold)}"
    raise TypeError(f"{what}: {describe_value(value)}, {why}")


def check_advance(key: object, value: Any, known: Any) -> None:
    """Checks that a key whose value is `known` may advance to `value`.

    Raises:
        ValueError: `value` is NaN, or has one in it, or is below `known`.
        TypeError: the two cannot be compared.
    """
    try:
        is_nan = _is_nan(value)
        if not is_nan and (known is UNKNOWN or known <= value):
            return
        why: object = "NaN is no value" if is_nan else "values never go backwards"
        kind: type[Exception] = ValueError
    except (TypeError, ArithmeticError) as error:
        why, kind = error, TypeError
    raise kind(
        f"cannot advance {describe(key)} to {describe(value)}: {describe_value(known)}, and {why}"
    )


def _is_nan(value: Any) -> bool:
    """Whether `value` is NaN, or a tuple with one in it, which is neither below nor past others."""
    if type(value) is tuple:
        return any(map(_is_nan, value))
    return bool(value != value)


def describe_value(value: Any) -> str:
    """The value of a key, for errors."""
    return "it has no value" if value is UNKNOWN else f"it has {describe(value)}"


class ThresholdQueue:
    """A key, its value, and its waiters, by threshold and then by arrival. A waiter is an object
    with a `threshold`.

    Attributes:
        key: as the caller gave it.
        value: `UNKNOWN` for a key without one.
        by_threshold: the waiter of a threshold, or several as a dict in order of arrival.
        size: the number of waiters.
    """

    __slots__ = ("_heap", "by_threshold", "key", "size", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.by_threshold: dict[Any, Any] = {}
        self.size = 0
        self._heap: list[Any] = []

    def add(self, waiter: Any) -> None:
        """Adds `waiter`. Cost: O(log n) comparisons, amortized.

        Raises:
            TypeError: its threshold is not hashable, or cannot be compared with other thresholds;
                nothing has changed.
        """
        threshold, others = waiter.threshold, ""
        try:
            group = self.by_threshold.get(threshold)
            if group is None:
                others = "others wait there, and "
                self._push(threshold)
        except (TypeError, ArithmeticError) as error:
            wait = f"wait for {describe(self.key)} to reach {describe(threshold)}"
            raise TypeError(f"cannot {wait}: {others}{error}") from error
        if group is None:
            self.by_threshold[threshold] = waiter
        elif type(group) is dict:
            group[waiter] = None
        else:
            self.by_threshold[threshold] = {group: None, waiter: None}
        self.size += 1

    def _push(self, threshold: Any) -> None:
        """Adds a threshold to the heap."""
        if len(self._heap) > 2 * len(self.by_threshold):
            self._rebuild()
        heap = self._heap
        at = len(heap)
        # Compare first: an error inside `heappush` would leave the threshold in the heap.
        while at:
            at = (at - 1) // 2
            if not threshold < heap[at]:
                if not heap[at] <= threshold:
                    raise TypeError(f"it is neither below nor past {describe(heap[at])}")
                break
        heappush(heap, threshold)

    def _rebuild(self) -> None:
        """Builds the heap from the thresholds with waiters."""
        self.by_threshold = dict(self.by_threshold)  # a copy has no slots of deleted thresholds
        self._heap = list(self.by_threshold)
        heapify(self._heap)

    def discard(self, waiter: Any) -> bool:
        """Removes `waiter`; False if it has been removed. Cost: O(1), without comparisons."""
        threshold = waiter.threshold
        group = self.by_threshold.get(threshold)
        if type(group) is dict and waiter in group:
            del group[waiter]
        elif group is not waiter:
            return False
        self.size -= 1
        if group is waiter or not group:
            del self.by_threshold[threshold]
            if not self.by_threshold:
                self._heap.clear()
        return True

    def advance(self, value: Any) -> list[Any]:
        """Removes the waiters whose threshold is at most `value`, and returns them in order.

        Cost: one comparison if there is none; otherwise O(log n) comparisons for each threshold.

        Raises:
            ValueError, TypeError: see `check_advance`; nothing has changed.
        """
        check_advance(self.key, value, self.value)
        try:
            reached = self._pop(value) if self._heap and self._heap[0] <= value else None
        except (TypeError, ArithmeticError) as error:
            what = f"advance {describe(self.key)} to {describe(value)}"
            raise TypeError(f"cannot {what}: {describe_value(self.value)}, and {error}") from error
        self.value = value
        return self._take(reached) if reached else []

    def _pop(self, value: Any) -> list[Any]:
        """Removes the thresholds up to `value` from the heap, and returns them in order. The first
        is one of them. An error changes nothing."""
        heap = self._heap
        reached: list[Any] = []
        most = 16 + len(heap) // 32
        try:
            while len(reached) < most:
                reached.append(heappop(heap))
                if not heap or not heap[0] <= value:
                    return reached
            # There are many: sorting is faster than popping.
            reached = sorted([each for each in self.by_threshold if each <= value])
            if len(reached) < len(self.by_threshold):
                self._heap = [each for each in self.by_threshold if not each <= value]
                heapify(self._heap)
            return reached
        except BaseException:
            self._rebuild()
            raise

    def take_above(self, value: Any) -> list[Any]:
        """Removes the waiters whose threshold is above `value`, or all if it is `UNKNOWN`, and
        returns them in order.

        Cost: one comparison for each threshold of the key, and sorting the removed ones.

        Raises:
            TypeError: `value` cannot be compared with the thresholds; nothing has changed.
        """
        is_all = value is UNKNOWN
        return self._take(sorted([each for each in self.by_threshold if is_all or value < each]))

    def clear(self) -> list[Any]:
        """Removes all waiters, and returns them in order of arrival. Makes no comparison, so no
        threshold can keep a purgatory from closing."""
        return self._take(list(self.by_threshold))

    def _take(self, thresholds: list[Any]) -> list[Any]:
        """Removes the waiters of `thresholds`, and returns them in order."""
        waiters: list[Any] = []
        pop = self.by_threshold.pop
        for threshold in thresholds:
            group = pop(threshold, None)
            if type(group) is dict:
                waiters += group
            elif group is not None:
                waiters.append(group)
        self.size -= len(waiters)
        if not self.by_threshold:
            self._heap.clear()
        return waiters

    @property
    def lowest(self) -> Any:
        """The lowest threshold with a waiter; there is one. Cost: as for an advance."""
        while self._heap[0] not in self.by_threshold:
            heappop(self._heap)
        return self._heap[0]

    def _check(self) -> list[Any]:
        """Asserts the whole invariant, and returns the waiters in order. For tests."""
        heap, thresholds = self._heap, sorted(self.by_threshold)
        assert all(heap[(at - 1) // 2] <= heap[at] for at in range(1, len(heap)))
        assert set(heap) >= set(thresholds) and bool(heap) == bool(thresholds)
        assert self.value is UNKNOWN or not thresholds or self.value < thresholds[0]
        waiters: list[Any] = []
        for threshold in thresholds:
            group = self.by_threshold[threshold]
            waiters += group if type(group) is dict else [group]
            assert group and waiters[-1].threshold == threshold
        assert len(waiters) == self.size
        return waiters
