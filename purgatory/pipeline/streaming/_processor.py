"""Where the shards of a stream meet Spark: rows in, state in RocksDB, rows out. The decisions are made in `_decisions`.

Rows come and go packed, see `_packing`, because each value that Spark hands to Python costs more than the decision about it.
State is kept in pages for the same reason, see `_state`. What a call reads of the state is remembered until the end of the
call; then each page that has changed is written once.

    shard        counts, the slices of the agenda, the instant for which Spark was asked to call
    operations   by id, in pages: those that wait, and the ids of those that have ended before their deadline
    lines        by key, in pages: its value, and who waits for it
    agenda       chunks of events, by slice

Spark calls once for each shard and micro-batch, with the rows for this shard, and once more if its timer has expired.
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

from purgatory import _arguments
from purgatory._thresholds import queue
from purgatory.pipeline.streaming import _agenda, _course, _decisions, _events, _messages, _packing, _state, _together, _waiting
from purgatory.pipeline.streaming._agenda import Agenda
from purgatory.pipeline.streaming._decisions import Counts, Shard
from purgatory.pipeline.streaming._events import from_stream
from purgatory.pipeline.streaming._packing import ADDED, pack_decisions
from purgatory.pipeline.streaming._state import (
    PAGES,
    Chunks,
    Paged,
    Size,
    dump_line,
    dump_operation,
    load_line,
    load_operation,
)

SHARD: Final = (
    "shards int, registered bigint, completed bigint, expired bigint, late bigint, late_signals bigint, newest bigint, "
    "slices binary, timer bigint"
)
PAGE: Final = "waiting int, entries binary"
CHUNK: Final = "registrations int, events binary"

OLD_PAGES: Final = 4096
"""How many pages each store has in checkpoints that were written when their number was fixed."""


class ShardsChanged(Exception):
    """A checkpoint was written with another number of shards. The message says with which."""


def ship() -> None:
    """Makes Spark send the code that decides to its workers, as it is here. They need not have this package installed."""
    ours = (_arguments, queue, _agenda, _course, _decisions, _events, _messages, _packing, _state, _together, _waiting)
    for module in (*ours, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class Deciding(StatefulProcessor):
    """What Spark runs: for each shard it makes a `Shard` of the state, and lets it decide.

    Args:
        shards: how many there are. State that was written with another number is refused.
    """

    def __init__(self, shards: int) -> None:
        self.shards = shards

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the variables of the state."""
        self._handle = handle
        self._shard = handle.getValueState("shard", SHARD)
        self._operations = handle.getMapState("operations", "page int", PAGE)
        self._lines = handle.getMapState("lines", "page int", PAGE)
        self._agenda = handle.getMapState("agenda", "width bigint, number bigint, serial int", CHUNK)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Takes in the rows of a shard, and decides what they and the watermark allow."""
        return self._run(key[0], rows, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803, ARG002
    ) -> Iterator[Row]:
        """Decides what the watermark allows, if the batch had no rows of the shard."""
        return self._run(key[0], iter(()), timerValues)

    def close(self) -> None:
        """Does nothing: nothing is held open."""

    def _run(self, label: int, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:
        now = max(times.getCurrentWatermarkInMs(), 0) * 1000
        counts, slices, timer, sizes = self._load()
        known = [getattr(counts, name) for name in ADDED]
        operations = Paged(self._operations, load_operation, dump_operation, sizes[0])
        lines = Paged(self._lines, load_line, dump_line, sizes[1])
        shard = Shard(operations, lines, Agenda(Chunks(self._agenda), slices), counts)
        for _, are_signals, events in rows:
            if are_signals:
                shard.signal(from_stream(events), now, label)
            else:
                shard.register(from_stream(events), now)
        shard.advance_to(now)
        shard.agenda.save()
        decisions = shard.take()
        operations.save()
        lines.save()
        due = shard.agenda.next()
        expiry = None if due is None else -(-due // 1000)
        if expiry is not None and expiry != timer:
            self._handle.registerTimer(expiry)
        sizes = (operations.size, lines.size)
        self._shard.update((self.shards, *astuple(counts), pickle.dumps((slices, sizes)), expiry))
        added = [getattr(counts, name) - before for name, before in zip(ADDED, known, strict=True)]
        rows_out = [_row(packed, *(0 for _ in ADDED)) for packed in pack_decisions(decisions)]
        return iter([_row(None, *added), *rows_out] if any(added) else rows_out)

    def _load(self) -> tuple[Counts, dict[tuple[int, int], tuple[int, int]], int | None, tuple[Size, Size]]:
        stored = self._shard.get()
        if stored is None:
            return Counts(), {}, None, ((PAGES, 0), (PAGES, 0))
        shards, *counts, slices, timer = stored
        if shards != self.shards:
            raise ShardsChanged(f"cannot go on with {self.shards} shards: the checkpoint was written with {shards}")
        kept = pickle.loads(slices)
        if isinstance(kept, dict):
            kept = kept, ((OLD_PAGES, 0), (OLD_PAGES, 0))
        return Counts(*counts), kept[0], timer, kept[1]


_row = Row("decisions", *ADDED)
