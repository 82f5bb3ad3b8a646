"""Metrics of purgatories: a `Meter` counts them, and Prometheus (`.prometheus`), OpenTelemetry
(`.otel`) or your own code reads them."""

from purgatory.metrics._counts import Histogram, KindMetrics
from purgatory.metrics._meter import Meter
from purgatory.metrics._stream import StreamMeter, StreamStatistics

__all__ = ["Histogram", "KindMetrics", "Meter", "StreamMeter", "StreamStatistics"]
