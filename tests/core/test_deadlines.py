"""Deadlines of every kind of wait: never early by the loop's clock, late by at most a tick beyond
the time that the loop was held up. Clocks are real, virtual, far from zero, coarse, or leap; loops
are held up, call early or late; machines are suspended."""

import asyncio
import gc
import math
import random
import time
import weakref
from contextvars import ContextVar, copy_context

import pytest
from helpers import Probe, Spy, iterations, outcome
from invariants import check, deadlines
from loops import Runner, on_every_loop, on_virtual_time

import purgatory as library
from purgatory import (
    IdleTracker,
    OperationCancelled,
    OperationState,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
)
from purgatory.testing import VirtualTimeLoop

DAY = 86_400.0
STARTS = [0.0, 2e7, 1e9]


class Ends:
    """Starts waits of one kind, each until an instant, and records how late each has ended:
    `late`. Each of its methods that is a kind returns a function that ends the wait early."""

    def __init__(self, kind, **options):
        self.loop = asyncio.get_running_loop()
        self.late, self.order, self.tasks, self.trackers = [], [], [], []
        self.begin, self.tick = getattr(self, kind), options.get("tick", 0.001)
        self.purgatory, self.thresholds = Purgatory(**options), ThresholdPurgatory(**options)
        self.timer = WheelTimer(**options)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await self.purgatory.aclose()
        await self.thresholds.aclose()
        self.timer.close()
        for tracker in self.trackers:
            tracker.close()
        check(self.purgatory, self.thresholds, self.timer, *self.trackers)

    def note(self, when):
        self.late.append(self.loop.time() - when)
        self.order.append(when)

    def operation(self, when):
        operation = Probe(deadline=when, expiring=lambda _: self.note(when))
        self.purgatory.try_complete_else_watch(operation, [object()])
        return operation.cancel

    def callback(self, when):
        return self.timer.call_at(when, self.note, when).cancel

    def threshold(self, when):
        timeout = when - (now := self.loop.time())
        return self._task(self.thresholds.wait("key", when, timeout), now + timeout)

    def predicate(self, when):
        timeout = when - (now := self.loop.time())
        return self._task(self.purgatory.wait_for(bool, ["key", when], timeout), now + timeout)

    def timeout(self, when):
        async def limited():
            async with library.timeout_at(when):
                await self.loop.create_future()

        return self._task(limited(), when)

    def idle(self, when):
        delay = max(when - (now := self.loop.time()), 1e-9)
        tracker = IdleTracker(delay, lambda _: self.note(now + delay), tick=self.tick)
        tracker.touch("id")
        self.trackers.append(tracker)
        return lambda: tracker.remove("id")

    def _task(self, coroutine, when):
        async def ended():
            try:
                await coroutine
            except TimeoutError:
                self.note(when)

        self.tasks.append(asyncio.create_task(ended()))
        return self.tasks[-1].cancel

    async def all_have_ended(self, count):
        while len(self.late) < count:
            await asyncio.sleep(0.005)


KINDS = ["operation", "callback", "threshold", "predicate", "timeout", "idle"]
on_every_kind = pytest.mark.parametrize("kind", KINDS)
on_every_wait = pytest.mark.parametrize("kind", KINDS[:-1])
on_every_wheel = pytest.mark.parametrize("kind", ["operation", "callback", "threshold"])


@on_every_loop
@on_every_kind
async def test_nothing_is_early_on_a_real_clock(kind):
    chance = random.Random(kind)
    async with Ends(kind, wheel_size=4) as ends:
        for number in range(200):
            ends.begin(ends.loop.time() + chance.uniform(0.0005, 0.06))
            if number % 50 == 0:
                ends.begin((int(ends.loop.time() * 1000) + 30) / 1000)
                await asyncio.sleep(0.0007)
        await ends.all_have_ended(204)
        assert min(ends.late) >= 0.0


