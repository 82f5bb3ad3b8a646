"""`WheelTimer` against a list, on a loop whose every iteration and instant the test decides.
A seed is one history: a wheel of 2 to 8 buckets, a clock with a random start, and some 60 steps.
Callbacks are scheduled, cancelled, postponed and hastened, alone and by the dozen, also by
callbacks. Time passes, pauses, and jumps by minutes and days, with a random number of iterations of
the loop, so that cascades and bursts are interrupted half way. Chunks hold 4 entries and an
iteration of work has 8 steps, so that a dozen entries fill several chunks.
The assertions: each callback runs once, is never early, and is not lost; once the loop has nothing
to do, nothing is overdue; an iteration does bounded work; entries of one bucket keep the order of
addition. `check` is called after each step.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, cast

import pytest
from helpers import THOROUGHNESS
from invariants import check, small_bounds

from purgatory import TimerTask, WheelTimer
from purgatory._core.wheel import Bucket, TickClock

MAX_PER_ITERATION = 8

STEPS = 60
FAST_SEEDS = range(50)
SLOW_SEEDS = range(1_000 * THOROUGHNESS)
SLOW_BATCHES = 10

MINUTE, DAY = 60.0, 86_400.0


class Handle:
    def __init__(self, when: float, callback: Callable[[], object], context: Context) -> None:
        self.when = when
        self.callback = callback
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class ManualLoop:
    """The part of an event loop that a timer needs: `now` is set from outside, and `iterate` is one
    iteration."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.early = 0.0
        """Seconds by which a timer may fire early."""
        self.reports: list[dict[str, Any]] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._ready: deque[Handle] = deque()
        self._sequence = 0

    def time(self) -> float:
        return self.now

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context
    ) -> Handle:
        assert when <= self.now + 86_400.0
        handle = Handle(when, lambda: callback(*args), context)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context
    ) -> Handle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context) -> Handle:
        handle = Handle(-math.inf, lambda: callback(*args), context)
        self._ready.append(handle)
        return handle

    def call_exception_handler(self, report: dict[str, Any]) -> None:
        self.reports.append(report)

    def armed(self) -> list[float]:
        return sorted(when for when, _, handle in self._timers if not handle.is_cancelled)

    def has_work(self) -> bool:
        return bool(self._ready) or any(when <= self.now for when in self.armed())

    def iterate(self) -> None:
        while self._timers and self._timers[0][0] <= self.now + self.early:
            self._ready.append(heappop(self._timers)[2])
        ready, self._ready = self._ready, deque()
        for handle in ready:
            if not handle.is_cancelled:
                handle.context.run(handle.callback)


class Waiting:
    """The model's state of one task."""

    def __init__(self, number: int, action: str, when: float) -> None:
        self.number = number
        self.action = action
        self.when = when
        self.due_from = when
        """Due time: at once if it has passed, otherwise the start of its tick."""
        self.task: TimerTask
        self.bucket: Bucket | None = None
        """Its own bucket of the finest level, if it was added there and has not moved since."""


ACTIONS = ["nothing"] * 8 + [
    "fail",
    "add now",
    "add later",
    "cancel",
    "cancel all",
    "postpone",
    "hasten",
    "again",
    "take time",
]


