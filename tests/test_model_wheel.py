"""`WheelTimer` against a sorted list, driven by Hypothesis, on a loop whose every turn and moment the test decides.

The list is ordered by due tick and arrival, and what fires must be the first of it. Some have no place in it: what was
postponed is looked at when its old bucket is due, and joins its new tick then; and what was late already when it was
scheduled comes before or after others that are late. That they come once, never early and never late holds for them too.

A turn of the loop may call, or cascade, `PORTION` entries; here that is 3, so that a dozen of them take several turns,
between which everything else happens. So a jump of time may leave more in a wide slot than can be moved before their ticks
have come; these have no place either.
"""

import asyncio
import math
import random
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from purgatory import WheelTimer, _timer
from purgatory._clock import TickClock
from purgatory._timer import TimerTask
from purgatory.testing import VirtualTimeLoop

PORTION = 3
STEPS = 50
EXAMPLES = 50
LEAST_STEPS = 1900
"""Of each of the 27 kinds of wheel; some programs end before their last step. 51,300 in all."""


class Handle:
    def __init__(self, when: float, callback: Callable[[], object], context: Context) -> None:
        self.when = when
        self.callback = callback
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """As much of an event loop as a timer needs: `now` is set from outside, and `turn` is one turn."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.turns = 0
        self.early = 0.0
        """How much before its time a timer may fire."""
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

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context) -> Handle:
        assert when <= self.now + 86_400.0
        handle = Handle(when, lambda: callback(*args), context)
        self._sequence += 1
        heappush(self._timers, (when, self._sequence, handle))
        return handle

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

    def turn(self) -> None:
        self.turns += 1
        while self._timers and self._timers[0][0] <= self.now + self.early:
            self._ready.append(heappop(self._timers)[2])
        ready, self._ready = self._ready, deque()
        for handle in ready:
            if not handle.is_cancelled:
                handle.context.run(handle.callback)


class Waiting:
    """What the model knows of one task."""

    def __init__(self, number: int, action: str, turn: int) -> None:
        self.number = number
        self.action = action
        self.turn = turn
        """The turn in which it was scheduled."""
        self.task: TimerTask
        self.when = 0.0
        self.due_tick = 0
        self.arrival = 0
        self.has_place = True

    def place(self) -> tuple[int, int]:
        return self.due_tick, self.arrival


class Model:
    """All that waits, sorted."""

    def __init__(self, clock: TickClock) -> None:
        self.clock = clock
        self.waiting: list[Waiting] = []
        self.arrivals = 0

    def add(self, item: Waiting, when: float, now: float) -> None:
        item.when = when
        item.due_tick = self.clock.due_tick(when)
        short = self.clock.instant(item.due_tick) < when  # by a hair: it will be put back to the next tick
        item.due_tick += short
        item.has_place = not short and item.due_tick >= self.clock.tick_at(now)
        self.arrivals += 1
        item.arrival = self.arrivals
        insort(self.waiting, item, key=Waiting.place)

    def reschedule(self, item: Waiting, when: float, now: float) -> None:
        if when == item.when:
            return
        self.waiting.remove(item)
        was_postponed = when > item.when
        self.add(item, when, now)
        item.has_place &= not was_postponed

    def fire(self, item: Waiting, now: float) -> None:
        assert item in self.waiting, "it was cancelled, or fires twice"
        assert item.when <= now, "early"
        if item.has_place:
            first = next(other for other in self.waiting if other.has_place)
            assert first is item, f"{first.place()} is before {item.place()}"
        self.waiting.remove(item)

    def overdue(self, now: float) -> list[Waiting]:
        return [item for item in self.waiting if self.clock.instant(item.due_tick) <= now]


ACTIONS = ["nothing"] * 6 + ["fail", "add now", "add later", "cancel", "cancel all", "postpone", "hasten", "again"]


class WheelMachine(RuleBasedStateMachine):
    tick: float
    wheel_size: int
    start: float
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop(self.start)
        self.timer = WheelTimer(tick=self.tick, wheel_size=self.wheel_size)
        self.model = Model(TickClock(self.tick))
        self.numbers = 0
        self.failures = 0
        self.fired_in_turn = 0
        self.may_be_late_until = -math.inf
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(_timer, "PORTION", PORTION)
        asyncio._set_running_loop(cast("asyncio.AbstractEventLoop", self.loop))

    def teardown(self) -> None:
        try:
            for item in list(self.model.waiting):
                self.cancel(item)
            self.until_idle()
            self.agree()
            assert self.loop.armed() == []
        finally:
            asyncio._set_running_loop(None)
            self.patch.undo()

    # What is done to both

    def later(self, ticks: float) -> float:
        return self.loop.now + ticks * self.tick

    def schedule(self, when: float | None, delay: float | None, action: str) -> None:
        item = Waiting(self.numbers, action, self.loop.turns)
        self.numbers += 1
        if delay is None:
            assert when is not None
            item.task = self.timer.call_at(when, self.on_fire, item)
        else:
            item.task = self.timer.call_later(delay, self.on_fire, item)
            when = self.loop.now + delay
        assert item.task.when() == when
        self.model.add(item, when, self.loop.now)

    def cancel(self, item: Waiting) -> None:
        item.task.cancel()
        self.model.waiting.remove(item)

    def reschedule(self, item: Waiting, when: float) -> None:
        item.task.reschedule(when)
        self.model.reschedule(item, when, self.loop.now)

    def on_fire(self, item: Waiting) -> None:
        self.fired_in_turn += 1
        self.model.fire(item, self.loop.now)
        others = self.model.waiting
        match item.action:
            case "fail":
                self.failures += 1
                raise ValueError(item.number)
            case "add now":
                self.schedule(None, 0.0, "nothing")
            case "add later":
                self.schedule(self.later(item.number % 7), None, "nothing")
            case "again":
                self.schedule(item.when, None, "nothing")
            case "cancel all":
                for other in list(others):
                    self.cancel(other)
            case "cancel" | "postpone" | "hasten" if others:
                other = others[item.number % min(3, len(others))]
                if item.action == "cancel":
                    self.cancel(other)
                else:
                    self.reschedule(other, self.later(3 if item.action == "postpone" else 0))

    def turn(self) -> None:
        self.fired_in_turn = 0
        self.forget_the_place_of_what_could_not_be_moved()
        moves = self.timer._wheel.moves
        self.loop.turn()
        assert self.fired_in_turn <= PORTION
        assert self.timer._wheel.moves - moves <= PORTION
        self.loop.early = 0.0

    def forget_the_place_of_what_could_not_be_moved(self) -> None:
        wheel, tick_now = self.timer._wheel, self.model.clock.tick_at(self.loop.now)
        overdue = [slot for slot in wheel.slots() if slot.level.depth and slot.start_tick <= tick_now]
        if sum(map(len, overdue)) > wheel._patience * PORTION:
            buckets = {id(bucket) for slot in overdue for bucket in slot.moved + slot.added}
            for item in self.model.waiting:
                item.has_place &= id(item.task._wheel_bucket) not in buckets

    def until_idle(self) -> None:
        for _ in range(100_000):
            if not self.loop.has_work():
                break
            self.turn()
        else:
            raise AssertionError("the loop spins")
        if self.loop.now >= self.may_be_late_until:
            assert self.model.overdue(self.loop.now) == []

    # The rules

    ticks = st.one_of(
        st.integers(0, 4),
        st.sampled_from([0.5, 1.999999, 4 / 3, 1e-9]),
        st.integers(0, 70),
        st.integers(0, 9000),
        st.sampled_from([2**k + step for k in range(1, 13) for step in (-1, 0)]),
    )
    past_or_never = st.sampled_from([0.0, -1e-9, -1.0, -100.0, -math.inf, math.inf, 1e18])
    actions = st.sampled_from(ACTIONS)
    picks = st.integers(0, 1000)

    @rule(ticks=ticks, count=st.sampled_from([1, 1, 2, 10]), action=actions)
    def call_later(self, ticks: float, count: int, action: str) -> None:
        for number in range(count):
            self.schedule(None, ticks * self.tick, action if number == count // 2 else "nothing")

    @rule(ticks=ticks, count=st.sampled_from([1, 1, 2, 10]), action=actions)
    def call_at_a_border(self, ticks: float, count: int, action: str) -> None:
        clock = self.model.clock
        when = clock.instant(clock.tick_at(self.loop.now) + int(ticks))
        for number in range(count):
            self.schedule(when, None, action if number == count // 2 else "nothing")

    @rule(ticks=past_or_never)
    def call_in_the_past_or_never(self, ticks: float) -> None:
        self.schedule(self.later(ticks), None, "nothing")

    @precondition(lambda self: self.model.waiting)
    @rule(pick=picks)
    def cancel_one(self, pick: int) -> None:
        self.cancel(self.model.waiting[pick % len(self.model.waiting)])

    @precondition(lambda self: len(self.model.waiting) > 8)
    @rule(pick=picks, keep=st.integers(0, 3))
    def cancel_most(self, pick: int, keep: int) -> None:
        waiting = list(self.model.waiting)
        first = pick % len(waiting)
        for item in (waiting[first:] + waiting[:first])[keep:]:
            self.cancel(item)

    @precondition(lambda self: self.model.waiting)
    @rule(pick=picks, ticks=st.one_of(ticks, past_or_never))
    def reschedule_one(self, pick: int, ticks: float) -> None:
        self.reschedule(self.model.waiting[pick % len(self.model.waiting)], self.later(ticks))

    @precondition(lambda self: self.model.waiting)
    @rule(pick=picks, ticks=st.integers(-5, 5))
    def move_one_a_little(self, pick: int, ticks: int) -> None:
        item = self.model.waiting[pick % len(self.model.waiting)]
        if item.when < math.inf:
            self.reschedule(item, item.when + ticks * self.tick)

    @rule(ticks=ticks, turns=st.sampled_from([0, 1, 2, 5, math.inf]))
    def time_passes(self, ticks: float, turns: float) -> None:
        """At one go, so for the wheel this is a stall."""
        self.loop.now += ticks * self.tick
        if turns == math.inf:
            self.until_idle()
        else:
            for _ in range(int(turns)):
                self.turn()

    @precondition(lambda self: self.loop.armed())
    @rule(times=st.sampled_from([1, 3, 10]), shift=st.sampled_from([0.0, 0.0, -0.0009, -0.0004, -1e-6, 0.0002]))
    def the_next_timer_comes(self, times: int, shift: float) -> None:
        """Early, on time, or late."""
        for _ in range(times):
            armed = self.loop.armed()
            if armed:
                self.loop.now = max(self.loop.now, armed[0] + shift)
                self.loop.early = max(0.0, -shift)
                if shift < 0:  # the next try is a millisecond later: loops cannot do better
                    self.may_be_late_until = self.loop.now + 0.001
                self.turn()
                self.until_idle()

    @rule()
    def one_turn_passes(self) -> None:
        self.turn()

    @invariant()
    def agree(self) -> None:
        type(self).steps += 1
        self.timer._wheel._check()
        assert self.timer.size == len(self.model.waiting)
        assert len(self.loop.reports) == self.failures
        buckets = [bucket for bucket in self.timer._wheel.slots() if bucket]
        assert len(self.loop.armed()) <= len(list(self.timer._wheel.slots()))
        assert bool(self.loop.armed()) >= (bool(buckets) and not self.loop.has_work())


@pytest.mark.parametrize("wheel_size", [2, 20, 64])
@pytest.mark.parametrize("tick", [0.001, 0.01, 0.25])
@pytest.mark.parametrize("start", [0.0, 2e7, 1e9])
def test_the_wheel_does_what_a_sorted_list_does(start: float, tick: float, wheel_size: int) -> None:
    class Machine(WheelMachine):
        pass

    Machine.start, Machine.tick, Machine.wheel_size = start, tick, wheel_size
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Machine.steps >= LEAST_STEPS


def trace(seed: int) -> list[tuple[float, int]]:
    """What fires when, if all that can be done to a timer is done to one at random."""

    async def main() -> list[tuple[float, int]]:
        loop = asyncio.get_running_loop()
        randomly = random.Random(seed)
        timer = WheelTimer(tick=0.01, wheel_size=4)
        fired: list[tuple[float, int]] = []
        tasks: dict[int, TimerTask] = {}

        def on_fire(number: int) -> None:
            fired.append((loop.time(), number))
            del tasks[number]

        for number in range(2000):
            tasks[number] = timer.call_later(randomly.expovariate(0.2), on_fire, number)
            other = randomly.choice(list(tasks))
            match randomly.randrange(4):
                case 0:
                    tasks.pop(other).cancel()
                case 1:
                    tasks[other].reschedule(loop.time() + randomly.expovariate(0.5))
                case 2:
                    await asyncio.sleep(randomly.expovariate(10.0))
        while tasks:
            await asyncio.sleep(1)
        return fired

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_trace_twice(seed: int) -> None:
    first = trace(seed)
    assert len(first) > 1000
    assert first == trace(seed)
    assert first != trace(seed + 1)
