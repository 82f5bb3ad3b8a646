"""A span for each operation that waits, from the first try to the end, linked to the span that
completed it.

    request A      ├── jobs wait ────────────────────────────┤        a child of the span of A
    request B                      ├─ POST /results ─┤                calls check_and_complete: linked from A's wait

The parent is the waiter's span, because `operation_started` is called in the waiter's context. The
link is to the span that is current at the end, because `operation_ended` is called in the context
of the caller that ended it. A deadline has no span, so no link.
"""

import traceback
from typing import Any, Final, final

from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
)

from purgatory import DelayedOperation, Ended, Observer
from purgatory.metrics._table import encodable

MAX_KEYS_LENGTH: Final = 512
"""Characters of the attribute `purgatory.keys`."""


@final
class Spans:
    """Makes a span for each operation: pass it to purgatories as `observer`. It stores only spans
    that are recorded.

        Purgatory("jobs", observer=Spans())

    The name of a span is the purgatory's name and "wait"; its attributes are the kind, the outcome,
    the cause and the number of failed tries. If a hook raised, its status is an error.

    Args:
        tracer_provider: makes the spans; by default the global one.
        record_keys: whether the keys are an attribute; False by default, since they may be private.
    """

    key_checked = Observer.key_checked  # not overridden, so checks are not reported

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, record_keys: bool = False
    ) -> None:
        self._tracer = get_tracer("purgatory", tracer_provider=tracer_provider)
        self._record_keys = record_keys
        self._waiting: dict[int, Span] = {}
        """Recorded spans, by the `id` of their operation."""

    def operation_started(self, operation: DelayedOperation[Any]) -> None:
        """Starts a span, as a child of the current one."""
        span = self._tracer.start_span("wait", kind=SpanKind.INTERNAL)
        if span.is_recording():
            self._waiting[id(operation)] = span

    def operation_ended(self, ended: Ended) -> None:
        """Ends the span of the operation, if there is one."""
        span = self._waiting.pop(ended.operation_id, None)
        if span is None:
            return
        completing = get_current_span().get_span_context()
        if completing.is_valid and completing.span_id != _parent_id(span):
            span.add_link(completing)
        name = encodable(ended.purgatory)
        span.update_name(f"{name} wait")
        span.set_attributes(
            {
                "purgatory.name": name,
                "purgatory.kind": ended.kind,
                "purgatory.outcome": ended.state.value,
                "purgatory.cause": ended.cause.value,
                "purgatory.failed_tries": ended.failed_tries,
                "purgatory.missed_trigger": ended.missed_trigger,
            }
        )
        if ended.timeout is not None:
            span.set_attribute("purgatory.timeout", ended.timeout)
        if self._record_keys:
            keys = ", ".join(map(repr, ended.keys))
            span.set_attribute("purgatory.keys", encodable(keys[:MAX_KEYS_LENGTH]))
        if ended.exception is not None:
            text = encodable(str(ended.exception))
            span.record_exception(ended.exception, _attributes_of(ended.exception, text))
            span.set_status(Status(StatusCode.ERROR, text))
        span.end()


def _attributes_of(exception: BaseException, text: str) -> dict[str, str] | None:
    """Replaces what an exporter could not encode; None if it can."""
    if text == str(exception):
        return None
    trace = encodable("".join(traceback.format_exception(exception)))
    return {"exception.message": text, "exception.stacktrace": trace}


def _parent_id(span: Span) -> int | None:
    """The id of the span's parent. A link to the request that waits would be redundant."""
    parent = getattr(span, "parent", None)
    return None if parent is None else parent.span_id
