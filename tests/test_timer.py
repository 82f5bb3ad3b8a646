"""`WheelTimer` and `TimerTask`: what they ask of the loop, and when the callbacks come.

Where the loop matters, a `Spy` stands before it: it counts what is asked of its public `call_at`, and may have it fire
early or late. Nothing else in these tests calls it, so what is counted is the wheel's.
"""

import asyncio
import gc
import math
import random
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from itertools import cycle, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from loops import on_virtual_time

from purgatory import WheelTimer, WrongLoop, _levels, _timer
from purgatory._timer import PORTION, TimerTask

DAY = 86_400.0
STARTS = [0.0, 2e7, 1e9]

at_any_loop_time = pytest.mark.parametrize("start", STARTS)


class Spy:
    """Remembers what the running loop's `call_at` is asked, and has it fire `shift()` seconds late, or early if negative."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.time = loop.time
        self.asked: list[float] = []
        self.longest_wait = 0.0
        self.shift: Callable[[], float] = float
        self._armed: dict[int, asyncio.TimerHandle] = {}
        self._call_at = loop.call_at
        loop.call_at = self.call_at  # type: ignore[method-assign]

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:
        number = len(self.asked)
        self.asked.append(when)
        self.longest_wait = max(self.longest_wait, when - self.time())

        def fire() -> None:
            del self._armed[number]
            callback(*args)

        shifted = when + self.shift()
        if shifted <= self.time():
            shifted = when  # early, but not over and over at one instant: every clock moves on
        self._armed[number] = handle = self._call_at(shifted, fire, context=context)
        return handle

    def armed(self) -> list[float]:
        """What the loop was asked for and neither has done nor was told to forget."""
        return sorted(self.asked[number] for number, handle in self._armed.items() if not handle.cancelled())


@pytest.fixture
async def spy() -> Spy:
    """Spies on the loop of the test."""
    return Spy()


async def fired(timer: WheelTimer, when: float) -> float:
    """Waits on the wheel alone; the time when it was over."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer.call_at(when, lambda: future.set_result(loop.time()))
    return await future


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def nothing() -> None:
    pass


# When the callbacks come


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("tick", [0.001, 0.01, 0.25])
@pytest.mark.parametrize(
    ("shifts", "late"),
    [((0.0, 0.0), 0.0), ((-0.0009, 0.0), 0.001), ((-0.0009, -0.0009), 0.001), ((0.0, 0.3), 0.3)],
    ids=["on time", "often early", "always early", "late"],
)
async def test_a_timer_never_fires_early_and_is_late_by_at_most_a_tick_and_what_the_loop_was(
    spy: Spy, start: float, tick: float, shifts: tuple[float, float], late: float
) -> None:
    randomly = random.Random(tick)
    spy.shift = lambda: randomly.uniform(*shifts)
    timer = WheelTimer(tick=tick, wheel_size=8)
    lateness: list[float] = []

    def note(when: float) -> None:
        lateness.append(spy.time() - when)

    for _ in range(20):
        for _ in range(10):
            when = spy.time() + randomly.choice([0.0, tick, 5 * tick, 3.0, 40.0]) * randomly.choice([1, randomly.random()])
            timer.call_at(when, note, when)
            timer.call_later(when - spy.time(), note, when)
        await fired(timer, spy.time() + randomly.random())
    await fired(timer, spy.time() + 50)
    assert len(lateness) == 400
    assert min(lateness) >= 0
    assert max(lateness) <= tick + late + 4 * math.ulp(spy.time())
    assert spy.armed() == []


@on_virtual_time
@at_any_loop_time
@pytest.mark.parametrize("tick", [0.001, 0.01, 0.25])
async def test_a_deadline_on_the_border_of_a_tick_is_met_exactly(spy: Spy, start: float, tick: float) -> None:
    timer = WheelTimer(tick=tick)
    per_second = round(1 / tick)
    first = int(start) * per_second
    for number in range(first + 1, first + 200):
        when = number / per_second
        lateness = await fired(timer, when) - when
        assert 0 <= lateness <= 1.01 * tick
        assert lateness == 0 or math.ceil(when * per_second) > number  # the product was rounded up past the border


