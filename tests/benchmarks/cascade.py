"""``python tests/benchmarks cascade``: many deadlines in one wide bucket of the wheel, and how late
other timers get.

A million timers are due within 262 s, all in one wide bucket, which cascades into narrower ones
before it begins. We watch twice: while that bucket cascades, and from shortly before it begins. In
between, while no timer is due, the loop's clock jumps ahead, which only asyncio's loop allows.
Short timers are started on the same wheel during the whole measurement. A callback that runs in
every iteration of the loop measures the iterations, in CPU time; lateness is by the clock.
"""

import argparse
import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from benchmarks.cases import QUICK_DIVISOR
from benchmarks.measure import LoopProbe, Unmeasurable
from benchmarks.options import add_common_options
from benchmarks.process import in_fresh_process
from benchmarks.report import opened_console, plain_table, write_report
from purgatory import WheelTimer
from purgatory._core.wheel_timer import TimerTask
from purgatory.pipeline._programs import Program

TIMERS = 1_000_000
SPREAD = 262.144
"""Seconds over which the timers are due: a bucket of the third level, by default."""

TICK = 0.001
SHORT_TIMEOUT = 0.02
SHORT_INTERVAL = 0.001
"""Seconds between the starts of two short timers."""

CHANGED_SHARE = 0.1
"""The share of timers that is cancelled during the cascade; an equal share is postponed."""
CHANGES_PER_ITERATION = 40
"""Number of cancelled, and of postponed, timers per iteration of the loop."""
POSTPONED_BY = 60.0

LEAD_SECONDS = 1.5
"""Seconds watched before the cascade, and before the first timer is due."""
CASCADING_SECONDS = 12.0
"""Seconds watched after the wide bucket starts to cascade."""
EXPIRING_SECONDS = 6.0
"""Seconds watched after the first timers are due."""

