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
from opentelemetry.metrics import Meter as OTelMeter

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.metrics._meter import Meter
from purgatory.metrics._purgatories import (
    POLL,
    Polls,
    as_tuple,
    encodable,
    open_limit,
    sum_by_name,
    with_relay,
)
from purgatory.metrics._snapshot import Histogram, KindMetrics

if TYPE_CHECKING:
    from purgatory.relay import Relay

Observations = Iterable[Observation]

observed_providers: "WeakSet[MeterProvider]" = WeakSet()
"""Meter providers with instruments. They keep the first callback of a name, and drop others
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
        relay: its connection, its counts, and its waits for versions and values.
        meter_provider: creates the instruments, and reads them on its own thread; by default the
            global one.

    Raises:
        TypeError: `meter` is not a `Meter`.
        ValueError: the meter provider has the instruments already; one call takes all purgatories.
    """
    if not isinstance(meter, Meter):
        raise TypeError(f"meter must be a Meter, not {meter!r}")
    meter_provider = meter_provider or get_meter_provider()
    if meter_provider in observed_providers:
        raise ValueError(
            "observe was called before with this meter provider, which would drop the second "
            "instruments of a name: use one Meter, and give all purgatories, polls and the relay "
            "to one call"
        )
    observed_providers.add(meter_provider)
    otel_meter = get_meter("purgatory", meter_provider=meter_provider)
    _create_for_kinds(otel_meter, meter)
    _create_for_purgatories(otel_meter, as_tuple(purgatories), as_tuple(thresholds), relay)
    counter, up_down = (
        otel_meter.create_observable_counter,
        otel_meter.create_observable_up_down_counter,
    )
    all_polls = as_tuple(polls)
    if all_polls:
        up_down(
            "purgatory.polls.open",
            [partial(_open, all_polls)],
            "{poll}",
            "Long polls that are open now.",
        )
        gauge = otel_meter.create_observable_gauge
        gauge(
            "purgatory.polls.limit",
            [partial(_limit, all_polls)],
            "{poll}",
            "How many long polls may be open at once.",
        )
        counter(
            "purgatory.polls",
            [partial(_endings, all_polls)],
            "{poll}",
            "Long polls that have ended, by their ending.",
        )
    if relay is not None:
        up_down(
            "purgatory.relay.connected",
            [partial(_relay, relay, "is_connected")],
            "1",
            "Whether the relay is connected to its store, 1 or 0.",
        )
        for field in ("received", "sent", "resyncs", "healed", "epochs"):
            counter(
                f"purgatory.relay.{field}",
                [partial(_relay, relay, field)],
                "1",
                f"`{field}` of the relay's statistics.",
            )


def _create_for_kinds(otel_meter: OTelMeter, meter: Meter) -> None:
    def counter(
        name: str, read: Callable[[KindMetrics], Observations], unit: str, text: str
    ) -> None:
        def read_all(_: CallbackOptions) -> Observations:
            return [each for kind in meter.snapshot() for each in read(kind)]

        otel_meter.create_observable_counter(f"purgatory.{name}", [read_all], unit, text)

    counter(
        "operations",
        _operations,
        "{operation}",
        "Operations that have ended, by outcome and cause.",
    )
    counter(
        "poll_waits",
        _poll_waits,
        "{wait}",
        "Waits of requests that have ended, by outcome and cause.",
    )
    counter(
        "wait.operations",
        _waits,
        "{operation}",
        "Operations by an upper bound of how long they waited.",
    )
    counter("wait.duration", _wait_sums, "s", "How long operations waited, in total.")
    counter(
        "lateness.operations",
        _lateness,
        "{operation}",
        "Operations by an upper bound of how long after their deadline.",
    )
    counter(
        "lateness.duration",
        _lateness_sum,
        "s",
        "How long after their deadline operations were answered, in total.",
    )
    counter(
        "missed_triggers",
        _missed,
        "{operation}",
        "Operations that only the last try, at their deadline, completed.",
    )
    counter(
        "retries", _retries, "{try}", "Tries by a check of a key whose condition did not hold yet."
    )


