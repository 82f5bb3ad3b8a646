"""Prometheus: a collector that reads all counts when it is scraped. Extra `metrics`.

    from prometheus_client import REGISTRY

    REGISTRY.register(collector(meter, purgatories=[jobs]))

The numbers of pending, watched and open operations are read then, too. That costs the same with ten
operations and with a million.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from errno import EADDRINUSE
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import (
    REGISTRY,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from purgatory import Purgatory, PurgatoryStatistics, ThresholdPurgatory, ThresholdStatistics
from purgatory._local import is_local_host, is_loopback
from purgatory.metrics._meter import Meter
from purgatory.metrics._purgatories import (
    POLL,
    Polls,
    Statistics,
    as_tuple,
    encodable,
    open_limit,
    sum_by_name,
    with_relay,
)
from purgatory.metrics._snapshot import Histogram, KindMetrics
from purgatory.metrics._stream import StreamMeter, StreamStatistics

if TYPE_CHECKING:
    from purgatory.relay import Relay

KIND: Final = ("purgatory", "kind")


def collector(
    meter: Meter,
    *,
    purgatories: "Purgatory[Any] | Iterable[Purgatory[Any]]" = (),
    thresholds: "ThresholdPurgatory[Any, Any] | Iterable[ThresholdPurgatory[Any, Any]]" = (),
    polls: "Polls | Iterable[Polls]" = (),
    relay: "Relay | None" = None,
    stream: StreamMeter | None = None,
) -> Collector:
    """Makes a collector to register with Prometheus' client: `REGISTRY.register(collector(...))`.

    `purgatories`, `thresholds` and `polls` may be one object or several.

    Args:
        meter: counts the operations that ended.
        purgatories: read for pending operations and the work of their timing wheels. Purgatories
            that share a name are summed up.
        thresholds: read in the same way.
        polls: read for open polls and their endings.
        relay: its connection, its counts, and its waits for versions and values; a process has one
            relay.
        stream: the counts of a stream of `purgatory.pipeline`.

    Raises:
        TypeError: `meter` is not a `Meter`.
    """
    if not isinstance(meter, Meter):
        raise TypeError(f"meter must be a Meter, not {meter!r}")
    return _Collector(
        meter, as_tuple(purgatories), as_tuple(thresholds), as_tuple(polls), relay, stream
    )


def serve(
    ports: Iterable[int], *, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY
) -> WSGIServer:
    """Serves metrics from a thread, on the first of `ports` that is free: each worker of a server
    gets another one.

    If workers shared a port, scrapes would reach one or another, and counters would jump. So each
    worker is a target, as Prometheus expects of processes; `sum by (purgatory) (...)` adds them up.

    Args:
        ports: one for each worker, and some more: a new worker may start before its predecessor
            has ended.
        address: to listen on; it should be reachable only for readers of the metrics. On
            a local one requests under a foreign `Host` are refused: see `purgatory._local`.
        registry: the registry to serve.

    Returns:
        The server: `server_port` is its port, `shutdown()` and `server_close()` end it.

    Raises:
        OSError: no port is free.
    """
    tried = list(ports)
    for port in tried:
        try:
            server, _ = start_http_server(port, address, CollectorRegistry())
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise
        else:
            app = make_wsgi_app(registry)
            is_local = is_loopback(server.server_address[0])
            server.set_app(_refuse_foreign_hosts(app) if is_local else app)
            return server
    raise OSError(
        EADDRINUSE, f"cannot serve metrics on {address}: none of the ports {tried} is free"
    )


def _refuse_foreign_hosts(app: Callable[..., Any]) -> Callable[..., Any]:
    """A WSGI application that answers requests under a local name, and 403 to others."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if is_local_host(environ.get("HTTP_HOST", "").encode("latin-1")):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"the header Host is not a local name of this machine\n"]

    return answer