class History:
    """Applies one seed to a timer.
    Attributes:
        trace: the number and the time of each callback.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.tick = chance.choice([0.001, 0.001, 0.01, 0.25])
        self.loop = ManualLoop(chance.choice([0.0, 12.345, 2e7, 1e9]))
        self.timer = WheelTimer(tick=self.tick, wheel_size=chance.randint(2, 8))
        self.wheel = self.timer._loop_wheel.wheel
        self.clock = TickClock(self.tick)
        self.waiting: dict[int, Waiting] = {}
        self.last_of_bucket: dict[Bucket, int] = {}
        self.trace: list[tuple[int, float]] = []
        self.numbers = self.failures = self.own_moves = 0
        self.is_late_until = -math.inf
        """A callback of the loop that came early is retried later, by the time that it was early;
        loops cannot be more precise."""
        self.may_have_taken_time = False

    def run(self) -> None:
        rules: list[tuple[int, Callable[[], None]]] = [
            (12, self.schedule_some),
            (2, self.schedule_past_or_never),
            (4, self.cancel_one),
            (1, self.cancel_most),
            (6, self.reschedule_some),
            (6, self.a_little_time_passes),
            (3, self.the_clock_jumps),
            (6, self.the_next_timer_comes),
            (8, self.some_iterations_pass),
        ]
        weights, functions = zip(*rules, strict=True)
        with running(self.loop):
            for function in self.chance.choices(functions, weights, k=STEPS):
                function()
                self.check()
            self.let_all_come()

    def let_all_come(self) -> None:
        """Checks that every waiting callback runs at its time."""
        for _ in range(10_000):
            self.until_idle()
            if all(item.when >= 1e17 for item in self.waiting.values()):
                break
            self.loop.now = max(self.loop.now, self.loop.armed()[0])
        else:
            raise AssertionError("they never come")
        for item in [*self.waiting.values()]:
            self.cancel(item)
        self.until_idle()
        self.check()
        self.loop.now += 1.0  # by then a busy wheel has been checked for idleness
        self.until_idle()
        assert self.loop.armed() == []

    # Calls to both sides

    def schedule(self, when: float, action: str = "nothing") -> None:
        item = Waiting(self.numbers, action, when)
        item.due_from = self.due_from(when)
        self.numbers += 1
        self.waiting[item.number] = item
        item.task = self.timer.call_at(when, self.on_due, item)
        assert item.task.when() == when
        bucket = self.wheel.levels[0].buckets.get(self.clock.due_tick(when))
        if bucket is not None and item.task._timer_bucket is bucket:
            item.bucket = bucket

    def cancel(self, item: Waiting) -> None:
        item.task.cancel()
        del self.waiting[item.number]

    def reschedule(self, item: Waiting, when: float) -> None:
        moves = self.wheel.moves
        item.task.reschedule(when)
        self.own_moves += self.wheel.moves - moves
        if when != item.when or self.wheel.moves > moves:
            item.when, item.bucket = when, None
        item.due_from = self.due_from(when)

    def due_from(self, when: float) -> float:
        """The due time of a callback that is scheduled now for `when`."""
        return when if when <= self.loop.now else self.clock.instant(self.clock.due_tick(when))

    def on_due(self, item: Waiting) -> None:
        assert self.waiting.get(item.number) is item, "it was cancelled, or comes twice"
        assert item.when <= self.loop.now, "early"
        del self.waiting[item.number]
        self.trace.append((item.number, self.loop.now))
        if item.bucket is not None:
            assert self.last_of_bucket.get(item.bucket, -1) < item.number, (
                "not in the order of addition"
            )
            self.last_of_bucket[item.bucket] = item.number
        others = [*self.waiting.values()]
        match item.action:
            case "fail":
                self.failures += 1
                raise ValueError(item.number)
            case "add now":
                self.schedule(self.loop.now)
            case "add later":
                self.schedule(self.loop.now + self.tick * (item.number % 7))
            case "again":
                self.schedule(item.when)
            case "take time":
                self.loop.now += self.tick * self.chance.choice([0.5, 1, 3, 20])
                self.may_have_taken_time = True
                self.schedule(self.loop.now + self.delay())
            case "cancel all":
                for other in others:
                    self.cancel(other)
            case "cancel" | "postpone" | "hasten" if others:
                other = others[item.number % len(others)]
                if item.action == "cancel":
                    self.cancel(other)
                else:
                    self.reschedule(
                        other, self.loop.now + (self.delay() if item.action == "postpone" else 0.0)
                    )

    # Time

    def iterate(self) -> bool:
        """Runs one iteration of the loop; returns whether it did any work."""
        moves, own_moves, due, works = (
            self.wheel.moves,
            self.own_moves,
            len(self.trace),
            self.wheel._generation,
        )
        self.may_have_taken_time, buckets_before = False, len([*self.wheel.buckets()])
        self.loop.iterate()
        self.loop.early = 0.0
        moved = self.wheel.moves - moves - (self.own_moves - own_moves)
        works = self.wheel._generation - works if self.may_have_taken_time else 1
        assert moved + len(self.trace) - due <= works * MAX_PER_ITERATION
        if self.may_have_taken_time:
            self.is_late_until = self.loop.now + self.tick
        self.check()
        return bool(moved or len(self.trace) > due or len([*self.wheel.buckets()]) < buckets_before)

    def until_idle(self) -> None:
        """Runs the loop until it has nothing to do now; then nothing is overdue."""
        idle_iterations = 0
        while self.loop.has_work():
            idle_iterations = 0 if self.iterate() else idle_iterations + 1
            assert idle_iterations <= 50, "the loop spins"
        if self.loop.now >= self.is_late_until:
            late = [item for item in self.waiting.values() if item.due_from <= self.loop.now]
            assert late == []

    def check(self) -> None:
        check(self.timer)
        assert self.timer.size == len(self.waiting)
        assert len(self.loop.reports) == self.failures
        soon = (
            self.loop.now + 0.01
        )  # timers of buckets already handled, and one check of a busy wheel for idleness
        assert sum(when > soon for when in self.loop.armed()) <= len([*self.wheel.buckets()])

    # The steps

    def delay(self) -> float:
        """A random delay, in seconds."""
        chance = self.chance
        ticks = chance.choice(
            [
                chance.randint(0, 4),
                chance.randint(0, 70),
                chance.randint(0, 9000),
                2 ** chance.randint(1, 26) - chance.randint(0, 1),
                chance.choice([0.5, 1.999999, 4 / 3, 1e-9]),
                chance.random() * chance.choice([10, 1000, 1e5]),
            ]
        )
        return (
            ticks * self.tick
            if chance.random() < 0.9
            else chance.choice([5 * MINUTE, DAY, 3 * DAY]) * chance.random()
        )

    def schedule_some(self) -> None:
        chance = self.chance
        count, together, action = (
            chance.choice([1, 1, 2, 10, 30]),
            chance.random() < 0.5,
            chance.choice(ACTIONS),
        )
        delay, is_on_a_border = self.delay(), chance.random() < 0.3
        for number in range(count):
            when = self.loop.now + (delay if together else delay * chance.random())
            if is_on_a_border:
                when = self.clock.instant(self.clock.due_tick(when))
            self.schedule(when, action if number == count // 2 else "nothing")

    def schedule_past_or_never(self) -> None:
        self.schedule(
            self.loop.now
            + self.chance.choice([0.0, -1e-9, -1.0, -100.0, -math.inf, math.inf, 1e18])
        )

    def some_waiting(self, count: int) -> list[Waiting]:
        return self.chance.sample([*self.waiting.values()], max(0, min(count, len(self.waiting))))

    def cancel_one(self) -> None:
        for item in self.some_waiting(1):
            self.cancel(item)

    def cancel_most(self) -> None:
        for item in self.some_waiting(len(self.waiting) - self.chance.randint(0, 3)):
            self.cancel(item)

    def reschedule_some(self) -> None:
        for item in self.some_waiting(self.chance.choice([1, 1, 5])):
            if self.chance.random() < 0.5 and abs(item.when) < 1e17:
                self.reschedule(item, item.when + self.chance.randint(-5, 5) * self.tick)
            else:
                ahead = (
                    self.delay()
                    if self.chance.random() < 0.9
                    else self.chance.choice([-1.0, -math.inf, math.inf])
                )
                self.reschedule(item, self.loop.now + ahead)

    def a_little_time_passes(self) -> None:
        for _ in range(self.chance.choice([1, 1, 10])):
            self.loop.now += self.tick * self.chance.choice([0.3, 1, 2, 10]) * self.chance.random()
            self.some_iterations_pass()

    def the_clock_jumps(self) -> None:
        """In one jump, which is a stall for the wheel."""
        self.loop.now += self.chance.choice(
            [self.delay(), 5 * MINUTE, self.chance.random() * DAY, 3 * DAY]
        )
        self.some_iterations_pass()

    def the_next_timer_comes(self) -> None:
        """Early, on time, or late."""
        shift = self.chance.choice([0.0, 0.0, -0.0009, -0.0004, -1e-6, 0.0002])
        for _ in range(self.chance.choice([1, 3, 10])):
            armed = self.loop.armed()
            if armed:
                self.loop.now = max(self.loop.now, armed[0] + shift)
                self.loop.early = max(0.0, -shift)
                if shift < 0:
                    self.is_late_until = self.loop.now + 0.002
                self.iterate()
                self.until_idle()

    def some_iterations_pass(self) -> None:
        """Without advancing the clock."""
        for _ in range(self.chance.choice([0, 1, 1, 2, 5])):
            self.iterate()
        if self.chance.random() < 0.2:
            self.until_idle()


@contextmanager
def running(loop: ManualLoop) -> Iterator[None]:
    """Makes `loop` the running loop, and all bounds small."""
    with small_bounds(MAX_PER_ITERATION, stage=DAY):
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", loop))
        try:
            yield
        finally:
            asyncio._set_running_loop(before)


def run_histories(seeds: range) -> int:
    """Runs histories one after the other; returns the number of callbacks."""
    count = 0
    for seed in seeds:
        history = History(seed)
        try:
            history.run()
        except BaseException as error:
            error.add_note(f"this is History({seed})")
            raise
        count += len(history.trace)
    return count


def test_wheel_matches_sorted_list() -> None:
    assert run_histories(FAST_SEEDS) > 50 * 50


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(SLOW_BATCHES))
def test_wheel_matches_sorted_list_in_many_histories(batch: int) -> None:
    assert run_histories(SLOW_SEEDS[batch::SLOW_BATCHES]) > 50 * 100


def test_same_seed_gives_same_history() -> None:
    def trace_of(seed: int) -> list[tuple[int, float]]:
        history = History(seed)
        history.run()
        return history.trace

    assert trace_of(1) == trace_of(1) != trace_of(2)
