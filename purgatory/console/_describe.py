"""The state of the page as plain data for JSON: times as durations in seconds, keys as text.

Only public names are read: the purgatories' own `statistics`, `inspect`, a `Meter`, the polls and
the relay.
"""

from collections.abc import Callable, Hashable, Iterable
from functools import cache
from itertools import islice
from json import dumps
from math import isinf
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final

from purgatory import (
    Inspection,
    Purgatory,
    ThresholdInspection,
    ThresholdPurgatory,
    WaitingOperation,
    WrongLoop,
    inspect,
)
from purgatory.asgi._polls import LongPolls

if TYPE_CHECKING:
    from purgatory.metrics import Histogram, KindMetrics, StreamMeter
    from purgatory.relay import Relay, Worker

KeyOf = Callable[[Hashable], str]
AnyPurgatory = Purgatory[Any] | ThresholdPurgatory[Any, Any]
Point = tuple[int, int, int, int, int]
"""Pending, and in all: completed, expired, cancelled, missed triggers."""

COUNTS: Final = ("name", "keys", "pending", "completed", "expired", "cancelled")
"""Counts of both kinds of purgatory."""

MAX_KEY_LENGTH: Final = 120
"""Characters of a key that are shown."""

MAX_SAMPLE: Final = 256
"""Operations of a sample that are grouped by their keys."""

MAX_ROWS: Final = 50
"""Rows of operations that are sent, for the page's filter."""

MAX_HOT_KEYS: Final = 10

MAX_ADDRESS_BYTES: Final = 1000
"""Limit of an address as JSON, so that it fits into an announcement."""

MAX_SAFE_INTEGER: Final = 2**53
"""Up to here a number of JavaScript is exact."""


