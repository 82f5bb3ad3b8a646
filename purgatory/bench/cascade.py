"""``python -m purgatory.bench cascade``: many deadlines in one wide bucket of the wheel, and how late it makes anybody.

A million timers are due within 262 s, all in one wide bucket, which has to be moved into narrower ones before it begins. What
comes of it is watched twice: while that bucket is being moved, and from shortly before it begins. The loop's clock is moved on
in between, while nothing is due, which only asyncio's allows. All the time, short timers are started on the same wheel. A
callback that comes back in every iteration of the loop measures how long they are, in CPU time; lateness is by the clock.
"""

import argparse
import asyncio
import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich import box
from rich.table import Table

from purgatory import WheelTimer
from purgatory._programs import Program
from purgatory._timers.wheel_timer import TimerTask
from purgatory.bench._cases import QUICK_DIVISOR
from purgatory.bench._measure import LoopProbe, Unmeasurable
from purgatory.bench._options import add_common_options
from purgatory.bench._process import in_fresh_process
from purgatory.bench._report import RowProgress, environment, wide_console, write_report

TIMERS = 1_000_000
SPREAD = 262.144
"""Seconds over which they are due: a bucket of the third level, by default."""

TICK = 0.001
SHORT = 0.02
"""The timeout of the others, in seconds, ..."""
SHORT_EVERY = 0.001
"""... one of which is started each time that so long has passed."""

MEDDLED = 0.1
"""The part of all timers that is cancelled while they are moved, and the part that is postponed, ..."""
MEDDLED_IN_A_TURN = 40
"""... so many of each in a iteration of the loop."""
POSTPONED_BY = 60.0

BEFORE = 1.5
"""Seconds that are watched before anything begins, ..."""
MOVING = 12.0
"""... after the wide bucket has begun to be moved, ..."""
EXPIRING = 6.0
"""... and after the first timers were due."""

