"""`LoopTimingWheel`: its requests to the loop, and the times of its entries.
Some tests put a `Spy` before the loop: it counts calls of the public `call_at`, and may fire timers
early or late. No other code in these tests calls `call_at`, so the count is the wheel's.
"""

import asyncio
import gc
import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from itertools import cycle, pairwise
from typing import Any

import pytest
from helpers import Pulse, Spy, iterations
from loops import Runner, on_every_loop, on_virtual_time

from purgatory import WrongLoop
from purgatory._core.buckets import TimerEntry
from purgatory._core.loop import (
    BUSY_AFTER,
    BUSY_DELAY,
    BUSY_WINDOW,
    MAX_PER_ITERATION,
    LoopTimingWheel,
)
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE
from purgatory.testing import VirtualTimeLoop

pytestmark = on_every_loop

DAY = 86_400.0
LONGEST_WAIT = DAY + 1e-6  # the difference of two readings of a clock is rounded
STARTS = [0.0, 2e7, 1e9]

at_any_loop_time = pytest.mark.parametrize("start", STARTS)


@pytest.fixture
async def spy() -> Spy:
    """Spies on the test's loop."""
    return Spy(asyncio.get_running_loop())


class Callback(TimerEntry):
    """An entry that calls a function when it is due."""

    steps: int | None = None
    """Work that the entry reports, in steps."""

    def __init__(
        self, loop_wheel: LoopTimingWheel, callback: Callable[..., Any], *args: Any
    ) -> None:
        self._timer_chunk = None
        self.loop_wheel, self.callback, self.args = loop_wheel, callback, args

    def _timer_expired(self) -> int | None:
        self.callback(*self.args)
        return self.steps

    def when(self) -> float:
        return self._timer_deadline  # type: ignore[no-any-return]

    def cancel(self) -> None:
        if self._timer_chunk is not None:
            self.loop_wheel.wheel.remove(self)

    def reschedule(self, when: float) -> None:
        self.loop_wheel.wheel.reschedule(self, when, self.loop_wheel.time())


class Timer:
    """The smallest owner of a `LoopTimingWheel`: it is bound at first use."""

    def __init__(self, tick: float = 0.001, wheel_size: int = DEFAULT_WHEEL_SIZE) -> None:
        self.loop_wheel = LoopTimingWheel(tick, wheel_size)
        self.wheel = self.loop_wheel.wheel

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Callback:
        if asyncio._get_running_loop() is not self.loop_wheel.loop:
            self.loop_wheel.bind("schedule a callback")
        entry = Callback(self.loop_wheel, callback, *args)
        self.wheel.add(entry, when, self.loop_wheel.time())
        return entry

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Callback:
        if asyncio._get_running_loop() is not self.loop_wheel.loop:
            self.loop_wheel.bind("schedule a callback")
        return self.call_at(self.loop_wheel.time() + delay, callback, *args)

    @property
    def size(self) -> int:
        return self.wheel.size


