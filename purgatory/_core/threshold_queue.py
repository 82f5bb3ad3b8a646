"""The waits for one key's value to reach a threshold, in order of thresholds. It has no loop and no
clock.

    the value of "orders" is 41, with waiters for     42: A, D     45: B     60: C
    advance(47)                                       removes A, D and B, in this order; C keeps
                                                      waiting
    advance(46)                                       ValueError, without any change: values never
                                                      decrease

The order is kept in *segments*: sorted lists of up to 512 different thresholds, where Python's
`bisect` finds an index with O(log n) comparisons and C moves at most 4 KB for an insertion. Equal
thresholds share an index, in order of arrival. A heap would do, but an advance mostly removes the
first one, which costs a heap O(log n) steps, with cache misses; here it is the head of a list.

The code that removes a waiter from its queue decides its outcome: so there is exactly one outcome.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, where a skip list of (threshold, serial
    number) does this.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, Protocol, cast

from purgatory._core.arguments import describe

UNKNOWN: Final[Any] = object()
"""In place of a value, for a key without one."""

SEGMENT_CAPACITY: Final = 512

_last = itemgetter(-1)


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
    """Whether `value` is NaN, or a tuple or list with one in it, which is neither below nor past
    others."""
    if type(value) is tuple or type(value) is list:
        return any(map(_is_nan, value))
    return bool(value != value)


def describe_value(value: Any) -> str:
    """The value of a key, for errors."""
    return "it has no value" if value is UNKNOWN else f"it has {describe(value)}"


class HasThreshold(Protocol):
    """A waiter."""

    threshold: Any


Waiters = HasThreshold | dict[HasThreshold, None]
"""The waiter of a threshold, or several in order of arrival."""


class Segment(list[Any]):
    """Different thresholds, ascending, and the waiters of each."""

    __slots__ = ("size", "waiters")

    def __init__(self, thresholds: Iterable[Any], waiters: list[Waiters], size: int) -> None:
        super().__init__(thresholds)
        self.waiters = waiters
        self.size = size
        """The number of waiters."""


class ThresholdQueue:
    """A key, its value, and its waiters, by threshold and then by arrival."""

    __slots__ = ("_changes", "is_discarded", "key", "segments", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.segments: list[Segment] = []
        """Ascending; none is empty."""
        self.is_discarded = False
        """Whether the key was forgotten, so that nothing can find the queue."""
        self._changes = 0
        """Incremented by each change of `segments`. Comparing runs user code, and allocating may
        run a finalizer; if either has changed them, a search is repeated."""

    def add(self, waiter: HasThreshold) -> None:
        """Adds `waiter`. Cost: O(log n) comparisons.

        Raises:
            TypeError: its threshold cannot be compared with other thresholds; nothing has changed.
        """
        threshold = waiter.threshold
        while True:
            changes, segments = self._changes, self.segments
            if not segments:
                first = Segment((threshold,), [waiter], 1)
                if self._changes == changes:
                    self._changes += 1
                    segments.append(first)
                    return
                continue
            try:
                at, index, is_new = self._place_of(threshold)
                segment = segments[at]
                group = None if is_new else segment.waiters[index]
            except IndexError:
                if self._changes == changes:
                    raise
                continue
            if group is not None and type(group) is not dict:
                group = {cast(HasThreshold, group): None}
            if self._changes == changes:
                break
        self._changes += 1
        segment.size += 1
        if type(group) is dict:
            group[waiter] = None
            segment.waiters[index] = group
        else:
            segment.insert(index, threshold)
            segment.waiters.insert(index, waiter)
            if len(segment) > SEGMENT_CAPACITY:
                self._split(at)

    def _place_of(self, threshold: Any) -> tuple[int, int, bool]:
        """The indices of a segment and in it, and whether the threshold is a new one.

        Raises:
            TypeError: it cannot be compared with other thresholds.
        """
        segments = self.segments
        try:
            at = min(bisect_left(segments, threshold, key=_last), len(segments) - 1)
            segment = segments[at]
            index = bisect_left(segment, threshold)
            is_new = index == len(segment) or bool(threshold < segment[index])
            if not is_new and not threshold <= segment[index]:
                raise TypeError(f"it is neither below nor past {describe(segment[index])}")
        except (TypeError, ArithmeticError) as error:
            wait = f"wait for {describe(self.key)} to reach {describe(threshold)}"
            raise TypeError(f"cannot {wait}: others wait there, and {error}") from error
        return at, index, is_new

    def _split(self, at: int) -> None:
        changes, segment, half = self._changes, self.segments[at], SEGMENT_CAPACITY // 2
        waiters = segment.waiters[half:]
        upper = Segment(segment[half:], waiters, _waiter_count(waiters))
        if self._changes == changes:  # else a later addition splits it
            self._changes += 1
            segment.size -= upper.size
            del segment[half:], segment.waiters[half:]
            self.segments.insert(at + 1, upper)

    def discard(self, waiter: HasThreshold) -> bool:
        """Removes `waiter`; False if it has been removed. Cost: O(log n) comparisons."""
        threshold, segments = waiter.threshold, self.segments
        while True:
            changes = self._changes
            try:
                at = bisect_left(segments, threshold, key=_last)
                index = bisect_left(segments[at], threshold) if at < len(segments) else 0
            except IndexError:
                if self._changes == changes:
                    raise
                continue
            if self._changes == changes:
                break
        if at == len(segments):
            return False
        segment = segments[at]
        waiting = segment.waiters[index]
        if type(waiting) is dict:
            if waiter not in waiting:
                return False
            del waiting[waiter]
        elif waiting is not waiter:
            return False
        self._changes += 1
        segment.size -= 1
        if waiting is waiter or not waiting:
            # Keep the threshold until both lists are consistent, because its `__del__` may come
            # here.
            threshold = segment.pop(index)
            del segment.waiters[index]
            if not segment:
                del segments[at]
        return True

    def advance(self, value: Any) -> list[Waiters]:
        """Removes the waiters whose threshold is at most `value`, and returns them in order.

        Cost: one comparison if there is none; otherwise one for each segment, and O(log n) of those
            it takes from the last.

        Raises:
            ValueError, TypeError: see `check_advance`; nothing has changed.
        """
        while True:
            changes, segments = self._changes, self.segments
            check_advance(self.key, value, self.value)
            try:
                if not segments or not segments[0][0] <= value:
                    if self._changes != changes:
                        continue
                    self._changes += 1
                    self.value = value
                    return []
                whole, part = _reached(segments, value)
            except (TypeError, ArithmeticError) as error:
                what = f"advance {describe(self.key)} to {describe(value)}"
                raise TypeError(
                    f"cannot {what}: {describe_value(self.value)}, and {error}"
                ) from error
            except IndexError:
                if self._changes == changes:
                    raise
                continue
            taken = segments[:whole]
            waiters = _concat(taken)
            # Keep the thresholds until both lists are consistent, because a `__del__` may come
            # here.
            first = segments[whole][:part] if part else []
            others = segments[whole].waiters[:part] if part else []
            size = _waiter_count(others)
            if self._changes == changes:
                break
        self._changes += 1
        self.value = value
        if part:
            segment = segments[whole]
            segment.size -= size
            del segment[:part], segment.waiters[:part]
        del segments[:whole]
        del taken, first
        return waiters + others

    def forget(self) -> None:
        """Deletes the value."""
        self._changes += 1
        self.value = UNKNOWN

    def take_above(self, value: Any) -> list[Waiters]:
        """Removes the waiters whose threshold is above `value`, and returns them in order.

        Cost: O(log n) comparisons, and one pointer for each.

        Raises:
            TypeError: `value` cannot be compared with the thresholds; nothing has changed.
        """
        while True:
            changes, segments = self._changes, self.segments
            try:
                at = bisect_right(segments, value, key=_last)
                index = bisect_right(segments[at], value) if at < len(segments) else 0
            except IndexError:
                if self._changes == changes:
                    raise
                continue
            is_cut = at < len(segments)
            taken = segments[at:]
            waiters = _concat(taken[1:])
            first = segments[at][index:] if is_cut else []
            others = segments[at].waiters[index:] if is_cut else []
            size = _waiter_count(others)
            if self._changes == changes:
                break
        self._changes += 1
        if is_cut:
            segment = segments[at]
            segment.size -= size
            del segment[index:], segment.waiters[index:]
        del segments[at + bool(index) :]
        del taken, first
        return others + waiters

    def clear(self) -> list[Waiters]:
        """Removes all waiters, and returns them in order. Cost: one pointer for each."""
        taken = self.segments[:]
        self._changes += 1
        self.segments.clear()
        return _concat(taken)

    def _check(self, waiters: list[Any]) -> None:
        """Asserts the whole invariant, and appends the waiters to `waiters`. For tests."""
        thresholds = [threshold for segment in self.segments for threshold in segment]
        assert all(low < high for low, high in pairwise(thresholds))
        assert self.value is UNKNOWN or not thresholds or self.value < thresholds[0]
        assert self.value is not UNKNOWN or thresholds
        for segment in self.segments:
            assert 0 < len(segment) == len(
                segment.waiters
            ) <= SEGMENT_CAPACITY and segment.size == _waiter_count(segment.waiters)
            for threshold, waiting in zip(segment, segment.waiters, strict=True):
                several: list[Any] = list(waiting) if type(waiting) is dict else [waiting]
                assert several and all(
                    waiter.queue is self and waiter.threshold == threshold for waiter in several
                )
                waiters += several


def _reached(segments: list[Segment], value: Any) -> tuple[int, int]:
    """The number of whole `segments` that are at most `value`, and of thresholds of the next one;
    the first threshold is."""
    whole = 0
    for segment in segments:
        if not segment[-1] <= value:
            break
        whole += 1
    else:
        return whole, 0
    if whole and not segment[0] <= value:
        return whole, 0
    # Search from the front, because most advances are small.
    bound = 1
    while segment[bound] <= value:
        bound *= 2
        if bound >= len(segment):
            bound = len(segment) - 1
            break
    return whole, bisect_right(segment, value, bound // 2 + 1, bound)


def _waiter_count(waiters: list[Waiters]) -> int:
    return sum(len(waiting) if type(waiting) is dict else 1 for waiting in waiters)


def _concat(segments: list[Segment]) -> list[Waiters]:
    return [waiting for segment in segments for waiting in segment.waiters]


def flatten(waiters: Iterable[Waiters]) -> Iterator[HasThreshold]:
    """The single waiters, in order."""
    for waiting in waiters:
        if type(waiting) is dict:
            yield from waiting
        else:
            yield cast(HasThreshold, waiting)
