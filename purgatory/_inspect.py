"""What waits in a purgatory, looked at from outside: the wheel as it is, who has waited longest, which keys are watched most.

To look at a million operations takes a second of the loop, so not all are looked at. What is counted anyway is exact. Of the
wheel, each level is walked bucket by bucket as long as it has few; of more an even share, and the result is scaled up.
Operations are looked at where those stand that matter: at the front of their buckets and of the watch lists, which are in order
of arrival. There stand the oldest ones, and among them a key that many watch is met as often as it is watched.

    1,000,000 pending on 200,000 keys    wheel: 120 buckets, all walked    operations looked at: 200    0.4 ms

CPython iterates over deleted slots of a dictionary too, so large ones are skipped.
"""

from asyncio import get_running_loop
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from math import ceil, inf
from sys import getsizeof
from typing import Any, Final, NamedTuple, final

from purgatory._operations.operation import DelayedOperation
from purgatory._operations.purgatory import Purgatory
from purgatory._operations.watch_lists import Chunk, WatchLinks, as_tuple
from purgatory._statistics import PurgatoryStatistics
from purgatory._wheel.buckets import Chunk as EntryChunk
from purgatory._wheel.buckets import Level
from purgatory._wheel.wheel import TimingWheel

Operation = DelayedOperation[Any]

MAX_BINS: Final = 120
"""Into so many stretches of time a level is divided, at most."""

MAX_BUCKETS: Final = 256
"""So many buckets of a level are looked at, and so many, ..."""
MAX_SKIPPED: Final = 4096
"""... passed over on the way."""

MAX_FRONTS: Final = 24
"""At the front of so many buckets operations are looked at, ..."""
PER_BUCKET: Final = 4
"""... of each so many."""

KEYS: Final = 32
"""So many keys are looked at, those that have been watched longest, ..."""
OPERATIONS_PER_KEY: Final = 4
"""... and of each so many operations. Of an operation so many keys are told."""

MAX_SCANNED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of buckets that are walked at the front; of the dictionary of keys half as many."""

CHUNKS: Final = 4096
"""So many chunks are counted for the watchers of all keys."""


@final
class WaitingOperation(NamedTuple):
    """An operation that waits. Instants are in the loop's time."""

    kind: str
    """The name of its class."""
    keys: tuple[Hashable, ...]
    """The first four that it watches."""
    more_keys: int
    """How many others."""
    started_at: float | None
    """When it began to wait; None if that is not known: it was given no timeout, and there is no observer."""
    deadline: float | None


@final
class WatchedKey(NamedTuple):
    """A key, and how many operations wait for it."""

    key: Hashable
    waiting: int
    is_at_least: bool
    """Whether there are more than were counted."""


@final
class WheelLevel(NamedTuple):
    """A level of the wheel."""

    slot_seconds: float
    """How wide a bucket is."""
    slots: int
    """How many are open."""
    waiting: int
    sector_seconds: float
    """The time from now on is divided into sectors of this width, ..."""
    sectors: tuple[tuple[int, int], ...]
    """... of which these have operations: pairs of a sector, from 0, and how many, in order. What is overdue is in sector 0."""
    is_estimate: bool
    """Whether some buckets only were looked at, and the counts scaled up."""


@final
class MissedTrigger(NamedTuple):
    """An operation whose condition was found to hold at its deadline only: nobody had checked its keys when it came to hold."""

    kind: str
    """The name of its class."""
    keys: tuple[Hashable, ...]
    """The first four that it watched."""
    more_keys: int
    """How many others."""
    timeout: float | None
    """How long it had to wait for that; None if it was given a deadline and no timeout."""
    deadline: float
    """In the loop's time."""


@final
class Inspection(NamedTuple):
    """A purgatory as it was at `now`, in the loop's time. It does not change; the keys are the caller's own objects."""

    statistics: PurgatoryStatistics
    now: float
    is_closed: bool
    max_pending: int | None
    tick: float
    """In seconds."""
    levels: tuple[WheelLevel, ...]
    """From the finest; a level that was never needed is not there."""
    moving: int
    """Operations in buckets that are being emptied: of those that are due, or that are moved to a narrower one."""
    without_deadline: int
    """Operations that are in no bucket; an estimate if some level's are."""
    oldest: tuple[WaitingOperation, ...]
    """Those who have waited longest, in this order, of all who were looked at."""
    hottest: tuple[WatchedKey, ...]
    """The keys that most wait for, in this order, of all that were met."""
    missed: tuple[MissedTrigger, ...]
    """The last missed triggers, 16 at most, the latest first."""
    looked_at: int
    """How many operations were looked at. If this is `statistics.pending`, nothing is left out."""