@on_virtual_time
@pytest.mark.parametrize("start", [*STARTS, 9.007e6, 1e7])
@pytest.mark.parametrize("tick", [1e-9, 3e-8])
async def test_a_tick_too_short_for_the_clock_to_tell_apart_is_met_all_the_same(spy: Spy, start: float, tick: float) -> None:
    timer = WheelTimer(tick=tick)
    for delay in (0.02, 1e-9, 0.0, 3.7, 100.0, 3e-8):
        when = spy.time() + delay
        woken_at = await asyncio.wait_for(fired(timer, when), 200)
        assert when <= woken_at <= when + 2 * tick + 8 * math.ulp(when)
    assert timer.size == 0
    assert len(spy.armed()) <= 1  # that of wait_for


@on_virtual_time
async def test_what_comes_due_while_a_callback_takes_its_time_is_not_late_for_that(spy: Spy) -> None:
    """The callback before it reads the clock again, through the timer; it must not be put off as if it came early."""
    timer, seen = WheelTimer(tick=0.01), list[float]()

    def takes_its_time() -> None:
        asyncio.get_running_loop()._set_time(spy.time() + 0.02)  # type: ignore[attr-defined]
        timer.call_later(1, nothing).cancel()

    timer.call_at(1.0, takes_its_time)
    timer.call_at(1.015, lambda: seen.append(spy.time()))
    await asyncio.sleep(2)
    assert seen == [1.02]


@on_virtual_time
async def test_a_wide_slot_is_moved_ahead_in_turns_of_a_quarter_portion_and_nothing_is_armed(spy: Spy) -> None:
    timer, seen = WheelTimer(tick=0.01, wheel_size=10), list[float]()
    count = 5 * PORTION
    for _ in range(count):
        timer.call_at(8.75, lambda: seen.append(spy.time()))
    assert spy.asked == [7.0]
    await asyncio.sleep(6.999)
    assert timer._wheel.moves == 0
    moved: list[int] = []
    await asyncio.sleep(0.001)
    while timer._wheel.moves < count:
        moves = timer._wheel.moves
        await asyncio.sleep(0)
        moved.append(timer._wheel.moves - moves)
    assert spy.time() == 7.0
    assert max(moved) <= PORTION // 4
    await asyncio.sleep(0)
    assert spy.armed() == [8.6]  # for the narrower slot
    await asyncio.sleep(2)
    assert seen == [8.75] * count
    assert spy.armed() == []


@on_virtual_time
async def test_a_timer_whose_time_comes_while_its_early_callback_runs_is_not_lost(spy: Spy) -> None:
    """The clock moves on between two looks at it: by the first the callback was early, by the second it was not."""
    timer, moves_on = WheelTimer(tick=0.01), cycle([0.0, 0.0006])
    spy.shift = lambda: -0.0005
    when = spy.time() + 1.0
    woken = asyncio.ensure_future(fired(timer, when))
    await turns(2)
    timer._wheel.time = lambda: spy.time() + next(moves_on)
    assert when - 0.0006 <= await woken <= when + 0.01


@pytest.mark.parametrize("tick", [0.001, 0.0001, 0.01])
async def test_on_real_clocks_too_a_timer_never_fires_before_its_time(tick: float) -> None:
    loop = asyncio.get_running_loop()
    timer = WheelTimer(tick=tick, wheel_size=4)
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


async def test_callbacks_of_one_tick_come_in_the_order_in_which_they_were_scheduled() -> None:
    loop = asyncio.get_running_loop()
    timer, seen = WheelTimer(tick=0.01, wheel_size=2), list[int]()
    when = loop.time() + 0.06
    for number in range(5):
        for step in range(20):
            timer.call_at(when, seen.append, 20 * number + step)
        await fired(timer, when - 0.05 + 0.01 * number)
    await fired(timer, when)
    assert seen == list(range(100))


@pytest.mark.parametrize("delay", [0, 0.0, -1, -1e9, -1e18, -math.inf])
@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_a_delay_of_zero_or_less_means_the_next_turn_of_the_loop(method: str, delay: float) -> None:
    timer, seen = WheelTimer(tick=0.25), list[str]()
    when = delay if method == "call_later" else asyncio.get_running_loop().time() + delay
    task = getattr(timer, method)(when, seen.append, "called")
    assert isinstance(task, TimerTask)
    assert seen == []
    if delay == 0:
        await fired(timer, task.when())
    else:
        await turns(3)
    assert seen == ["called"]


