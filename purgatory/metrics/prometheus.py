"""Prometheus: a collector that reads all counts when it is scraped. Extra `metrics`.

    from prometheus_client import REGISTRY

    REGISTRY.register(collector(meter, purgatories=[jobs]))

The numbers of pending, watched and open operations are read then, too. That costs the same with ten
operations and with a million.
"""

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

from purgatory import Purgatory, ThresholdPurgatory
from purgatory._local import is_local_host, is_loopback
from purgatory.metrics._counts import Histogram
from purgatory.metrics._meter import Meter
from purgatory.metrics._stream import StreamMeter
from purgatory.metrics._table import Polls, Reading, Sources

if TYPE_CHECKING:
    from purgatory.relay import Relay

FAMILIES: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


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
        relay: read for its connection, its counts, and its waits for versions and values; a process
            has one relay.
        stream: the counts of a stream of `purgatory.pipeline`.

    Raises:
        TypeError: `meter` is not a `Meter`.
    """
    return _Collector(Sources.of(meter, purgatories, thresholds, polls, relay, stream))


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
        address: address to listen on; only readers of the metrics should reach it. On a local
            address requests with a foreign `Host` are refused: see `purgatory._local`.
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
    """A WSGI application that answers requests under a local name, and 403 to other requests."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if is_local_host(environ.get("HTTP_HOST", "").encode("latin-1")):
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"the header Host is not a local name of this machine\n"]

    return answer


@final
class _Collector(Collector):
    """The collector. It keeps references to its sources until it is unregistered."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._metrics = sources.metrics()

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, on any thread. Cost: some hundred samples for each kind, for any
        number of pending operations."""
        now = Reading(self._sources)
        for each in self._metrics:
            family = FAMILIES[each.sort](f"purgatory_{each.name}", each.text, labels=each.labels)
            for labels, number in each.read(now):
                if isinstance(number, Histogram):
                    family.add_metric(labels, _buckets(number), number.sum)
                else:
                    family.add_metric(labels, number)
            if family.samples:
                yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus has them."""
    bounds = [*map(str, histogram.bounds[:-1]), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
