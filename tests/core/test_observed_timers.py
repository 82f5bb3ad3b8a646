"""An observed timer whose callback raises leaves no garbage for the collector."""

import asyncio
import gc

import pytest
from helpers import Broken, collector, iterations
from loops import on_virtual_time

from purgatory import IdleTracker, WheelTimer


class Listener:
    """Counts its events, and keeps no reference to them."""

    def __init__(self):
        self.notified = 0

    def operation_ended(self, ended):
        self.notified += 1

    def key_checked(self, key, tried, completed):
        pass


class WithFields(Listener):
    def ended_fields(self, fields):
        self.notified += 1


def fails(*_):
    raise Broken


def fails_deeper(*_):
    fails()


@on_virtual_time
@pytest.mark.parametrize("listener", [Listener, WithFields])
@pytest.mark.parametrize("callback", [fails, fails_deeper])
@pytest.mark.cpython
async def test_raising_callback_leaves_no_cycle(callback, listener):
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
    observer = listener()
    timer = WheelTimer(observer=observer)

    async def once():
        for _ in range(10):
            timer.call_later(1.0, callback)
        await asyncio.sleep(2.0)

    await once()
    with collector(is_on=False):
        await once()
        await iterations(3)
        assert gc.collect() == 0
    assert errors == [Broken] * 20
    assert observer.notified == 20


@on_virtual_time
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.cpython
async def test_raising_on_idle_leaves_no_cycle(observed):
    loop, errors = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: errors.append(type(context["exception"])))
    tracker = IdleTracker(1.0, fails, observer=Listener() if observed else None)
    with collector(is_on=False):
        for id_ in range(10):
            tracker.touch(id_)
        await asyncio.sleep(2.0)
        await iterations(3)
        assert gc.collect() == 0
    assert errors == [Broken] * 10


@on_virtual_time
async def test_observer_receives_exception_of_callback(reports):
    class Keeper(Listener):
        def operation_ended(self, ended):
            raised.append(ended.exception)

    raised = []
    WheelTimer(observer=Keeper()).call_later(1.0, fails)
    await asyncio.sleep(2.0)
    assert raised == [reports[0]["exception"]] and type(raised[0]) is Broken
