"""For OpenTelemetry: the same as observable instruments, and a span for each wait. Extra `otel`, the API alone."""
