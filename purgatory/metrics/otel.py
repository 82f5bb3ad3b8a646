"""OpenTelemetry: the metrics as observable instruments, and a span for each wait. Extra `otel`,
which is the API alone.

    observe(meter, purgatories=[jobs])             instruments, read when the SDK exports
    Purgatory("jobs", observer=[meter, Spans()])   a span for each operation that waits

Without an SDK nothing is exported, and spans are not recorded.

The API has no observable histogram. So a histogram of Prometheus is here a counter of operations by
the upper bound of their bucket, and a counter of seconds.
"""

from purgatory.metrics._instruments import observe
from purgatory.metrics._spans import Spans

__all__ = ["Spans", "observe"]
