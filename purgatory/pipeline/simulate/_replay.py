"""Replays the traffic of a journal on virtual time, through our own wheel and watch lists, with
other settings.

The input is everything outside of the purgatory: the start and the keys of each operation, and when
its condition came to hold or it was cancelled. Expiries and their lateness are computed anew. The
condition of an operation that expired in the journal never holds here, because that time is
unknown.

    journal                                           replayed with a timeout of 0.1 s, and a tick
                                                      of 0.01 s
    started 0 s, timeout 1 s, completed at 0.25 s     expired at 0.1 s
    started 0 s, timeout 1 s, expired at 1.003 s      expired at 0.1 s
    started 0 s, timeout 1 s, completed at 0.02 s     completed at 0.02 s, by the check of its key
"""

import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from math import ceil, inf
from operator import add
from time import process_time
from typing import Final, NamedTuple

import pyarrow as pa

from purgatory._core.buckets import Bucket
from purgatory._core.engine import Engine
from purgatory._core.loop_wheel import LoopTimingWheel
from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import Purgatory, purgatory_on
from purgatory.pipeline.simulate._timeline import Timeline

MAX_DIFFERENCES: Final = 1000
"""The differences that a replay describes. It counts all of them."""


class Recorded(NamedTuple):
    """An operation of a journal. Instants are in microseconds."""

    operation_id: int
    keys: list[str]
    started_at: int
    ended_at: int
    timeout_s: float | None
    outcome: str
    ended_by: str | None
    missed_trigger: bool


class Setting(NamedTuple):
    """How the purgatory is set up."""

    tick: float
    wheel_size: int
    timeout: float | None
    """The timeout of all operations; `None` if each has its own."""


class Difference(NamedTuple):
    """An operation that ended in another way than in the journal."""

    operation_id: int
    recorded: str
    """Its outcome in the journal."""
    replayed: str
    """Its outcome in the replay."""
    why: str


@dataclass(slots=True)
class Replay:
    """The results of replaying one wheel or several."""

    operations: int = 0
    callbacks: int = 0
    """Calls of the wheel by the loop."""
    empty_callbacks: int = 0
    """Those for a bucket that had become empty."""
    moves: int = 0
    """Moves of an operation to a bucket of a finer level."""
    largest_bucket: int = field(default=0, metadata={"merge": max})
    """The most operations in a bucket when its time came."""
    largest_burst: int = field(default=0, metadata={"merge": max})
    """The most operations that expired in one tick."""
    expired: int = 0
    late_max: float = field(default=0.0, metadata={"merge": max})
    """The greatest lateness of an expiry, in seconds."""
    cpu_seconds: float = 0.0
    different: int = 0
    """Operations that ended in another way than in the journal."""
    lateness: Counter[int] = field(default_factory=Counter)
    """The number of expiries by lateness, in hundredths of a tick, rounded up."""
    differences: list[Difference] = field(default_factory=list)
    """The first `MAX_DIFFERENCES` of the `different` operations."""

    def merge(self, other: "Replay") -> None:
        """Adds the results of another wheel, except for `differences`."""
        for each in fields(self):
            if each.name != "differences":
                merge = each.metadata.get("merge", add)
                setattr(self, each.name, merge(getattr(self, each.name), getattr(other, each.name)))


class CountingWheel(LoopTimingWheel):
    """A wheel that counts the results of its callbacks."""

    __slots__ = ("seen",)

    seen: Replay

    def _on_timer(self, bucket: Bucket) -> None:
        self.seen.empty_callbacks += not bucket
        self.seen.largest_bucket = max(self.seen.largest_bucket, len(bucket))
        super()._on_timer(bucket)


class Replayed(DelayedOperation[None]):
    """An operation whose condition holds from a known instant on."""

    __slots__ = ("holds_at", "recorded", "replayer", "timeline")

    def __init__(
        self, recorded: Recorded, holds_at: float, timeout: float | None, replayer: "Replayer"
    ) -> None:
        super().__init__(timeout)
        self.recorded = recorded
        self.holds_at = holds_at
        self.replayer = replayer
        self.timeline = replayer.timeline

    def try_complete(self) -> bool:
        return self.timeline.now >= self.holds_at and self.force_complete()

    def on_expiration(self) -> None:
        self.replayer.has_expired(self)


