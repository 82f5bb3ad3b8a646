"""For Prometheus: a collector that reads what was counted when it is scraped. Extra `metrics`."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.metrics._meter import Meter
from purgatory.metrics._snapshot import Histogram, KindMetrics

if TYPE_CHECKING:
    from purgatory.asgi import LongPolls
    from purgatory.relay import Relay

KIND: Final = ["purgatory", "kind"]


def collector(
    meter: Meter,
    *,
    purgatories: Iterable[Purgatory[Any]] = (),
    thresholds: Iterable[ThresholdPurgatory[Any, Any]] = (),
    polls: "Iterable[LongPolls] | LongPolls" = (),
    relay: "Relay | None" = None,
) -> Collector:
    """A collector to register: `REGISTRY.register(collector(meter, purgatories=[jobs]))`.

    Args:
        meter: what has counted the operations that ended.
        purgatories: whose pending operations and wheels are told as well, by their names; those of one name are added up.
        thresholds: the same.
        polls: how they have ended, and how many are open.
        relay: how it stands.
    """
    several = polls if isinstance(polls, Iterable) else [polls]
    return _Collector(meter, [*purgatories, *thresholds], list(several), relay)


@final
class _Collector(Collector):
    def __init__(
        self,
        meter: Meter,
        rooms: "list[Purgatory[Any] | ThresholdPurgatory[Any, Any]]",
        polls: "list[LongPolls]",
        relay: "Relay | None",
    ) -> None:
        self._meter, self._rooms, self._polls, self._relay = meter, rooms, polls, relay

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, on any thread. Cost: a few hundred samples, however many operations wait."""
        yield from _of_kinds(self._meter.snapshot())


def _of_kinds(kinds: Iterable[KindMetrics]) -> Iterator[Metric]:
    ended = CounterMetricFamily("purgatory_operations", "Operations that have ended.", labels=[*KIND, "outcome", "cause"])
    waits = HistogramMetricFamily(
        "purgatory_wait_seconds", "How long operations waited that did not end at once.", labels=[*KIND, "outcome"]
    )
    lateness = HistogramMetricFamily(
        "purgatory_lateness_seconds", "How long after their deadline operations ended that came to it.", labels=KIND
    )
    missed = CounterMetricFamily(
        "purgatory_missed_triggers", "Operations that only the last try at their deadline completed.", labels=KIND
    )
    retries = CounterMetricFamily("purgatory_retries", "Checks of an operation whose condition did not hold.", labels=KIND)
    for kind in kinds:
        names = [kind.purgatory, kind.kind]
        for (state, cause), count in kind.outcomes.items():
            ended.add_metric([*names, state.value, cause.value], count)
        for state, histogram in kind.waits.items():
            waits.add_metric([*names, state.value], _buckets(histogram), histogram.sum)
        lateness.add_metric(names, _buckets(kind.lateness), kind.lateness.sum)
        missed.add_metric(names, kind.missed_triggers)
        retries.add_metric(names, kind.retries)
    yield from (ended, waits, lateness, missed, retries)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus has them: each with what the ones before it hold."""
    return [
        (floatToGoString(bound), count) for bound, count in zip(histogram.bounds, accumulate(histogram.counts), strict=True)
    ]