class _Repr(Repr):
    """As `reprlib`'s, but in bounded time for bytes and for classes derived from built-in ones, of
    which that one makes the whole `repr` before it shortens it. The `repr` of a class of the
    user's own is made whole."""

    def repr_bytes(self, x: bytes | bytearray, _level: int) -> str:
        """Bytes, from their ends alone."""
        if len(x) <= self.maxother:
            return repr(x)
        half = self.maxother // 2 - 5  # for the quotes and dots
        return f"{bytes(x[:half])!r}...{bytes(x[-half:])!r}"

    repr_bytearray = repr_bytes

    def repr_int(self, x: int, level: int) -> str:
        """An integer, or the size of a very long one, since `str` of it takes quadratic time."""
        del level
        bits = x.bit_length()
        return repr(x) if bits <= 3 * self.maxother else f"<int of {bits} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        """An object of another class; one with the `repr` of a built-in is shortened likewise."""
        for kind in (str, bytes, bytearray, tuple, frozenset, int):
            if isinstance(x, kind) and type(x).__repr__ is kind.__repr__:
                shortened: str = getattr(self, f"repr_{kind.__name__}")(x, level)
                return shortened
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return f"{type(x).__name__}{self.repr_tuple(x, level)}"
        return super().repr_instance(x, level)


_repr: Final = _Repr()
_repr.maxstring = _repr.maxother = MAX_KEY_LENGTH


def shown(key: Hashable) -> str:
    """A key as its `repr`, shortened: `42` and `"42"` look different."""
    return _repr.repr(key)


def text_of(key: Hashable, key_of: KeyOf) -> str:
    """A key on the page: printable characters only, and not too many."""
    try:
        text = str(key_of(key))
    except Exception as error:
        return f"(key_of raised {type(error).__name__})"
    if len(text) > MAX_KEY_LENGTH:
        text = text[: MAX_KEY_LENGTH - 1] + "…"
    return (
        text
        if text.isprintable()
        else "".join([char if char.isprintable() else "\ufffd" for char in text])
    )


def describe(
    purgatory: "AnyPurgatory | Relay", kinds: "Iterable[KindMetrics] | None", key_of: KeyOf
) -> tuple[dict[str, Any], Point]:
    """A purgatory or the waits of a relay, and a point of its history. The cost does not depend on
    the pending operations."""
    if not isinstance(purgatory, (Purgatory, ThresholdPurgatory)):
        return _relay_waits(purgatory, kinds, key_of)
    if isinstance(purgatory, ThresholdPurgatory):
        counts = purgatory.statistics()
        fields = _fields(counts, *COUNTS, "failed") | {
            "isThreshold": True,
            "watched": counts.pending,
        }
        try:
            seen = inspect(purgatory, MAX_SAMPLE)
        except WrongLoop:
            fields["isElsewhere"] = True  # it belongs to another loop of this process
        else:
            fields |= _fields(seen, "is_closed", "looked_at")
            fields |= {"missedLast": [], "withoutDeadline": 0}
            fields["oldest"] = _oldest(seen, key_of)
            fields["hottest"] = [
                {
                    "key": text_of(each.key, key_of),
                    "value": None if each.value is None else text_of(each.value, shown),
                    "threshold": text_of(each.threshold, shown),
                    "waiting": each.waiting,
                }
                for each in seen.hottest[:MAX_HOT_KEYS]
            ]
        return fields, (counts.pending, counts.completed, counts.expired, counts.cancelled, 0)
    statistics = purgatory.statistics()
    point = (
        statistics.pending,
        statistics.completed,
        statistics.expired,
        statistics.cancelled,
        statistics.missed_triggers,
    )
    fields = _fields(statistics, *COUNTS, "watched") | {"missed": statistics.missed_triggers}
    try:
        fields |= _inspection(inspect(purgatory, MAX_SAMPLE), key_of)
    except WrongLoop:
        fields["isElsewhere"] = True  # it belongs to another loop of this process
    if kinds is not None:
        fields["kinds"] = [_kind(kind) for kind in kinds if kind.purgatory == statistics.name]
    return fields, point


def _relay_waits(
    relay: "Relay", kinds: "Iterable[KindMetrics] | None", key_of: KeyOf
) -> tuple[dict[str, Any], Point]:
    """The waits for versions and for replies, as of one purgatory."""
    (versions, point), (fields, other) = [
        describe(each, kinds, key_of) for each in (relay.thresholds, relay.replies)
    ]
    for name in ("keys", "pending", "completed", "expired", "cancelled", "watched"):
        fields[name] += versions[name]
    if "oldest" in fields and "oldest" in versions:
        for rows, kind in ((versions["oldest"], "version"), (fields["oldest"], "reply")):
            for row in rows:
                row["kind"] = kind
        rows = versions["oldest"] + fields["oldest"]
        fields["oldest"] = sorted(rows, key=lambda row: -(row["waited"] or 0.0))[:MAX_ROWS]
        rows = versions["hottest"] + fields["hottest"]
        fields["hottest"] = sorted(rows, key=lambda row: -row["waiting"])[:MAX_HOT_KEYS]
        fields["lookedAt"] += sum(row["count"] for row in versions["oldest"])
    pending, completed, expired, cancelled, missed = map(sum, zip(point, other, strict=True))
    return fields, (pending, completed, expired, cancelled, missed)


def _fields(source: Any, *names: str) -> dict[str, Any]:
    """These attributes, named as in JavaScript."""
    return {_camel_case(name): getattr(source, name) for name in names}


@cache
def _camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.title, words))


def _inspection(seen: Inspection, key_of: KeyOf) -> dict[str, Any]:
    return _fields(seen, "is_closed", "max_pending", "without_deadline", "looked_at") | {
        "oldest": _oldest(seen, key_of),
        "hottest": [
            {"waiting": each.waiting, "key": text_of(each.key, key_of)}
            for each in seen.hottest[:MAX_HOT_KEYS]
        ],
        "missedLast": [
            _operation(each, key_of)
            | {"timeout": each.timeout, "ago": round(seen.now - each.deadline, 3)}
            for each in seen.missed
        ],
    }


def _oldest(seen: Inspection | ThresholdInspection, key_of: KeyOf) -> list[dict[str, Any]]:
    """The sampled operations of equal kind and keys, as one row each: the longest wait, and the
    number of all operations under a single key, or else the number in the sample."""
    waiting = {each.key: each.waiting for each in seen.hottest}
    groups: dict[Any, list[WaitingOperation]] = {}
    for each in seen.oldest:
        groups.setdefault((each.kind, each.keys, each.more_keys), []).append(each)
    rows = []
    for first, *others in islice(groups.values(), MAX_ROWS):
        deadlines = [each.deadline for each in (first, *others) if each.deadline is not None]
        waited = None if first.started_at is None else round(seen.now - first.started_at, 3)
        left = round(min(deadlines) - seen.now, 3) if deadlines else None
        is_single = len(first.keys) == 1 and not first.more_keys
        count = waiting.get(first.keys[0], 1) if is_single else 1 + len(others)
        more = {"count": count, "waited": waited, "left": left}
        rows.append(_operation(first, key_of) | more)
    return rows


def _operation(each: Any, key_of: KeyOf) -> dict[str, Any]:
    return _fields(each, "kind", "more_keys") | {
        "keys": [text_of(key, key_of) for key in each.keys]
    }


def _kind(kind: "KindMetrics") -> dict[str, Any]:
    return _fields(kind, "kind") | {
        "outcomes": {
            f"{state.value}: {cause.value}": count
            for (state, cause), count in kind.outcomes.items()
        },
        "waits": {state.value: _histogram(histogram) for state, histogram in kind.waits.items()},
        "lateness": _histogram(kind.lateness),
        "missed": kind.missed_triggers,
    }


def _histogram(histogram: "Histogram") -> dict[str, Any]:
    bounds = [None if isinf(bound) else bound for bound in histogram.bounds]
    return {"bounds": bounds, "counts": histogram.counts, "sum": round(histogram.sum, 6)}


def describe_polls(polls: LongPolls) -> dict[str, Any]:
    """An application's long polls."""
    endings = {ending.value: count for ending, count in polls.endings.items()}
    max_open = None if isinf(polls.max_open) else polls.max_open
    return _fields(polls, "open", "is_stopping") | {"maxOpen": max_open, "endings": endings}


