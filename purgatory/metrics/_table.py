"""The table of metrics that Prometheus and OpenTelemetry export: their names, and where their
numbers are read.

    Sources     what the user has given: a meter, purgatories, polls, a relay, a stream
    Reading     their numbers at one scrape, each read at most once
    METRICS     of each metric the names, the text, and the function from a reading to its samples
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar, final

from purgatory import PurgatoryStatistics, ThresholdStatistics
from purgatory.metrics._counts import Histogram, KindMetrics
from purgatory.metrics._meter import Meter

if TYPE_CHECKING:
    from purgatory.metrics._stream import StreamMeter, StreamStatistics
    from purgatory.relay import Relay, RelayStatistics

T = TypeVar("T")
Statistics = PurgatoryStatistics | ThresholdStatistics
Sample = tuple[tuple[str, ...], float | Histogram]
"""Values of the labels, and a number."""
Samples = Iterable[Sample]

POLL: Final = "poll"
"""Kind of a request's wait in `LongPolls`. The operation in a purgatory that the request waits for
is counted apart."""


class Polls(Protocol):
    """The part of `purgatory.asgi.LongPolls` that is exported."""

    @property
    def open(self) -> int:
        """The number of open polls."""
        ...

    @property
    def endings(self) -> "Counter[Any]":
        """Polls that have ended, by their ending."""
        ...

    @property
    def all_endings(self) -> Iterable[Any]:
        """All possible endings."""
        ...

    @property
    def max_open(self) -> float:
        """The most polls that may be open at once; infinite for no limit."""
        ...


class Sources(NamedTuple):
    """The objects to export."""

    meter: Meter
    purgatories: tuple[Any, ...]
    thresholds: tuple[Any, ...]
    polls: tuple[Polls, ...]
    relay: "Relay | None"
    stream: "StreamMeter | None" = None

    @classmethod
    def of(
        cls,
        meter: Meter,
        purgatories: Any,
        thresholds: Any,
        polls: Any,
        relay: "Relay | None",
        stream: "StreamMeter | None" = None,
    ) -> "Sources":
        """The arguments of an exporter, some of which may be one object or several.

        Raises:
            TypeError: `meter` is not a `Meter`.
        """
        if not isinstance(meter, Meter):
            raise TypeError(f"meter must be a Meter, not {meter!r}")
        return cls(
            meter, _as_tuple(purgatories), _as_tuple(thresholds), _as_tuple(polls), relay, stream
        )

    def metrics(self) -> "list[Metric]":
        """The metrics of the given objects."""
        return [each for each in METRICS if each.source is None or getattr(self, each.source)]


@final
class Reading:
    """The numbers of all sources at one time."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.polls = sources.polls

    @cached_property
    def kinds(self) -> tuple[KindMetrics, ...]:
        return self._sources.meter.snapshot()

    @cached_property
    def purgatories(self) -> list[Statistics]:
        # The user may have given the relay's waits, too.
        relay = self._sources.relay
        given = (*self._sources.purgatories, *(() if relay is None else (relay.replies,)))
        return [each.statistics() for each in dict.fromkeys(given)]

    @cached_property
    def all_purgatories(self) -> list[Statistics]:
        relay = self._sources.relay
        given = (*self._sources.thresholds, *(() if relay is None else (relay.thresholds,)))
        return [*self.purgatories, *(each.statistics() for each in dict.fromkeys(given))]

    @cached_property
    def relay(self) -> "RelayStatistics":
        assert self._sources.relay is not None
        return self._sources.relay.statistics()

    @cached_property
    def stream(self) -> "StreamStatistics":
        assert self._sources.stream is not None
        return self._sources.stream.statistics()


class Metric(NamedTuple):
    """A metric."""

    source: Literal["polls", "relay", "stream"] | None
    """The source that it needs; None if it is exported in any case."""
    sort: Literal["counter", "gauge", "histogram"]
    name: str
    """Name in Prometheus, after `purgatory_`."""
    otel_name: str
    """Name in OpenTelemetry, after `purgatory.`."""
    unit: str
    labels: tuple[str, ...]
    text: str
    read: Callable[[Reading], Samples]


