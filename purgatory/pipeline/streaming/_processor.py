"""Connects shards to Spark: rows in, state in RocksDB, rows out. The decisions are made in
`_decisions`.

    variable    content
    shard       counts, the index of the parts, the instant of the timer
    parts       the parts of the state by kind and number: chunks in Arrow's format, pages in JSON

Spark calls once for each shard and micro-batch, with the rows for this shard, and once more if its
timer has expired.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from purgatory.pipeline.streaming import _decisions, _history, _rows, _state
from purgatory.pipeline.streaming._decisions import Counts, Shard
from purgatory.pipeline.streaming._rows import (
    COUNTS,
    NOTHING_DUE,
    RECEIVED_OPERATIONS,
    RECEIVED_SIGNALS,
    cut,
    from_bytes,
    to_bytes,
)

SHARD: Final = (
    "shards int, registered bigint, completed bigint, expired bigint, late bigint, late_signals "
    "bigint, newest bigint, index string, timer bigint"
)


class ShardsChanged(Exception):
    """A checkpoint was written with another number of shards, which the message has."""


def send_code_to_workers() -> None:
    """Makes Spark send our code to its workers, which need not have this package installed."""
    for module in (_decisions, _history, _rows, _state, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class _Store:
    """One kind of parts of the state."""

    def __init__(self, parts: MapState, kind: str) -> None:
        self._parts, self._kind = parts, kind

    def get(self, number: int, /) -> tuple[int, bytes] | None:
        return self._parts.getValue((self._kind, number))

    def __setitem__(self, number: int, value: tuple[int, bytes], /) -> None:
        self._parts.updateValue((self._kind, number), value)

    def __delitem__(self, number: int, /) -> None:
        self._parts.removeKey((self._kind, number))


class ShardProcessor(StatefulProcessor):
    """What Spark runs: for each shard it makes a `Shard` of the state, and has it decide.

    Args:
        shards: how many there are. State that was written with another number is refused.
        forget_after: see `Shard`.
        at_once: see `Shard`.
    """

    def __init__(self, shards: int, forget_after: int | None = None, at_once: bool = False) -> None:
        self.shards = shards
        self.forget_after = forget_after
        self.at_once = at_once

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Names the variables of the state."""
        self._handle = handle
        self._shard = handle.getValueState("shard", SHARD)
        self._parts = handle.getMapState(
            "parts", "kind string, number int", "rows int, content binary"
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

    def _run(self, label: int, rows: Iterator[Row], times: TimerValues) -> Iterator[Row]:
        now = max(times.getCurrentWatermarkInMs(), 0) * 1000
        shards, *counts, index, timer = self._shard.get() or (self.shards, None, None)
        if shards != self.shards:
            raise ShardsChanged(
                f"cannot continue with {self.shards} shards: the checkpoint was written with "
                f"{shards}"
            )
        shard = Shard(
            lambda kind: _Store(self._parts, kind),
            None if index is None else json.loads(index),
            Counts(*counts),
            self.forget_after,
            self.at_once,
        )
        before = [getattr(shard.counts, name) for name in COUNTS]
        for _, are_signals, events in rows:
            if are_signals:
                shard.signal(from_bytes(events, RECEIVED_SIGNALS), now, label)
            else:
                shard.register(from_bytes(events, RECEIVED_OPERATIONS), now)
        shard.advance_to(now)
        index = json.dumps(shard.save())
        due = shard.next_at()
        expiry = None if due is None else -(-due // 1000)
        if expiry is not None and expiry != timer:
            self._handle.registerTimer(expiry)
        self._shard.update((self.shards, *astuple(shard.counts), index, expiry))
        added = (getattr(shard.counts, name) - n for name, n in zip(COUNTS, before, strict=True))
        called = _row(None, label, int(NOTHING_DUE) if expiry is None else expiry, *added)
        parts = (part for decisions in shard.take() for part in cut(decisions))
        return iter([called, *(_row(to_bytes(part), None, None, *NOTHING) for part in parts)])


NOTHING: Final = [0] * len(COUNTS)
_row = Row("decisions", "shard", "due", *COUNTS)
