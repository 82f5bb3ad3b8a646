"""Metrics of purgatories: counted by a `Meter`, read by Prometheus (`.prometheus`), OpenTelemetry (`.otel`) or anybody."""

from purgatory.metrics._meter import Meter
from purgatory.metrics._snapshot import Histogram, KindMetrics
from purgatory.metrics._stream import StreamMeter, StreamStatistics

__all__ = ["Histogram", "KindMetrics", "Meter", "StreamMeter", "StreamStatistics"]
