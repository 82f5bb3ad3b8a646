"""For Prometheus: a collector that reads what was counted, when it is scraped. Extra `metrics`.

    from prometheus_client import REGISTRY

    REGISTRY.register(collector(meter, purgatories=[jobs]))

What can be pending, watched or open is asked at that moment, which costs the same with ten operations and with a million.
"""

from collections.abc import Iterable, Iterator
from errno import EADDRINUSE
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from purgatory import Purgatory, PurgatoryStatistics, ThresholdPurgatory, ThresholdStatistics
from purgatory.metrics._meter import Meter
from purgatory.metrics._rooms import Statistics, added_up, several
from purgatory.metrics._snapshot import Histogram, KindMetrics
from purgatory.metrics._stream import StreamMeter, StreamStatistics

if TYPE_CHECKING:
    from purgatory.asgi import LongPolls
    from purgatory.relay import Relay

KIND: Final = ("purgatory", "kind")


def collector(
    meter: Meter,
    *,
    purgatories: "Purgatory[Any] | Iterable[Purgatory[Any]]" = (),
    thresholds: "ThresholdPurgatory[Any, Any] | Iterable[ThresholdPurgatory[Any, Any]]" = (),
    polls: "LongPolls | Iterable[LongPolls]" = (),
    relay: "Relay | None" = None,
    stream: StreamMeter | None = None,
) -> Collector:
    """What to register with Prometheus' client, `REGISTRY.register(collector(...))`.

    Of `purgatories`, `thresholds` and `polls` each is one or several.

    Args:
        meter: what has counted the operations that ended.
        purgatories: of these also what is pending and how their wheels work. Those of one name are added up.
        thresholds: the same.
        polls: how they have ended, and how many are open.
        relay: how it stands. Of one relay, as a process has no more.
        stream: what a stream of `purgatory.pipeline` has done.

    Raises:
        TypeError: `meter` is none.
    """
    if not isinstance(meter, Meter):
        raise TypeError(f"meter must be a Meter, not {meter!r}")
    return _Collector(meter, several(purgatories), several(thresholds), several(polls), relay, stream)


