"""The meter: an observer that counts operations as they end.

It has a histogram for each purgatory, kind, state and cause, and stores nothing of single
operations or keys:

    ("jobs", "Fetch"), COMPLETED, KEY        how many waited up to 1 ms, 2 ms, 4 ms, ... 262 s,
                                             longer; total seconds
    ("jobs", "Fetch"), EXPIRED, DEADLINE     the same

The number of operations is the sum of the histogram. Most operations are completed by a key. For
these it receives only the duration, and no event is created: see `completed_by_key`.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, final

from purgatory import Cause, Ended, Observer, OperationState
from purgatory.metrics._durations import Durations
from purgatory.metrics._snapshot import LATENESS_BOUNDS, WAIT_BOUNDS, Histogram, KindMetrics

Names = tuple[str, str]
"""The names of a purgatory and of a kind of operation."""

Outcome = tuple[OperationState, Cause]

BY_KEY: Final = OperationState.COMPLETED, Cause.KEY
MISSED: Final = OperationState.COMPLETED, Cause.DEADLINE


@final
class Meter:
    """Counts operations as they end, and their durations. Pass it to any number of purgatories as
    `observer`.

        meter = Meter()
        jobs = Purgatory("jobs", observer=meter)
        orders = Purgatory("orders", observer=meter)

    Purgatories with the same name are counted together. It needs no extra, and any thread may call
    `snapshot`.
    """

    key_checked = Observer.key_checked  # not overridden, so checks are not reported

    def __init__(self) -> None:
        self._kinds: dict[Names, _Kind] = {}

    def operation_ended(self, ended: Ended) -> None:
        """Counts the operation."""
        self._kind(ended.purgatory, ended.kind).count(ended)

    def completed_by_key(self, purgatory: str, kind: str) -> Callable[[float], object]:
        """Returns a function that counts an operation which a key completed. Its argument is the
        time for which the operation waited, in seconds."""
        return self._kind(purgatory, kind).waits_of(BY_KEY).add

    def snapshot(self) -> tuple[KindMetrics, ...]:
        """Returns all counts, by purgatory and kind, in order of their names. Any thread may call
        it. Cost: proportional to the number of kinds."""
        kinds = [(names, kind.snapshot(*names)) for names, kind in list(self._kinds.items())]
        return tuple(
            metrics for _, metrics in sorted(kinds, key=lambda pair: pair[0]) if metrics.ended
        )

    def _kind(self, purgatory: str, kind: str) -> "_Kind":
        names = purgatory, kind
        return self._kinds.get(names) or self._kinds.setdefault(names, _Kind())

    def __repr__(self) -> str:
        return f"<Meter purgatories={sorted({purgatory for purgatory, _ in list(self._kinds)})}>"


@final
class _Kind:
    """The counts of one kind of operation in one purgatory."""

    __slots__ = ("lateness", "retries", "waits")

    def __init__(self) -> None:
        self.waits: dict[Outcome, Durations] = {}
        self.lateness = Durations(LATENESS_BOUNDS)
        self.retries = 0

    def waits_of(self, outcome: Outcome) -> Durations:
        return self.waits.get(outcome) or self.waits.setdefault(outcome, Durations(WAIT_BOUNDS))

    def count(self, ended: Ended) -> None:
        waited = ended.ended_at - ended.started_at
        self.waits_of((ended.state, ended.cause)).add(waited)
        retries = ended.failed_tries - 1
        if ended.cause is Cause.DEADLINE:
            if ended.timeout is not None:
                self.lateness.add(max(waited - max(ended.timeout, 0.0), 0.0))
            if ended.state is OperationState.EXPIRED:
                retries -= 1  # the last try is not a check
        if retries > 0:
            self.retries += retries

    def snapshot(self, purgatory: str, kind: str) -> KindMetrics:
        histograms = {
            outcome: durations.histogram() for outcome, durations in list(self.waits.items())
        }
        outcomes = {
            outcome: histogram.count for outcome, histogram in histograms.items() if histogram.count
        }
        waits: dict[OperationState, Histogram] = {}
        for (state, cause), histogram in histograms.items():
            if cause is not Cause.FIRST_TRY and histogram.count:
                waits[state] = waits[state] + histogram if state in waits else histogram
        return KindMetrics(
            purgatory,
            kind,
            MappingProxyType(outcomes),
            MappingProxyType(waits),
            self.lateness.histogram(),
            outcomes.get(MISSED, 0),
            self.retries,
        )