@on_virtual_time
@on_every_kind
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("tick", "wheel_size"), [(0.001, 2), (0.01, 512), (0.25, 20)])
async def test_everything_ends_within_a_tick(kind, start, tick, wheel_size):
    chance, scale = random.Random(4), [0.3, 1, 1.5, 7, 40, 1000, 123_456.7]
    async with Ends(kind, tick=tick, wheel_size=wheel_size) as ends:
        for number in range(100):
            ends.begin(ends.loop.time() + tick * chance.choice(scale) * chance.uniform(0.9, 1.1))
            ends.begin((round(start / tick) + number) * tick)  # at the border of two ticks
            await asyncio.sleep(tick * chance.random() / 3)
        await asyncio.sleep(tick * 200_000)
        tick = 0.001 if kind == "timeout" else tick
        assert len(ends.late) == 200 and min(ends.late) >= 0.0
        assert max(ends.late[100:]) <= tick + 8 * math.ulp(start + 1)


@on_virtual_time
@on_every_wait
@pytest.mark.parametrize("start", STARTS)
async def test_passed_instant_is_due_in_next_iteration(kind, start):
    async with Ends(kind, tick=3600.0) as ends:
        await asyncio.sleep(0.5)
        later = ends.begin(ends.loop.time() + 0.3)  # in the same tick
        for ago in (0.0, 1e-6, 0.25, 1e6, math.inf):
            ends.begin(ends.loop.time() - ago)
        await iterations(4)
        assert ends.loop.time() == start + 0.5
        assert len(ends.late) == 5
        later()


@on_virtual_time
@pytest.mark.parametrize("start", [*STARTS, 9.007e6, 1e7])
@pytest.mark.parametrize("tick", [1e-9, 3e-8])
@on_every_wheel
async def test_tick_below_clock_resolution_works(kind, start, tick):
    async with Ends(kind, tick=tick) as ends:
        for delay in (0.02, 1e-9, 3.7, 100.0, 3e-8):
            ends.begin(ends.loop.time() + delay)
            await asyncio.wait_for(ends.all_have_ended(1), 200)
            late = ends.late.pop()
            assert 0.0 <= late <= 0.005 + 2 * tick + 8 * math.ulp(start + delay)


class Crooked(VirtualTimeLoop):
    """Fires timers early or late."""

    late = 0.0

    def call_at(self, when, callback, *args, context=None):
        when = max(when + self.late, self.time() + 0.0001)  # time still advances
        return super().call_at(when, callback, *args, context=context)


@on_every_wait
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("late", "tick"),
    [
        *((-0.0015, 0.001), (-0.001, 0.01), (-0.0009, 0.001), (-1e-6, 0.001), (-1e-9, 0.01)),
        *((1e-6, 0.01), (0.0004, 0.001), (3.0, 0.01)),
    ],
)
def test_deadlines_hold_when_loop_fires_early_or_late(kind, start, late, tick):
    async def main():
        async with Ends(kind, tick=tick, wheel_size=20) as ends:
            done, begun = ends.loop.create_future(), ends.loop.time()
            VirtualTimeLoop.call_at(ends.loop, begun + 10, done.set_result, None)
            ends.loop.late = late
            for number in range(60):
                ends.begin(begun + tick * (1.4 + number * 1.37))
            await done
            assert len(ends.late) == 60 and min(ends.late) >= 0.0
            assert max(ends.late) <= max(late, 0.0) * 3 + 2 * tick + 0.002

    Runner(Crooked, None)(main, start=start)


class StandingLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time whose clock stops just before a deadline, within its resolution, where
    asyncio calls due callbacks."""

    def __init__(self, resolution):
        super().__init__()
        self._clock_resolution = resolution
        self.now, self.calls = 0.0, 0

    def time(self):
        return self.now

    def _run_once(self):
        self.calls += 1
        if self.calls > 5000:
            raise SystemExit("the clock never moves")
        if not self._ready and self._scheduled:
            due = min(handle._when for handle in self._scheduled)
            if due >= self.now + self._clock_resolution:
                self.now = math.nextafter(due, 0.0)
        super()._run_once()


@on_every_kind
@pytest.mark.parametrize("resolution", [1e-9, 1e-6, 0.001, 0.0156])
def test_wait_ends_on_clock_that_stands_still(kind, resolution):
    async def main():
        async with Ends(kind) as ends:
            for delay in (0.03, 59.391999999999996, 0.1 + 0.2):
                ends.begin(ends.loop.time() + delay)
                while not ends.late:
                    await asyncio.sleep(0.5)
                assert 0.0 <= ends.late.pop() <= 0.05

    loop = StandingLoop(resolution)
    selected, loop._selector.select = loop._selector.select, lambda timeout: selected(0)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock leaps by the seconds added to `leap`."""

    leap = 0.0

    def time(self):
        return super().time() + self.leap


