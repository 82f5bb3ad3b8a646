"""`WheelTimer` and `TimerTask`. The times of callbacks are tested in
`tests/core/test_loop_wheel.py`."""

import asyncio
import gc
import math
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from helpers import in_thread, iterations
from loops import on_virtual_time

from purgatory import PurgatoryClosed, TimerTask, WheelTimer, WrongLoop


async def fired(timer: WheelTimer, when: float) -> float:
    """Waits on the wheel alone; returns the time of the wake-up."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    timer.call_at(when, lambda: future.set_result(loop.time()))
    return await future


def nothing() -> None:
    pass


# Scheduling


@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_callback_is_called_once_when_due(method: str) -> None:
    loop = asyncio.get_running_loop()
    timer, seen = WheelTimer(), list[float]()
    when = loop.time() + 0.02
    task = getattr(timer, method)(
        when if method == "call_at" else 0.02, lambda: seen.append(loop.time())
    )
    assert isinstance(task, TimerTask)
    await fired(timer, task.when() + 0.02)
    assert len(seen) == 1 and seen[0] >= when
    assert timer.size == 0
    timer._check()


@on_virtual_time
async def test_delay_of_any_number_becomes_a_float() -> None:
    timer = WheelTimer()
    assert [timer.call_later(delay, nothing).when() for delay in (5, Decimal("5.5"), True)] == [
        5.0,
        5.5,
        1.0,
    ]
    assert [type(timer.call_at(when, nothing).when()) for when in (5, Decimal("5.5"))] == [
        float,
        float,
    ]


@pytest.mark.parametrize("bad", ["5", None, [5]])
async def test_non_number_is_refused_under_its_name(bad: Any) -> None:
    timer = WheelTimer()
    task = timer.call_later(5, nothing)
    when = task.when()
    for name, schedule in {"delay": timer.call_later, "when": timer.call_at}.items():
        with pytest.raises(TypeError, match=f"{name} must be a number of seconds, not "):
            schedule(bad, nothing)
    with pytest.raises(TypeError, match="when must be a number of seconds, not "):
        task.reschedule(bad)
    assert (timer.size, task.when()) == (1, when)


@pytest.mark.parametrize("method", ["call_later", "call_at"])
async def test_nan_is_refused_and_schedules_nothing(method: str) -> None:
    timer = WheelTimer()
    with pytest.raises(ValueError, match="NaN"):
        getattr(timer, method)(math.nan, nothing)
    assert timer.size == 0
    task = timer.call_later(5, nothing)
    when = task.when()
    with pytest.raises(ValueError, match="NaN"):
        task.reschedule(math.nan)
    assert (timer.size, task.when()) == (1, when)


# One task


@pytest.mark.parametrize(
    "whens",
    [
        [0.05],
        [0.01],
        [0.05, 0.01],
        [0.01, 0.05],
        [0.02],
        [math.inf, 0.03],
        [0.001, math.inf, 0.05],
        [1e9, 0.02],
    ],
    ids=str,
)
@on_virtual_time
async def test_rescheduled_callback_comes_once_at_last_time(
    whens: list[float],
) -> None:
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
async def test_callback_rescheduled_to_past_comes_next_iteration(when: float) -> None:
    timer, seen = WheelTimer(), list[int]()
    timer.call_later(1000, seen.append, 1).reschedule(when)
    await iterations(3)
    assert seen == [1]


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


async def test_cancelled_task_releases_callback_and_arguments() -> None:
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


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tick": 0.0}, ValueError),
        ({"tick": math.nan}, ValueError),
        ({"wheel_size": 1}, ValueError),
        ({"wheel_size": 2.5}, TypeError),
        ({"wheel_size": 10**400}, ValueError),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        WheelTimer(**arguments)


# Passed instants


@pytest.mark.parametrize("tick", [0.001, 1.0, 3600.0])
@pytest.mark.parametrize("ago", [0.0, 0.25, 1e6, math.inf])
@on_virtual_time
async def test_passed_instant_comes_next_iteration_whatever_the_tick(
    tick: float, ago: float
) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.5)  # within the first tick of the longer delays
    timer, seen = WheelTimer(tick=tick), list[str]()
    timer.call_later(0.3, seen.append, "rounded up")
    timer.call_later(-ago, seen.append, "call_later")
    timer.call_at(loop.time() - ago, seen.append, "call_at")
    timer.call_later(5000, seen.append, "reschedule").reschedule(loop.time() - ago)
    timer.call_later(0.3, seen.append, "hastened").reschedule(loop.time() - ago)
    await iterations(2)
    assert loop.time() == 0.5
    assert sorted(seen) == ["call_at", "call_later", "hastened", "reschedule"]


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
    timer._check()


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


# A callback of the garbage collector may run after the wheel has returned a task as due, and before
# its callback is called. `take_out` does the same as the wheel at that moment.


def take_out(timer: WheelTimer, task: TimerTask) -> None:
    assert timer._wheel.remove(task)


@on_virtual_time
async def test_task_cancelled_just_before_call_is_skipped() -> None:
    timer, seen = WheelTimer(), list[int]()
    task = timer.call_later(1, seen.append, 1)
    take_out(timer, task)
    assert task.cancel() and task.cancelled()
    task._timer_expired()
    assert not seen


# The wrong loop


USES: dict[str, Callable[[WheelTimer, TimerTask], object]] = {
    "call_later": lambda timer, task: timer.call_later(5, nothing),
    "call_at": lambda timer, task: timer.call_at(task.when(), nothing),
    "reschedule to earlier": lambda timer, task: task.reschedule(task.when() - 1),
    "reschedule to later": lambda timer, task: task.reschedule(task.when() + 1),
    "cancel": lambda timer, task: task.cancel(),
    "close": lambda timer, task: timer.close(),
}
in_any_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@in_any_use
@pytest.mark.parametrize("thread_has_a_loop", [False, True])
async def test_other_thread_is_refused(use: Any, thread_has_a_loop: bool) -> None:
    timer = WheelTimer(tick=1000.0)
    task = timer.call_later(5, nothing)
    when = task.when()

    async def use_it() -> None:
        use(timer, task)

    with pytest.raises(
        WrongLoop, match="this is another thread"
    ):  # the loop is blocked, but it is running
        in_thread(lambda: asyncio.run(use_it()) if thread_has_a_loop else use(timer, task))
    assert (timer.size, task.when()) == (1, when)


@in_any_use
def test_other_loop_and_no_loop_are_refused(loop_factory: Any, use: Any) -> None:
    async def begin() -> tuple[WheelTimer, TimerTask]:
        timer = WheelTimer(tick=1000.0)
        return timer, timer.call_later(5, nothing)

    async def use_it(timer: WheelTimer, task: TimerTask) -> None:
        use(timer, task)

    with (
        asyncio.Runner(loop_factory=loop_factory) as runner,
        asyncio.Runner(loop_factory=loop_factory) as other,
    ):
        timer, task = runner.run(begin())
        with pytest.raises(WrongLoop, match="but the running loop is"):
            other.run(use_it(timer, task))
        with pytest.raises(WrongLoop, match="but no event loop is running"):
            use(timer, task)
        assert timer.size == 1
        runner.run(use_it(timer, task))


@pytest.mark.parametrize("method", ["call_later", "call_at"])
def test_timer_refused_without_loop_binds_later(run: Any, method: str) -> None:
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
