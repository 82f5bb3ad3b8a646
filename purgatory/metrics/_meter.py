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
from purgatory.metrics._counts import LATENESS_BOUNDS, WAIT_BOUNDS, Histogram, KindMetrics
from purgatory.metrics._durations import Durations

Names = tuple[str, str]
"""The names of a purgatory and of a kind of operation."""

End = tuple[OperationState, Cause]

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
        names = ended.purgatory, ended.kind
        counts = self._kinds.get(names) or self._kinds.setdefault(names, _Kind())
        end, waited = (ended.state, ended.cause), ended.ended_at - ended.started_at
        durations = counts.waits.get(end) or counts.waits.setdefault(end, Durations(WAIT_BOUNDS))
        durations.add(waited)
        if ended.cause is Cause.DEADLINE and (timeout := ended.timeout) is not None:
            counts.lateness.add(max(waited - max(timeout, 0.0), 0.0))
        counts.failed_tries += ended.failed_tries

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

    __slots__ = ("failed_tries", "lateness", "waits")

    def __init__(self) -> None:
        self.waits: dict[End, Durations] = {}
        self.lateness = Durations(LATENESS_BOUNDS)
        self.failed_tries = 0

    def snapshot(self, purgatory: str, kind: str) -> KindMetrics:
        histograms = {end: durations.histogram() for end, durations in list(self.waits.items())}
        outcomes = {
            end: histogram.count for end, histogram in histograms.items() if histogram.count
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
            self.failed_tries,
        )