def _create_for_purgatories(
    otel_meter: OTelMeter,
    purgatories: tuple[Any, ...],
    thresholds: tuple[Any, ...],
    relay: "Relay | None",
) -> None:
    def read(field: str, has_thresholds: bool, _: CallbackOptions) -> Iterator[Observation]:
        both = with_relay(purgatories, thresholds, relay)
        sources = [*both[0], *both[1]] if has_thresholds else both[0]
        for name, number in sum_by_name([each.statistics() for each in sources], field).items():
            yield Observation(number, {"purgatory": name})

    counter, up_down = (
        otel_meter.create_observable_counter,
        otel_meter.create_observable_up_down_counter,
    )
    for create, name, has_thresholds, field, unit, text in (
        (up_down, "pending", True, "pending", "{operation}", "Operations that wait now."),
        (
            up_down,
            "watches",
            False,
            "watched",
            "{watch}",
            "Pairs of an operation and a key that it watches.",
        ),
        (
            up_down,
            "keys",
            True,
            "keys",
            "{key}",
            "Keys that operations watch, or that have a value, in threshold purgatories.",
        ),
        (
            counter,
            "wake_ups",
            True,
            "wake_ups",
            "{callback}",
            "Callbacks that the event loop made to the timing wheel.",
        ),
        (
            counter,
            "moves",
            True,
            "moves",
            "{operation}",
            "How often the timing wheel moved an operation to a narrower bucket.",
        ),
    ):
        create(f"purgatory.{name}", [partial(read, field, has_thresholds)], unit, text)


def _names(kind: KindMetrics) -> dict[str, str]:
    return {"purgatory": encodable(kind.purgatory), "kind": kind.kind}


def _operations(kind: KindMetrics) -> Iterable[Observation]:
    return () if kind.kind == POLL else _outcomes(kind)


def _poll_waits(kind: KindMetrics) -> Iterable[Observation]:
    return _outcomes(kind) if kind.kind == POLL else ()


def _outcomes(kind: KindMetrics) -> Iterator[Observation]:
    for (state, cause), count in kind.outcomes.items():
        yield Observation(count, {**_names(kind), "outcome": state.value, "cause": cause.value})


def _waits(kind: KindMetrics) -> Iterator[Observation]:
    for state, histogram in kind.waits.items():
        yield from _buckets(histogram, {**_names(kind), "outcome": state.value})


def _wait_sums(kind: KindMetrics) -> Iterator[Observation]:
    for state, histogram in kind.waits.items():
        yield Observation(histogram.sum, {**_names(kind), "outcome": state.value})


def _lateness(kind: KindMetrics) -> Iterator[Observation]:
    yield from _buckets(kind.lateness, _names(kind))


def _lateness_sum(kind: KindMetrics) -> Iterator[Observation]:
    yield Observation(kind.lateness.sum, _names(kind))


def _missed(kind: KindMetrics) -> Iterator[Observation]:
    yield Observation(kind.missed_triggers, _names(kind))


def _retries(kind: KindMetrics) -> Iterator[Observation]:
    yield Observation(kind.retries, _names(kind))


def _buckets(histogram: Histogram, attributes: dict[str, str]) -> Iterator[Observation]:
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count:
            yield Observation(count, {**attributes, "up_to": str(bound)})


def _open(polls: tuple[Polls, ...], _: CallbackOptions) -> Iterator[Observation]:
    yield Observation(sum(each.open for each in polls))


def _limit(polls: tuple[Polls, ...], _: CallbackOptions) -> Iterator[Observation]:
    limit = open_limit(polls)
    if isfinite(limit):  # the SDK would warn of another number in each export
        yield Observation(limit)


def _endings(polls: tuple[Polls, ...], _: CallbackOptions) -> Iterator[Observation]:
    for ending in polls[0].all_endings:
        yield Observation(sum(each.endings[ending] for each in polls), {"ending": ending.value})


def _relay(relay: "Relay", field: str, _: CallbackOptions) -> Iterator[Observation]:
    yield Observation(int(getattr(relay.statistics(), field)))
