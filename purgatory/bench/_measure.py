"""How the benchmark measures: contenders take turns, batch by batch, in one process and on one loop.

One round is a batch of ours, then a batch of theirs (A B A B ...), so whatever else the machine does meets both alike.
Each round gives a ratio; the figure of a row is the median of these paired ratios, shown with their quartiles.

- A batch is about 1,000 operations. A loop frees what was cancelled in its next turn only, so a longer batch would measure
  a heap of rubbish that no server piles up within one turn; a shorter one would measure the clock, which costs about 1 us.
- The clock is `time.process_time`: CPU time of this process. There is nothing to wait for in a batch, and time that the
  machine gives to other programs in the middle of one is no cost of the contender's.
- After each batch the loop gets two turns. What a contender puts off until then (the wheel disarms emptied buckets, uvloop
  closes cancelled handles) never falls into the other's batch, and it is not forgotten: each batch is read twice, without
  these turns (`bare`) and with them (`settled`).
- The garbage collector stays on, as in a server.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import ParamSpec, Self, TypeVar

BATCH = 1_000
SETTLING_TURNS = 2
WARM_UP_ROUNDS = 5

P = ParamSpec("P")
T = TypeVar("T")

Batch = Callable[[], Awaitable[None]]
"""What is timed: `BATCH` operations."""

Contender = Iterator[Batch]
"""One side of a comparison. What it does to come up with its next batch is not timed."""


class Unmeasurable(Exception):
    """The row has no figure on this machine, now; the message says why."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of a sample and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Self:
        if len(sample) == 1:
            return cls(sample[0], sample[0], sample[0])
        low, median, high = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Contest:
    """Costs, and the `figure` made of them: their ratio, or just `ours` where there is nothing to compare with."""

    ours: Spread
    theirs: Spread | None
    figure: Spread

    @classmethod
    def alone(cls, sample: Sequence[float]) -> Self:
        ours = Spread.of(sample)
        return cls(ours, None, ours)

    @classmethod
    def paired(cls, ours: Sequence[float], theirs: Sequence[float]) -> Self:
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        return cls(Spread.of(ours), Spread.of(theirs), Spread.of(ratios))


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row found: `bare` is judged; `settled` is the same with the loop turns that clean up after each batch."""

    bare: Contest
    settled: Contest | None = None


async def compare(ours: Contender, theirs: Contender, rounds: Iterable[int]) -> Measured:
    """Time `ours` and `theirs` in turns, one batch each per round.

    Returns:
        Costs in microseconds per operation, and the ratio of ours to theirs.
    """
    gc.collect()
    for _ in range(WARM_UP_ROUNDS):
        await _time(ours)
        await _time(theirs)
    mine: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    for _ in rounds:
        mine.append(await _time(ours))
        others.append(await _time(theirs))
    bare, settled = (Contest.paired(*costs) for costs in zip(zip(*mine, strict=False), zip(*others, strict=False), strict=True))
    return Measured(bare, settled)


async def _time(contender: Contender) -> tuple[float, float]:
    """Microseconds per operation of the contender's next batch: bare, and settled."""
    batch = next(contender)
    start = time.process_time()
    await batch()
    done = time.process_time()
    for _ in range(SETTLING_TURNS):
        await asyncio.sleep(0)
    settled = time.process_time()
    return (done - start) / BATCH * 1e6, (settled - start) / BATCH * 1e6


def own_copy(function: Callable[P, T]) -> Callable[P, T]:
    """A copy of `function` with byte code of its own.

    Both contenders run the same lines, but CPython adapts byte code to the types that it meets: lines that met two kinds of
    timer in turns would be fitted to neither, as no real program's are.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy: Callable[P, T] = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    return copy


class LoopProbe:
    """Measures for how long the loop holds everybody else up.

    A callback that schedules itself again with `call_soon` runs once per loop turn; the longest gap between two of its runs is
    the longest that any other callback could have been kept waiting. With the probe in it the loop never sleeps, so the gaps
    are CPU time, too: by the wall clock a busy machine's scheduler, which takes the processor away for 4 ms and more at a
    time, would be all that one sees.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """In seconds."""
        self._loop = asyncio.get_running_loop()
        self._running = False
        self._last_run = 0.0

    def __enter__(self) -> Self:
        self._running = True
        self._last_run = time.process_time()
        self._loop.call_soon(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        self._read()  # the gap that is still open

    def _run(self) -> None:
        if self._running:
            self._read()
            self._loop.call_soon(self._run)

    def _read(self) -> None:
        now = time.process_time()
        self.longest = max(self.longest, now - self._last_run)
        self._last_run = now