def describe_relay(relay: "Relay", now: float) -> dict[str, Any]:
    """A relay."""
    statistics = relay.statistics()
    names = ("is_connected", "received", "sent", "resyncs", "healed", "epochs", "watched")
    return _fields(statistics, *names) | {"for": round(now - statistics.since, 3)}


def describe_other(other: "Worker", now: float) -> dict[str, Any]:
    """Another worker. It announced this through a store that other programs may write to, so it is
    not trusted."""

    def number(name: str) -> float | None:
        value = other.about.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value if 0 <= value <= MAX_SAFE_INTEGER else None

    host, address = other.about.get("host"), other.about.get("address")
    return {
        "host": text_of(host, str) if isinstance(host, str) else "",
        "address": address if is_web_address(address) else None,
        "ago": round(max(now - other.heard_at, 0.0), 1),
    } | {name: number(name) for name in ("pid", "began", "pending", "polls")}


def is_web_address(address: object) -> bool:
    """Whether it may be the target of a link."""
    if not (
        isinstance(address, str)
        and address.startswith(("http://", "https://"))
        and address.isprintable()
    ):
        return False
    return len(dumps(address)) <= MAX_ADDRESS_BYTES


def describe_stream(stream: "StreamMeter", wall: float) -> dict[str, Any]:
    """A stream of the pipeline."""
    now = stream.statistics()
    names = (
        "name", "pending", "registered", "completed", "expired", "late", "rows", "batches",
        "is_running", "late_signals",
        "batch_rows", "watermark", "state_rows", "state_bytes", "held_back_by", "overdue",
    )  # fmt: skip
    return _fields(now, *names) | {
        "batchSeconds": round(now.batch_seconds, 3),
        "behind": round(now.behind(wall), 1),
        "silent": None if now.silent_since is None else round(max(wall - now.silent_since, 0), 1),
        "ago": None if now.batch_at is None else round(max(wall - now.batch_at, 0.0), 1),
    }
