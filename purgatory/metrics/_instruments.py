"""Observable instruments: what a meter has counted, asked when an SDK exports it."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
from opentelemetry.metrics import Meter as OTelMeter

from purgatory import Purgatory, ThresholdPurgatory
from purgatory.metrics._meter import Meter
from purgatory.metrics._rooms import Statistics, added_up, several
from purgatory.metrics._snapshot import Histogram, KindMetrics

if TYPE_CHECKING:
    from purgatory.asgi import LongPolls
    from purgatory.relay import Relay

Observations = Iterable[Observation]


def observe(
    meter: Meter,
    *,
    purgatories: "Purgatory[Any] | Iterable[Purgatory[Any]]" = (),
    thresholds: "ThresholdPurgatory[Any, Any] | Iterable[ThresholdPurgatory[Any, Any]]" = (),
    polls: "LongPolls | Iterable[LongPolls]" = (),
    relay: "Relay | None" = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Makes the instruments, with what `prometheus.collector` tells under names as OpenTelemetry has them.

    Args:
        meter: what has counted the operations that ended.
        purgatories: of these also what is pending and how their wheels work. Those of one name are added up.
        thresholds: the same.
        polls: how they have ended, and how many are open.
        relay: how it stands.
        meter_provider: where they are made; the global one if not given. What it exports it reads from a thread of its own.

    Raises:
        TypeError: `meter` is none.
    """
    if not isinstance(meter, Meter):
        raise TypeError(f"meter must be a Meter, not {meter!r}")
    theirs = get_meter("purgatory", meter_provider=meter_provider)
    _instruments_of_kinds(theirs, meter)
    _instruments_of_rooms(theirs, several(purgatories), several(thresholds))
    counter, up_down = theirs.create_observable_counter, theirs.create_observable_up_down_counter
    open_to = several(polls)
    if open_to:
        up_down("purgatory.polls.open", [partial(_open, open_to)], "{poll}", "Long polls that are open now.")
        counter("purgatory.polls", [partial(_endings, open_to)], "{poll}", "Long polls that have ended, by how.")
    if relay is not None:
        up_down("purgatory.relay.connected", [partial(_relay, relay, "is_connected")], "1", "Whether news arrive, 1 or 0.")
        for field in ("received", "sent", "resyncs", "healed", "epochs"):
            counter(f"purgatory.relay.{field}", [partial(_relay, relay, field)], "1", f"`{field}` of the relay's statistics.")


def _instruments_of_kinds(theirs: OTelMeter, meter: Meter) -> None:
    def counter(name: str, read: Callable[[KindMetrics], Observations], unit: str, text: str) -> None:
        def of_all(_: CallbackOptions) -> Observations:
            return [each for kind in meter.snapshot() for each in read(kind)]

        theirs.create_observable_counter(f"purgatory.{name}", [of_all], unit, text)

    counter("operations", _operations, "{operation}", "Operations that have ended, by how and by what.")
    counter("wait.operations", _waits, "{operation}", "Operations by an upper bound of how long they waited.")
    counter("wait.duration", _wait_sums, "s", "How long operations waited, all in all.")
    counter("lateness.operations", _lateness, "{operation}", "Operations by an upper bound of how long after their deadline.")
    counter("lateness.duration", _lateness_sum, "s", "How long after their deadline operations were answered, all in all.")
    counter("missed_triggers", _missed, "{operation}", "Operations that only the last try at their deadline has completed.")
    counter("retries", _retries, "{try}", "Tries by a check of a key that found a condition not to hold yet.")


def _instruments_of_rooms(theirs: OTelMeter, purgatories: tuple[Any, ...], thresholds: tuple[Any, ...]) -> None:
    counter, up_down = theirs.create_observable_counter, theirs.create_observable_up_down_counter
    both = *purgatories, *thresholds
    for create, name, rooms, field, unit, text in (
        (up_down, "pending", both, "pending", "{operation}", "Operations that wait now."),
        (up_down, "watches", purgatories, "watched", "{watch}", "Pairs of an operation and a key that it watches."),
        (up_down, "keys", both, "keys", "{key}", "Keys that somebody watches, or that have a value, if of thresholds."),
        (counter, "wake_ups", both, "wake_ups", "{callback}", "Callbacks that the wheel had from the event loop."),
        (counter, "moves", both, "moves", "{operation}", "How often the wheel moved an operation to a narrower bucket."),
    ):
        create(f"purgatory.{name}", [partial(_of_rooms, rooms, field)], unit, text)


def _names(kind: KindMetrics) -> dict[str, str]:
    return {"purgatory": kind.purgatory, "kind": kind.kind}


def _operations(kind: KindMetrics) -> Iterator[Observation]:
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


def _of_rooms(rooms: Iterable[Any], field: str, _: CallbackOptions) -> Iterator[Observation]:
    statistics: list[Statistics] = [room.statistics() for room in rooms]
    for name, number in added_up(statistics, field).items():
        yield Observation(number, {"purgatory": name})


def _open(polls: "tuple[LongPolls, ...]", _: CallbackOptions) -> Iterator[Observation]:
    yield Observation(sum(each.open for each in polls))


def _endings(polls: "tuple[LongPolls, ...]", _: CallbackOptions) -> Iterator[Observation]:
    for ending in {ending for each in polls for ending in list(each.endings)}:
        yield Observation(sum(each.endings[ending] for each in polls), {"ending": ending.value})


def _relay(relay: "Relay", field: str, _: CallbackOptions) -> Iterator[Observation]:
    yield Observation(int(getattr(relay.statistics(), field)))