def encodable(text: str) -> str:
    r"""The text with lone surrogates escaped (`\ud800`): a label with one would fail the whole
    export."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _as_tuple(given: T | Iterable[T]) -> tuple[T, ...]:
    return tuple(given) if isinstance(given, Iterable) else (given,)


def _each_kind(samples: Callable[[KindMetrics], Samples]) -> Callable[[Reading], Samples]:
    """Adds the labels of the kind to its samples."""

    def read(now: Reading) -> Iterator[Sample]:
        for kind in now.kinds:
            for labels, number in samples(kind):
                yield (encodable(kind.purgatory), kind.kind, *labels), number

    return read


def _outcomes(kind: KindMetrics, *, of_polls: bool) -> Samples:
    if (kind.kind == POLL) is of_polls:
        for (state, cause), count in kind.outcomes.items():
            yield (state.value, cause.value), count


def _sums(field: str, *, thresholds: bool = True) -> Callable[[Reading], Samples]:
    """Sums of `field` by the names of the purgatories, which several may share."""

    def read(now: Reading) -> Samples:
        statistics: Sequence[Statistics] = now.all_purgatories if thresholds else now.purgatories
        sums: Counter[str] = Counter()
        for each in statistics:
            sums[encodable(each.name)] += getattr(each, field)
        return [((name,), number) for name, number in sums.items()]

    return read


def _number(read: Callable[[Reading], float]) -> Callable[[Reading], Samples]:
    return lambda now: [((), read(now))]


def _limit(polls: Iterable[Polls]) -> float:
    return sum(each.max_open for each in polls)


def _endings(now: Reading) -> Samples:
    for ending in now.polls[0].all_endings:
        yield (ending.value,), sum(each.endings[ending] for each in now.polls)


def _stream(read: "Callable[[StreamStatistics], float]") -> Callable[[Reading], Samples]:
    return lambda now: [((encodable(now.stream.name),), read(now.stream))]


def _stream_outcomes(now: Reading) -> Samples:
    for outcome in ("completed", "expired", "late"):
        yield (encodable(now.stream.name), outcome), getattr(now.stream, outcome)


KIND: Final = ("purgatory", "kind")
NAME: Final = ("purgatory",)
STREAM: Final = ("stream",)

# fmt: off
METRICS: Final = (
    Metric(None, "counter", "operations", "operations", "{operation}", (*KIND, "outcome", "cause"),
           "Operations that have ended, by outcome and cause.",
           _each_kind(lambda kind: _outcomes(kind, of_polls=False))),
    Metric(None, "counter", "poll_waits", "poll_waits", "{wait}", (*KIND, "outcome", "cause"),
           "Waits of requests that have ended, by outcome and cause.",
           _each_kind(lambda kind: _outcomes(kind, of_polls=True))),
    Metric(None, "histogram", "wait_seconds", "wait", "s", (*KIND, "outcome"),
           "How long operations waited, except operations that ended at their first try.",
           _each_kind(lambda kind: [((state.value,), waits) for state, waits in kind.waits.items()])),
    Metric(None, "histogram", "lateness_seconds", "lateness", "s", KIND,
           "How long after its deadline an operation ended, if it reached its deadline.",
           _each_kind(lambda kind: [((), kind.lateness)])),
    Metric(None, "counter", "missed_triggers", "missed_triggers", "{operation}", KIND,
           "Operations that only the last try, at their deadline, completed.",
           _each_kind(lambda kind: [((), kind.missed_triggers)])),
    Metric(None, "counter", "failed_tries", "failed_tries", "{try}", KIND,
           "Tries of operations whose condition did not hold.",
           _each_kind(lambda kind: [((), kind.failed_tries)])),

    Metric(None, "gauge", "pending_operations", "pending", "{operation}", NAME,
           "Operations that wait now.", _sums("pending")),
    Metric(None, "gauge", "watches", "watches", "{watch}", NAME,
           "Pairs of an operation and a key that it watches.", _sums("watched", thresholds=False)),
    Metric(None, "gauge", "keys", "keys", "{key}", NAME,
           "Keys that operations watch, or threshold purgatories have a value of.", _sums("keys")),
    Metric(None, "counter", "wake_ups", "wake_ups", "{callback}", NAME,
           "Callbacks that the event loop made to the timing wheel.", _sums("wake_ups")),
    Metric(None, "counter", "moves", "moves", "{operation}", NAME,
           "How often the timing wheel moved an operation to a narrower bucket.", _sums("moves")),

    Metric("polls", "gauge", "open_polls", "polls.open", "{poll}", (),
           "Long polls that are open now.", _number(lambda now: sum(each.open for each in now.polls))),
    Metric("polls", "gauge", "open_polls_limit", "polls.limit", "{poll}", (),
           "How many long polls may be open at once.", _number(lambda now: _limit(now.polls))),
    Metric("polls", "counter", "polls", "polls", "{poll}", ("ending",),
           "Long polls that have ended, by their ending.", _endings),

    Metric("relay", "gauge", "relay_connected", "relay.connected", "1", (),
           "Whether the relay is connected to its store, 1 or 0.",
           _number(lambda now: int(now.relay.is_connected))),
    Metric("relay", "gauge", "relay_watched_keys", "relay.watched", "{key}", (),
           "Keys with waits through the relay.", _number(lambda now: now.relay.watched)),
    Metric("relay", "counter", "relay_received_versions", "relay.received", "1", (),
           "Versions of keys that arrived as messages.", _number(lambda now: now.relay.received)),
    Metric("relay", "counter", "relay_writes", "relay.sent", "1", (),
           "Writes to the relay's store.", _number(lambda now: now.relay.sent)),
    Metric("relay", "counter", "relay_resyncs", "relay.resyncs", "1", (),
           "How often missed changes were looked up in the store.",
           _number(lambda now: now.relay.resyncs)),
    Metric("relay", "counter", "relay_healed_versions", "relay.healed", "1", (),
           "Versions whose message was lost, and that a resync found.",
           _number(lambda now: now.relay.healed)),
    Metric("relay", "counter", "relay_epochs", "relay.epochs", "1", (),
           "Epochs of the store that were seen; more than 1 if it has lost something.",
           _number(lambda now: now.relay.epochs)),

    Metric("stream", "counter", "stream_operations", "stream.operations", "{operation}",
           (*STREAM, "outcome"), "Operations of a stream that have ended, by outcome.",
           _stream_outcomes),
    Metric("stream", "gauge", "stream_running", "stream.running", "1", STREAM,
           "Whether the stream runs, 1 or 0.", _stream(lambda now: int(now.is_running))),
    Metric("stream", "gauge", "stream_pending_operations", "stream.pending", "{operation}", STREAM,
           "Operations of the stream that wait now.", _stream(lambda now: now.pending)),
    Metric("stream", "counter", "stream_late_signals", "stream.late_signals", "{signal}", STREAM,
           "Signals behind the watermark, and malformed ones.",
           _stream(lambda now: now.late_signals)),
    Metric("stream", "counter", "stream_rows", "stream.rows", "{row}", STREAM,
           "Rows that this run has read.", _stream(lambda now: now.rows)),
    Metric("stream", "counter", "stream_batches", "stream.batches", "{batch}", STREAM,
           "Batches that this run has finished.", _stream(lambda now: now.batches)),
    Metric("stream", "gauge", "stream_batch_seconds", "stream.batch", "s", STREAM,
           "How long the last batch took.", _stream(lambda now: now.batch_seconds)),
    Metric("stream", "gauge", "stream_state_rows", "stream.state_rows", "{row}", STREAM,
           "Rows of the stream's state.", _stream(lambda now: now.state_rows)),
    Metric("stream", "gauge", "stream_state_bytes", "stream.state", "By", STREAM,
           "Memory of the stream's state.", _stream(lambda now: now.state_bytes)),
    Metric("stream", "gauge", "stream_watermark_timestamp_seconds", "stream.watermark", "s", STREAM,
           "The watermark; 0 if there is none yet.", _stream(lambda now: now.watermark or 0)),
    Metric("stream", "gauge", "stream_behind_seconds", "stream.behind", "s", STREAM,
           "How far the watermark is behind the clock; 0 if nothing is due by the clock.",
           _stream(lambda now: now.behind(time.time()))),
    Metric("stream", "gauge", "stream_overdue_operations", "stream.overdue", "{operation}", STREAM,
           "Pending operations whose deadline had passed when they were last counted.",
           _stream(lambda now: now.overdue)),
)
# fmt: on
"""The metrics, in the order in which they are exported."""
