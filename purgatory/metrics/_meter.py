"""The meter: an observer that counts operations as they end.

It has a histogram for each purgatory, kind, state and cause, and stores nothing of single
operations or keys:

    ("jobs", "Fetch"), COMPLETED, KEY        how many waited up to 1 ms, 2 ms, 4 ms, ... 262 s,
                                             longer; total seconds
    ("jobs", "Fetch"), EXPIRED, DEADLINE     the same

The number of operations is the sum of the histogram.
"""

from types import MappingProxyType
from typing import Final, final

from purgatory import Cause, Ended, Observer, OperationState
from purgatory.metrics._durations import Durations
from purgatory.metrics._snapshot import LATENESS_BOUNDS, WAIT_BOUNDS, Histogram, KindMetrics

Names = tuple[str, str]
"""The names of a purgatory and of a kind of operation."""

Outcome = tuple[OperationState, Cause]

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
        purgatory, kind, _, started_at, ended_at, timeout, state, cause, _, failed_tries = ended[
            :10
        ]
        counts = self._kinds.get((purgatory, kind)) or self._kinds.setdefault(
            (purgatory, kind), _Kind()
        )
        waited = ended_at - started_at
        durations = counts.waits.get((state, cause)) or counts.waits.setdefault(
            (state, cause), Durations(WAIT_BOUNDS)
        )
        durations.add(waited)
        if cause is Cause.DEADLINE:
            if timeout is not None:
                counts.lateness.add(max(waited - max(timeout, 0.0), 0.0))
            if state is OperationState.EXPIRED:
                failed_tries -= 1  # the last try is not a check
        if failed_tries > 1:
            counts.retries += failed_tries - 1

    def snapshot(self) -> tuple[KindMetrics, ...]:
        """Returns all counts, by purgatory and kind, in order of their names. Any thread may call
        it. Cost: proportional to the number of kinds."""
        kinds = [(names, kind.snapshot(*names)) for names, kind in list(self._kinds.items())]
        return tuple(
            metrics for _, metrics in sorted(kinds, key=lambda pair: pair[0]) if metrics.ended
        )

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
