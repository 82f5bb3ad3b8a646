"""A snapshot of a purgatory: the operations that have waited longest, the keys with the most
waiters, and the last missed triggers.

Visiting a million operations would block the loop for a second, so the snapshot is a sample, except
for counts that exist anyway. Operations are sampled at the front of buckets of the wheel and of
watch lists. Both are in order of arrival, so the front has the oldest operations; and the more
watchers a key has, the more likely the sample includes it.

    1,000,000 pending on 200,000 keys    sample: 200 operations, 0.4 ms

In a `ThresholdPurgatory` the sample is the oldest keys, some 4,000, and of their waits some 200.

CPython iterates over the deleted slots of a dictionary, too, so a large dictionary of keys is
skipped.
"""

from asyncio import get_running_loop
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from heapq import nlargest, nsmallest
from itertools import chain, islice, starmap
from math import ceil, inf
from operator import attrgetter
from sys import getsizeof
from typing import Any, Final, NamedTuple, cast, final, overload

from purgatory._core.operation import DelayedOperation, Operation
from purgatory._core.purgatory import Purgatory
from purgatory._core.statistics import PurgatoryStatistics, ThresholdStatistics
from purgatory._core.threshold_queue import UNKNOWN, ThresholdQueue
from purgatory._core.thresholds import ThresholdPurgatory
from purgatory._core.watch_lists import WatchLists, keys_of
from purgatory._core.wheel import EntryList, TimingWheel

MAX_BUCKETS: Final = 256
"""Limit of buckets per level that are put in order, to select the buckets to read."""
MAX_SKIPPED: Final = 4096
"""Limit of keys of a `ThresholdPurgatory` that are iterated over."""

MAX_FRONTS: Final = 24
"""Limit of buckets per level from which operations are sampled."""
PER_BUCKET: Final = 4
"""Operations sampled from each of these buckets."""

MAX_KEYS: Final = 32
"""Limit of keys from which operations are sampled: the keys watched for the longest time."""
PER_KEY: Final = 4
"""Operations sampled from each of these keys. Also the limit of an operation's keys in the
result."""

MAX_WAITS: Final = 200
"""Limit of waits sampled from a `ThresholdPurgatory`."""

MAX_SCANNED_BYTES: Final = 4 * 1024 * 1024
"""Limit of the size of a dictionary of keys that is iterated over, in bytes."""

_waiting = attrgetter("waiting")


@final
class WaitingOperation(NamedTuple):
    """An operation that waits. Instants are in the loop's time."""

    kind: str
    """Kind of the operation: by default the name of its class."""
    keys: tuple[Hashable, ...]
    """The first four watched keys."""
    more_keys: int
    """The number of further watched keys."""
    started_at: float | None
    """The start of the wait; None if unknown, because it has no timeout and there is no
    observer."""
    deadline: float | None


@final
class WatchedKey(NamedTuple):
    """A key, and the number of operations that wait for it."""

    key: Hashable
    waiting: int


@final
class MissedTrigger(NamedTuple):
    """An operation that only its last try completed: its keys were not checked when its condition
    became true."""

    kind: str
    """Kind of the operation: by default the name of its class."""
    keys: tuple[Hashable, ...]
    """The first four watched keys."""
    more_keys: int
    """The number of further watched keys."""
    timeout: float | None
    """Timeout of the operation, in seconds; None if it was created with a deadline instead."""
    deadline: float
    """Deadline of the operation, in the loop's time."""


@final
class Inspection(NamedTuple):
    """A snapshot of a purgatory at `now`, in the loop's time. The keys are the caller's objects,
    not copies."""

    statistics: PurgatoryStatistics
    now: float
    is_closed: bool
    max_pending: int | None
    tick: float
    """Width of a tick, in seconds."""
    without_deadline: int
    """The number of operations that wait without a deadline."""
    oldest: tuple[WaitingOperation, ...]
    """The operations of the sample that have waited longest, in this order."""
    hottest: tuple[WatchedKey, ...]
    """The keys of the sample with the most waiters, in this order."""
    missed: tuple[MissedTrigger, ...]
    """The last missed triggers, at most 16, latest first."""
    looked_at: int
    """The size of the sample. If this is `statistics.pending`, the sample is complete."""


