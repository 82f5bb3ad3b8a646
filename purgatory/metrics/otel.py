"""For OpenTelemetry: the same as observable instruments, and a span for each wait. Extra `otel`, which is the API alone.

    observe(meter, purgatories=[jobs])             instruments, read when the SDK exports
    Purgatory("jobs", observer=[meter, Spans()])   a span for each operation that waits

Without an SDK nothing is exported, and a span that nobody records costs what the API takes to say so.

The API has no observable histogram. So what Prometheus has as a histogram is here a counter of operations by the upper bound of
their bucket, and one of seconds.
"""

from purgatory.metrics._instruments import observe
from purgatory.metrics._spans import Spans

__all__ = ["Spans", "observe"]