@on_every_kind
@pytest.mark.parametrize("leap", [-1e9, -2.0, -0.01, 2.0, 1e9])
def test_wait_that_begins_after_leap_ends(kind, leap):
    async def main():
        async with Ends(kind) as ends:
            ends.begin(ends.loop.time() + 3600)
            ends.begin(ends.loop.time() + 0.01)
            await ends.all_have_ended(1)
            ends.loop.leap += leap
            ends.late.clear()
            ends.begin(ends.loop.time() + 0.01)
            await asyncio.wait_for(ends.all_have_ended(1 + (leap == 1e9)), 60)
            assert min(ends.late) >= 0.0

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(main())


def test_waits_of_one_object_follow_the_clock_back():
    async def main():
        loop, purgatory, timer, seen = asyncio.get_running_loop(), Purgatory(), WheelTimer(), []
        long = asyncio.ensure_future(purgatory.wait_for(bool, ["key"], 1e9))
        for delay in (0.01, 3000.0, math.inf):
            timer.call_later(delay, seen.append, delay)
        await outcome(purgatory.wait_for(bool, ["key"], 0.02))
        loop.leap -= 1000.0
        assert isinstance(await outcome(purgatory.wait_for(bool, ["key"], 0.02)), TimeoutError)
        again = loop.create_future()
        timer.call_later(0, again.set_result, None)
        await again
        assert (seen, timer.size, purgatory.pending, long.done()) == ([0.01], 2, 1, False)
        check(purgatory, timer)
        assert await purgatory.aclose() and timer.close()
        assert isinstance(await outcome(long), OperationCancelled)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(main())


# A loop that is held up, and a machine that is suspended


@on_virtual_time
@on_every_wait
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("wheel_size", [2, 20, 512])
async def test_overdue_deadlines_of_all_levels_end_once(kind, start, wheel_size):
    async with Ends(kind, wheel_size=wheel_size) as ends:
        whens = [start + 0.001 + 0.0041 * number for number in range(500)]
        for when in reversed(whens):
            ends.begin(when)
        ends.begin(start + 30)
        await iterations()
        ends.loop._set_time(start + 10)  # the stall
        await iterations(30)
        assert sorted(ends.order) == whens and ends.loop.time() == start + 10


async def expire_in_order_while_loop_is_held(kind, margin):
    """False if the first deadline was not `margin` ahead: a busy machine took longer to begin."""
    async with Ends(kind, wheel_size=3) as ends:
        loop, chance = ends.loop, random.Random(1)

        def hold(number):
            time.sleep(0.013)
            if number:
                loop.call_later(0.02, hold, number - 1)

        base = math.ceil((loop.time() + margin) * 100) / 100
        for number in chance.sample(range(200), 200):
            ends.begin(base + 0.002 * number)
        was_ahead = loop.time() < base
        loop.call_soon(hold, 15)
        await ends.all_have_ended(200)
        assert not was_ahead or kind == "threshold" or ends.order == sorted(ends.order)
        return was_ahead


@on_every_loop
@on_every_wheel
async def test_ticks_expire_in_order_while_loop_is_held(kind):
    margin = 0.05
    while not await expire_in_order_while_loop_is_held(kind, margin):
        margin *= 2


# Far deadlines


@on_virtual_time
@on_every_wait
@pytest.mark.parametrize("days", [0.99, 1.0, 1.01, 40])
async def test_far_deadline_is_met_in_daily_stages(kind, days):
    async with Ends(kind) as ends:
        spy = Spy(ends.loop)
        ends.begin(days * DAY)
        await asyncio.sleep((days + 0.1) * DAY)
        assert 0.0 <= ends.late[0] <= 0.001 and len(spy.asked) <= days + 9


@on_every_loop
@on_every_kind
@pytest.mark.parametrize("delay", [86_401.0, 1e9, 1e12, 1e300])
async def test_very_far_deadline_is_accepted_by_every_loop(kind, delay):
    async with Ends(kind) as ends:
        end = ends.begin(ends.loop.time() + delay)
        await asyncio.sleep(0.005)
        assert ends.late == []
        end()


async def use_and_empty_the_bucket_of(when, ends, kept_open_by):
    """Makes this the last bucket used, while a much later entry keeps the wheel busy."""
    cancels = []
    for instant in (when, kept_open_by, when):
        cancels.append(ends.begin(instant))
        await iterations(2)
    cancels[0]()
    cancels[2]()
    await iterations(2)


