"""Connects shards to Spark: rows in, state in RocksDB, rows out. The decisions are made in
`_decisions`.

Each value that Spark hands to Python costs more than the decision about it. So rows come and go
packed, see `_packing`, and state is kept in pages, see `_state`. A call reads each page once at
most, and at its end writes the changed pages.

    variable     content
    shard        counts, the slices of the event queue, the instant of the timer
    operations   by id, in pages: waiting operations, and the ids of operations that have ended
                 before their deadline
    lines        by key, in pages: the value and the queue of a key
    agenda       the event queue: chunks of events, by slice

The names of the variables match existing checkpoints. Spark calls once for each shard and
micro-batch, with the rows for this shard, and once more if its timer has expired.
"""

import pickle
import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from purgatory._core import arguments, threshold_queue
from purgatory.pipeline.streaming import (
    _batch_decisions,
    _decisions,
    _event_queue,
    _events,
    _forgetful_history,
    _messages,
    _packing,
    _pending,
    _state,
    _timekeeper,
    _value_history,
)
from purgatory.pipeline.streaming._decisions import Counts, Shard
from purgatory.pipeline.streaming._event_queue import EventQueue
from purgatory.pipeline.streaming._events import from_stream
from purgatory.pipeline.streaming._packing import COUNTS, pack_decisions
from purgatory.pipeline.streaming._state import (
    INITIAL_PAGES,
    ChunkStore,
    PagedStore,
    Size,
    dump_operation,
    dump_queue,
    load_operation,
    load_queue,
)
from purgatory.pipeline.streaming._timekeeper import NOTHING_DUE

SHARD: Final = (
    "shards int, registered bigint, completed bigint, expired bigint, late bigint, late_signals "
    "bigint, newest bigint, "
    "slices binary, timer bigint"
)
PAGE: Final = "waiting int, entries binary"
CHUNK: Final = "registrations int, events binary"


class ShardsChanged(Exception):
    """A checkpoint was written with another number of shards, which the message has."""


def send_code_to_workers() -> None:
    """Makes Spark send our code to its workers, which need not have this package installed."""
    core = (arguments, threshold_queue)
    ours = (
        _batch_decisions,
        _decisions,
        _event_queue,
        _events,
        _forgetful_history,
        _messages,
        _packing,
        _pending,
        _state,
        _timekeeper,
        _value_history,
    )
    for module in (*core, *ours, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class ShardProcessor(StatefulProcessor):
    """What Spark runs: for each shard it makes a `Shard` of the state, and has it decide.

    Args:
        shards: how many there are. State that was written with another number is refused.
        forget_after: how long values of keys count after their last signals, in microseconds; None
            for ever.
    """

    def __init__(self, shards: int, forget_after: int | None = None) -> None:
        self.shards = shards
        self.forget_after = forget_after

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the variables of the state."""
        self._handle = handle
        self._shard = handle.getValueState("shard", SHARD)
        self._operations = handle.getMapState("operations", "page int", PAGE)
        self._queues = handle.getMapState("lines", "page int", PAGE)
        self._event_queue = handle.getMapState(
            "agenda", "width bigint, number bigint, serial int", CHUNK
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Adds the rows of a shard, and makes the decisions that the watermark allows."""
        return self._run(key[0], rows, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803, ARG002
    ) -> Iterator[Row]:
        """Makes the decisions that the watermark allows, for a batch without rows of the shard."""
        return self._run(key[0], iter(()), timerValues)

    def close(self) -> None:
        """Does nothing: nothing is held open."""

    def _run(self, label: int, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:
        now = max(times.getCurrentWatermarkInMs(), 0) * 1000
        counts, slices, timer, sizes = self._load()
        before = [getattr(counts, name) for name in COUNTS]
        operations = PagedStore(self._operations, load_operation, dump_operation, sizes[0])
        queues = PagedStore(self._queues, load_queue, dump_queue, sizes[1])
        event_queue = EventQueue(ChunkStore(self._event_queue), slices)
        shard = Shard(operations, queues, event_queue, counts, self.forget_after)
        for _, are_signals, events in rows:
            if are_signals:
                shard.signal(from_stream(events), now, label)
            else:
                shard.register(from_stream(events), now)
        shard.advance_to(now)
        shard.event_queue.save()
        decisions = shard.take()
        operations.save()
        queues.save()
        due = shard.event_queue.next_at()
        expiry = None if due is None else -(-due // 1000)
        if expiry is not None and expiry != timer:
            self._handle.registerTimer(expiry)
        sizes = (operations.size, queues.size)
        self._shard.update((self.shards, *astuple(counts), pickle.dumps((slices, sizes)), expiry))
        added = [getattr(counts, name) - count for name, count in zip(COUNTS, before, strict=True)]
        called = _row(None, label, NOTHING_DUE if expiry is None else expiry, *added)
        nothing = [0] * len(COUNTS)
        packed = [_row(each, None, None, *nothing) for each in pack_decisions(decisions)]
        return iter([called, *packed])

    def _load(
        self,
    ) -> tuple[Counts, dict[tuple[int, int], tuple[int, int]], int | None, tuple[Size, Size]]:
        stored = self._shard.get()
        if stored is None:
            return Counts(), {}, None, ((INITIAL_PAGES, 0), (INITIAL_PAGES, 0))
        shards, *counts, slices, timer = stored
        if shards != self.shards:
            raise ShardsChanged(
                f"cannot continue with {self.shards} shards: the checkpoint was written with "
                f"{shards}"
            )
        owned, sizes = pickle.loads(slices)
        return Counts(*counts), owned, timer, sizes


_row = Row("decisions", "shard", "due", *COUNTS)
