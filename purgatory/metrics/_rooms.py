"""What is asked when metrics are read, and not counted: how many operations are pending, and what else a purgatory tells."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from purgatory import PurgatoryStatistics, ThresholdStatistics

T = TypeVar("T")
Statistics = PurgatoryStatistics | ThresholdStatistics


def several(given: T | Iterable[T]) -> tuple[T, ...]:
    """What was given as one or as several."""
    return tuple(given) if isinstance(given, Iterable) else (given,)


def added_up(rooms: Sequence[Statistics], field: str) -> Counter[str]:
    """The number in `field` by the names of the purgatories; of those of one name the sum."""
    numbers: Counter[str] = Counter()
    for room in rooms:
        numbers[room.name] += getattr(room, field)
    return numbers