def serve(ports: Iterable[int], *, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> WSGIServer:
    """Serves metrics on the first of `ports` that is free, from a thread of its own: each worker of a server on another one.

    Of several workers behind one port a scrape would reach one or the other, and counters would jump. So each is a target of
    its own, which is what Prometheus wants of processes; it adds them up, `sum by (purgatory) (...)`.

    Args:
        ports: as many as there are workers, and some more: a worker that is replaced may start before the old one has gone.
        address: to listen on; those who may not read the metrics should not reach it.
        registry: what is served.

    Returns:
        The server: `server_port` is where it listens, `shutdown()` and `server_close()` end it.

    Raises:
        OSError: no port is free.
    """
    tried = list(ports)
    for port in tried:
        try:
            server, _ = start_http_server(port, address, registry)
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
        else:
            return server
    raise OSError(EADDRINUSE, f"cannot serve metrics on {address}: none of the ports {tried} is free")


@final
class _Collector(Collector):
    """The collector. It holds what it reads; to be rid of it, `REGISTRY.unregister` it."""

    def __init__(
        self,
        meter: Meter,
        purgatories: tuple[Purgatory[Any], ...],
        thresholds: tuple[ThresholdPurgatory[Any, Any], ...],
        polls: "tuple[LongPolls, ...]",
        relay: "Relay | None",
        stream: StreamMeter | None,
    ) -> None:
        self._meter, self._purgatories, self._thresholds = meter, purgatories, thresholds
        self._polls, self._relay, self._stream = polls, relay, stream

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, on any thread. Cost: some hundred samples for each kind, whatever is pending."""
        yield from _of_kinds(self._meter.snapshot())
        yield from _of_rooms(
            [each.statistics() for each in self._purgatories], [each.statistics() for each in self._thresholds]
        )
        if self._polls:
            yield from _of_polls(self._polls)
        if self._relay is not None:
            yield from _of_relay(self._relay)
        if self._stream is not None:
            yield from _of_stream(self._stream.statistics())


def _of_kinds(kinds: Iterable[KindMetrics]) -> Iterator[Metric]:
    ended = _counter("operations", "Operations that have ended, by how and by what.", *KIND, "outcome", "cause")
    waits = _histogram("wait_seconds", "How long operations waited that did not end at their first try.", *KIND, "outcome")
    late = _histogram("lateness_seconds", "How long after their deadline operations were answered that came to it.", *KIND)
    missed = _counter("missed_triggers", "Operations that only the last try at their deadline has completed.", *KIND)
    retries = _counter("retries", "Tries by a check of a key that found a condition not to hold yet.", *KIND)
    for kind in kinds:
        names = kind.purgatory, kind.kind
        for (state, cause), count in kind.outcomes.items():
            ended.add_metric((*names, state.value, cause.value), count)
        for state, histogram in kind.waits.items():
            waits.add_metric((*names, state.value), _buckets(histogram), histogram.sum)
        late.add_metric(names, _buckets(kind.lateness), kind.lateness.sum)
        missed.add_metric(names, kind.missed_triggers)
        retries.add_metric(names, kind.retries)
    yield from (ended, waits, late, missed, retries)


def _of_rooms(purgatories: list[PurgatoryStatistics], thresholds: list[ThresholdStatistics]) -> Iterator[Metric]:
    both: list[Statistics] = [*purgatories, *thresholds]
    for metric, rooms, field in (
        (_gauge("pending_operations", "Operations that wait now.", "purgatory"), both, "pending"),
        (_gauge("watches", "Pairs of an operation that waits and a key that it watches.", "purgatory"), purgatories, "watched"),
        (
            _gauge("keys", "Keys that somebody watches, or that have a value, if of thresholds.", "purgatory"),
            both,
            "keys",
        ),
        (_counter("wake_ups", "Callbacks that the wheel had from the event loop.", "purgatory"), both, "wake_ups"),
        (_counter("moves", "How often the wheel moved an operation to a narrower bucket.", "purgatory"), both, "moves"),
    ):
        for name, number in added_up(rooms, field).items():
            metric.add_metric((name,), number)
        yield metric


def _of_polls(polls: "tuple[LongPolls, ...]") -> Iterator[Metric]:
    open_polls = _gauge("open_polls", "Long polls that are open now.")
    open_polls.add_metric((), sum(each.open for each in polls))
    ended = _counter("polls", "Long polls that have ended, by how.", "ending")
    endings = {ending: sum(each.endings[ending] for each in polls) for each in polls for ending in list(each.endings)}
    for ending, count in endings.items():
        ended.add_metric((ending.value,), count)
    yield from (open_polls, ended)


def _of_relay(relay: "Relay") -> Iterator[Metric]:
    now = relay.statistics()
    for metric, number in (
        (_gauge("relay_connected", "Whether news arrive from the relay's store, 1 or 0."), int(now.is_connected)),
        (_gauge("relay_watched_keys", "Keys that somebody waits for through the relay."), now.watched),
        (_counter("relay_received_versions", "Versions of keys that came as news."), now.received),
        (_counter("relay_writes", "Writes to the relay's store."), now.sent),
        (_counter("relay_resyncs", "How often what had changed was read."), now.resyncs),
        (_counter("relay_healed_versions", "Versions that a resync found, and whose news were lost."), now.healed),
        (_counter("relay_epochs", "Epochs of the store that were seen; more than 1 if it has lost something."), now.epochs),
    ):
        metric.add_metric((), number)
        yield metric


def _of_stream(now: StreamStatistics) -> Iterator[Metric]:
    ended = _counter("stream_operations", "Operations of a stream that have ended, by how.", "stream", "outcome")
    for outcome in ("completed", "expired", "late"):
        ended.add_metric((now.name, outcome), getattr(now, outcome))
    yield ended
    for metric, number in (
        (_gauge("stream_running", "Whether the stream runs, 1 or 0.", "stream"), int(now.is_running)),
        (_gauge("stream_pending_operations", "Operations of the stream that wait now.", "stream"), now.pending),
        (
            _counter("stream_late_signals", "Signals that came behind the watermark, or lacked something.", "stream"),
            now.late_signals,
        ),
        (_counter("stream_rows", "Rows that this run has read.", "stream"), now.rows),
        (_counter("stream_batches", "Batches that this run has ended.", "stream"), now.batches),
        (_gauge("stream_batch_seconds", "How long the last batch took.", "stream"), now.batch_seconds),
        (_gauge("stream_state_rows", "Rows of the stream's state.", "stream"), now.state_rows),
        (_gauge("stream_state_bytes", "Memory of the stream's state.", "stream"), now.state_bytes),
        (
            _gauge("stream_watermark_timestamp_seconds", "Up to when everything is decided; 0 if none yet.", "stream"),
            now.watermark or 0,
        ),
    ):
        metric.add_metric((now.name,), number)
        yield metric


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"purgatory_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"purgatory_{name}", text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"purgatory_{name}", text, labels=labels)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus has them: each bucket holds those before it as well."""
    bounds = [*map(str, histogram.bounds[:-1]), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
