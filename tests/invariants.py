"""The insides of the core that tests may see; tests use public names for everything else.

`check` asserts all invariants of an object, `deadlines` counts the entries of its wheel. `is_busy`
tells whether the loop has more work for a purgatory than timers. `small_bounds` makes every bound so
small that a few dozen operations meet it, and `key_checks` reports which key a check is for.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import singledispatch
from math import isnan
from typing import Any
from unittest.mock import patch

from purgatory import IdleTracker, Purgatory, ThresholdPurgatory, WheelTimer
from purgatory._core import (
    closing,
    dispatcher,
    loop,
    purgatory,
    thresholds,
)
from purgatory._core.dispatcher import Dispatcher
from purgatory._core.key_check import KeyCheck
from purgatory._core.loop import MAX_PER_ITERATION, UNBOUND, LoopTimingWheel
from purgatory._core.operation import NO_RESULT
from purgatory._core.states import PENDING
from purgatory._core.threshold_queue import UNKNOWN, ThresholdQueue
from purgatory._core.watch_lists import WatchList, WatchLists, keys_of
from purgatory._core.wheel import TimingWheel

__all__ = [
    "MAX_PER_ITERATION",
    "check",
    "deadlines",
    "is_busy",
    "is_empty",
    "key_checks",
    "registrations",
    "small_bounds",
]


def check(*things: Any) -> None:
    """Asserts all invariants of purgatories, timers and trackers, between iterations of the loop.
    Cost: everything that waits."""
    for each in things:
        _assert_whole(each)


@singledispatch
def _assert_whole(thing: Any) -> None:
    raise TypeError(type(thing))


@_assert_whole.register
def _(dispatcher: Dispatcher) -> None:
    assert dispatcher.current is None
    assert dispatcher._continuation_scheduled or not dispatcher.queue


def _waiters_of(queue: ThresholdQueue) -> list[Any]:
    """Asserts that it is whole, and returns the waiters in order."""
    heap, thresholds = queue._heap, sorted(queue.by_threshold)
    assert all(heap[(at - 1) // 2] <= heap[at] for at in range(1, len(heap)))
    assert set(heap) >= set(thresholds)
    assert queue.value is UNKNOWN or not thresholds or queue.value < thresholds[0]
    groups = [queue.by_threshold[threshold] for threshold in thresholds]
    waiters = [each for group in groups for each in (group if type(group) is dict else [group])]
    assert all(groups) and len(waiters) == queue.size
    assert [each.threshold for each in waiters] == sorted(each.threshold for each in waiters)
    return waiters


@_assert_whole.register
def _(lists: WatchLists) -> None:
    for key, waiting in lists.items():
        operations = lists.operations(key)
        assert operations and len(set(operations)) == len(operations)
        assert not isinstance(waiting, WatchList) or len(waiting) == len(operations)
        for operation in operations:
            assert key in keys_of(operation._op_keys)
            assert all(operation in lists.operations(each) for each in keys_of(operation._op_keys))


@_assert_whole.register
def _(home: Purgatory) -> None:
    _assert_whole(home._loop_wheel)
    _assert_whole(home._by_key)
    if home._loop is UNBOUND:
        assert not home.pending
        return
    _assert_whole(home._dispatcher)
    each_key = [(each, key) for key in home._by_key for each in home._by_key.operations(key)]
    waiting = {operation for operation, _ in each_key}
    assert home._watched == len(each_key) and home._pending == len(waiting)
    for operation in waiting:
        assert operation._op_state is PENDING and operation._op_home is home
        assert operation._op_result is NO_RESULT
    assert home._wheel.size == sum(operation._timer_bucket is not None for operation in waiting)
    queued = [getattr(work, "__self__", None) for work, _ in home._dispatcher.queue]
    mine = {each for each in queued if isinstance(each, KeyCheck) and each._home is home}
    assert set(home._checks.values()) == mine


@_assert_whole.register
def _(loop_wheel: LoopTimingWheel) -> None:
    _assert_whole(loop_wheel.wheel)
    for bucket in loop_wheel.wheel.buckets():
        is_armed = bucket.handle is not None and not bucket.handle.cancelled()
        assert is_armed or (
            bucket.wake_tick <= loop_wheel.wheel.current_tick and loop_wheel._continuation_scheduled
        )
    assert loop_wheel._continuation_scheduled >= any(loop_wheel.wheel.draining())


@_assert_whole.register
def _(wheel: TimingWheel) -> None:
    for depth, level in enumerate(wheel.levels):
        assert level.depth == depth and level.tick == wheel.wheel_size**depth
        assert level.interval == level.tick * wheel.wheel_size
        assert level.end_tick == (wheel.current_tick // level.interval + 2) * level.interval
        for number, bucket in level.buckets.items():
            assert bucket.level is level and bucket.number == number
            is_overdue = bucket.wake_tick <= wheel.current_tick
            assert depth == 0 or is_overdue or bucket.start_tick >= wheel.levels[depth - 1].end_tick
        recent = level.recent
        assert recent is None or (recent.level is level and wheel.takes(recent))
    buckets = [*wheel.buckets()]
    assert {*buckets} == {bucket for _, bucket in wheel._due} | {
        bucket for _, _, bucket in wheel._wide
    }
    assert len(buckets) == len(wheel._due) + len(wheel._wide)
    assert all(start_tick == bucket.start_tick for start_tick, bucket in wheel._due)
    assert all(item[:2] == (item[2].wake_tick, item[2].level.depth) for item in wheel._wide)
    heaps: list[list[tuple[int, ...]]] = [
        [item[:-1] for item in heap] for heap in (wheel._due, wheel._wide)
    ]
    assert all(heap[(i - 1) // 2] <= item for heap in heaps for i, item in enumerate(heap) if i)
    for bucket in buckets:
        for entry in bucket.entries():
            # Its bucket never begins too late; it begins too early if the entry is overdue or
            # postponed.
            assert bucket.start_tick <= max(
                wheel.clock.due_tick(entry._timer_deadline), wheel.current_tick
            )
    for each in wheel._lists():
        entries = each.entries()
        assert len(entries) == len(each)
        for entry in entries:
            assert entry._timer_bucket is each
            assert type(entry._timer_deadline) is float and not isnan(entry._timer_deadline)


@_assert_whole.register
def _(home: ThresholdPurgatory) -> None:
    assert all(key is queue.key for key, queue in home._queues.items())
    waiters = [waiter for queue in home._queues.values() for waiter in _waiters_of(queue)]
    assert home._pending == len(waiters)
    assert all(waiter._op_state is PENDING and not waiter._op_is_decided() for waiter in waiters)
    assert {*waiters} <= {
        each for key in home._queues for each in home._waits._by_key.operations(key)
    }
    _assert_whole(home._waits)


@_assert_whole.register
def _(timer: WheelTimer) -> None:
    _assert_whole(timer._loop_wheel)


@_assert_whole.register
def _(tracker: IdleTracker) -> None:
    _assert_whole(tracker._loop_wheel)
    late = [entry for entry in tracker._entries.values() if entry._timer_bucket is None]
    assert tracker._wheel.size + len(late) == len(tracker._entries)
    assert all(entry.key is id_ for id_, entry in tracker._entries.items())


def deadlines(thing: Any) -> int:
    """The number of entries in its wheel."""
    thing = getattr(thing, "_waits", thing)
    return int((thing._wheel if hasattr(thing, "_wheel") else thing._loop_wheel.wheel).size)


def registrations(operation: Any) -> tuple[Hashable, ...] | None:
    """The keys under which an operation is registered; None if no purgatory has accepted it."""
    if operation._op_home is None:
        return None
    return tuple(keys_of(operation._op_keys)) if not operation.is_completed else ()


def is_busy(it: Any, on: asyncio.AbstractEventLoop) -> bool:
    """Whether work for this purgatory waits for an iteration of the loop."""
    mind = dispatcher.dispatcher_of(on)
    rest = mind._continuation_scheduled or it._loop_wheel._continuation_scheduled
    return bool(mind.queue or rest or len(it._inbox))


def is_empty(it: Any) -> bool:
    """Whether nothing of any operation is left in this purgatory."""
    return not (it._wheel.size or it._checks or it._by_key or it._async_waits)


@contextmanager
def small_bounds(steps: int = 8, stage: float = 10.0) -> Iterator[None]:
    """`steps` for an iteration, far deadlines in stages of `stage` seconds."""
    bounds: list[tuple[Any, str, float]] = [
        *(
            (module, "MAX_PER_ITERATION", steps)
            for module in (dispatcher, closing, purgatory, loop, thresholds)
        ),
        (dispatcher, "SLICE", max(steps // 4, 1)),
        (loop, "MAX_TIMER_DELAY", stage),
    ]
    with ExitStack() as stack:
        for module, name, value in bounds:
            stack.enter_context(patch.object(module, name, value))
        yield


@contextmanager
def key_checks(note: Callable[[Hashable], Hashable]) -> Iterator[None]:
    """Calls `note` with the key before a part of its check runs, and with its answer afterwards."""
    run_check = KeyCheck.run

    def run(check: Any, budget: int) -> int:
        before = note(check.key)
        try:
            return run_check(check, budget)
        finally:
            note(before)

    with patch.object(KeyCheck, "run", run):
        yield
