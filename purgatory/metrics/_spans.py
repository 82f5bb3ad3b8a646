"""A span for each operation that waits, from the first try to the answer, linked to the span that completed it.

    request A      ├── jobs wait ────────────────────────────┤        a child of whatever A is doing
    request B                      ├─ POST /results ─┤                in which check_and_complete is called: a link of A's wait

Its parent is the span of whoever waits, because starts are told in that context. The link is to the span that is current when
it ends, because ends are told in the context of whoever completes the operation. A deadline has no such span, and no link.
"""

from typing import Any, Final, final

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_current_span, get_tracer

from purgatory import DelayedOperation, Ended, Observer

LONGEST: Final = 512
"""Characters of the keys that a span tells, if it is to tell them."""


@final
class Spans:
    """Makes a span for each operation: give it to purgatories as an observer. Where nobody records spans it makes none.

        Purgatory("jobs", observer=Spans())

    The name of a span is that of the purgatory and "wait"; its attributes say the kind, the outcome, the cause and how often
    the condition was tried in vain. A hook that raised makes it an error.

    Args:
        tracer_provider: who makes them; the global one if not given.
        tell_keys: whether the keys are among the attributes. They may be private, so not by default.
    """

    key_checked = Observer.key_checked  # of checks it is not told

    def __init__(self, *, tracer_provider: TracerProvider | None = None, tell_keys: bool = False) -> None:
        self._tracer = get_tracer("purgatory", tracer_provider=tracer_provider)
        self._tell_keys = tell_keys
        self._waiting: dict[int, Span] = {}
        """By the ids of the operations, those that are recorded."""

    def operation_started(self, operation: DelayedOperation[Any]) -> None:
        """Begins a span, as a child of the one in which the operation was brought."""
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
        span.update_name(f"{ended.purgatory} wait")
        span.set_attributes(
            {
                "purgatory.name": ended.purgatory,
                "purgatory.kind": ended.kind,
                "purgatory.outcome": ended.state.value,
                "purgatory.cause": ended.cause.value,
                "purgatory.failed_tries": ended.failed_tries,
                "purgatory.missed_trigger": ended.missed_trigger,
            }
        )
        if ended.timeout is not None:
            span.set_attribute("purgatory.timeout", ended.timeout)
        if self._tell_keys:
            span.set_attribute("purgatory.keys", ", ".join(map(repr, ended.keys))[:LONGEST])
        if ended.exception is not None:
            span.record_exception(ended.exception)
            span.set_status(Status(StatusCode.ERROR, str(ended.exception)))
        span.end()


def _parent_id(span: Span) -> int | None:
    """The id of the span that it is a child of: an operation that its own request ends needs no link."""
    parent = getattr(span, "parent", None)
    return None if parent is None else parent.span_id