@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_nan_is_refused_and_nothing_is_scheduled(method: str) -> None:
    timer = WheelTimer()
    with pytest.raises(ValueError, match="NaN"):
        getattr(timer, method)(math.nan, nothing)
    assert timer.size == 0
    task = timer.call_later(5, nothing)
    when = task.when()
    with pytest.raises(ValueError, match="NaN"):
        task.reschedule(math.nan)
    assert (timer.size, task.when()) == (1, when)


@on_virtual_time
@at_any_loop_time
async def test_after_a_stall_everything_overdue_comes_in_the_order_of_its_deadline(spy: Spy, start: float) -> None:
    timer, seen = WheelTimer(tick=0.01, wheel_size=4), list[int]()
    spy.shift = lambda: 20.0  # whatever is armed comes 20 s late
    delays = [88, 82, 9, 521, 222, 520, 515, 9, 1000, 999]
    for delay in delays:
        timer.call_at(start + delay / 100, seen.append, delay)
    await asyncio.sleep(60)
    assert seen == sorted(delays)


@on_virtual_time
@pytest.mark.parametrize("enabled", [True, False])
async def test_the_garbage_collector_looks_at_new_buckets_while_they_are_small(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    collected: list[int] = []
    monkeypatch.setattr(_timer, "LOOK_OVER", 100)
    monkeypatch.setattr(_timer, "PORTION", 100)
    monkeypatch.setattr(_timer, "gc", SimpleNamespace(collect=collected.append, isenabled=lambda: enabled))
    timer = WheelTimer(tick=0.01, wheel_size=10)
    tasks = [timer.call_at(8.8 + number / 1000, nothing) for number in range(450)]
    await asyncio.sleep(8.5)
    assert timer._wheel.moves >= 450
    assert collected == [1] * (enabled * (timer._wheel.moves // 100))
    del tasks


# What is asked of the loop


async def test_the_loop_has_one_timer_for_each_bucket_and_none_for_each_callback(spy: Spy) -> None:
    timer = WheelTimer(tick=1.0, wheel_size=10)
    now = math.floor(spy.time())
    far = (now // 100 + 5) * 100  # where a bucket of the third level begins
    tasks = []
    for _ in range(1000):
        tasks += [timer.call_at(when, nothing) for when in (now + 5, now + 6, far + 55, far + 56, far + 57.5)]
    assert len(spy.asked) == len(spy.armed()) == 3
    for task in tasks:
        task.reschedule(now + 3)
    assert len(spy.asked) == 4


@on_virtual_time
@pytest.mark.parametrize("order", [1, -1])
async def test_the_loop_is_asked_once_for_each_bucket_in_whatever_order_they_open(spy: Spy, order: int) -> None:
    timer, seen, armed = WheelTimer(tick=0.01), list[float](), list[int]()
    whens = [number / 100 for number in range(1, 50)]

    def note() -> None:
        seen.append(spy.time())
        armed.append(len(spy.armed()))

    for when in whens[::order]:
        timer.call_at(when, note)
    await fired(timer, whens[-1])
    assert seen == pytest.approx(whens)
    assert sorted(spy.asked) == pytest.approx(whens)
    assert armed == [*range(48, -1, -1)]


@on_virtual_time
async def test_delays_that_differ_find_their_buckets_and_come_in_time(spy: Spy) -> None:
    timer, late = WheelTimer(), list[float]()
    randomly = random.Random(1)
    for _ in range(2000):
        when = spy.time() + randomly.choice([0.05, 1.0, 60.0, 1000.0]) * randomly.random()
        timer.call_later(when - spy.time(), lambda when=when: late.append(spy.time() - when))
        timer._wheel._check()
        if randomly.random() < 0.2:
            await asyncio.sleep(0.01 * randomly.random())
    await fired(timer, spy.time() + 1001)
    assert len(late) == 2000
    assert min(late) > -1e-9
    assert max(late) <= 0.0011


@on_virtual_time
async def test_a_bucket_that_is_full_takes_no_more_although_it_was_asked_for_last(
    spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_levels, _timer):
        monkeypatch.setattr(module, "FULL", 4)
    timer = WheelTimer()
    for number in range(50):
        timer.call_later(30 + number / 1000, nothing)
    assert {len(bucket) for slot in timer._wheel.slots() for bucket in slot.added} <= {1, 2, 3, 4}


@on_virtual_time
async def test_a_wheel_that_falls_idle_keeps_the_slots_that_it_used_and_no_alarm(spy: Spy) -> None:
    timer = WheelTimer()
    wheel = timer._wheel
    for _ in range(3):
        for number in range(50):
            timer.call_later(30 + number, nothing).cancel()
        await turns(2)
        assert len([*wheel.slots()]) == 50 and spy.armed() == [] and wheel.last is wheel.never
        wheel._check()
    timer.call_later(30, nothing).cancel()
    await turns(2)
    assert len([*wheel.slots()]) <= 2
    wheel._check()


@on_virtual_time
async def test_a_callback_far_away_wakes_the_loop_once_for_each_level_that_it_passes(spy: Spy) -> None:
    timer = WheelTimer(tick=0.001, wheel_size=10)
    assert await fired(timer, 0.521) == 0.521
    assert spy.asked == [0.4, 0.51, 0.521]


@pytest.mark.parametrize("when", [math.inf, 1e18, 1e300])
async def test_a_callback_that_is_never_due_is_not_asked_of_the_loop(spy: Spy, when: float) -> None:
    timer = WheelTimer()
    tasks = [timer.call_at(when, nothing), timer.call_later(when, nothing)]
    assert spy.asked == []
    assert timer.size == 2
    for task in tasks:
        assert task.when() >= when
        task.cancel()
    assert (spy.asked, timer.size) == ([], 0)


@pytest.mark.parametrize("wheel_size", [2, 20, 512])
async def test_when_the_last_callback_was_cancelled_the_turn_leaves_nothing_in_the_loop(spy: Spy, wheel_size: int) -> None:
    timer = WheelTimer(wheel_size=wheel_size)
    timer.call_later(math.inf, nothing)
    for _ in range(3):
        tasks = [timer.call_later(delay, nothing) for delay in (1, 1, 10, 1000, 1e6)]
        assert spy.armed()
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
        assert spy.armed() == []
    assert timer.size == 1


async def test_when_the_last_callback_was_called_the_loop_has_nothing_left(spy: Spy) -> None:
    timer = WheelTimer(tick=0.01, wheel_size=2)
    cancelled = [timer.call_later(delay, nothing) for delay in (0.05, 1, 1000)]
    await fired(timer, spy.time() + 0.02)
    for task in cancelled:
        task.cancel()
    await asyncio.sleep(0)
    assert spy.armed() == []


async def test_an_emptied_bucket_stays_armed_while_others_wait_and_is_not_armed_again(spy: Spy) -> None:
    timer = WheelTimer(tick=1.0)
    timer.call_later(100, nothing)
    when = spy.time() + 50
    for _ in range(10):
        timer.call_at(when, nothing).cancel()
        await asyncio.sleep(0)
    assert len(spy.asked) == len(spy.armed()) == 2


@pytest.mark.parametrize("delay", [DAY - 1, DAY + 1, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("wheel_size", [2, 512])
async def test_the_loop_is_never_asked_for_more_than_a_day(spy: Spy, delay: float, wheel_size: int) -> None:
    timer = WheelTimer(wheel_size=wheel_size)
    task = timer.call_later(delay, nothing)
    assert len(spy.armed()) == 1
    assert spy.longest_wait <= DAY
    await turns(3)
    assert timer.size == len(spy.armed()) == 1
    assert spy.longest_wait <= DAY
    task.cancel()


@on_virtual_time
@at_any_loop_time
async def test_a_callback_months_away_comes_on_time_after_one_wake_up_a_day(spy: Spy, start: float) -> None:
    timer = WheelTimer(tick=0.25, wheel_size=100_000)
    when = start + 100 * DAY
    assert when <= await fired(timer, when) <= when + 0.25
    assert spy.longest_wait <= DAY
    assert len(spy.asked) <= 105


@pytest.mark.parametrize("outcome", ["pending", "cancelled", "called", "fired in portions"])
async def test_the_context_of_whoever_scheduled_a_callback_is_not_kept_alive(outcome: str) -> None:
    class Luggage:
        pass

    variable: ContextVar[Luggage] = ContextVar("variable")

    timer = WheelTimer()
    seen = []

    def schedule(luggage: Luggage) -> list[TimerTask]:
        variable.set(luggage)
        delay = 5 if outcome in ("pending", "cancelled") else 0
        return [timer.call_later(delay, lambda: seen.append(variable.get(None))) for _ in range(3 * PORTION)]

    luggage = Luggage()
    reference = weakref.ref(luggage)
    context = copy_context()
    tasks = context.run(schedule, luggage)
    if outcome == "cancelled":
        context.run(lambda: [task.cancel() for task in tasks])
    elif outcome == "called":
        while timer.size:
            await asyncio.sleep(0)
    elif outcome == "fired in portions":
        while not seen:
            await asyncio.sleep(0)
    del luggage, context
    gc.collect()
    assert reference() is None
    assert set(seen) <= {None}
    assert timer.size + len(seen) == (0 if outcome == "cancelled" else 3 * PORTION)
    for task in tasks:
        task.cancel()


# Bursts


@pytest.mark.parametrize("count", [100_000, 3 * PORTION, PORTION, PORTION - 1])
async def test_a_burst_is_called_in_order_and_a_portion_at_most_in_each_turn_of_the_loop(count: int) -> None:
    loop = asyncio.get_running_loop()
    timer = WheelTimer()
    seen: list[int] = []
    seen_by_turn = [0]
    done = loop.create_future()

    def probe() -> None:
        seen_by_turn.append(len(seen))
        if len(seen) < count:
            loop.call_soon(probe)
        else:
            done.set_result(None)

    when = loop.time() + 0.01
    timer.call_at(when, loop.call_soon, probe)
    for number in range(count):
        timer.call_at(when, seen.append, number)
    await done
    assert seen == list(range(count))
    assert max(later - before for before, later in pairwise(seen_by_turn)) <= PORTION
    assert timer.size == 0


async def test_a_callback_due_at_once_that_schedules_its_like_gets_one_a_turn() -> None:
    loop = asyncio.get_running_loop()
    timer = WheelTimer()
    turn = 0
    seen: list[int] = []

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if len(seen) < 50:
            loop.call_soon(count_turns)

    def again() -> None:
        seen.append(turn)
        if len(seen) < 50:
            timer.call_later(0 if len(seen) % 2 else -1, again)

    loop.call_soon(count_turns)
    timer.call_at(-1, again)
    while len(seen) < 50:
        await asyncio.sleep(0)
    assert len(set(seen)) == 50


@on_virtual_time
async def test_a_burst_that_is_cancelled_in_the_middle_of_its_cascade_ends_there() -> None:
    loop = asyncio.get_running_loop()
    timer = WheelTimer(tick=0.01, wheel_size=10)
    seen: list[int] = []
    tasks = [timer.call_at(0.88, seen.append, number) for number in range(20 * PORTION)]
    await asyncio.sleep(0.8)
    while timer._wheel.moves < PORTION:
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await turns(30)
    assert timer.size == 0
    timer.call_later(0.02, seen.append, 1)
    await fired(timer, loop.time() + 0.03)
    assert seen == [1]


async def test_callbacks_cancel_and_move_others_of_their_own_tick() -> None:
    loop = asyncio.get_running_loop()
    timer, seen = WheelTimer(), list[Any]()
    when = loop.time() + 0.01
    tasks: dict[str, TimerTask] = {}

    def first() -> None:
        seen.append("first")
        tasks["cancelled"].cancel()
        tasks["postponed"].reschedule(when + 1000)
        tasks["hastened"].reschedule(when - 1)

    tasks["first"] = timer.call_at(when, first)
    for name in ("cancelled", "postponed", "hastened", "last"):
        tasks[name] = timer.call_at(when, seen.append, name)
    await fired(timer, when + 0.01)
    await turns(2)  # on a busy machine all of this is due in one turn, and what was hastened has the next one
    assert seen == ["first", "last", "hastened"]
    assert timer.size == 1


# Callbacks that fail


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, asyncio.CancelledError, GeneratorExit])
async def test_an_exception_of_a_callback_goes_to_the_handler_and_does_not_stop_the_others(
    reports: list[dict[str, Any]], error: type[BaseException]
) -> None:
    def fail() -> None:
        raise error("on purpose")

    loop = asyncio.get_running_loop()
    timer, seen = WheelTimer(), list[int]()
    when = loop.time() + 0.01
    timer.call_at(when, seen.append, 1)
    failing = timer.call_at(when, fail)
    timer.call_at(when, seen.append, 2)
    await fired(timer, when + 0.01)
    assert seen == [1, 2]
    assert timer.size == 0
    (report,) = reports
    assert isinstance(report["exception"], error)
    assert repr(failing) in report["message"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_leaves_the_loop_and_what_is_left_is_called_in_order_when_it_runs_again(
    loop_factory: Any, error: type[BaseException]
) -> None:
    def leave() -> None:
        raise error

    async def main() -> None:
        for number in range(2 * PORTION):
            timer.call_at(when, seen.append, number)
            if number == 10:
                timer.call_at(when, leave)
        await asyncio.sleep(10)

    timer, seen = WheelTimer(), list[int]()
    loop = loop_factory()
    try:
        when = loop.time() + 0.01
        task = loop.create_task(main())
        with pytest.raises(error):
            loop.run_until_complete(task)
        assert 11 <= len(seen) < 2 * PORTION  # uvloop ends the turn in which it was left
        while timer.size:
            loop.run_until_complete(asyncio.sleep(0))
        assert seen == list(range(2 * PORTION))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    finally:
        loop.close()


# One task


@on_virtual_time
async def test_what_call_later_and_cancel_have_written_out_is_what_a_bucket_does(spy: Spy) -> None:
    timer = WheelTimer()
    wheel = timer._wheel

    def state(task: TimerTask) -> tuple[object, ...]:
        bucket = task._wheel_bucket
        return task.when(), bucket, bucket is not None and task in bucket, wheel.resting, timer.size

    ours = timer.call_later(5, nothing)
    joined = state(ours)
    ours.cancel()
    left = state(ours)
    await turns(2)
    theirs = TimerTask()
    wheel.bucket_at(5.0).join(theirs, 5.0)
    assert state(theirs) == joined and joined[0] == 5.0 and joined[2]
    assert theirs._wheel_bucket is not None
    theirs._wheel_bucket.leave(theirs)
    assert state(theirs) == left == (5.0, None, False, True, 0)


async def test_postponing_does_not_touch_the_loop(spy: Spy) -> None:
    timer = WheelTimer()
    tasks = [timer.call_later(5, nothing) for _ in range(100)]
    asked = len(spy.asked)
    for step in range(10):
        for task in tasks:
            task.reschedule(spy.time() + 6 + step)
    assert len(spy.asked) == asked
    assert timer.size == 100


@on_virtual_time
async def test_a_postponed_callback_is_looked_at_once_for_each_time_and_comes_at_the_last(spy: Spy) -> None:
    timer, seen = WheelTimer(tick=0.01), list[float]()
    task = timer.call_at(1.0, lambda: seen.append(spy.time()))
    for _ in range(10):
        for _ in range(100):
            task.reschedule(task.when() + 0.01)
        await asyncio.sleep(0.5)
    await asyncio.sleep(20)
    assert seen == [11.0]
    assert len(spy.asked) < 50


@pytest.mark.parametrize(
    "whens",
    [[0.05], [0.01], [0.05, 0.01], [0.01, 0.05], [0.05, 0.03], [0.02], [math.inf, 0.03], [0.001, math.inf, 0.05], [1e9, 0.02]],
    ids=str,
)
async def test_a_rescheduled_callback_comes_once_and_not_before_its_last_time(whens: list[float]) -> None:
    loop = asyncio.get_running_loop()
    timer, seen = WheelTimer(wheel_size=4), list[float]()
    now = loop.time()
    task = timer.call_at(now + 0.02, lambda: seen.append(loop.time()))
    for when in whens:
        task.reschedule(now + when)
        assert task.when() == now + when
        assert timer.size == 1
    await fired(timer, now + 0.08)
    assert len(seen) == 1
    assert seen[0] >= now + whens[-1]


@pytest.mark.parametrize("when", [-1.0, -math.inf, 0.0])
async def test_a_callback_moved_into_the_past_comes_in_the_next_turn(when: float) -> None:
    timer, seen = WheelTimer(), list[int]()
    timer.call_later(1000, seen.append, 1).reschedule(when)
    await turns(3)
    assert seen == [1]


@on_virtual_time
async def test_a_callback_postponed_for_ever_leaves_nothing_in_the_loop_after_its_old_time(spy: Spy) -> None:
    timer = WheelTimer()
    task = timer.call_later(5, nothing)
    task.reschedule(math.inf)
    await asyncio.sleep(6)
    assert spy.armed() == []
    assert timer.size == 1
    task.reschedule(10)
    assert spy.armed()
    await asyncio.sleep(6)
    assert timer.size == 0


@pytest.mark.parametrize(("end", "words"), [("cancelled", "it was cancelled"), ("called", "its callback has been called")])
async def test_a_callback_that_was_cancelled_or_called_cannot_be_rescheduled(end: str, words: str) -> None:
    timer = WheelTimer()
    task = timer.call_later(0, nothing)
    if end == "cancelled":
        task.cancel()
    await fired(timer, task.when() + 0.01)
    for when in (0.0, 1e9, math.inf):
        with pytest.raises(RuntimeError, match=f"cannot reschedule <TimerTask {end} when=.* to {when}: {words}"):
            task.reschedule(when)
    assert timer.size == 0


async def test_a_cancelled_callback_is_not_called_and_cancelling_again_or_later_changes_nothing() -> None:
    timer, seen = WheelTimer(), list[str]()
    cancelled = timer.call_later(0.01, seen.append, "cancelled")
    called = timer.call_later(0.01, seen.append, "called")
    never = timer.call_later(math.inf, seen.append, "never")
    assert [task.cancelled() for task in (cancelled, called, never)] == [False, False, False]
    for _ in range(2):
        cancelled.cancel()
        never.cancel()
        assert timer.size == 1
    await fired(timer, called.when() + 0.01)
    assert seen == ["called"]
    assert [task.cancelled() for task in (cancelled, called, never)] == [True, False, True]
    called.cancel()
    assert called.cancelled()
    assert timer.size == 0


async def test_a_callback_cancels_and_reschedules_itself_in_vain() -> None:
    timer = WheelTimer()
    errors: list[str] = []

    def callback() -> None:
        try:
            task.reschedule(task.when() + 1)
        except RuntimeError as error:
            errors.append(str(error))
        task.cancel()

    task = timer.call_later(0, callback)
    await fired(timer, task.when() + 0.01)
    assert len(errors) == 1
    assert task.cancelled()
    assert timer.size == 0


def test_a_task_can_be_cancelled_when_its_loop_has_closed(loop_factory: Any) -> None:
    async def main() -> list[TimerTask]:
        timer = WheelTimer()
        return [timer.call_later(delay, nothing) for delay in (5, 6, math.inf)]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        tasks = runner.run(main())
    for task in tasks:
        task.cancel()
        assert task.cancelled()


async def test_the_callback_gets_its_arguments_and_is_let_go_with_them_when_it_is_cancelled() -> None:
    class Argument:
        pass

    timer, seen = WheelTimer(), list[Any]()
    argument = Argument()
    reference = weakref.ref(argument)
    task = timer.call_later(5, seen.append, argument)
    del argument
    assert reference() is not None
    task.cancel()
    gc.collect()
    assert reference() is None
    timer.call_later(0, lambda *args: seen.append(args), 1, "two")
    await fired(timer, asyncio.get_running_loop().time() + 0.01)
    assert seen == [(1, "two")]


@on_virtual_time
async def test_a_task_says_when_it_is_due_and_shows_its_state(spy: Spy) -> None:
    timer = WheelTimer(tick=0.01)
    task, other = timer.call_later(5, nothing), timer.call_at(7.5, nothing)
    assert (task.when(), other.when()) == (5.0, 7.5)
    assert repr(task) == f"<TimerTask pending when=5.0 {nothing!r}>"
    assert repr(timer) == "<WheelTimer tick=0.01 size=2>"
    other.cancel()
    assert repr(other) == "<TimerTask cancelled when=7.5>"
    await asyncio.sleep(6)
    assert repr(task) == f"<TimerTask called when=5.0 {nothing!r}>"
    assert repr(timer) == "<WheelTimer tick=0.01 size=0>"
    assert (task.when(), other.when()) == (5.0, 7.5)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tick": 0.0}, ValueError),
        ({"tick": math.nan}, ValueError),
        ({"wheel_size": 1}, ValueError),
        ({"wheel_size": 2.5}, TypeError),
    ],
)
def test_a_timer_with_an_impossible_tick_or_size_is_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        WheelTimer(**arguments)


# The wrong loop


USES: dict[str, Callable[[WheelTimer, TimerTask], object]] = {
    "call_later": lambda timer, task: timer.call_later(5, nothing),
    "call_at": lambda timer, task: timer.call_at(task.when(), nothing),
    "reschedule to earlier": lambda timer, task: task.reschedule(task.when() - 1),
    "reschedule to later": lambda timer, task: task.reschedule(task.when() + 1),
}
in_any_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@in_any_use
@pytest.mark.parametrize("thread_has_a_loop", [False, True])
async def test_a_timer_refuses_other_threads_than_its_loops(use: Any, thread_has_a_loop: bool) -> None:
    timer = WheelTimer(tick=1000.0)
    task = timer.call_later(5, nothing)
    when = task.when()

    async def use_it() -> None:
        use(timer, task)

    def in_thread() -> None:
        try:
            asyncio.run(use_it()) if thread_has_a_loop else use(timer, task)
        except WrongLoop as error:
            refusals.append(str(error))

    refusals: list[str] = []
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join(30)  # the loop stands still, but it is running
    assert (timer.size, task.when()) == (1, when)
    assert "this is another thread" in "".join(refusals)


@in_any_use
def test_a_timer_refuses_another_loop_and_no_loop_at_all(loop_factory: Any, use: Any) -> None:
    async def begin() -> tuple[WheelTimer, TimerTask]:
        timer = WheelTimer(tick=1000.0)
        return timer, timer.call_later(5, nothing)

    async def use_it(timer: WheelTimer, task: TimerTask) -> None:
        use(timer, task)

    with asyncio.Runner(loop_factory=loop_factory) as runner, asyncio.Runner(loop_factory=loop_factory) as other:
        timer, task = runner.run(begin())
        with pytest.raises(WrongLoop, match="but the running loop is"):
            other.run(use_it(timer, task))
        with pytest.raises(WrongLoop, match="but no event loop is running"):
            use(timer, task)
        assert timer.size == 1
        runner.run(use_it(timer, task))


@pytest.mark.parametrize("method", ["call_later", "call_at"])
def test_a_timer_that_was_refused_outside_of_any_loop_may_still_be_used_in_one(run: Any, method: str) -> None:
    timer = WheelTimer()
    with pytest.raises(WrongLoop, match="cannot schedule a callback: no event loop is running"):
        getattr(timer, method)(0, nothing)
    assert timer.size == 0

    async def main() -> None:
        seen: list[int] = []
        getattr(timer, method)(0, seen.append, 1)
        await fired(timer, asyncio.get_running_loop().time() + 0.01)
        assert seen == [1]

    run(main)


async def test_a_timer_starts_no_thread() -> None:
    before = set(threading.enumerate())  # some, of other tests, may just be ending
    timer = WheelTimer()
    await fired(timer, asyncio.get_running_loop().time() + 0.01)
    assert set(threading.enumerate()) <= before


async def test_the_owner_is_told_once_when_nothing_waits_any_more(spy: Spy) -> None:
    timer, told = WheelTimer(), list[int]()
    timer._wheel.when_cleared = lambda: told.append(timer.size)
    first, second = timer.call_later(10, nothing), timer.call_later(20, nothing)
    first.cancel()
    await turns(2)
    assert told == []
    second.cancel()
    assert told == []
    await turns(2)
    assert told == [0]
    await fired(timer, spy.time() + 0.001)
    assert told == [0, 0]