def inspect(purgatory: Purgatory[Any], most: int = 10) -> Inspection:
    """What waits in `purgatory` now. Changes nothing.

    Args:
        most: how many operations and how many keys are told, zero or more.

    Cost: bounded, whatever is pending, and below a millisecond with a million. So `oldest` and `hottest` are of some 200
    operations that are looked at, see `Inspection.looked_at`; where a level of the wheel has more than 256 buckets open, its
    counts are an estimate. All other counts are exact.

    Raises:
        ValueError: `most` is negative.
        WrongLoop: called from another loop than that of the purgatory.
        RuntimeError: no loop is running.
    """
    if most < 0:
        raise ValueError(f"most must be zero or more, not {most!r}")
    engine = purgatory._engine
    wheel, loop = engine.wheel, get_running_loop()
    if engine.loop_wheel.is_bound and engine.loop is not loop:
        engine.bind(f"inspect {engine.name}")
    now = loop.time()
    tick_now = wheel.clock.tick_at(now)
    looks = [_sample_level(level, tick_now, wheel.clock.tick) for level in wheel.levels]
    moving = sum(map(len, wheel.draining()))
    operations = _sample_operations(wheel, engine.by_key)
    starts = {} if engine.notifier is None else engine.notifier._starts
    told = [_tell(operation, starts.get(operation)) for operation in operations]
    statistics = engine.statistics()
    return Inspection(
        statistics=statistics,
        now=now,
        is_closed=engine.closed,
        max_pending=engine.max_pending,
        tick=wheel.clock.tick,
        levels=tuple(looks),
        moving=moving,
        without_deadline=max(statistics.pending - moving - sum(look.waiting for look in looks), 0),
        oldest=tuple(nsmallest(most, told, key=lambda each: (_default(each.started_at, now), _default(each.deadline, inf)))),
        hottest=tuple(nsmallest(most, _count(operations, engine.by_key), key=lambda each: -each.waiting)),
        missed=tuple(
            [
                MissedTrigger(kind, *_keys(keys), timeout, when)
                for kind, keys, timeout, when in reversed(engine.recent_missed_triggers)
            ]
        ),
        looked_at=len(operations),
    )


def _default(instant: float | None, otherwise: float) -> float:
    return otherwise if instant is None else instant


def _sample_level(level: Level, tick_now: int, tick: float) -> WheelLevel:
    """How full the sectors of a level are. Cost: `MAX_BUCKETS` buckets."""
    reach = 2 * level.interval  # further it takes nothing
    width = max(ceil(reach / MAX_BINS), level.tick)
    walked = min(len(level.buckets), MAX_SKIPPED)
    stride = max(ceil(walked / MAX_BUCKETS), 1)
    sectors: dict[int, int] = {}
    looked_at = 0
    for bucket in islice(level.buckets.values(), 0, walked, stride):
        looked_at += 1
        if waiting := len(bucket):
            sector = max(bucket.start_tick - tick_now, 0) // width
            sectors[sector] = sectors.get(sector, 0) + waiting
    share = len(level.buckets) / looked_at if looked_at else 1.0
    scaled = [(sector, round(waiting * share)) for sector, waiting in sorted(sectors.items())]
    return WheelLevel(
        slot_seconds=level.tick * tick,
        slots=len(level.buckets),
        waiting=sum(waiting for _, waiting in scaled),
        sector_seconds=width * tick,
        sectors=tuple(scaled),
        is_estimate=looked_at < len(level.buckets),
    )


def _sample_operations(wheel: TimingWheel, by_key: dict[Hashable, Any]) -> list[Operation]:
    """Operations from the front of buckets and of watch lists, each once."""
    found: dict[Operation, None] = {}
    budget = MAX_SCANNED_BYTES
    for chunk in _sample_chunks(wheel):
        budget -= getsizeof(chunk)
        if budget < 0:
            break
        found.update(dict.fromkeys(islice(chunk, PER_BUCKET)))  # type: ignore[arg-type]  # operations are what is in there
    if getsizeof(by_key) <= MAX_SCANNED_BYTES // 2:
        for waiting in islice(by_key.values(), KEYS):
            if type(waiting) is Chunk:
                found.update(dict.fromkeys(islice(waiting or waiting.after or (), OPERATIONS_PER_KEY)))
            else:
                found[waiting] = None
    return [operation for operation in found if not operation.is_completed]


def _sample_chunks(wheel: TimingWheel) -> Iterator[EntryChunk]:
    """The first entries of some buckets of each level, those that are due first before others."""
    yield from filter(None, wheel.draining()[:MAX_FRONTS])
    for level in reversed(wheel.levels):
        if len(level.buckets) <= MAX_BUCKETS:
            numbers: Iterable[int] = sorted(level.buckets)
        else:
            numbers = list(islice(level.buckets, MAX_BUCKETS))
        soon, others = list(islice(numbers, MAX_FRONTS // 2)), list(islice(numbers, MAX_FRONTS // 2, None))
        soon += others[:: max(ceil(len(others) / (MAX_FRONTS // 2)), 1)]
        for number in soon:
            yield from filter(None, level.buckets[number].chunks()[:1])


def _tell(operation: Operation, started_at: float | None) -> WaitingOperation:
    timeout, deadline = operation._op_timeout, operation.deadline
    if started_at is None and timeout is not None and deadline is not None:
        started_at = deadline - timeout
    return WaitingOperation(type(operation).__name__, *_keys(operation._op_links), started_at, deadline)


def _keys(links: WatchLinks) -> tuple[tuple[Hashable, ...], int]:
    """The first keys of an operation's links, and how many others there are."""
    several = as_tuple(links)
    keys = tuple([link.key if type(link) is Chunk else link for link in several[:OPERATIONS_PER_KEY]])
    return keys, len(several) - len(keys)


def _count(operations: list[Operation], by_key: Mapping[Hashable, Any]) -> list[WatchedKey]:
    """The keys of some operations, each with all who watch it. Cost: their keys, and `CHUNKS` chunks."""
    counted: list[WatchedKey] = []
    met: set[int] = set()
    left = CHUNKS
    for operation in operations:
        for link in as_tuple(operation._op_links)[:KEYS]:
            first: Any = None
            if type(link) is Chunk:
                first = link
            else:
                with suppress(BaseException):  # a key that has changed may raise
                    first = by_key.get(link)
                if type(first) is not Chunk:
                    counted.append(WatchedKey(link, 1, False))
                    continue
            chunk: Chunk | None = first if first.first is None else first.first
            if id(chunk) in met:
                continue
            met.add(id(chunk))
            waiting = 0
            while chunk is not None and left > 0:
                waiting += len(chunk)
                chunk = chunk.after
                left -= 1
            counted.append(WatchedKey(first.key, waiting, chunk is not None))
    return counted