async def fired(timer: Timer, when: float) -> float:
    """Waits on the wheel alone; returns the time of the wake-up."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer.call_at(when, lambda: future.set_result(loop.time()))
    return await future


def nothing() -> None:
    pass


# Times of entries


@on_virtual_time
@pytest.mark.parametrize(("start", "tick"), [(0.0, 0.01), (2e7, 0.25), (1e9, 0.001)])
@pytest.mark.parametrize(
    ("shifts", "late"),
    [((0.0, 0.0), 0.0), ((-0.0009, 0.0), 0.001), ((-0.0009, -0.0009), 0.001), ((0.0, 0.3), 0.3)],
    ids=["on time", "often early", "always early", "late"],
)
async def test_callback_is_late_by_at_most_one_tick(
    spy: Spy, start: float, tick: float, shifts: tuple[float, float], late: float
) -> None:
    randomly = random.Random(tick)
    spy.shift = lambda: randomly.uniform(*shifts)
    timer = Timer(tick=tick, wheel_size=8)
    lateness: list[float] = []

    def note(when: float) -> None:
        lateness.append(spy.time() - when)

    for _ in range(20):
        for _ in range(10):
            when = spy.time() + randomly.choice([0.0, tick, 5 * tick, 3.0, 40.0]) * randomly.choice(
                [1, randomly.random()]
            )
            timer.call_at(when, note, when)
            timer.call_later(when - spy.time(), note, when)
        await fired(timer, spy.time() + randomly.random())
    await fired(timer, spy.time() + 50)
    assert len(lateness) == 400
    assert min(lateness) >= 0
    assert max(lateness) <= tick + late + 4 * math.ulp(spy.time())
    await asyncio.sleep(
        late
    )  # the entry's bucket was late, and was handled before its callback ran
    assert spy.armed_for == []


@on_virtual_time
@pytest.mark.parametrize(("start", "tick"), [(0.0, 0.001), (2e7, 0.01), (1e9, 0.25), (1e9, 0.001)])
async def test_deadline_on_tick_border_is_met_exactly(spy: Spy, start: float, tick: float) -> None:
    timer = Timer(tick=tick)
    per_second = round(1 / tick)
    first = int(start) * per_second
    for number in range(first + 1, first + 200):
        when = number / per_second
        lateness = await fired(timer, when) - when
        assert 0 <= lateness <= 1.01 * tick
        assert (
            lateness == 0 or math.ceil(when * per_second) > number
        )  # the product was rounded up past the border


@on_virtual_time
@pytest.mark.parametrize("start", [*STARTS, 9.007e6, 1e7])
@pytest.mark.parametrize("tick", [1e-9, 3e-8])
async def test_tick_below_clock_resolution_works(spy: Spy, start: float, tick: float) -> None:
    timer = Timer(tick=tick)
    for delay in (0.02, 1e-9, 0.0, 3.7, 100.0, 3e-8):
        when = spy.time() + delay
        woken_at = await asyncio.wait_for(fired(timer, when), 200)
        assert when <= woken_at <= when + 2 * tick + 8 * math.ulp(when)
    assert timer.size == 0
    assert spy.armed <= 1  # `wait_for` needs one


@on_virtual_time
async def test_slow_callback_does_not_delay_next_tick(
    spy: Spy,
) -> None:
    """The previous callback reads the clock again, through the wheel; the next one must not be
    delayed as if it were early."""
    timer, seen = Timer(tick=0.01), list[float]()

    def takes_its_time() -> None:
        asyncio.get_running_loop()._set_time(spy.time() + 0.02)  # type: ignore[attr-defined]
        timer.call_later(1, nothing).cancel()

    timer.call_at(1.0, takes_its_time)
    timer.call_at(1.015, lambda: seen.append(spy.time()))
    await asyncio.sleep(2)
    assert seen == [1.02]


@on_virtual_time
async def test_wide_bucket_cascades_over_bounded_iterations(
    spy: Spy,
) -> None:
    timer, seen = Timer(tick=0.01, wheel_size=10), list[float]()
    count = 5 * MAX_PER_ITERATION
    for _ in range(count):
        timer.call_at(8.75, lambda: seen.append(spy.time()))
    assert spy.asked == [7.0]
    await asyncio.sleep(6.999)
    assert timer.wheel.moves == 0
    moved: list[int] = []
    await asyncio.sleep(0.001)
    while timer.wheel.moves < count:
        moves = timer.wheel.moves
        await asyncio.sleep(0)
        moved.append(timer.wheel.moves - moves)
    assert spy.time() == 7.0
    assert max(moved) <= MAX_PER_ITERATION
    assert spy.armed_for == [8.6]  # for the narrower bucket
    await asyncio.sleep(2)
    assert seen == [8.75] * count
    assert spy.armed_for == []


@on_virtual_time
async def test_early_callback_loses_no_timer(spy: Spy) -> None:
    """The clock advances between two reads: by the first, the callback was early; by the second, it
    was not."""
    timer, moves_on = Timer(tick=0.01), cycle([0.0, 0.0006])
    spy.shift = lambda: -0.0005
    when = spy.time() + 1.0
    woken = asyncio.ensure_future(fired(timer, when))
    await iterations(2)
    timer.loop_wheel.time = lambda: spy.time() + next(moves_on)
    assert when - 0.0006 <= await woken <= when + 0.01


@on_virtual_time
@pytest.mark.parametrize("wheel_size", [2, 10, 512])
async def test_late_addition_does_not_stop_cascade(spy: Spy, wheel_size: int) -> None:
    """The addition passes the current time to the wheel, so the bucket must cascade."""
    loop: Any = asyncio.get_running_loop()
    timer, seen = Timer(tick=1.0, wheel_size=wheel_size), list[float]()
    when = float(wheel_size**2 - 2)
    timer.call_at(when, lambda: seen.append(spy.time()))
    [wakes_at] = spy.armed_for

    def busy() -> None:
        loop._set_time(wakes_at + 0.5)
        timer.call_at(50.0 * wheel_size**3, nothing)  # which opens a bucket

    loop.call_at(wakes_at - 0.5, busy)
    await asyncio.sleep(wheel_size**3)
    assert len(seen) == 1 and when <= seen[0] <= when + 1.0
    timer.loop_wheel._check()


@on_virtual_time
async def test_late_stage_of_far_bucket_rearms_once(
    spy: Spy,
) -> None:
    """The request moves by the missing time, but not into the past, since the entry is not due
    yet."""
    loop: Any = asyncio.get_running_loop()
    timer, seen = Timer(tick=0.25, wheel_size=1_000_000), list[float]()
    when = 1.2 * DAY
    timer.call_at(when, lambda: seen.append(spy.time()))
    await asyncio.sleep(DAY - 400)
    loop._set_time(when - 0.3)  # the machine was suspended
    await asyncio.sleep(1)
    assert seen == [when]
    assert timer.loop_wheel.wake_ups <= 4


@pytest.mark.parametrize("tick", [0.001, 0.0001, 0.01])
async def test_callback_is_never_early_on_real_clock(tick: float) -> None:
    loop = asyncio.get_running_loop()
    timer = Timer(tick=tick, wheel_size=4)
    randomly = random.Random(tick)
    early: list[float] = []
    count = 0

    def note(when: float) -> None:
        nonlocal count
        count += 1
        if loop.time() < when:
            early.append(when - loop.time())

    for _ in range(400):
        when = loop.time() + randomly.random() * 0.08
        timer.call_at(when, note, when)
    for n in range(80):  # whole milliseconds
        when = (int(loop.time() * 1000) + n) / 1000
        timer.call_at(when, note, when)
    await fired(timer, loop.time() + 0.1)
    while timer.size:
        await asyncio.sleep(0)
    assert (count, early) == (480, [])


@on_virtual_time
async def test_callbacks_of_one_bucket_keep_order() -> None:
    loop = asyncio.get_running_loop()
    timer, seen = Timer(tick=0.01), list[int]()
    when = loop.time() + 0.06
    for number in range(5):
        for step in range(20):
            timer.call_at(when, seen.append, 20 * number + step)
        await fired(timer, when - 0.05 + 0.01 * number)
    await fired(timer, when)
    assert seen == list(range(100))


@pytest.mark.parametrize("delay", [0, -1, -math.inf])
@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_passed_delay_comes_in_next_iteration(method: str, delay: float) -> None:
    timer, seen = Timer(tick=0.25), list[str]()
    when = delay if method == "call_later" else asyncio.get_running_loop().time() + delay
    task = getattr(timer, method)(when, seen.append, "called")
    assert isinstance(task, Callback)
    assert seen == []
    if delay == 0:
        await fired(timer, task.when())
    else:
        await iterations(3)
    assert seen == ["called"]


@on_virtual_time
@at_any_loop_time
async def test_stall_calls_overdue_callbacks_once(spy: Spy, start: float) -> None:
    timer, seen = Timer(tick=0.01, wheel_size=4), list[int]()
    spy.shift = lambda: 20.0  # every timer fires 20 s late
    delays = [88, 82, 9, 521, 222, 520, 515, 9, 1000, 999]
    for delay in delays:
        timer.call_at(start + delay / 100, seen.append, delay)
    await asyncio.sleep(60)
    assert sorted(seen) == sorted(delays)


# Requests to the loop


@on_virtual_time
async def test_loop_has_one_timer_per_bucket(spy: Spy) -> None:
    timer = Timer(tick=1.0, wheel_size=10)
    now = math.floor(spy.time())
    far = (now // 100 + 5) * 100  # start of a bucket of the third level
    tasks = []
    for _ in range(1000):
        tasks += [
            timer.call_at(when, nothing)
            for when in (now + 5, now + 6, far + 55, far + 56, far + 57.5)
        ]
    assert len(spy.asked) == spy.armed == 3
    for task in tasks:
        task.reschedule(now + 3)
    assert len(spy.asked) == 4


@on_virtual_time
@pytest.mark.parametrize("order", [1, -1])
async def test_bucket_is_armed_once_in_any_order(spy: Spy, order: int) -> None:
    timer, seen, armed = Timer(tick=0.01), list[float](), list[int]()
    whens = [number / 100 for number in range(1, 50)]

    def note() -> None:
        seen.append(spy.time())
        armed.append(spy.armed)

    for when in whens[::order]:
        timer.call_at(when, note)
    await fired(timer, whens[-1])
    assert seen == pytest.approx(whens)
    assert sorted(spy.asked) == pytest.approx(whens)
    assert armed == [*range(48, -1, -1)]


@on_virtual_time
async def test_different_delays_come_in_time(spy: Spy) -> None:
    timer, late = Timer(), list[float]()
    randomly = random.Random(1)
    for number in range(2000):
        when = spy.time() + randomly.choice([0.05, 1.0, 60.0, 1000.0]) * randomly.random()
        timer.call_later(when - spy.time(), lambda when=when: late.append(spy.time() - when))
        if number % 20 == 0:
            timer.wheel._check()
        if randomly.random() < 0.2:
            await asyncio.sleep(0.01 * randomly.random())
    await fired(timer, spy.time() + 1001)
    assert len(late) == 2000
    assert min(late) > -1e-9
    assert max(late) <= 0.0011


@on_virtual_time
async def test_idle_wheel_keeps_no_bucket_or_timer(spy: Spy) -> None:
    timer = Timer()
    for _ in range(3):
        for number in range(50):
            timer.call_later(30 + number, nothing).cancel()
        assert spy.armed == len([*timer.wheel.buckets()]) == 50
        await iterations(2)
        assert spy.armed_for == [] and not [*timer.wheel.buckets()]
        timer.loop_wheel._check()


@on_virtual_time
async def test_far_callback_wakes_loop_once_per_level(
    spy: Spy,
) -> None:
    timer = Timer(tick=0.001, wheel_size=10)
    assert await fired(timer, 0.521) == 0.521
    assert spy.asked == [0.4, 0.51, 0.521]


@on_virtual_time
@pytest.mark.parametrize("when", [math.inf, 1e18, 1e300])
async def test_infinite_delay_arms_no_timer(spy: Spy, when: float) -> None:
    timer = Timer()
    tasks = [timer.call_at(when, nothing), timer.call_later(when, nothing)]
    assert spy.asked == []
    assert timer.size == 2
    for task in tasks:
        assert task.when() >= when
        task.cancel()
    assert (spy.asked, timer.size) == ([], 0)


@on_virtual_time
@pytest.mark.parametrize("wheel_size", [2, 20, 512])
async def test_last_cancel_leaves_nothing_in_loop(spy: Spy, wheel_size: int) -> None:
    timer = Timer(wheel_size=wheel_size)
    timer.call_later(math.inf, nothing)
    for _ in range(3):
        tasks = [timer.call_later(delay, nothing) for delay in (1, 1, 10, 1000, 1e6)]
        assert spy.armed_for
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        assert spy.armed_for == []
    assert timer.size == 1


@on_virtual_time
async def test_last_callback_leaves_nothing_in_loop(spy: Spy) -> None:
    timer = Timer(tick=0.01, wheel_size=2)
    cancelled = [timer.call_later(delay, nothing) for delay in (0.05, 1, 1000)]
    await fired(timer, spy.time() + 0.02)
    for task in cancelled:
        task.cancel()
    await asyncio.sleep(0)
    assert spy.armed_for == []


@on_virtual_time
async def test_emptied_bucket_stays_armed_while_others_wait(
    spy: Spy,
) -> None:
    timer = Timer(tick=1.0)
    timer.call_later(100, nothing)
    when = spy.time() + 50
    for _ in range(10):
        timer.call_at(when, nothing).cancel()
        await asyncio.sleep(0)
    assert len(spy.asked) == spy.armed == 2


@on_virtual_time
@pytest.mark.parametrize("is_empty", [True, False])
async def test_early_callback_rearms_its_bucket(spy: Spy, is_empty: bool) -> None:
    timer, seen = Timer(), list[float]()
    spy.shift = lambda: -0.0005
    timer.call_at(1000.0, nothing)
    task = timer.call_at(1.0, lambda: seen.append(spy.time()))
    if is_empty:
        task.cancel()
    await asyncio.sleep(1.0002)  # early as well, but later than the callback
    assert spy.time() < 1.0
    assert timer.loop_wheel.wake_ups >= 1 and min(spy.armed_for) >= 1.0
    timer.loop_wheel._check()
    timer.call_at(1.0, lambda: seen.append(spy.time()))
    await asyncio.sleep(1)
    assert len(seen) == 2 - is_empty and 1.0 <= min(seen) <= max(seen) <= 1.002


@pytest.mark.parametrize(
    ("delay", "wheel_size"), [(DAY - 1, 2), (DAY + 1, 512), (1e6, 512), (1e12, 2)]
)
async def test_loop_timer_is_at_most_a_day_ahead(spy: Spy, delay: float, wheel_size: int) -> None:
    timer = Timer(wheel_size=wheel_size)
    task = timer.call_later(delay, nothing)
    assert spy.armed == 1
    assert spy.longest_wait <= LONGEST_WAIT
    await iterations(3)
    assert timer.size == spy.armed == 1
    assert spy.longest_wait <= LONGEST_WAIT
    task.cancel()


@on_virtual_time
@at_any_loop_time
async def test_callback_months_ahead_wakes_once_a_day(spy: Spy, start: float) -> None:
    timer = Timer(tick=0.25, wheel_size=100_000)
    when = start + 100 * DAY
    assert when <= await fired(timer, when) <= when + 0.25
    assert spy.longest_wait <= LONGEST_WAIT
    assert len(spy.asked) <= 105


@pytest.mark.parametrize("outcome", ["pending", "cancelled", "called", "fired in iterations"])
async def test_context_of_scheduler_is_freed(outcome: str) -> None:
    class Luggage:
        pass

    variable: ContextVar[Luggage] = ContextVar("variable")

    timer = Timer()
    seen = []

    def schedule(luggage: Luggage) -> list[Callback]:
        variable.set(luggage)
        delay = 5 if outcome in ("pending", "cancelled") else 0
        return [
            timer.call_later(delay, lambda: seen.append(variable.get(None)))
            for _ in range(3 * MAX_PER_ITERATION)
        ]

    luggage = Luggage()
    reference = weakref.ref(luggage)
    context = copy_context()
    tasks = context.run(schedule, luggage)
    if outcome == "cancelled":
        context.run(lambda: [task.cancel() for task in tasks])
    elif outcome == "called":
        while timer.size:
            await asyncio.sleep(0)
    elif outcome == "fired in iterations":
        while not seen:
            await asyncio.sleep(0)
    del luggage, context
    gc.collect()
    assert reference() is None
    assert set(seen) <= {None}
    assert timer.size + len(seen) == (0 if outcome == "cancelled" else 3 * MAX_PER_ITERATION)
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("wheel_size", [2, 3, 20, DEFAULT_WHEEL_SIZE])
async def test_ticks_expire_in_order_while_loop_is_held(wheel_size: int) -> None:
    loop, randomly, seen = asyncio.get_running_loop(), random.Random(1), list[float]()
    timer, done = Timer(wheel_size=wheel_size), loop.create_future()

    def hold(number: int) -> None:
        time.sleep(0.013)
        if number:
            loop.call_later(0.02, hold, number - 1)

    base = loop.time() + 0.05
    whens = [base + 0.0015 * number for number in range(200)]
    for when in randomly.sample(whens, len(whens)):
        timer.call_at(when, seen.append, when)
    timer.call_at(whens[-1] + 0.01, done.set_result, None)
    loop.call_soon(hold, 15)
    await done
    due_ticks = [timer.wheel.clock.due_tick(when) for when in seen]
    assert len(seen) == len(whens) and due_ticks == sorted(due_ticks)


# Bursts


@pytest.mark.parametrize("count", [20_000, 3 * MAX_PER_ITERATION, MAX_PER_ITERATION - 1])
async def test_burst_is_called_in_order_within_budget(
    count: int,
) -> None:
    loop = asyncio.get_running_loop()
    timer = Timer()
    seen: list[int] = []
    seen_by_iteration = [0]
    done = loop.create_future()

    def probe() -> None:
        seen_by_iteration.append(len(seen))
        if len(seen) < count:
            loop.call_soon(probe)
        else:
            done.set_result(None)

    when = loop.time()  # in the past, so that a busy machine cannot split the burst in two
    timer.call_at(when, loop.call_soon, probe)
    for number in range(count):
        timer.call_at(when, seen.append, number)
    await done
    assert seen == list(range(count))
    assert max(later - before for before, later in pairwise(seen_by_iteration)) <= MAX_PER_ITERATION
    assert timer.size == 0


async def test_callback_rescheduling_itself_runs_once_per_iteration() -> None:
    loop = asyncio.get_running_loop()
    timer = Timer()
    iteration = 0
    seen: list[int] = []

    def count_iterations() -> None:
        nonlocal iteration
        iteration += 1
        if len(seen) < 50:
            loop.call_soon(count_iterations)

    def again() -> None:
        seen.append(iteration)
        if len(seen) < 50:
            timer.call_later(0 if len(seen) % 2 else -1, again)

    loop.call_soon(count_iterations)
    timer.call_at(-1, again)
    while len(seen) < 50:
        await asyncio.sleep(0)
    assert len(set(seen)) == 50


@on_virtual_time
async def test_cancelled_burst_ends_its_cascade() -> None:
    loop = asyncio.get_running_loop()
    timer = Timer(tick=0.01, wheel_size=10)
    seen: list[int] = []
    tasks = [timer.call_at(0.88, seen.append, number) for number in range(20 * MAX_PER_ITERATION)]
    await asyncio.sleep(0.8)
    while timer.wheel.moves < MAX_PER_ITERATION:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await iterations(30)
    assert timer.size == 0
    timer.call_later(0.02, seen.append, 1)
    await fired(timer, loop.time() + 0.03)
    assert seen == [1]


async def test_callbacks_can_cancel_and_move_their_neighbours() -> None:
    loop = asyncio.get_running_loop()
    timer, seen = Timer(), list[Any]()
    when = loop.time() + 0.01
    tasks: dict[str, Callback] = {}

    def first() -> None:
        seen.append("first")
        tasks["cancelled"].cancel()
        tasks["postponed"].reschedule(when + 1000)
        tasks["hastened"].reschedule(when - 1)

    tasks["first"] = timer.call_at(when, first)
    for name in ("cancelled", "postponed", "hastened", "last"):
        tasks[name] = timer.call_at(when, seen.append, name)
    await fired(timer, when + 0.01)
    await iterations(
        2
    )  # on a busy machine all entries are due in one iteration, and the hastened ones in the next
    assert seen == ["first", "last", "hastened"]
    assert timer.size == 1


async def test_expensive_entry_shortens_its_iteration() -> None:
    loop = asyncio.get_running_loop()
    timer, seen, pulses = Timer(), list[int](), list[Pulse]()

    def note(number: int) -> None:
        seen.append(number)
        pulses[0].mark()

    when = loop.time() + 0.01
    timer.call_at(when, lambda: pulses.append(Pulse()))
    for number in range(100):
        timer.call_at(when, note, number).steps = MAX_PER_ITERATION // 4
    while len(seen) < 100:
        await asyncio.sleep(0.001)
    assert seen == list(range(100))
    assert pulses[0].busiest <= 4


# Entries that fail


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, asyncio.CancelledError, GeneratorExit])
async def test_exception_of_entry_does_not_stop_others(
    reports: list[dict[str, Any]], error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("on purpose")

    loop = asyncio.get_running_loop()
    timer, seen = Timer(), list[int]()
    when = loop.time() + 0.01
    timer.call_at(when, seen.append, 1)
    failing = timer.call_at(when, fail)
    timer.call_at(when, seen.append, 2)
    await fired(timer, when + 0.01)
    assert seen == [1, 2]
    assert timer.size == 0
    (report,) = reports
    assert isinstance(report["exception"], error)
    assert report["message"] == f"exception when {failing!r} was due"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_callbacks_after_exit_run_in_next_run(
    loop_factory: Any, error: type[BaseException]
) -> None:
    def leave() -> None:
        raise error

    async def main() -> None:
        for number in range(2 * MAX_PER_ITERATION):
            timer.call_at(when, seen.append, number)
            if number == 10:
                timer.call_at(when, leave)
        await asyncio.sleep(10)

    timer, seen = Timer(), list[int]()
    loop = loop_factory()
    try:
        when = loop.time() + 1.0  # a busy machine may take long to add them
        task = loop.create_task(main())
        with pytest.raises(error):
            loop.run_until_complete(task)
        assert (
            11 <= len(seen) < 2 * MAX_PER_ITERATION
        )  # uvloop ends the iteration that was interrupted
        while timer.size:
            loop.run_until_complete(asyncio.sleep(0))
        assert seen == list(range(2 * MAX_PER_ITERATION))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    finally:
        loop.close()


async def test_entry_with_failing_repr_is_reported(
    reports: list[dict[str, Any]],
) -> None:
    class Nameless(Callback):
        def __repr__(self) -> str:
            raise ZeroDivisionError

    def fail() -> None:
        raise OwnError

    timer, seen = Timer(), list[int]()
    timer.call_later(5, nothing)
    timer.wheel.add(Nameless(timer.loop_wheel, fail), 0.0, timer.loop_wheel.time())
    timer.call_at(0.0, seen.append, 1)
    await iterations(3)
    assert seen == [1]
    [report] = reports
    assert (
        report["message"]
        == "exception when <Nameless, whose __repr__ raised ZeroDivisionError> was due"
    )


# Postponing


@on_virtual_time
async def test_postponing_does_not_touch_the_loop(spy: Spy) -> None:
    timer = Timer()
    tasks = [timer.call_later(5, nothing) for _ in range(100)]
    asked = len(spy.asked)
    for step in range(10):
        for task in tasks:
            task.reschedule(spy.time() + 6 + step)
    assert len(spy.asked) == asked
    assert timer.size == 100


@on_virtual_time
async def test_postponed_callback_moves_once_per_old_time(
    spy: Spy,
) -> None:
    timer, seen = Timer(tick=0.01), list[float]()
    task = timer.call_at(1.0, lambda: seen.append(spy.time()))
    for _ in range(10):
        for _ in range(100):
            task.reschedule(task.when() + 0.01)
        await asyncio.sleep(0.5)
    await asyncio.sleep(20)
    assert seen == [11.0]
    assert len(spy.asked) < 50


@on_virtual_time
async def test_infinitely_postponed_callback_leaves_loop_empty(
    spy: Spy,
) -> None:
    timer = Timer()
    task = timer.call_later(5, nothing)
    task.reschedule(math.inf)
    await asyncio.sleep(6)
    assert spy.armed_for == []
    assert timer.size == 1
    task.reschedule(10)
    assert spy.armed_for
    await asyncio.sleep(6)
    assert timer.size == 0


# An idle wheel


@on_virtual_time
async def test_owner_is_notified_once_when_idle(spy: Spy) -> None:
    timer, notified = Timer(), list[int]()
    timer.loop_wheel.on_idle = lambda: notified.append(timer.size)
    first, second = timer.call_later(10, nothing), timer.call_later(20, nothing)
    first.cancel()
    await iterations(2)
    assert notified == []
    second.cancel()
    assert notified == []
    await iterations(2)
    assert notified == [0]
    await fired(timer, spy.time() + 0.001)
    await iterations(2)
    assert notified == [0, 0]


@on_virtual_time
async def test_entry_added_before_idle_check_keeps_bucket(spy: Spy) -> None:
    timer, notified = Timer(), list[int]()
    timer.loop_wheel.on_idle = lambda: notified.append(timer.size)
    timer.call_later(10, nothing).cancel()
    task = timer.call_later(10, nothing)
    await iterations(3)
    assert notified == [] and spy.armed == len(spy.asked) == 1
    task.cancel()
    await iterations(2)
    assert notified == [0] and spy.armed_for == []


@on_virtual_time
async def test_busy_wheel_is_checked_rarely_until_quiet(
    spy: Spy,
) -> None:
    timer, notified = Timer(), list[float]()
    timer.loop_wheel.on_idle = lambda: notified.append(spy.time())
    for number in range(BUSY_AFTER + 2):
        timer.call_later(30, nothing).cancel()
        await iterations(2)
        assert len(notified) == min(number + 1, BUSY_AFTER + 1)
    assert spy.armed == 2  # the bucket, and the check for idleness
    for _ in range(100):
        timer.call_later(30, nothing).cancel()
        await iterations(2)
    assert len(notified) == BUSY_AFTER + 1 and len(spy.asked) == BUSY_AFTER + 3
    await asyncio.sleep(BUSY_DELAY)
    assert spy.armed_for == [] and len(notified) == BUSY_AFTER + 2
    await asyncio.sleep(BUSY_WINDOW)
    timer.call_later(30, nothing).cancel()
    await asyncio.sleep(BUSY_DELAY)  # the late check finds the wheel idle
    timer.call_later(30, nothing).cancel()
    await iterations(2)
    assert spy.armed_for == []
    timer.loop_wheel._check()


def test_entry_leaving_after_loop_touches_nothing(loop_factory: Any) -> None:
    async def begin() -> tuple[Timer, Callback]:
        timer = Timer()
        return timer, timer.call_later(30, nothing)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        timer, task = runner.run(begin())
        other, other_task = runner.run(begin())
        task.cancel()  # outside its loop, which is not running
        assert timer.size == 0
    other_task.cancel()
    assert other.size == 0


# One loop after another


@pytest.mark.parametrize("left", ["buckets", "half a cascade", "half a burst", "a look"])
def test_empty_wheel_moves_to_next_loop(left: str) -> None:
    timer, seen = Timer(tick=0.01, wheel_size=10), list[float]()
    loop_wheel = timer.loop_wheel

    async def leave() -> None:
        now = loop_wheel.time() if loop_wheel.is_bound else 0.0
        now = asyncio.get_running_loop().time()
        timer.call_at(now + 30, nothing)
        tasks = [timer.call_at(now + 0.88, seen.append, 1.0) for _ in range(3 * MAX_PER_ITERATION)]
        if left == "half a cascade":
            await asyncio.sleep(0.8)
            while timer.wheel.moves < 10:
                await asyncio.sleep(0)
        elif left == "half a burst":
            while not seen:
                await asyncio.sleep(0.01)
            seen.clear()
        asyncio.get_running_loop().stop()
        for task in [*tasks]:
            task.cancel()
        while timer.size:
            for chunk in [chunk for bucket in timer.wheel.buckets() for chunk in bucket.chunks()]:
                for entry in [*chunk]:
                    timer.wheel.remove(entry)
        if left == "buckets":
            timer.wheel.notify_empty = True

    async def come() -> None:
        loop = asyncio.get_running_loop()
        moment = loop.time()
        for delay in (0.0, 0.05, 0.88, 5.0, 60.0):
            timer.call_later(delay, lambda when: seen.append(loop.time() - when), moment + delay)
            timer.wheel._check()
        await iterations(3)
        loop_wheel._check()
        await asyncio.sleep(100)
        assert len(seen) == 5 and min(seen) >= 0.0 and max(seen) <= 0.011
        seen.clear()
        loop_wheel._check()

    for start in (1e6, 5.0):
        loop = VirtualTimeLoop(start=start)
        loop.run_until_complete(leave())
        loop.close()
        seen.clear()
        Runner(lambda start: VirtualTimeLoop(start=start), None)(come, start=start / 2)


async def test_failed_idle_check_is_scheduled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError

    loop, timer, idle = asyncio.get_running_loop(), Timer(), list[int]()
    timer.loop_wheel.on_idle = lambda: idle.append(1)
    first, second = timer.call_later(30, nothing), timer.call_later(60, nothing)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon", refuse)
        with pytest.raises(MemoryError):
            first.cancel()
    second.cancel()
    await iterations(2)
    assert idle == [1]
    timer.loop_wheel._check()


def test_waiting_wheel_stays_with_closed_loop(loop_factory: Any) -> None:
    timer = Timer()

    async def use() -> None:
        timer.call_later(30, nothing)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(use())
    with (
        asyncio.Runner(loop_factory=loop_factory) as runner,
        pytest.raises(
            WrongLoop,
            match=r"cannot schedule a callback: .* that loop is closed, and 1 wait there for ever",
        ),
    ):
        runner.run(use())


async def test_wheel_starts_no_thread() -> None:
    before = set(threading.enumerate())  # threads of other tests may just be ending
    timer = Timer()
    await fired(timer, asyncio.get_running_loop().time() + 0.01)
    assert set(threading.enumerate()) <= before
