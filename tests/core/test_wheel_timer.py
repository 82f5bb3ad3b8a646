"""`WheelTimer` and `TimerTask`. `test_deadlines` tests the times of callbacks, `test_bounds` bursts of
them."""

import asyncio
import math
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from helpers import Broken, Probe, Pulse, Spy, iterations, raiser
from invariants import MAX_PER_ITERATION, check
from loops import on_virtual_time

from purgatory import Purgatory, PurgatoryClosed, TimerTask, WheelTimer, timeout
from purgatory.testing import VirtualTimeLoop

variable = ContextVar("variable", default="nothing")


async def fired(timer: WheelTimer, when: float) -> float:
    """Waits on the wheel alone; returns the time of the wake-up."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer.call_at(when, lambda: future.set_result(loop.time()))
    return await future


def nothing() -> None:
    pass


# One task


@pytest.mark.parametrize(
    ("end", "words"),
    [("cancelled", "it was cancelled"), ("called", "its callback has been called")],
)
async def test_ended_task_cannot_be_rescheduled(end: str, words: str) -> None:
    timer = WheelTimer()
    task = timer.call_later(0, nothing)
    if end == "cancelled":
        task.cancel()
    await fired(timer, task.when() + 0.01)
    for when in (0.0, 1e9, math.inf):
        with pytest.raises(
            RuntimeError, match=f"cannot reschedule <TimerTask {end} when=.* to {when}: {words}"
        ):
            task.reschedule(when)
    assert timer.size == 0


async def test_cancel_prevents_call_and_returns_whether_in_time() -> None:
    timer, seen = WheelTimer(), list[str]()
    cancelled = timer.call_later(0.01, seen.append, "cancelled")
    called = timer.call_later(0.01, seen.append, "called")
    never = timer.call_later(math.inf, seen.append, "never")
    assert [task.cancelled() for task in (cancelled, called, never)] == [False, False, False]
    for in_time in (True, False):
        assert cancelled.cancel() is in_time
        assert never.cancel() is in_time
        assert timer.size == 1
    await fired(timer, called.when() + 0.01)
    assert seen == ["called"]
    assert [task.cancelled() for task in (cancelled, called, never)] == [True, False, True]
    assert not called.cancel()
    assert called.cancelled()
    assert timer.size == 0


async def test_callback_cannot_cancel_or_reschedule_itself() -> None:
    timer = WheelTimer()
    errors: list[str] = []

    def callback() -> None:
        try:
            task.reschedule(task.when() + 1)
        except RuntimeError as error:
            errors.append(str(error))
        assert not task.cancel()

    task = timer.call_later(0, callback)
    await fired(timer, task.when() + 0.01)
    assert len(errors) == 1
    assert task.cancelled()
    assert timer.size == 0


def test_task_can_be_cancelled_after_loop_closed(loop_factory: Any) -> None:
    async def main() -> list[TimerTask]:
        timer = WheelTimer()
        return [timer.call_later(delay, nothing) for delay in (5, 6, math.inf)]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        tasks = runner.run(main())
    for task in tasks:
        assert task.cancel() and not task.cancel()
        assert task.cancelled()


@on_virtual_time
async def test_task_repr_shows_state_and_time() -> None:
    timer = WheelTimer(tick=0.01)
    task, other = timer.call_later(5, nothing), timer.call_at(7.5, nothing)
    assert (task.when(), other.when()) == (5.0, 7.5)
    assert repr(task) == f"<TimerTask pending when=5.0 {nothing!r}>"
    assert repr(timer) == "<WheelTimer tick=0.01 size=2>"
    other.cancel()
    assert repr(other) == "<TimerTask cancelled when=7.5>"
    await asyncio.sleep(6)
    assert repr(task) == "<TimerTask called when=5.0>"
    assert repr(timer) == "<WheelTimer tick=0.01 size=0>"
    assert (task.when(), other.when()) == (5.0, 7.5)


# Closing


@on_virtual_time
async def test_close_cancels_and_returns_waiting_tasks() -> None:
    timer, seen = WheelTimer(), list[str]()
    timer.call_later(1, seen.append, "called")
    cancelled = timer.call_later(2, seen.append, "cancelled")
    left = [timer.call_later(delay, seen.append, "left") for delay in (3, 3, 3000, math.inf)]
    await asyncio.sleep(1.5)
    cancelled.cancel()
    closed = timer.close()
    assert len(closed) == 4 and {*closed} == {*left}
    assert all(task.cancelled() and not task.cancel() for task in left)
    assert (timer.close(), timer.size) == ([], 0)
    for use in (timer.call_later, timer.call_at):
        with pytest.raises(
            PurgatoryClosed, match="cannot schedule a callback: the timer is closed"
        ):
            use(5, nothing)
    assert repr(timer) == "<WheelTimer tick=0.001 closed>"
    await asyncio.sleep(5000)
    assert seen == ["called"]
    check(timer)


@on_virtual_time
async def test_callback_closes_its_own_timer() -> None:
    timer, seen = WheelTimer(), list[Any]()
    for _ in range(3):
        timer.call_later(1, lambda: seen.append(timer.close()))
    await asyncio.sleep(2)
    assert [len(closed) for closed in seen] == [2]


def test_timer_can_be_closed_without_its_loop(loop_factory: Any) -> None:
    unused = WheelTimer()
    assert unused.close() == []

    async def main() -> WheelTimer:
        with pytest.raises(PurgatoryClosed):
            unused.call_later(1, nothing)
        timer = WheelTimer()
        timer.call_later(5, nothing)
        timer.call_later(math.inf, nothing)
        return timer

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        timer = runner.run(main())
    assert len(timer.close()) == 2 and timer.size == 0


@pytest.mark.parametrize("error", [Broken, asyncio.CancelledError, GeneratorExit])
async def test_exception_of_callback_does_not_stop_others(
    reports: list[dict[str, Any]], error: type[BaseException]
) -> None:
    timer, seen = WheelTimer(), list[int]()
    when = asyncio.get_running_loop().time()
    timer.call_at(when, seen.append, 1)
    failing = timer.call_at(when, raiser(error("on purpose")), None)
    timer.call_at(when, seen.append, 2)
    await fired(timer, when)
    assert seen == [1, 2] and timer.size == 0
    [report] = reports
    assert isinstance(report["exception"], error)
    assert report["message"].startswith("exception when ") and repr(failing)[:10] in str(report)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_callbacks_after_exit_run_in_next_run(
    loop_factory: Any, error: type[BaseException]
) -> None:
    async def main() -> None:
        for number in range(2 * MAX_PER_ITERATION):
            timer.call_at(when, seen.append, number)
            if number == 10:
                timer.call_at(when, raiser(error()), None)
        await asyncio.sleep(10)

    timer, seen, loop = WheelTimer(), list[int](), loop_factory()
    when = loop.time() + 0.2  # a busy machine may take long to add them
    task = loop.create_task(main())
    with pytest.raises(error):
        loop.run_until_complete(task)
    assert 11 <= len(seen) < 2 * MAX_PER_ITERATION  # uvloop ends the interrupted iteration
    while timer.size:
        loop.run_until_complete(asyncio.sleep(0))
    assert seen == list(range(2 * MAX_PER_ITERATION))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


async def test_callback_scheduling_itself_runs_once_per_iteration() -> None:
    timer, pulse = WheelTimer(), Pulse()

    def again() -> None:
        pulse.mark()
        if pulse.marks.total() < 50:
            timer.call_later(0 if pulse.marks.total() % 2 else -1, again)

    timer.call_at(-1, again)
    while pulse.marks.total() < 50:
        await asyncio.sleep(0)
    assert pulse.busiest == 1


# Requests to the loop


@on_virtual_time
async def test_postponing_does_not_touch_the_loop() -> None:
    loop = asyncio.get_running_loop()
    timer, spy, seen = WheelTimer(tick=0.01), Spy(loop), list[float]()
    task = timer.call_at(1.0, lambda: seen.append(loop.time()))
    for _ in range(10):
        asked = spy.calls["call_at"]
        for _ in range(100):
            task.reschedule(task.when() + 0.01)
        assert spy.calls["call_at"] == asked
        await asyncio.sleep(0.5)
    endless = timer.call_at(2.0, nothing)
    endless.reschedule(math.inf)
    await asyncio.sleep(20)
    assert seen == [11.0] and len(spy.asked) < 50 and spy.armed == 0
    assert timer.size == 1 and endless.cancel()


@on_virtual_time
async def test_far_callback_wakes_loop_once_per_level() -> None:
    spy, timer = Spy(asyncio.get_running_loop()), WheelTimer(tick=0.001, wheel_size=10)
    assert await fired(timer, 0.521) == 0.521
    assert spy.asked == [0.4, 0.51, 0.521]
    for _ in range(3):
        for when in (math.inf, 1e18, 1e300):
            assert timer.call_at(when, nothing).when() == when
    assert len(spy.asked) == 3


@on_virtual_time
async def test_busy_wheel_is_looked_at_rarely_until_quiet() -> None:
    spy, timer = Spy(asyncio.get_running_loop()), WheelTimer()
    for number in range(200):
        timer.call_later(30, nothing).cancel()
        await iterations(2)
        if number == 0:
            assert spy.armed == 0  # nothing is left of a single use
    assert len(spy.asked) < 200
    await asyncio.sleep(10)
    assert spy.armed == 0
    check(timer)


# Contexts


@on_virtual_time
@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_callback_runs_in_copy_of_callers_context(method: str) -> None:
    with WheelTimer() as timer:
        seen: list[str] = []
        call = getattr(timer, method)
        variable.set("caller")
        given = copy_context()
        given.run(variable.set, "given")
        when = asyncio.get_running_loop().time() + 1 if method == "call_at" else 1
        call(when, lambda: seen.append(variable.get()))
        call(when, lambda name: seen.append(name + variable.get()), "an argument, ", context=given)
        variable.set("changed since")
        await asyncio.sleep(2)
        assert seen == ["caller", "an argument, given"]
        call(1e9, nothing)
    assert timer.size == 0


# A loop that refuses the past


class Strict(VirtualTimeLoop):
    """Raises for callbacks in the past, as Pyodide's loop."""

    def call_at(self, when: float, *args: Any, **given: Any) -> asyncio.TimerHandle:
        if when < self.time():
            raise ValueError(f"cannot schedule in the past: {when}")
        return super().call_at(when, *args, **given)


def test_timers_work_if_loop_refuses_the_past() -> None:
    async def main() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()
        with WheelTimer() as timer:
            timer.call_later(0, seen.append, "now")
            timer.call_later(-5, seen.append, "earlier")
            timer.call_at(loop.time() - 1, seen.append, "past")
            await iterations(3)
            assert sorted(seen) == ["earlier", "now", "past"]
        async with Purgatory() as purgatory:
            for seconds in (0, 0.0001, 0.01):
                with pytest.raises(TimeoutError):
                    await purgatory.wait_for(bool, ["key"], seconds)
                with pytest.raises(TimeoutError):
                    async with timeout(seconds):
                        await asyncio.sleep(60)
            for _ in range(300):  # a wheel that becomes empty again and again
                await purgatory.wait(Probe(ready=True), ["key"])
                with pytest.raises(TimeoutError):
                    await purgatory.wait_for(bool, ["key"], 0.0001)

    with asyncio.Runner(loop_factory=lambda: Strict(start=1.0005)) as runner:
        runner.run(main())
