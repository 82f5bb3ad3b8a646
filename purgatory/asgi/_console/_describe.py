"""What the page is told, as plain data for JSON: times as durations in seconds, keys as text.

All that is shown comes through public names: the purgatories' own `statistics`, `inspect`, a `Meter`, the polls and the relay.
"""

from collections.abc import Callable, Hashable, Iterable
from json import dumps
from math import isinf
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final

from purgatory import Inspection, Purgatory, ThresholdPurgatory, WrongLoop, inspect
from purgatory.asgi._polls import LongPolls

if TYPE_CHECKING:
    from purgatory.metrics import Histogram, KindMetrics, StreamMeter
    from purgatory.relay import Relay, Worker

KeyOf = Callable[[Hashable], str]
Watched = Purgatory[Any] | ThresholdPurgatory[Any, Any]
Point = tuple[int, int, int, int, int]
"""Pending, and in all: completed, expired, cancelled, missed triggers."""

LONGEST_KEY: Final = 120
"""Characters of a key that are shown."""

LONGEST_ADDRESS: Final = 1000
"""Bytes as JSON, so that it goes onto a card."""

LARGEST_NUMBER: Final = 2**53
"""That browsers know exactly."""

_repr: Final = Repr()
_repr.maxstring = _repr.maxother = LONGEST_KEY


def shown(key: Hashable) -> str:
    """A key as its `repr`, shortened: by it `42` and `"42"` are told apart."""
    return _repr.repr(key)


def text_of(key: Hashable, key_of: KeyOf) -> str:
    """What the page shows for a key: printable characters only, and not too many."""
    try:
        text = str(key_of(key))
    except Exception as error:
        return f"(key_of raised {type(error).__name__})"
    if len(text) > LONGEST_KEY:
        text = text[: LONGEST_KEY - 1] + "…"
    return text if text.isprintable() else "".join([char if char.isprintable() else "\ufffd" for char in text])


def describe(purgatory: Watched, kinds: "Iterable[KindMetrics] | None", key_of: KeyOf) -> tuple[dict[str, Any], Point]:
    """What is told of a purgatory, and what of that is kept for its history. Cost: bounded, whatever is pending."""
    if isinstance(purgatory, ThresholdPurgatory):
        known = purgatory.statistics()
        told = {"name": known.name, "isThreshold": True, "watched": known.pending, "keys": known.keys, "failed": known.failed}
        return told | _counts(known), (known.pending, known.completed, known.expired, known.cancelled, 0)
    statistics = purgatory.statistics()
    point = (statistics.pending, statistics.completed, statistics.expired, statistics.cancelled, statistics.missed_triggers)
    told = {"name": statistics.name, "watched": statistics.watched, "keys": statistics.keys} | _counts(statistics)
    told["missed"] = statistics.missed_triggers
    try:
        told |= _inside(inspect(purgatory), key_of)
    except WrongLoop:
        told["isElsewhere"] = True  # it belongs to another loop of this process
    if kinds is not None:
        told["kinds"] = [_kind(kind) for kind in kinds if kind.purgatory == statistics.name]
    return told, point


def _counts(statistics: Any) -> dict[str, Any]:
    names = ("pending", "completed", "expired", "cancelled", "moves")
    return {name: getattr(statistics, name) for name in names} | {"wakeUps": statistics.wake_ups}


def _inside(seen: Inspection, key_of: KeyOf) -> dict[str, Any]:
    return {
        "isClosed": seen.is_closed,
        "maxPending": seen.max_pending,
        "tick": seen.tick,
        "levels": [
            {
                "slot": level.slot_seconds,
                "slots": level.slots,
                "waiting": level.waiting,
                "sector": level.sector_seconds,
                "sectors": level.sectors,
                "isEstimate": level.is_estimate,
            }
            for level in seen.levels
        ],
        "moving": seen.moving,
        "withoutDeadline": seen.without_deadline,
        "lookedAt": seen.looked_at,
        "oldest": [
            {
                "kind": each.kind,
                "keys": [text_of(key, key_of) for key in each.keys],
                "moreKeys": each.more_keys,
                "waited": None if each.started_at is None else round(seen.now - each.started_at, 3),
                "left": None if each.deadline is None else round(each.deadline - seen.now, 3),
            }
            for each in seen.oldest
        ],
        "hottest": [
            {"key": text_of(each.key, key_of), "waiting": each.waiting, "isAtLeast": each.is_at_least} for each in seen.hottest
        ],
        "missedLast": [
            {
                "kind": each.kind,
                "keys": [text_of(key, key_of) for key in each.keys],
                "moreKeys": each.more_keys,
                "timeout": each.timeout,
                "ago": round(seen.now - each.deadline, 3),
            }
            for each in seen.missed
        ],
    }


