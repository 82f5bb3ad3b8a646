"""Observers of a `WheelTimer`: the same door. What it does as a timer is told in `test_timer`."""

import asyncio

import pytest
from helpers import raiser
from loops import on_virtual_time

from purgatory import Cause, OperationState, TimerTask, WheelTimer
from purgatory._timer import PlainTimer
from purgatory.metrics import Meter


class Listener:
    def __init__(self):
        self.started, self.ended = [], []

    def operation_started(self, task):
        self.started.append(task)

    def operation_ended(self, ended):
        self.ended.append(ended)

    def key_checked(self, *_):
        raise AssertionError("there are no keys")


def as_told(ended):
    return ended.state, ended.cause, ended.started_at, round(ended.ended_at, 2), ended.timeout


EXPIRED = OperationState.EXPIRED, Cause.DEADLINE
CANCELLED = OperationState.CANCELLED, Cause.CANCELLED


@on_virtual_time
async def test_each_timer_that_has_ended_is_told_of_once():
    listener, meter, log, loop = Listener(), Meter(), [], asyncio.get_running_loop()
    timer = WheelTimer(name="retries", observer=[listener, meter])
    await asyncio.sleep(5)
    tasks = [
        timer.call_later(10, log.append, "fires"),
        timer.call_at(8, log.append, "fires first"),
        timer.call_later(20, log.append, "is cancelled"),
        timer.call_later(-3, log.append, "is overdue"),
        timer.call_later(10, log.append, "is postponed"),
        timer.call_later(float("inf"), log.append, "never"),
    ]
    assert listener.started == tasks and all(isinstance(task, TimerTask) for task in tasks)
    tasks[4].reschedule(30)
    await asyncio.sleep(7)
    tasks[2].cancel()
    await asyncio.sleep(88)
    tasks[5].cancel()
    for task in tasks:
        task.cancel()
    assert log == ["is overdue", "fires first", "fires", "is postponed"] and timer.size == 0 and loop.time() == 100
    assert [as_told(ended) for ended in listener.ended] == [
        (*EXPIRED, 5, 5, 0),
        (*EXPIRED, 5, 8, 3),
        (*CANCELLED, 5, 12, 20),
        (*EXPIRED, 5, 15, 10),
        (*EXPIRED, 5, 30, 25),
        (*CANCELLED, 5, 100, None),
    ]
    assert [ended.operation_id for ended in listener.ended] == [id(tasks[index]) for index in (3, 1, 2, 0, 4, 5)]
    assert {ended[:3] for ended in listener.ended} == {("retries", "timer", ())}
    [kind] = meter.snapshot()
    assert kind.ended == 6 and kind.retries == kind.missed_triggers == 0
    assert kind.lateness.count == 4 and kind.lateness.sum < 4 * 0.0011


@on_virtual_time
async def test_what_a_callback_raises_is_told_and_reported_and_what_it_cancels_has_ended_already(reports):
    listener = Listener()
    timer = WheelTimer(observer=listener)
    error = ZeroDivisionError("no")
    timer.call_later(1, raiser(error), None)

    def cancel():
        own.cancel()

    own = timer.call_later(2, cancel)
    await asyncio.sleep(3)
    assert [(ended.state, ended.exception) for ended in listener.ended] == [(EXPIRED[0], error), (EXPIRED[0], None)]
    assert [report["exception"] for report in reports] == [error] and own.cancelled()


@on_virtual_time
async def test_an_observer_that_raises_is_reported_and_the_others_fire_all_the_same(reports):
    listener, log = Listener(), []
    listener.operation_ended = raiser(ZeroDivisionError())
    timer = WheelTimer(name="retries", observer=listener)
    for number in range(3):
        timer.call_later(1, log.append, number)
    await asyncio.sleep(2)
    assert log == [0, 1, 2]
    assert [report["message"].split(" ")[:2] for report in reports] == [["retries:", "operation_ended"]] * 3


@on_virtual_time
async def test_a_time_that_is_none_begins_nothing():
    listener = Listener()
    timer = WheelTimer(observer=listener)
    for schedule in (timer.call_later, timer.call_at):
        with pytest.raises(ValueError, match="cannot be NaN"):
            schedule(float("nan"), print)
    assert listener.started == [] and timer.size == 0


@pytest.mark.parametrize("observer", [None, ()])
def test_without_an_observer_nothing_is_added(observer):
    timer = WheelTimer(observer=observer)
    assert type(timer) is WheelTimer and isinstance(WheelTimer(observer=Listener()), WheelTimer)
    assert type(timer).call_later is PlainTimer.call_later and type(timer).call_at is PlainTimer.call_at


def test_who_cannot_observe_is_refused():
    with pytest.raises(TypeError, match="observer must have a method"):
        WheelTimer(observer=object())


@on_virtual_time
async def test_a_time_that_has_always_passed_is_a_deadline_all_the_same():
    listener, meter = Listener(), Meter()
    timer = WheelTimer(observer=[listener, meter])
    timer.call_at(float("-inf"), print)
    await asyncio.sleep(1)
    assert [ended.timeout for ended in listener.ended] == [0] and meter.snapshot()[0].lateness.count == 1


class Canceller(Listener):
    """Cancels the next timer whenever it hears of one."""

    def __init__(self, heard):
        super().__init__()
        self.heard, self.tasks, self.depth = heard, [], 0

    def cancel_next(self):
        self.depth += 1
        assert self.depth == 1
        if self.tasks:
            self.tasks.pop().cancel()
        self.depth -= 1

    def operation_started(self, task):
        super().operation_started(task)
        if self.heard == "start":
            self.tasks.append(task)
            self.cancel_next()

    def operation_ended(self, ended):
        super().operation_ended(ended)
        if self.heard == "end":
            self.cancel_next()


@on_virtual_time
@pytest.mark.parametrize("heard", ["start", "end"])
async def test_what_an_observer_sets_off_is_told_when_it_has_returned(heard, reports):
    first, second = Canceller(heard), Canceller(None)
    order = []
    second.operation_started = lambda task: order.append(("started", id(task)))
    second.operation_ended = lambda ended: order.append(("ended", ended.operation_id))
    timer = WheelTimer(observer=[first, second])
    tasks = [timer.call_later(30, print) for _ in range(1000)]
    if heard == "end":
        first.tasks = tasks[:-1]
        tasks[-1].cancel()
    assert timer.size == 0 and reports == [] and len(first.ended) == 1000
    assert all(order.index(("started", id(task))) < order.index(("ended", id(task))) for task in tasks[::100])