class Replayer:
    """One replay, on a timeline that is the running loop."""

    def __init__(self, setting: Setting, timeline: Timeline) -> None:
        self.timeline = timeline
        self.move_to = timeline.move_to
        self.setting = setting
        self.seen = Replay()
        self.wheel = CountingWheel(setting.tick, setting.wheel_size)
        self.wheel.seen = self.seen
        self.purgatory: Purgatory[Replayed] = purgatory_on(Engine("replay", self.wheel))
        self.last_deadline = 0.0
        self._burst_tick = -1
        self._burst = 0

    def replay(self, recorded: Iterable[Recorded]) -> Replay:
        """Replays operations, which must be sorted by start."""
        ends: list[tuple[float, int, Replayed]] = []
        began, first = process_time(), None
        for each in recorded:
            first = each.started_at if first is None else first
            start = (each.started_at - first) / 1e6
            while ends and ends[0][0] <= start:
                self._end(*heappop(ends))
            self.move_to(start)
            operation = self._start(each, (each.ended_at - first) / 1e6)
            if not operation.is_completed and each.outcome != "expired" and not each.missed_trigger:
                heappush(ends, ((each.ended_at - first) / 1e6, self.seen.operations, operation))
        while ends:
            self._end(*heappop(ends))
        self.move_to(self.last_deadline + 2 * self.setting.tick)
        self.seen.cpu_seconds = process_time() - began
        self.seen.callbacks, self.seen.moves = self.wheel.wake_ups, self.wheel.wheel.moves
        return self.seen

    def _start(self, each: Recorded, ended: float) -> Replayed:
        timeout = each.timeout_s if self.setting.timeout is None else self.setting.timeout
        holds_at = ended if each.outcome == "completed" else inf
        if each.missed_trigger and each.timeout_s is not None:
            holds_at = min(
                holds_at, self.timeline.now + each.timeout_s
            )  # it held then at the latest
        operation = Replayed(each, holds_at, timeout, self)
        self.seen.operations += 1
        if timeout is not None:
            self.last_deadline = max(self.last_deadline, self.timeline.now + timeout)
        # A check can complete missed triggers only; its own end completes any other operation. If
        # all of them watched their keys, trying them would take nine tenths of the time.
        watched = each.keys if each.missed_trigger else (each.operation_id,)
        self.purgatory.try_complete_else_watch(operation, watched)
        return operation

    def _end(self, at: float, _: int, operation: Replayed) -> None:
        """Ends a waiting operation as the journal recorded it."""
        self.move_to(at)
        each = operation.recorded
        if operation.is_completed:
            if operation.state.value != each.outcome:
                self._add_difference(each, operation.state.value)
        elif each.outcome == "cancelled":
            operation.cancel()
        else:
            operation.force_complete()
            if each.ended_by is not None:
                self.purgatory.check_and_complete(each.ended_by)

    def has_expired(self, operation: Replayed) -> None:
        """Counts an expiry."""
        seen, now = self.seen, self.timeline.now
        seen.expired += 1
        late = now - operation._timer_deadline
        seen.lateness[ceil(late * 100 / self.setting.tick)] += 1
        seen.late_max = max(seen.late_max, late)
        tick = int(now * self.wheel.wheel.clock.rate)
        self._burst = self._burst + 1 if tick == self._burst_tick else 1
        self._burst_tick = tick
        seen.largest_burst = max(seen.largest_burst, self._burst)
        if operation.recorded.missed_trigger:
            self._add_difference(operation.recorded, "expired")

    def _add_difference(self, each: Recorded, outcome: str) -> None:
        self.seen.different += 1
        if len(self.seen.differences) < MAX_DIFFERENCES:
            if self.setting.timeout is not None:
                why = f"the timeout of {self.setting.timeout:g} s came first"
            else:
                late = (each.ended_at - each.started_at) / 1e6 - (each.timeout_s or 0.0)
                why = (
                    f"it is recorded {late:.6f} s after its deadline: the loop was held up "
                    "then, and here it is not"
                )
            self.seen.differences.append(Difference(each.operation_id, each.outcome, outcome, why))


def replay(recorded: Iterable[Recorded], setting: Setting) -> Replay:
    """Replays operations, which must be sorted by start.

    Memory: the operations that wait at the same time.
    """
    with Timeline().running() as timeline:
        return Replayer(setting, timeline).replay(recorded)


# -- on Spark's workers


def replayed(rows: pa.Table, settings: list[tuple[float, int, float | None]]) -> pa.Table:
    """Replays the operations of one unit with one of the settings.

    Args:
        rows: the columns of `Recorded`, and `run_id` and `setting`, a place in `settings`.

    Returns:
        One row of `run_id`, `setting` and `replayed`, a pickled `Replay`.
    """
    rows = rows.sort_by([("started_at", "ascending"), ("operation_id", "ascending")])
    number, run_id = (rows[name][0].as_py() for name in ("setting", "run_id"))
    batches = rows.select(Recorded._fields).to_batches(max_chunksize=10_000)
    recorded = (
        row
        for batch in batches
        for row in map(Recorded, *(column.to_pylist() for column in batch.columns))
    )
    seen = replay(recorded, Setting(*settings[number]))
    columns = {
        "run_id": [run_id],
        "setting": pa.array([number], pa.int32()),
        "replayed": [pickle.dumps(seen)],
    }
    return pa.table(columns)