Order = Literal["in order", "reversed", "random", "changed meanwhile"]
CASES: tuple[tuple[int, Order], ...] = (
    (512, "in order"),
    (512, "reversed"),
    (512, "random"),
    (512, "changed meanwhile"),
    (128, "random"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds. `late` are the timers, `short` those beside them; `max_stall` is the longest
    iteration of the loop, `own_stall` the longest without Python's garbage collection."""

    wheel_size: int
    order: Order
    timers: int
    fired: int
    late_p99_ms: float
    late_max_ms: float
    short_p99_ms: float
    short_max_ms: float
    max_stall_ms: float
    own_stall_ms: float


class MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can jump ahead."""

    offset = 0.0

    def time(self) -> float:
        """Like asyncio's, plus `offset`."""
        return super().time() + self.offset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, any_loop=False)


def run(options: argparse.Namespace) -> int:
    """Measures each case, prints the table and writes the JSON."""
    timers = TIMERS // QUICK_DIVISOR if options.quick else TIMERS
    cases = CASES[-2:] if options.quick else CASES
    console = opened_console(
        f"cascade: {timers:,} timers in one wide bucket, {len(cases)} times, on asyncio"
    )
    figures: list[Figures] = []
    for size, order in cases:
        console.print(f"{order}, wheel size {size}", style="dim")
        try:
            figures.append(
                in_fresh_process(measure, size, order, timers, options.seed, options.quick)
            )
        except Unmeasurable as error:
            console.print(f"{order}, wheel size {size}: {error}")
    console.print(table(figures, options.quick))
    write_report(console, options, "cascade", runs=list(map(asdict, figures)))
    return 0


def measure(wheel_size: int, order: Order, timers: int, seed: int, quick: bool = False) -> Figures:
    """One cascade, on a loop of its own."""
    loop = MovableLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        cascade = Cascade(loop, wheel_size, order, timers, random.Random(seed))
        return runner.run(cascade.measure(1 / 12 if quick else 1.0))


class Lateness:
    """A timer's callback, which appends its lateness."""

    __slots__ = ("late", "loop", "task")

    task: TimerTask

    def __init__(self, loop: MovableLoop, late: list[float]) -> None:
        self.loop = loop
        self.late = late

    def __call__(self) -> None:
        self.late.append(self.loop.time() - self.task.when())


class Cascade:
    """One case, while it is measured."""

    def __init__(
        self, loop: MovableLoop, wheel_size: int, order: Order, timers: int, rng: random.Random
    ) -> None:
        self.loop = loop
        self.wheel_size = wheel_size
        self.order: Order = order
        self.timers = timers
        self.rng = rng
        self.timer = WheelTimer(tick=TICK, wheel_size=wheel_size)
        self.late: list[float] = []
        self.late_short: list[float] = []
        self.short_started = 0
        span = TICK * wheel_size
        while span < SPREAD:
            self.narrower, span = span, span * wheel_size
        self.start = (int(loop.time() / span) + 3) * span
        """When the wide bucket begins. The buckets into which it cascades are as wide as
        `narrower`."""
        self.lead = span
        """Seconds from the start of the cascade to the begin of the wide bucket."""

    async def measure(self, speed: float) -> Figures:
        """Loads the wheel, and watches it twice."""
        cascades_at = self.start - self.lead
        self._move_clock(cascades_at - 600.0)
        tasks = self._load()
        changed = self.rng.sample(tasks, round(2 * CHANGED_SHARE * len(tasks)))
        tasks.clear()
        gc.collect()
        gc.freeze()  # garbage from creating them does not belong to the cascade
        self._move_clock(cascades_at - LEAD_SECONDS * speed)
        with LoopProbe() as probe:
            if self.order == "changed meanwhile":
                self.loop.call_at(cascades_at, self._change, iter(changed))
            await self._watch(cascades_at + CASCADING_SECONDS * speed)
        if self.late:
            raise Unmeasurable("timers fired before they were due")
        self._move_clock(self.start - self.narrower - LEAD_SECONDS * speed)
        with LoopProbe() as last_probe:
            await self._watch(self.start + EXPIRING_SECONDS * speed)
        late, short = sorted(self.late), sorted(self.late_short)
        return Figures(
            wheel_size=self.wheel_size,
            order=self.order,
            timers=self.timers,
            fired=len(late),
            late_p99_ms=1e3 * late[len(late) * 99 // 100],
            late_max_ms=1e3 * late[-1],
            short_p99_ms=1e3 * short[len(short) * 99 // 100],
            short_max_ms=1e3 * short[-1],
            max_stall_ms=1e3 * max(probe.max_stall, last_probe.max_stall),
            own_stall_ms=1e3 * max(probe.max_own_stall, last_probe.max_own_stall),
        )

    def _move_clock(self, now: float) -> None:
        self.loop.offset += now - self.loop.time()

    def _load(self) -> list[TimerTask]:
        """Starts the timers; they come in the order of the case."""
        whens = [self.start + SPREAD * number / self.timers for number in range(self.timers)]
        if self.order == "reversed":
            whens.reverse()
        elif self.order != "in order":
            self.rng.shuffle(whens)
        return [self._start(when, self.late) for when in whens]

    def _start(self, when: float, late: list[float]) -> TimerTask:
        lateness = Lateness(self.loop, late)
        lateness.task = self.timer.call_at(when, lateness)
        return lateness.task

    async def _watch(self, until: float) -> None:
        """Starts short timers until the time `until`. The loop never sleeps meanwhile."""
        next_start = self.loop.time()
        while (now := self.loop.time()) < until:
            if now >= next_start:
                self._start(now + SHORT_TIMEOUT, self.late_short)
                self.short_started += 1
                next_start = now + SHORT_INTERVAL
            await asyncio.sleep(0)
        while self.short_started > len(self.late_short):
            await asyncio.sleep(0)

    def _change(self, tasks: Iterator[TimerTask]) -> None:
        """Cancels some timers and postpones as many, in each iteration of the loop until `tasks` is
        empty."""
        for _ in range(CHANGES_PER_ITERATION):
            cancelled, postponed = next(tasks, None), next(tasks, None)
            if cancelled is None or postponed is None:
                return
            cancelled.cancel()
            postponed.reschedule(postponed.when() + POSTPONED_BY)
        self.loop.call_soon(self._change, tasks)


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        f"Lateness by the clock: of the timers due in the first {EXPIRING_SECONDS:.0f} s, and "
        "of timers of"
        f" {SHORT_TIMEOUT * 1e3:.0f} ms beside them,\nbefore that and during the cascade."
        " max stall: the longest iteration of the loop, in CPU time;\nours: the longest without "
        "Python's garbage collection."
    )
    numbers = (
        "timers",
        "fired",
        "p99 ms",
        "max ms",
        "short p99 ms",
        "short max ms",
        "max stall ms",
        "ours ms",
    )
    result = plain_table(
        "How late timers are in a cascade", caption, ("wheel", "order"), numbers, quick
    )
    for each in figures:
        late = (
            each.late_p99_ms,
            each.late_max_ms,
            each.short_p99_ms,
            each.short_max_ms,
            each.max_stall_ms,
            each.own_stall_ms,
        )
        result.add_row(
            str(each.wheel_size),
            each.order,
            f"{each.timers:,}",
            f"{each.fired:,}",
            *(f"{figure:.2f}" for figure in late),
        )
    return result


PROGRAM = Program(
    "cascade",
    "A million deadlines in one wide bucket of the wheel: how late are these and other timers?",
    add_arguments,
    run,
)