Order = Literal["in order", "reversed", "random", "meddled with"]
CASES: tuple[tuple[int, Order], ...] = (
    (512, "in order"),
    (512, "reversed"),
    (512, "random"),
    (512, "meddled with"),
    (128, "random"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds. `late` are the timers, `short` those beside them; `hold` is the longest iteration of the loop."""

    wheel_size: int
    order: Order
    timers: int
    fired: int
    late_p99_ms: float
    late_max_ms: float
    short_p99_ms: float
    short_max_ms: float
    hold_ms: float


class MovableLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved on."""

    offset = 0.0

    def time(self) -> float:
        """As asyncio's."""
        return super().time() + self.offset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, any_loop=False)


def run(options: argparse.Namespace) -> int:
    """Measures each case, prints the table and writes the JSON."""
    console = wide_console()
    where = environment()
    timers = TIMERS // QUICK_DIVISOR if options.quick else TIMERS
    cases = CASES[-2:] if options.quick else CASES
    console.print(f"cascade: {timers:,} timers in one wide bucket, {len(cases)} times, on asyncio")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    figures: list[Figures] = []
    progress = RowProgress(console)
    with progress.shown():
        progress.start("cascade on asyncio")
        for step in progress.track(len(cases)):
            size, order = cases[step]
            try:
                figures.append(in_fresh_process(measure, size, order, timers, options.seed, options.quick))
            except Unmeasurable as error:
                console.print(f"{order}, wheel size {size}: {error}")
    console.print(table(figures, options.quick))
    report = {"program": "cascade", "environment": where, "quick": options.quick, "runs": [asdict(each) for each in figures]}
    write_report(console, options.json, report)
    return 0


def measure(wheel_size: int, order: Order, timers: int, seed: int, quick: bool = False) -> Figures:
    """One cascade, on a loop of its own."""
    loop = MovableLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        cascade = Cascade(loop, wheel_size, order, timers, random.Random(seed))
        return runner.run(cascade.measure(1 / 12 if quick else 1.0))


class Noted:
    """A timer that notes how late it is."""

    __slots__ = ("late", "loop", "task")

    task: TimerTask

    def __init__(self, loop: MovableLoop, late: list[float]) -> None:
        self.loop = loop
        self.late = late

    def note(self) -> None:
        """What the timer calls."""
        self.late.append(self.loop.time() - self.task.when())


class Cascade:
    """One case, while it is measured."""

    def __init__(self, loop: MovableLoop, wheel_size: int, order: Order, timers: int, rng: random.Random) -> None:
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
        """When the wide bucket begins; the buckets into which it is moved are as wide as `narrower`, ..."""
        self.lead = span
        """... which is done from so long before on."""

    async def measure(self, speed: float) -> Figures:
        """Loads the wheel, watches it twice, and tells what was seen."""
        moved_from = self.start - self.lead
        self._move_clock(moved_from - 600.0)
        tasks = self._load()
        meddled = self.rng.sample(tasks, round(2 * MEDDLED * len(tasks)))
        tasks.clear()
        gc.collect()
        gc.freeze()  # what making them has left behind is not the cascade's
        self._move_clock(moved_from - BEFORE * speed)
        with LoopProbe() as probe:
            if self.order == "meddled with":
                self.loop.call_at(moved_from, self._meddle, iter(meddled))
            await self._watch(moved_from + MOVING * speed)
        if self.late:
            raise Unmeasurable("timers fired before they were due")
        self._move_clock(self.start - self.narrower - BEFORE * speed)
        with LoopProbe() as last_probe:
            await self._watch(self.start + EXPIRING * speed)
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
            hold_ms=1e3 * max(probe.longest, last_probe.longest),
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
        noted = Noted(self.loop, late)
        noted.task = self.timer.call_at(when, noted.note)
        return noted.task

    async def _watch(self, until: float) -> None:
        """Starts short timers until then; the iterations of the loop are all taken."""
        next_start = self.loop.time()
        while (now := self.loop.time()) < until:
            if now >= next_start:
                self._start(now + SHORT, self.late_short)
                self.short_started += 1
                next_start = now + SHORT_EVERY
            await asyncio.sleep(0)
        while self.short_started > len(self.late_short):
            await asyncio.sleep(0)

    def _meddle(self, tasks: Iterator[TimerTask]) -> None:
        """Cancels some and postpones as many; then it comes back for more."""
        for _ in range(MEDDLED_IN_A_TURN):
            cancelled, postponed = next(tasks, None), next(tasks, None)
            if cancelled is None or postponed is None:
                return
            cancelled.cancel()
            postponed.reschedule(postponed.when() + POSTPONED_BY)
        self.loop.call_soon(self._meddle, tasks)


def table(figures: Sequence[Figures], quick: bool) -> Table:
    caption = (
        f"Lateness by the clock: of those of the {SPREAD:.0f} s that were due in the first {EXPIRING:.0f}, and of timers of"
        f" {SHORT * 1e3:.0f} ms beside them,\nbefore that and while they were moved. hold: the longest turn, in CPU time."
    )
    if quick:
        caption += f"\nQUICK: one {QUICK_DIVISOR}th of the timers; these figures prove nothing."
    result = Table(
        title="How late a cascade makes anybody",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in ("wheel", "order"):
        result.add_column(heading, no_wrap=True)
    for heading in ("timers", "fired", "p99 ms", "max ms", "short p99 ms", "short max ms", "hold ms"):
        result.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        late = (each.late_p99_ms, each.late_max_ms, each.short_p99_ms, each.short_max_ms, each.hold_ms)
        result.add_row(
            str(each.wheel_size), each.order, f"{each.timers:,}", f"{each.fired:,}", *(f"{figure:.2f}" for figure in late)
        )
    return result


PROGRAM = Program(
    "cascade", "A million deadlines in one wide bucket of the wheel: how late they and others are.", add_arguments, run
)
