"""The meter: an observer that counts. It keeps numbers, and reports when it is asked.

What it keeps is a histogram for each purgatory, kind and way of ending, and nothing of any single operation or key:

    ("jobs", "Fetch"), COMPLETED, KEY        how many waited up to 1 ms, 2 ms, 4 ms, ... 262 s, longer; seconds in all
    ("jobs", "Fetch"), EXPIRED, DEADLINE     the same

How many ended so is the sum of that histogram. Of most operations the purgatory tells it the duration alone, and does not even
make an event: see `completed_by_key`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, final

from purgatory import Cause, Ended, Observer, OperationState
from purgatory.metrics._durations import Durations
from purgatory.metrics._snapshot import LATENESS_BOUNDS, WAIT_BOUNDS, Histogram, KindMetrics

Names = tuple[str, str]
"""Of a purgatory, and of a kind of operation."""

How = tuple[OperationState, Cause]
"""A way of ending."""

BY_KEY: Final = OperationState.COMPLETED, Cause.KEY
MISSED: Final = OperationState.COMPLETED, Cause.DEADLINE


@final
class Meter:
    """Counts what ends, and how long it took: give it to any number of purgatories as their observer.

        meter = Meter()
        jobs = Purgatory("jobs", observer=meter)
        orders = Purgatory("orders", observer=meter)

    Purgatories of one name are counted as one. It needs no extra, and may be read from any thread, with `snapshot`.
    """

    key_checked = Observer.key_checked  # of checks it is not told

    def __init__(self) -> None:
        self._kinds: dict[Names, _Kind] = {}

    def operation_ended(self, ended: Ended) -> None:
        """Counts it."""
        self._kind(ended.purgatory, ended.kind).count(ended)

    def completed_by_key(self, purgatory: str, kind: str) -> Callable[[float], object]:
        """What counts an operation that was completed by a key, given how long it has waited."""
        return self._kind(purgatory, kind).waits_of(BY_KEY).add

    def snapshot(self) -> tuple[KindMetrics, ...]:
        """What was counted so far, by purgatory and kind, in order of their names. Cost: that of their number alone."""
        kinds = [(names, kind.snapshot(*names)) for names, kind in list(self._kinds.items())]
        return tuple(metrics for _, metrics in sorted(kinds, key=lambda pair: pair[0]) if metrics.ended)

    def _kind(self, purgatory: str, kind: str) -> "_Kind":
        names = purgatory, kind
        return self._kinds.get(names) or self._kinds.setdefault(names, _Kind())

    def __repr__(self) -> str:
        return f"<Meter purgatories={sorted({purgatory for purgatory, _ in list(self._kinds)})}>"


@final
class _Kind:
    """What was counted of one kind of operations in one purgatory."""

    __slots__ = ("lateness", "retries", "waits")

    def __init__(self) -> None:
        self.waits: dict[How, Durations] = {}
        self.lateness = Durations(LATENESS_BOUNDS)
        self.retries = 0

    def waits_of(self, how: How) -> Durations:
        return self.waits.get(how) or self.waits.setdefault(how, Durations(WAIT_BOUNDS))

    def count(self, ended: Ended) -> None:
        waited = ended.ended_at - ended.started_at
        how = ended.state, ended.cause
        self.waits_of(how).add(waited)
        retries = ended.failed_tries - 1
        if ended.cause is Cause.DEADLINE:
            if ended.timeout is not None:
                self.lateness.add(max(waited - max(ended.timeout, 0.0), 0.0))
            if ended.state is OperationState.EXPIRED:
                retries -= 1  # the last try, which no check has asked for
        if retries > 0:
            self.retries += retries

    def snapshot(self, purgatory: str, kind: str) -> KindMetrics:
        by_how = {how: durations.histogram() for how, durations in list(self.waits.items())}
        outcomes = {how: histogram.count for how, histogram in by_how.items() if histogram.count}
        waits: dict[OperationState, Histogram] = {}
        for (state, cause), histogram in by_how.items():
            if cause is not Cause.FIRST_TRY and histogram.count:
                waits[state] = waits[state] + histogram if state in waits else histogram
        return KindMetrics(
            purgatory, kind, _fixed(outcomes), _fixed(waits), self.lateness.histogram(), outcomes.get(MISSED, 0), self.retries
        )


def _fixed(mapping: dict[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(mapping)
