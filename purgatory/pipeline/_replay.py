"""The traffic of a journal once more, on virtual time, through our own wheel and watch lists with other settings.

What is replayed is what the journal says of the world: when an operation started, under which keys, and when its condition
came to hold or it was cancelled. What is not is what the purgatory did: at which deadline it expired, and how late. An
operation that expired in the journal never comes to hold, as nobody has seen when it would have.

    journal                                           replayed with a timeout of 0.1 s, and a tick of 0.01 s
    started 0 s, timeout 1 s, completed at 0.25 s     expired at 0.1 s
    started 0 s, timeout 1 s, expired at 1.003 s      expired at 0.1 s
    started 0 s, timeout 1 s, completed at 0.02 s     completed at 0.02 s, by the check of its key
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf
from time import process_time
from typing import Final, NamedTuple

from purgatory._engine import Engine
from purgatory._operation import DelayedOperation
from purgatory._purgatory import Purgatory
from purgatory._slots import Slot
from purgatory._timer import LoopWheel
from purgatory.pipeline._timeline import Timeline

MOST_DIFFERENCES: Final = 1000
"""So many operations are named whose replay ends otherwise; all are counted."""


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
    """For all operations; `None` for the one that each had."""


@dataclass(slots=True)
class Replay:
    """What was seen."""

    operations: int = 0
    callbacks: int = 0
    """Of the loop, for buckets."""
    empty_callbacks: int = 0
    """Those of them whose bucket was empty by then."""
    moves: int = 0
    """Between the buckets of two levels."""
    largest_bucket: int = 0
    """The most operations that a bucket held when its time came."""
    largest_burst: int = 0
    """The most operations that expired in one tick."""
    expired: int = 0
    lateness: Counter[int] = field(default_factory=Counter)
    """Of those that expired, in hundredths of a tick after the deadline, rounded up."""
    latest: float = 0.0
    """The greatest lateness, in seconds."""
    cpu_seconds: float = 0.0
    different: int = 0
    """Operations that ended otherwise than in the journal."""
    differences: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Their id, outcome in the journal and in the replay, and why; the first of them."""


class CountingWheel(LoopWheel):
    """A wheel that counts what its callbacks find."""

    __slots__ = ("seen",)

    seen: Replay

    def _wake(self, slot: Slot) -> None:
        self.seen.empty_callbacks += not slot
        self.seen.largest_bucket = max(self.seen.largest_bucket, len(slot))
        super()._wake(slot)


class Replayed(DelayedOperation[None]):
    """An operation whose condition comes to hold at an instant that is known."""

    __slots__ = ("holds_at", "recorded", "run", "timeline")

    def __init__(self, recorded: Recorded, holds_at: float, timeout: float | None, run: "Run") -> None:
        super().__init__(timeout)
        self.recorded = recorded
        self.holds_at = holds_at
        self.run = run
        self.timeline = run.timeline

    def try_complete(self) -> bool:
        return self.timeline.now >= self.holds_at and self.force_complete()

    def on_expiration(self) -> None:
        self.run.has_expired(self)


class Run:
    """One replay, on a timeline that is the running loop."""

    def __init__(self, setting: Setting, timeline: Timeline) -> None:
        self.timeline = timeline
        self.move_to = timeline.move_to
        self.setting = setting
        self.seen = Replay()
        self.wheel = CountingWheel(setting.tick, setting.wheel_size)
        self.wheel.seen = self.seen
        self.purgatory: Purgatory[Replayed] = Purgatory("replay")
        self.purgatory._engine = Engine("replay", self.wheel)  # the same, but on a wheel that counts
        self.last_deadline = 0.0
        self._burst_tick = -1
        self._burst = 0

    def replay(self, recorded: Iterable[Recorded]) -> Replay:
        """Replays operations that come in the order of their starts."""
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
        self.seen.callbacks, self.seen.moves = self.wheel.wake_ups, self.wheel.moves
        return self.seen

    def _start(self, each: Recorded, ended: float) -> Replayed:
        timeout = each.timeout_s if self.setting.timeout is None else self.setting.timeout
        holds_at = ended if each.outcome == "completed" else inf
        if each.missed_trigger and each.timeout_s is not None:
            holds_at = min(holds_at, self.timeline.now + each.timeout_s)  # at the latest, for it was seen to hold then
        operation = Replayed(each, holds_at, timeout, self)
        self.seen.operations += 1
        if timeout is not None:
            self.last_deadline = max(self.last_deadline, self.timeline.now + timeout)
        self.purgatory.try_complete_else_watch(operation, each.keys)
        return operation

    def _end(self, at: float, _: int, operation: Replayed) -> None:
        """What the journal says that happened to an operation from outside, if it still waits."""
        self.move_to(at)
        each = operation.recorded
        if operation.is_completed:
            if operation.state.value != each.outcome:
                self._differs(each, operation.state.value)
        elif each.outcome == "cancelled":
            operation.cancel()
        elif each.ended_by is not None and each.ended_by in each.keys:
            self.purgatory.check_and_complete(each.ended_by)
        else:
            operation.force_complete()

    def has_expired(self, operation: Replayed) -> None:
        """Notes an expiry."""
        seen, now = self.seen, self.timeline.now
        seen.expired += 1
        late = now - operation._wheel_when
        seen.lateness[ceil(late * 100 / self.setting.tick)] += 1
        seen.latest = max(seen.latest, late)
        tick = int(now * self.wheel.rate)
        self._burst = self._burst + 1 if tick == self._burst_tick else 1
        self._burst_tick = tick
        seen.largest_burst = max(seen.largest_burst, self._burst)
        if operation.recorded.missed_trigger:
            self._differs(operation.recorded, "expired")

    def _differs(self, each: Recorded, outcome: str) -> None:
        self.seen.different += 1
        if len(self.seen.differences) < MOST_DIFFERENCES:
            if self.setting.timeout is not None:
                why = f"the timeout of {self.setting.timeout:g} s came first"
            else:
                late = (each.ended_at - each.started_at) / 1e6 - (each.timeout_s or 0.0)
                why = f"it is recorded {late:.6f} s after its deadline: the loop was held up then, and here it is not"
            self.seen.differences.append((each.operation_id, each.outcome, outcome, why))


def replay(recorded: Iterable[Recorded], setting: Setting) -> Replay:
    """Replays operations that come in the order of their starts.

    Memory: what waits at a time.
    """
    with Timeline().running() as timeline:
        return Run(setting, timeline).replay(recorded)
