"""How the benchmarks measure: contenders alternate, batch by batch, in one process and on one loop.

One round is a batch of ours, then a batch of theirs (A B A B ...). So whatever else the machine
does affects both in the same way. Each round gives a ratio. The figure of a row is the median of
these paired ratios, shown with their quartiles.

- A batch is about 1,000 operations. A loop frees cancelled timers only in its next iteration. So a
  longer batch would measure a heap of cancelled timers that no server collects within one
  iteration, and a shorter one the clock, which costs about 1 µs.
- The clock is `time.process_time`: CPU time of this process. A batch never waits, and the time that
  the machine gives to other programs meanwhile is not the contender's cost.
- After each batch the loop does two iterations. A contender may defer work until then: the wheel
  cancels the loop's timers of buckets that have become empty, uvloop closes cancelled handles. This
  work must not count for the other contender, but it must count. So the clock is read twice after
  each batch: before these iterations (`bare`) and after them (`settled`).
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
SETTLING_ITERATIONS = 2
WARM_UP_ROUNDS = 5

P = ParamSpec("P")
T = TypeVar("T")

Batch = Callable[[], Awaitable[None]]
"""Does `BATCH` operations, which are timed."""

Contender = Iterator[Batch]
"""One side of a comparison. Preparing the next batch is not timed."""


class Unmeasurable(Exception):
    """The row cannot be measured on this machine now. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Quantiles:
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
class Comparison:
    """The costs of both sides, and the `figure`: their ratio, or just `ours` if there is nothing to
    compare with."""

    ours: Quantiles
    theirs: Quantiles | None
    figure: Quantiles

    @classmethod
    def alone(cls, sample: Sequence[float]) -> Self:
        ours = Quantiles.of(sample)
        return cls(ours, None, ours)

    @classmethod
    def paired(cls, ours: Sequence[float], theirs: Sequence[float]) -> Self:
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        return cls(Quantiles.of(ours), Quantiles.of(theirs), Quantiles.of(ratios))


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a row. `settled` includes the iterations of the loop that
    clean up after each batch."""

    bare: Comparison
    settled: Comparison | None = None


async def compare(ours: Contender, theirs: Contender, rounds: Iterable[int]) -> Measured:
    """Times `ours` and `theirs` alternately, a batch of each in every round.

    Returns:
        The costs in microseconds per operation, and the ratio of ours to theirs.
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
    bare, settled = (
        Comparison.paired(*costs)
        for costs in zip(zip(*mine, strict=False), zip(*others, strict=False), strict=True)
    )
    return Measured(bare, settled)


async def _time(contender: Contender) -> tuple[float, float]:
    """The cost of the next batch, in microseconds per operation: bare, and settled."""
    batch = next(contender)
    start = time.process_time()
    await batch()
    done = time.process_time()
    for _ in range(SETTLING_ITERATIONS):
        await asyncio.sleep(0)
    settled = time.process_time()
    return (done - start) / BATCH * 1e6, (settled - start) / BATCH * 1e6


def own_copy(function: Callable[P, T]) -> Callable[P, T]:
    """A copy of `function` with byte code of its own.

    Both contenders run the same lines of Python. But CPython adapts byte code to the types that it
    meets: lines that meet two kinds of timer alternately would be adapted to neither, which does
    not happen in a real program.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy: Callable[P, T] = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__
    )
    return copy


class LoopProbe:
    """Measures how long callbacks have to wait while the loop is busy.

    A callback that schedules itself again with `call_soon` runs once in each iteration of the loop.
    The longest gap between two of its runs is the longest time that any other callback could have
    had to wait. With the probe the loop never sleeps, so the gaps can be measured in CPU time. By
    the wall clock one would only see the scheduler of a busy machine, which takes the processor
    away for 4 ms and more at a time.
    """

    def __init__(self) -> None:
        self.max_stall = 0.0
        """Longest gap, in seconds."""
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
        self._read()  # the last gap, which is still open

    def _run(self) -> None:
        if self._running:
            self._read()
            self._loop.call_soon(self._run)

    def _read(self) -> None:
        now = time.process_time()
        stall, self._last_run = now - self._last_run, now
        self.max_stall = max(self.max_stall, stall)
