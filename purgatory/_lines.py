"""Lines: the waits for a key's value to reach a threshold, in order of thresholds. Knows no loop and no clock.

    the value of "orders" is 41, and for it wait      42: A, D     45: B     60: C
    advance(47)                                       takes out A, D and B, in this order; C waits on
    advance(46)                                       ValueError, and nothing has changed: values never fall

The order is kept in *segments*: sorted lists of up to 512 different thresholds, where Python's `bisect` finds a place with
O(log n) comparisons and C moves at most 4 KB to make room. Equal thresholds share a place, in order of arrival. A heap would
do, but an advance mostly takes the first one, which costs a heap O(log n) cold steps; here it is the head of a list.

The code that takes a waiter out of its line decides its outcome, and nothing else finds it there: so there is exactly one
outcome.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, where a skip list of (threshold, serial number) does this.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, Protocol, cast

UNKNOWN: Final[Any] = object()
"""The value of a key that has none."""

LONGEST_SEGMENT: Final = 512

_last = itemgetter(-1)


def has_reached(key: object, value: Any, threshold: Any) -> bool:
    """Whether a key whose value is `value` has reached `threshold`.

    Raises:
        ValueError: `threshold` is NaN.
        TypeError: the two cannot be compared, or are not in one order, as two sets may be.
    """
    try:
        if threshold != threshold:
            raise ValueError(f"cannot wait for {key!r} to reach {threshold!r}: nothing ever does; {it_has(value)}")
        if value is UNKNOWN:
            return False
        if threshold <= value:
            return True
        if value < threshold:
            return False
    except (TypeError, ArithmeticError) as error:  # the latter is what Decimal says of a signalling NaN
        raise TypeError(f"cannot tell whether {key!r} has reached {threshold!r}: {it_has(value)}, and {error}") from error
    raise TypeError(f"cannot tell whether {key!r} has reached {threshold!r}: {it_has(value)}, neither below nor past it")


def check_advance(key: object, value: Any, known: Any) -> None:
    """Checks that a key whose value is `known` may advance to `value`.

    Raises:
        ValueError: `value` is NaN, or below `known`.
        TypeError: the two cannot be compared.
    """
    try:
        if value == value if known is UNKNOWN else known <= value:
            return
        why = "values never go backwards" if value == value else "NaN is no value"
    except (TypeError, ArithmeticError) as error:
        raise TypeError(f"cannot advance {key!r} to {value!r}: {it_has(known)}, and {error}") from error
    raise ValueError(f"cannot advance {key!r} to {value!r}: {it_has(known)}, and {why}")


def it_has(value: Any) -> str:
    """The value of a key, for errors."""
    return "it has no value" if value is UNKNOWN else f"it has {value!r}"


class Waiting(Protocol):
    """One that waits in a line."""

    threshold: Any


Place = Waiting | dict[Waiting, None]
"""The one who waits for a threshold, or several in order of arrival."""


class Segment(list[Any]):
    """Different thresholds, ascending, and who waits for each."""

    __slots__ = ("places", "size")

    def __init__(self, thresholds: Iterable[Any], places: list[Place], size: int) -> None:
        super().__init__(thresholds)
        self.places = places
        self.size = size
        """How many waiters there are."""


class Line:
    """A key, its value, and those who wait for it, by threshold and then by arrival."""

    __slots__ = ("key", "segments", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.segments: list[Segment] = []
        """Ascending; none is empty."""

    def join(self, waiter: Waiting) -> None:
        """Lets `waiter` wait. Cost: O(log n) comparisons.

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
            place = bisect_left(segment, threshold)
            is_new = place == len(segment) or bool(threshold < segment[place])
            if not is_new and not threshold <= segment[place]:
                raise TypeError(f"it is neither below nor past {segment[place]!r}")
        except (TypeError, ArithmeticError) as error:
            raise TypeError(f"cannot wait for {self.key!r} to reach {threshold!r}: others wait there, and {error}") from error
        segment.size += 1
        if is_new:
            segment.insert(place, threshold)
            segment.places.insert(place, waiter)
            if len(segment) > LONGEST_SEGMENT:
                self._split(at)
        else:
            others = segment.places[place]
            if type(others) is dict:
                others[waiter] = None
            else:
                segment.places[place] = {cast(Waiting, others): None, waiter: None}

    def _split(self, at: int) -> None:
        segment, half = self.segments[at], LONGEST_SEGMENT // 2
        upper = Segment(segment[half:], segment.places[half:], _count(segment.places[half:]))
        del segment[half:], segment.places[half:]
        segment.size -= upper.size
        self.segments.insert(at + 1, upper)

    def leave(self, waiter: Waiting) -> bool:
        """Takes `waiter` out; False if another came first. Cost: O(log n) comparisons."""
        threshold, segments = waiter.threshold, self.segments
        at = bisect_left(segments, threshold, key=_last)
        if at == len(segments):
            return False
        segment = segments[at]
        place = bisect_left(segment, threshold)
        waiting = segment.places[place]
        if type(waiting) is dict:
            if waiter not in waiting:
                return False
            del waiting[waiter]
        elif waiting is not waiter:
            return False
        segment.size -= 1
        if waiting is waiter or not waiting:
            del segment[place], segment.places[place]
            if not segment:
                del segments[at]
        return True

    def advance(self, value: Any) -> tuple[int, list[Place]]:
        """Takes out those whose threshold is at most `value`: how many there are, and where they stood, in order.

        Cost: one comparison if there is none; otherwise one for each segment, and O(log n) of those it takes from the last.

        Raises:
            ValueError, TypeError: see `check_advance`; nothing has changed.
        """
        check_advance(self.key, value, self.value)
        segments = self.segments
        try:
            whole, part = _reached(segments, value) if segments and segments[0][0] <= value else (0, 0)
        except (TypeError, ArithmeticError) as error:
            raise TypeError(f"cannot advance {self.key!r} to {value!r}: {it_has(self.value)}, and {error}") from error
        self.value = value
        if not whole and not part:
            return NONE_REACHED
        size, places = _join(segments[:whole]) if whole else (0, list[Place]())
        if whole:
            del segments[:whole]
        if part:
            segment = segments[0]
            first = segment.places[:part]
            del segment[:part], segment.places[:part]
            reached = _count(first)
            segment.size -= reached
            size += reached
            places += first
        return size, places

    def clear(self) -> tuple[int, list[Place]]:
        """Takes everybody out: how many there are, and where they stood, in order. Cost: one pointer for each."""
        segments, self.segments = self.segments, []
        return _join(segments)

    def _check(self, waiters: list[Any]) -> None:
        """Asserts the whole invariant, and appends who waits to `waiters`. For tests."""
        thresholds = [threshold for segment in self.segments for threshold in segment]
        assert all(low < high for low, high in pairwise(thresholds))
        assert self.value is UNKNOWN or not thresholds or self.value < thresholds[0]
        assert self.value is not UNKNOWN or thresholds
        for segment in self.segments:
            assert 0 < len(segment) == len(segment.places) <= LONGEST_SEGMENT and segment.size == _count(segment.places)
            for threshold, waiting in zip(segment, segment.places, strict=True):
                several: list[Any] = list(waiting) if type(waiting) is dict else [waiting]
                assert several and all(waiter.line is self and waiter.threshold == threshold for waiter in several)
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


NONE_REACHED: Final = (0, list[Place]())


def _count(places: list[Place]) -> int:
    return sum(len(waiting) if type(waiting) is dict else 1 for waiting in places)


def _join(segments: list[Segment]) -> tuple[int, list[Place]]:
    size, places = 0, list[Place]()
    for segment in segments:
        size += segment.size
        places += segment.places
    return size, places