@final
class _Collector(Collector):
    """The collector. It keeps references to its sources until it is unregistered."""

    def __init__(
        self,
        meter: Meter,
        purgatories: tuple[Purgatory[Any], ...],
        thresholds: tuple[ThresholdPurgatory[Any, Any], ...],
        polls: tuple[Polls, ...],
        relay: "Relay | None",
        stream: StreamMeter | None,
    ) -> None:
        self._meter, self._purgatories, self._thresholds = meter, purgatories, thresholds
        self._polls, self._relay, self._stream = polls, relay, stream

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, on any thread. Cost: some hundred samples for each kind, for any
        number of pending operations."""
        yield from _of_kinds(self._meter.snapshot())
        purgatories, thresholds = with_relay(self._purgatories, self._thresholds, self._relay)
        yield from _of_purgatories(
            [each.statistics() for each in purgatories], [each.statistics() for each in thresholds]
        )
        if self._polls:
            yield from _of_polls(self._polls)
        if self._relay is not None:
            yield from _of_relay(self._relay)
        if self._stream is not None:
            yield from _of_stream(self._stream.statistics())


def _of_kinds(kinds: Iterable[KindMetrics]) -> Iterator[Metric]:
    ended = _counter(
        "operations", "Operations that have ended, by outcome and cause.", *KIND, "outcome", "cause"
    )
    polled = _counter(
        "poll_waits",
        "Waits of requests that have ended, by outcome and cause.",
        *KIND,
        "outcome",
        "cause",
    )
    waits = _histogram(
        "wait_seconds",
        "How long operations waited, except operations that ended at their first try.",
        *KIND,
        "outcome",
    )
    late = _histogram(
        "lateness_seconds",
        "How long after its deadline an operation ended, if it reached its deadline.",
        *KIND,
    )
    missed = _counter(
        "missed_triggers", "Operations that only the last try, at their deadline, completed.", *KIND
    )
    retries = _counter(
        "retries", "Tries by a check of a key whose condition did not hold yet.", *KIND
    )
    for kind in kinds:
        names = encodable(kind.purgatory), kind.kind
        for (state, cause), count in kind.outcomes.items():
            (polled if kind.kind == POLL else ended).add_metric(
                (*names, state.value, cause.value), count
            )
        for state, histogram in kind.waits.items():
            waits.add_metric((*names, state.value), _buckets(histogram), histogram.sum)
        late.add_metric(names, _buckets(kind.lateness), kind.lateness.sum)
        missed.add_metric(names, kind.missed_triggers)
        retries.add_metric(names, kind.retries)
    yield from (ended, *([polled] if polled.samples else []), waits, late, missed, retries)


def _of_purgatories(
    purgatories: list[PurgatoryStatistics], thresholds: list[ThresholdStatistics]
) -> Iterator[Metric]:
    both: list[Statistics] = [*purgatories, *thresholds]
    for metric, sources, field in (
        (_gauge("pending_operations", "Operations that wait now.", "purgatory"), both, "pending"),
        (
            _gauge("watches", "Pairs of an operation and a key that it watches.", "purgatory"),
            purgatories,
            "watched",
        ),
        (
            _gauge(
                "keys",
                "Keys that operations watch, or threshold purgatories have a value of.",
                "purgatory",
            ),
            both,
            "keys",
        ),
        (
            _counter(
                "wake_ups", "Callbacks that the event loop made to the timing wheel.", "purgatory"
            ),
            both,
            "wake_ups",
        ),
        (
            _counter(
                "moves", "How often the wheel moved an operation to a narrower bucket.", "purgatory"
            ),
            both,
            "moves",
        ),
    ):
        for name, number in sum_by_name(sources, field).items():
            metric.add_metric((name,), number)
        yield metric


def _of_polls(polls: tuple[Polls, ...]) -> Iterator[Metric]:
    open_polls = _gauge("open_polls", "Long polls that are open now.")
    open_polls.add_metric((), sum(each.open for each in polls))
    limit = _gauge("open_polls_limit", "How many long polls may be open at once.")
    limit.add_metric((), open_limit(polls))
    ended = _counter("polls", "Long polls that have ended, by their ending.", "ending")
    for ending in polls[0].all_endings:
        ended.add_metric((ending.value,), sum(each.endings[ending] for each in polls))
    yield from (open_polls, limit, ended)


def _of_relay(relay: "Relay") -> Iterator[Metric]:
    now = relay.statistics()
    for metric, number in (
        (
            _gauge("relay_connected", "Whether the relay is connected to its store, 1 or 0."),
            int(now.is_connected),
        ),
        (
            _gauge("relay_watched_keys", "Keys with waits through the relay."),
            now.watched,
        ),
        (
            _counter("relay_received_versions", "Versions of keys that arrived as messages."),
            now.received,
        ),
        (_counter("relay_writes", "Writes to the relay's store."), now.sent),
        (
            _counter("relay_resyncs", "How often missed changes were looked up in the store."),
            now.resyncs,
        ),
        (
            _counter(
                "relay_healed_versions", "Versions whose message was lost, and that a resync found."
            ),
            now.healed,
        ),
        (
            _counter(
                "relay_epochs",
                "Epochs of the store that were seen; more than 1 if it has lost something.",
            ),
            now.epochs,
        ),
    ):
        metric.add_metric((), number)
        yield metric


def _of_stream(now: StreamStatistics) -> Iterator[Metric]:
    stream = encodable(now.name)
    ended = _counter(
        "stream_operations",
        "Operations of a stream that have ended, by outcome.",
        "stream",
        "outcome",
    )
    for outcome in ("completed", "expired", "late"):
        ended.add_metric((stream, outcome), getattr(now, outcome))
    yield ended
    for metric, number in (
        (
            _gauge("stream_running", "Whether the stream runs, 1 or 0.", "stream"),
            int(now.is_running),
        ),
        (
            _gauge(
                "stream_pending_operations", "Operations of the stream that wait now.", "stream"
            ),
            now.pending,
        ),
        (
            _counter(
                "stream_late_signals", "Signals behind the watermark, and malformed ones.", "stream"
            ),
            now.late_signals,
        ),
        (_counter("stream_rows", "Rows that this run has read.", "stream"), now.rows),
        (_counter("stream_batches", "Batches that this run has finished.", "stream"), now.batches),
        (
            _gauge("stream_batch_seconds", "How long the last batch took.", "stream"),
            now.batch_seconds,
        ),
        (_gauge("stream_state_rows", "Rows of the stream's state.", "stream"), now.state_rows),
        (_gauge("stream_state_bytes", "Memory of the stream's state.", "stream"), now.state_bytes),
        (
            _gauge(
                "stream_watermark_timestamp_seconds",
                "The watermark; 0 if there is none yet.",
                "stream",
            ),
            now.watermark or 0,
        ),
        (
            _gauge(
                "stream_behind_seconds",
                "How far the watermark is behind the clock; 0 if nothing is due by the clock.",
                "stream",
            ),
            now.behind(time.time()),
        ),
        (
            _gauge(
                "stream_overdue_operations",
                "Pending operations whose deadline had passed when they were last counted.",
                "stream",
            ),
            now.overdue,
        ),
    ):
        metric.add_metric((stream,), number)
        yield metric


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"purgatory_{name}", text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"purgatory_{name}", text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"purgatory_{name}", text, labels=labels)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus has them."""
    bounds = [*map(str, histogram.bounds[:-1]), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