@on_virtual_time
@on_every_wheel
async def test_far_deadline_joins_no_bucket_without_timer(kind):
    when = 2.5 * DAY
    async with Ends(kind) as ends:
        await use_and_empty_the_bucket_of(when, ends, kept_open_by=20 * DAY)
        await asyncio.sleep(1.5 * DAY)  # one stage of a day is over by now
        ends.begin(when)
        await asyncio.sleep(when + 1.0 - ends.loop.time())
        assert len(ends.late) == 1 and 0.0 <= ends.late[0] <= 0.002


@on_every_wheel
def test_entry_joining_early_empty_bucket_ends_on_time(kind):
    async def main():
        async with Ends(kind, tick=0.0001) as ends:
            ends.loop.late = -0.0005
            await use_and_empty_the_bucket_of(1.0, ends, kept_open_by=1000.0)
            done = ends.loop.create_future()
            VirtualTimeLoop.call_at(ends.loop, 0.9995, ends.begin, 1.0)
            VirtualTimeLoop.call_at(ends.loop, 10.0, done.set_result, None)
            await done
            assert len(ends.late) == 1 and 0.0 <= ends.late[0] <= 0.002

    Runner(Crooked, None)(main)


# Requests to the loop


@on_virtual_time
@on_every_wait
async def test_loop_has_one_timer_per_used_bucket(kind):
    async with Ends(kind, wheel_size=10, tick=1.0) as ends:
        spy, far = Spy(ends.loop), 500.0 if kind != "timeout" else 500_000.0
        groups = (5.0, 6.0, far + 55, far + 56, far + 57.5)
        for when in 200 * groups:
            ends.begin(when)
        await iterations(2)
        assert spy.armed == len(spy.asked) == 3
        await asyncio.sleep(10)
        assert len(ends.late) == 400
        for _ in range(3):
            end = ends.begin(ends.loop.time() + 20)
            await iterations(2)
            end()
            await iterations(3)
        await asyncio.sleep(far + 100)
        assert len(ends.late) == 1000 and spy.armed_for == []


@on_virtual_time
@on_every_kind
async def test_last_cancel_leaves_nothing_in_loop(kind):
    async with Ends(kind, wheel_size=8) as ends:
        spy = Spy(ends.loop)
        for _ in range(3):
            ended = [ends.begin(ends.loop.time() + delay) for delay in (1, 1, 10, 1000, 1e6)]
            await iterations(2)
            assert spy.armed_for
            for end in ended:
                end()
            await iterations(3)
            assert spy.armed_for == []
        assert deadlines(ends.purgatory) == deadlines(ends.thresholds) == deadlines(ends.timer) == 0


@on_virtual_time
async def test_thousand_cycles_in_one_tick_arm_once():
    spy = Spy(asyncio.get_running_loop())
    async with Ends("operation", tick=3600.0) as ends:
        for _ in range(1000):
            ends.begin(1800.0)()
        assert spy.calls["call_at"] <= 2
        await iterations(2)
        assert spy.armed == 0


@on_every_wheel
async def test_context_of_waiter_is_kept_by_no_timer(kind):
    class Luggage:
        pass

    variable = ContextVar("variable")

    def begin(luggage):
        variable.set(luggage)
        return ends.begin(ends.loop.time() + 5)

    async with Ends(kind) as ends:
        for is_cancelled in (True, False)[: 1 if kind in ("threshold", "callback") else 2]:
            luggage = Luggage()
            reference = weakref.ref(luggage)
            end = copy_context().run(begin, luggage)
            await iterations(2)
            ends.begin(ends.loop.time() + 5)
            if is_cancelled:
                end()
                await iterations(2)
                ends.tasks[:1] = []
            del luggage, end
            gc.collect()
            assert reference() is None


def test_deadline_at_zero_of_the_clock_may_wait():
    async def main():
        purgatory = Purgatory(max_pending=5)
        for operation in (Probe(5.0), Probe(5.0)):
            assert not purgatory.try_complete_else_watch(operation, ["key"])
            assert operation.deadline == 0.0
        await asyncio.sleep(6)
        assert operation.state is OperationState.EXPIRED

    Runner(VirtualTimeLoop, None)(main, start=-5.0)