@final
class WatchedThreshold(NamedTuple):
    """A key of a `ThresholdPurgatory`, and its waits."""

    key: Hashable
    value: Any
    """The key's value; None without a value."""
    threshold: Any
    """The lowest threshold with a waiter."""
    waiting: int
    """The number of waits for a value of the key."""


@final
class ThresholdInspection(NamedTuple):
    """A snapshot of a `ThresholdPurgatory`. The keys are the caller's objects, not copies."""

    statistics: ThresholdStatistics
    is_closed: bool
    hottest: tuple[WatchedThreshold, ...]
    """The keys of the sample with the most waits, in this order."""
    looked_at: int
    """The size of the sample, in keys. If this is `statistics.keys`, the sample is complete."""
    now: float
    """The time of the snapshot, in the loop's time."""
    oldest: tuple[WaitingOperation, ...]
    """The sampled waits that have waited longest, in this order; their kind is "wait"."""


@overload
def inspect(purgatory: Purgatory[Any], most: int = 10) -> Inspection: ...
@overload
def inspect(purgatory: ThresholdPurgatory[Any, Any], most: int = 10) -> ThresholdInspection: ...
def inspect(purgatory: Any, most: int = 10) -> Any:
    """Returns a snapshot of `purgatory`, and changes nothing.

    Args:
        purgatory: a `Purgatory` or a `ThresholdPurgatory`.
        most: the length of `oldest` and of `hottest`, zero or more.

    Cost: the number of buckets of the wheel; below a millisecond with a million pending. So `oldest`
    and `hottest` come from a sample of some 200 operations, see `Inspection.looked_at`. All counts
    are exact.

    Raises:
        ValueError: `most` is negative.
        WrongLoop: the purgatory is bound to another loop.
        RuntimeError: no loop is running.
    """
    if most < 0:
        raise ValueError(f"most must be zero or more, got {most!r}")
    if isinstance(purgatory, ThresholdPurgatory):
        return _inspect_thresholds(purgatory, most)
    wheel, loop = purgatory._wheel, get_running_loop()
    if purgatory._loop_wheel.is_bound and purgatory._loop is not loop:
        purgatory._bind(f"inspect {purgatory.name}")
    now = loop.time()
    operations = _sample_operations(wheel, purgatory._by_key)
    waiting = [_describe(operation) for operation in operations]
    watched = _count_watchers(operations, purgatory)
    missed = [
        MissedTrigger(kind, keys[:PER_KEY], max(len(keys) - PER_KEY, 0), timeout, when)
        for kind, keys, timeout, when in reversed(purgatory._recent_missed_triggers)
    ]
    statistics = purgatory.statistics()
    return Inspection(
        statistics=statistics,
        now=now,
        is_closed=purgatory._closed,
        max_pending=purgatory._max_pending,
        tick=wheel.clock.tick,
        without_deadline=max(statistics.pending - wheel.size, 0),
        oldest=tuple(nsmallest(most, waiting, key=partial(_by_age, now))),
        hottest=tuple(nlargest(most, watched, key=_waiting)),
        missed=tuple(missed),
        looked_at=len(operations),
    )


def _inspect_thresholds(purgatory: ThresholdPurgatory[Any, Any], most: int) -> ThresholdInspection:
    if purgatory._waits._loop_wheel.is_bound:
        purgatory._bind(f"inspect {purgatory.name}")
    queues = purgatory._queues
    is_small = _size(queues) <= MAX_SCANNED_BYTES
    sample = list(islice(queues.values(), MAX_SKIPPED if is_small else 0))
    watched = [
        WatchedThreshold(
            queue.key,
            None if queue.value is UNKNOWN else queue.value,
            queue.lowest,
            queue.size,
        )
        for queue in sample
        if queue.size
    ]
    hottest = tuple(nlargest(most, watched, key=_waiting))
    now = get_running_loop().time()
    waits = islice(_waits(sample), MAX_WAITS)
    oldest = tuple(nsmallest(most, waits, key=partial(_by_age, now)))
    return ThresholdInspection(
        purgatory.statistics(), purgatory._waits._closed, hottest, len(sample), now, oldest
    )