def _kind(kind: "KindMetrics") -> dict[str, Any]:
    return {
        "kind": kind.kind,
        "outcomes": {f"{state.value}: {cause.value}": count for (state, cause), count in kind.outcomes.items()},
        "waits": {state.value: _histogram(histogram) for state, histogram in kind.waits.items()},
        "lateness": _histogram(kind.lateness),
        "missed": kind.missed_triggers,
        "retries": kind.retries,
    }


def _histogram(histogram: "Histogram") -> dict[str, Any]:
    bounds = [None if isinf(bound) else bound for bound in histogram.bounds]
    return {"bounds": bounds, "counts": histogram.counts, "sum": round(histogram.sum, 6)}


def describe_polls(polls: LongPolls) -> dict[str, Any]:
    """What is told of an application's long polls."""
    endings = {ending.value: count for ending, count in polls.endings.items()}
    max_open = None if polls.max_open is None or isinf(polls.max_open) else polls.max_open
    return {"open": polls.open, "maxOpen": max_open, "isStopping": polls.is_stopping, "endings": endings}


def describe_relay(relay: "Relay", now: float) -> dict[str, Any]:
    """What is told of a relay."""
    known = relay.statistics()
    counts = {name: getattr(known, name) for name in ("received", "sent", "resyncs", "healed", "epochs", "watched")}
    return {"isConnected": known.is_connected, "for": round(now - known.since, 3), **counts}


def introduce(
    pid: int, host: str, began_at: float, purgatories: Iterable[Watched], polls: LongPolls | None, address: str | None
) -> dict[str, Any]:
    """What the pages of other workers tell of this one: how much waits, and no names of anything."""
    pending = sum(purgatory.pending for purgatory in purgatories)
    counts = {"pending": pending, "polls": None if polls is None else polls.open}
    return {"pid": pid, "host": host, "began": round(began_at, 3), "address": address, **counts}


def describe_other(other: "Worker", now: float) -> dict[str, Any]:
    """What is told of another worker. It has said so itself, through a store that strangers may write to."""

    def number(name: str) -> float | None:
        value = other.about.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return value if 0 <= value <= LARGEST_NUMBER else None

    host, address = other.about.get("host"), other.about.get("address")
    return {
        "host": text_of(host, str) if isinstance(host, str) else "",
        "address": address if is_web_address(address) else None,
        "ago": round(max(now - other.heard_at, 0.0), 1),
    } | {name: number(name) for name in ("pid", "began", "pending", "polls")}


def is_web_address(address: object) -> bool:
    """Whether it may stand behind a link."""
    if not (isinstance(address, str) and address.startswith(("http://", "https://")) and address.isprintable()):
        return False
    return len(dumps(address)) <= LONGEST_ADDRESS


def describe_stream(stream: "StreamMeter", wall: float) -> dict[str, Any]:
    """What is told of a stream of the pipeline."""
    now = stream.statistics()
    names = ("name", "pending", "registered", "completed", "expired", "late", "rows", "batches")
    return {name: getattr(now, name) for name in names} | {
        "isRunning": now.is_running,
        "lateSignals": now.late_signals,
        "batchRows": now.batch_rows,
        "batchSeconds": round(now.batch_seconds, 3),
        "ago": None if now.batch_at is None else round(max(wall - now.batch_at, 0.0), 1),
        "watermark": now.watermark,
        "stateRows": now.state_rows,
        "stateBytes": now.state_bytes,
    }
