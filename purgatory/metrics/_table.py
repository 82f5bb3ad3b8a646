"""Numbers that no meter counts and that are read at each scrape, such as pending operations."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from purgatory import PurgatoryStatistics, ThresholdStatistics

if TYPE_CHECKING:
    from purgatory.relay import Relay

T = TypeVar("T")
Statistics = PurgatoryStatistics | ThresholdStatistics


class Polls(Protocol):
    """A `purgatory.asgi.LongPolls`, whose package imports this one."""

    @property
    def open(self) -> int:
        """The number of open polls."""
        ...

    @property
    def endings(self) -> "Counter[Any]":
        """Polls that have ended, by their ending."""
        ...

    @property
    def all_endings(self) -> Iterable[Any]:
        """All possible endings."""
        ...

    @property
    def max_open(self) -> int | None:
        """The most polls that may be open at once; None for no limit."""
        ...


POLL: Final = "poll"
"""Kind of a request's wait in `LongPolls`. The operation in a purgatory that the request waits for
is counted apart."""


def open_limit(polls: Iterable[Polls]) -> float:
    """The most polls that may be open at once, in all; infinite without a limit."""
    return sum(inf if each.max_open is None else each.max_open for each in polls)


def as_tuple(given: T | Iterable[T]) -> tuple[T, ...]:
    """An argument that may be one object or several."""
    return tuple(given) if isinstance(given, Iterable) else (given,)


def encodable(text: str) -> str:
    r"""The text with lone surrogates escaped (`\ud800`): a label with one would fail the whole
    export."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def sum_by_name(statistics: Sequence[Statistics], field: str) -> Counter[str]:
    """Sums of `field` by the names of the purgatories, which several may share."""
    sums: Counter[str] = Counter()
    for each in statistics:
        sums[encodable(each.name)] += getattr(each, field)
    return sums


def with_relay(
    purgatories: Iterable[Any], thresholds: Iterable[Any], relay: "Relay | None"
) -> tuple[list[Any], list[Any]]:
    """Both with the relay's current waits, without repeats: a user may have given them, too."""
    if relay is None:
        return [*purgatories], [*thresholds]
    return [*{*purgatories, relay.replies}], [*{*thresholds, relay.thresholds}]
