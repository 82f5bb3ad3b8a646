"""The waits for one key's value to reach a threshold, in order of thresholds. Knows no loop and no clock.

    the value of "orders" is 41, and for it wait      42: A, D     45: B     60: C
    advance(47)                                       removes A, D and B, in this order; C goes on waiting
    advance(46)                                       ValueError, without any change: values never decrease

The order is kept in *segments*: sorted lists of up to 512 different thresholds, where Python's `bisect` finds an index with
O(log n) comparisons and C moves at most 4 KB for an insertion. Equal thresholds share an index, in order of arrival. A heap
would do, but an advance mostly removes the first one, which costs a heap O(log n) steps, with cache misses; here it is the head
of a list.

The code that removes a waiter from its queue decides its outcome: so there is exactly one outcome.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, where a skip list of (threshold, serial number) does this.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, Protocol, cast

from purgatory._arguments import describe

UNKNOWN: Final[Any] = object()
"""The value of a key that has none."""

SEGMENT_CAPACITY: Final = 512

_last = itemgetter(-1)


def has_reached(key: object, value: Any, threshold: Any) -> bool:
    """Whether a key whose value is `value` has reached `threshold`.

    Raises:
        ValueError: `threshold` is NaN, or has one in it.
        TypeError: the two cannot be compared, or are not in one order, as two sets may be.
    """
    try:
        is_nan = _is_nan(threshold)
        if not is_nan:
            if value is UNKNOWN:
                return False
            if threshold <= value:
                return True
            if value < threshold:
                return False
        why = "neither below nor past it"
    except (TypeError, ArithmeticError) as error:  # the latter is what Decimal says of a signalling NaN
        is_nan, why = False, f"and {error}"
    if is_nan:
        wait = f"wait for {describe(key)} to reach {describe(threshold)}"
        raise ValueError(f"cannot {wait}: nothing ever does; {describe_value(value)}")
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
    raise kind(f"cannot advance {describe(key)} to {describe(value)}: {describe_value(known)}, and {why}")


def _is_nan(value: Any) -> bool:
    """Whether `value` is NaN, or a tuple or list with one in it, which is neither below nor past others."""
    if type(value) is tuple or type(value) is list:
        return any(map(_is_nan, value))
    return bool(value != value)


def describe_value(value: Any) -> str:
    """The value of a key, for errors."""
    return "it has no value" if value is UNKNOWN else f"it has {describe(value)}"


class HasThreshold(Protocol):
    """One that waits in a queue."""

    threshold: Any


Waiters = HasThreshold | dict[HasThreshold, None]
"""The waiter for a threshold, or several in order of arrival."""


class Segment(list[Any]):
    """Different thresholds, ascending, and the waiters for each."""

    __slots__ = ("size", "waiters")

    def __init__(self, thresholds: Iterable[Any], waiters: list[Waiters], size: int) -> None:
        super().__init__(thresholds)
        self.waiters = waiters
        self.size = size
        """How many waiters there are."""


class ThresholdQueue:
    """A key, its value, and its waiters, by threshold and then by arrival."""

    __slots__ = ("key", "segments", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.segments: list[Segment] = []
        """Ascending; none is empty."""

    def add(self, waiter: HasThreshold) -> None:
        """Adds `waiter`. Cost: O(log n) comparisons.

        Raises:
            TypeError: its threshold cannot be compared with those of others; nothing has changed.
        """
        threshold, segments = waiter.threshold, self.segments
        if not segments:
            segments.append(Segment((threshold,), [waiter], 1))
            return
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
        segment.size += 1
        if is_new:
            segment.insert(index, threshold)
            segment.waiters.insert(index, waiter)
            if len(segment) > SEGMENT_CAPACITY:
                self._split(at)
        else:
            others = segment.waiters[index]
            if type(others) is dict:
                others[waiter] = None
            else:
                segment.waiters[index] = {cast(HasThreshold, others): None, waiter: None}

    def _split(self, at: int) -> None:
        segment, half = self.segments[at], SEGMENT_CAPACITY // 2
        upper = Segment(segment[half:], segment.waiters[half:], _waiter_count(segment.waiters[half:]))
        del segment[half:], segment.waiters[half:]
        segment.size -= upper.size
        self.segments.insert(at + 1, upper)

    def discard(self, waiter: HasThreshold) -> bool:
        """Takes `waiter` out; False if another came first. Cost: O(log n) comparisons."""
        threshold, segments = waiter.threshold, self.segments
        at = bisect_left(segments, threshold, key=_last)
        if at == len(segments):
            return False
        segment = segments[at]
        index = bisect_left(segment, threshold)
        waiting = segment.waiters[index]
        if type(waiting) is dict:
            if waiter not in waiting:
                return False
            del waiting[waiter]
        elif waiting is not waiter:
            return False
        segment.size -= 1
        if waiting is waiter or not waiting:
            del segment[index], segment.waiters[index]
            if not segment:
                del segments[at]
        return True

    def advance(self, value: Any) -> tuple[int, list[Waiters]]:
        """Removes the waiters whose threshold is at most `value`, and returns their number, and themselves in order.

        Cost: one comparison if there is none; otherwise one for each segment, and O(log n) of those it takes from the last.

        Raises:
            ValueError, TypeError: see `check_advance`; nothing has changed.
        """
        check_advance(self.key, value, self.value)
        segments = self.segments
        try:
            whole, part = _reached(segments, value) if segments and segments[0][0] <= value else (0, 0)
        except (TypeError, ArithmeticError) as error:
            what = f"advance {describe(self.key)} to {describe(value)}"
            raise TypeError(f"cannot {what}: {describe_value(self.value)}, and {error}") from error
        self.value = value
        if not whole and not part:
            return EMPTY
        size, waiters = _concat(segments[:whole]) if whole else (0, list[Waiters]())
        if whole:
            del segments[:whole]
        if part:
            segment = segments[0]
            first = segment.waiters[:part]
            del segment[:part], segment.waiters[:part]
            reached = _waiter_count(first)
            segment.size -= reached
            size += reached
            waiters += first
        return size, waiters

    def clear(self) -> tuple[int, list[Waiters]]:
        """Removes all waiters, and returns their number, and themselves in order. Cost: one pointer for each."""
        segments, self.segments = self.segments, []
        return _concat(segments)

    def _check(self, waiters: list[Any]) -> None:
        """Asserts the whole invariant, and appends the waiters to `waiters`. For tests."""
        thresholds = [threshold for segment in self.segments for threshold in segment]
        assert all(low < high for low, high in pairwise(thresholds))
        assert self.value is UNKNOWN or not thresholds or self.value < thresholds[0]
        assert self.value is not UNKNOWN or thresholds
        for segment in self.segments:
            assert 0 < len(segment) == len(segment.waiters) <= SEGMENT_CAPACITY and segment.size == _waiter_count(
                segment.waiters
            )
            for threshold, waiting in zip(segment, segment.waiters, strict=True):
                several: list[Any] = list(waiting) if type(waiting) is dict else [waiting]
                assert several and all(waiter.queue is self and waiter.threshold == threshold for waiter in several)
                waiters += several


def _reached(segments: list[Segment], value: Any) -> tuple[int, int]:
    """How many of `segments` are wholly at most `value`, and how many thresholds of the next one; the very first one is."""
    whole = 0
    for segment in segments:
        if not segment[-1] <= value:
            break
        whole += 1
    else:
        return whole, 0
    if whole and not segment[0] <= value:
        return whole, 0
    # Looked for from its front, as most advances are small.
    bound = 1
    while segment[bound] <= value:
        bound *= 2
        if bound >= len(segment):
            bound = len(segment) - 1
            break
    return whole, bisect_right(segment, value, bound // 2 + 1, bound)


EMPTY: Final = (0, list[Waiters]())


def _waiter_count(waiters: list[Waiters]) -> int:
    return sum(len(waiting) if type(waiting) is dict else 1 for waiting in waiters)


def _concat(segments: list[Segment]) -> tuple[int, list[Waiters]]:
    size, waiters = 0, list[Waiters]()
    for segment in segments:
        size += segment.size
        waiters += segment.waiters
    return size, waiters
