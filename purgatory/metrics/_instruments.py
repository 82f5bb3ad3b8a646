"""Observable instruments, which read the counts of a meter when an SDK exports."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from opentelemetry.metrics import (
    CallbackOptions,
    MeterProvider,
    Observation,
    get_meter,
    get_meter_provider,
)

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.metrics._counts import Histogram
from purgatory.metrics._meter import Meter
from purgatory.metrics._table import Metric, Polls, Reading, Sources

if TYPE_CHECKING:
    from purgatory.relay import Relay

observed_providers: "WeakSet[MeterProvider]" = WeakSet()
"""Meter providers with instruments. They keep the first callback of a name, and drop later ones
without an error."""


def observe(
    meter: Meter,
    *,
    purgatories: "Purgatory[Any] | Iterable[Purgatory[Any]]" = (),
    thresholds: "ThresholdPurgatory[Any, Any] | Iterable[ThresholdPurgatory[Any, Any]]" = (),
    polls: "Polls | Iterable[Polls]" = (),
    relay: "Relay | None" = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Creates the instruments: the metrics of `prometheus.collector`, named by the conventions of
    OpenTelemetry.

    Args:
        meter: counts the operations that ended.
        purgatories: read for pending operations and the work of their timing wheels. Purgatories
            that share a name are summed up.
        thresholds: read in the same way.
        polls: read for open polls and their endings.
        relay: read for its connection, its counts, and its waits for versions and values.
        meter_provider: creates the instruments, and reads them on its own thread; by default the
            global one.

    Raises:
        TypeError: `meter` is not a `Meter`.
        ValueError: the meter provider has the instruments already; one call takes all purgatories.
    """
    sources = Sources.of(meter, purgatories, thresholds, polls, relay)
    meter_provider = meter_provider or get_meter_provider()
    if meter_provider in observed_providers:
        raise ValueError(
            "observe was called before with this meter provider, which would drop the second "
            "instruments of a name: use one Meter, and give all purgatories, polls and the relay "
            "to one call"
        )
    observed_providers.add(meter_provider)
    otel_meter = get_meter("purgatory", meter_provider=meter_provider)
    create: dict[str, Callable[..., Any]] = {
        "counter": otel_meter.create_observable_counter,
        "gauge": otel_meter.create_observable_up_down_counter,
    }
    for each in sources.metrics():
        if each.sort == "histogram":
            for name, unit, text, read in (
                ("operations", "{operation}", "By an upper bound.", _buckets),
                ("duration", "s", "In total.", _sum),
            ):
                create["counter"](
                    f"purgatory.{each.otel_name}.{name}",
                    [partial(_observations, sources, each, read)],
                    unit,
                    f"{each.text} {text}",
                )
        else:
            read_all = [partial(_observations, sources, each, _number)]
            create[each.sort](f"purgatory.{each.otel_name}", read_all, each.unit, each.text)


def _observations(
    sources: Sources,
    metric: Metric,
    read: Callable[[Any, dict[str, str]], Iterable[Observation]],
    _: CallbackOptions,
) -> Iterator[Observation]:
    for labels, number in metric.read(Reading(sources)):
        yield from read(number, dict(zip(metric.labels, labels, strict=True)))


def _number(number: float, attributes: dict[str, str]) -> Iterator[Observation]:
    if isfinite(number):  # the SDK would warn of another number in each export
        yield Observation(number, attributes)


def _buckets(histogram: Histogram, attributes: dict[str, str]) -> Iterator[Observation]:
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count:
            yield Observation(count, {**attributes, "up_to": str(bound)})


def _sum(histogram: Histogram, attributes: dict[str, str]) -> Iterator[Observation]:
    yield Observation(histogram.sum, attributes)
