"""What is read when metrics are scraped, because no meter counts it: how many operations are pending, for instance."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Final, Protocol, TypeVar

from purgatory import PurgatoryStatistics, ThresholdStatistics

T = TypeVar("T")
Statistics = PurgatoryStatistics | ThresholdStatistics


class Polls(Protocol):
    """A `purgatory.asgi.LongPolls`. Its package stands above this one, since its page shows metrics."""

    @property
    def open(self) -> int:
        """How many polls are open."""
        ...

    @property
    def endings(self) -> "Counter[Any]":
        """How many have ended, by their ending."""
        ...

    all_endings: Iterable[Any]
    """Those that there are."""

    max_open: int | None
    """How many may be open at once; `None` for no limit."""


POLL: Final = "poll"
"""The kind of a request's wait in `LongPolls`. What it waits for in a purgatory is an operation, and counted as one."""


def open_limit(polls: Iterable[Polls]) -> float:
    """How many polls may be open at once, in all; infinite if there is no limit."""
    return sum(inf if each.max_open is None else each.max_open for each in polls)


def as_tuple(given: T | Iterable[T]) -> tuple[T, ...]:
    """An argument that may be one object or several."""
    return tuple(given) if isinstance(given, Iterable) else (given,)


def sum_by_name(statistics: Sequence[Statistics], field: str) -> Counter[str]:
    """Sums of `field` by the names of the purgatories, which several may share."""
    sums: Counter[str] = Counter()
    for each in statistics:
        sums[each.name] += getattr(each, field)
    return sums