def _waits(queues: Iterable[ThresholdQueue]) -> Iterator[WaitingOperation]:
    """The first waits of each key."""
    for queue in queues:
        groups = islice(queue.by_threshold.values(), PER_KEY)
        waiters = chain.from_iterable(
            group if isinstance(group, dict) else (group,) for group in groups
        )
        for waiter in islice(waiters, PER_KEY):
            yield _describe(waiter)._replace(started_at=waiter.started_at)


def _by_age(now: float, operation: WaitingOperation) -> tuple[float, float]:
    """Sorts the operations that have waited longest to the front."""
    started_at, deadline = operation.started_at, operation.deadline
    return now if started_at is None else started_at, inf if deadline is None else deadline


def _sample_operations(wheel: TimingWheel, by_key: WatchLists) -> list[Operation]:
    """Returns operations from the front of buckets and of watch lists, each once."""
    found: dict[Operation, None] = {}
    for bucket in _sample_buckets(wheel):
        # The entries of a purgatory's wheel are its operations.
        found.update(dict.fromkeys(cast("list[Operation]", bucket.entries(PER_BUCKET))))
    if _size(by_key) <= MAX_SCANNED_BYTES:
        for key in islice(by_key, MAX_KEYS):
            found.update(dict.fromkeys(by_key.operations(key, PER_KEY)))
    return [operation for operation in found if not operation.is_completed]


def _sample_buckets(wheel: TimingWheel) -> Iterator[EntryList]:
    """Some buckets of each level: the next due ones, and an even selection of the rest."""
    yield from filter(None, wheel.draining()[:MAX_FRONTS])
    for level in reversed(wheel.levels):
        buckets = level.buckets
        numbers = (
            sorted(buckets) if len(buckets) <= MAX_BUCKETS else list(islice(buckets, MAX_BUCKETS))
        )
        first, others = numbers[: MAX_FRONTS // 2], numbers[MAX_FRONTS // 2 :]
        for number in first + others[:: max(ceil(len(others) / (MAX_FRONTS // 2)), 1)]:
            yield buckets[number]


def _describe(operation: Operation) -> WaitingOperation:
    timeout, deadline, started_at = operation._op_timeout, operation.deadline, None
    if operation._op_record is not None:
        started_at = operation._op_record.started_at
    elif timeout is not None and deadline is not None:
        started_at = deadline - timeout
    kind = operation._op_kind or type(operation).__name__
    return WaitingOperation(kind, *_keys(operation), started_at, deadline)


def _keys(operation: Operation, most: int = PER_KEY) -> tuple[tuple[Hashable, ...], int]:
    """The first keys of an operation, and the number of further keys."""
    keys = keys_of(operation._op_keys)
    return keys[:most], max(len(keys) - most, 0)


def _count_watchers(operations: list[Operation], purgatory: Purgatory[Any]) -> list[WatchedKey]:
    """The keys of some operations, each with the number of its watchers. Cost: O(these keys)."""
    counted: dict[Hashable, int] = {}
    for operation in operations:
        for key in _keys(operation, MAX_KEYS)[0]:
            waiting: Any = purgatory._by_key.get(key)
            counted[key] = 1 if isinstance(waiting, DelayedOperation) else len(waiting)
    return list(starmap(WatchedKey, counted.items()))


def _size(table: Mapping[Any, Any]) -> int:
    """The size of a dictionary, in bytes; an estimate on PyPy, which lacks `getsizeof`."""
    return getsizeof(table, 100 * len(table))
