"""Where a loop runs is known without asking asyncio, and never wrongly: after its run, in a child, with other hooks."""

import asyncio
import os
import sys
from threading import get_ident

import pytest
from helpers import Probe

from purgatory import Purgatory, WheelTimer, WrongLoop
from purgatory._home import NO_LOOP, home_of


async def own_home():
    return home_of(asyncio.get_running_loop())


def refused(timer):
    with pytest.raises(WrongLoop):
        timer.call_later(30, print)


async def test_a_run_has_one_home_whoever_asks():
    home = await own_home()
    assert home.thread_id == get_ident() and home.stranger is NO_LOOP
    assert await asyncio.create_task(own_home()) is home
    timer, purgatory = WheelTimer(), Purgatory()
    timer.call_later(30, print).cancel()
    assert purgatory.check_and_complete("key") == 0
    assert timer._wheel.home is purgatory._engine.home is home


def test_each_run_has_a_home_of_its_own_which_ends_with_it(loop_factory):
    loop = loop_factory()
    first = loop.run_until_complete(own_home())
    assert first.thread_id == 0
    second = loop.run_until_complete(own_home())
    assert second is not first and second.thread_id == 0
    loop.close()


def test_between_two_runs_of_its_loop_nothing_may_be_called(loop_factory):
    loop, timer, purgatory = loop_factory(), WheelTimer(), Purgatory()

    async def use():
        timer.call_later(30, print).cancel()
        operation = Probe(30)
        purgatory.try_complete_else_watch(operation, ["key"])
        return operation

    for _ in range(3):
        operation = loop.run_until_complete(use())
        refused(timer)
        for call in (operation.force_complete, operation.cancel, lambda: purgatory.check_and_complete("key")):
            with pytest.raises(WrongLoop):
                call()
    loop.run_until_complete(purgatory.aclose())
    loop.close()


def test_what_is_called_first_in_a_run_counts_as_anything_else(loop_factory):
    loop, purgatory = loop_factory(), Purgatory()

    async def watch():
        operation = Probe(30)
        purgatory.try_complete_else_watch(operation, ["key"])
        return operation

    async def call(function):
        return function()

    completed, cancelled = loop.run_until_complete(watch()), loop.run_until_complete(watch())
    assert loop.run_until_complete(call(completed.force_complete))
    assert loop.run_until_complete(call(cancelled.cancel))
    statistics = purgatory.statistics()
    assert (statistics.completed, statistics.cancelled, statistics.pending) == (1, 1, 0)
    loop.close()


def test_a_run_that_an_exit_has_ended_is_over_as_well(loop_factory):
    loop, timer = loop_factory(), WheelTimer()

    async def leave():
        timer.call_later(30, print).cancel()
        raise SystemExit

    with pytest.raises(SystemExit):
        loop.run_until_complete(leave())
    refused(timer)
    loop.close()


@pytest.mark.parametrize("keeps", [True, False])
def test_with_other_hooks_asyncio_is_asked_each_time(loop_factory, keeps):
    loop, timer = loop_factory(), WheelTimer()

    async def use():
        timer.call_later(30, print).cancel()
        known = timer._wheel.home
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        if not keeps:
            del hooks
            assert known.thread_id == 0
        home = home_of(loop)
        assert home.thread_id == 0 and home.stranger is loop
        timer.call_later(30, print).cancel()
        if keeps:
            sys.set_asyncgen_hooks(*hooks)
            assert home_of(loop) is known

    loop.run_until_complete(use())
    refused(timer)
    loop.close()


def run_within(loop, coroutine):
    """Runs another loop within the run of this one, as `nest_asyncio` does."""
    outer, task = asyncio.get_running_loop(), asyncio.current_task()
    asyncio.tasks._leave_task(outer, task)
    asyncio._set_running_loop(None)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        asyncio._set_running_loop(outer)
        asyncio.tasks._enter_task(outer, task)


async def test_a_run_within_another_has_a_home_of_its_own_and_ends_that_of_the_other():
    timer = WheelTimer()
    timer.call_later(30, print).cancel()
    outer, loop = timer._wheel.home, asyncio.new_event_loop()

    async def within():
        home = await own_home()
        assert home is not outer and outer.thread_id == 0
        refused(timer)
        return home

    assert run_within(loop, within()).thread_id == 0
    loop.close()
    timer.call_later(30, print).cancel()
    assert timer._wheel.home is await own_home() and timer._wheel.home.thread_id == get_ident()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # 3.12: the loops of other tests may have left threads
async def test_a_child_of_the_loops_thread_is_not_in_the_loop():
    timer = WheelTimer()
    timer.call_later(30, print).cancel()
    child = os.fork()
    if child == 0:
        try:
            timer.call_later(30, print)
        except WrongLoop:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7  # noqa: ASYNC222  # at once
    timer.call_later(30, print).cancel()
