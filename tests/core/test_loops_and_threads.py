"""The loop of an object, whatever thread runs it; and interruptions of a call from a thread at any
point."""

import asyncio
import gc
import signal
import threading
from contextlib import contextmanager

import pytest
from helpers import Probe, iterations, outcome, watch_all
from loops import on_asyncio, on_every_loop, on_virtual_time

from purgatory import (
    IdleTracker,
    OperationState,
    OperationTimeout,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
    WrongLoop,
)
from purgatory._core.operation import claim

pytestmark = on_every_loop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


@contextmanager
def in_loop_of_a_thread(loop):
    """Runs `loop` for ever in another thread."""
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# A call from a thread is interrupted by another call in the same thread


class Interrupting:
    """A key whose comparison is interrupted by a signal."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if self is not other and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)
        return self is other


@on_asyncio
@pytest.mark.parametrize("kind", ["keys", "thresholds"])
@pytest.mark.parametrize("by", ["signal", "finalizer"])
@pytest.mark.cpython
async def test_call_from_thread_may_interrupt_another_call(kind, by):
    """A plain lock would be acquired twice: by the interrupted call, and by the call that
    interrupts."""
    interruptions = []

    async def waits(purgatory, thresholds, kind, key):
        if kind == "thresholds":
            return await thresholds.wait(key, 1, 60)
        seen = []
        return await purgatory.wait_for(lambda: seen.append(1) or len(seen) - 1, [key], 60)

    async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:
        put = (
            purgatory.check_and_complete_threadsafe
            if kind == "keys"
            else lambda key: thresholds.advance_threadsafe(key, 1)
        )

        def interrupt(*_):
            interruptions.append(1)
            put("from the handler")

        class Loop:
            """Garbage that calls a function when it is collected, in the middle of any code."""

            def __init__(self):
                self.itself = self

            def __del__(self):
                interrupt()

        keys = [Interrupting() for _ in range(50)]
        ready = {
            key: asyncio.create_task(waits(purgatory, thresholds, kind, key))
            for key in ("from the handler", "plain")
        }
        await iterations(2)
        before = signal.signal(signal.SIGUSR1, interrupt)
        thresholds_before = gc.get_threshold()
        if by == "finalizer":
            gc.set_threshold(1, 1, 1)
        try:
            for key in keys:
                if by == "finalizer":
                    Loop()
                put(key)
                put(("a", "tuple", [].__len__()))
            put("plain")
            if by == "signal":
                signal.raise_signal(signal.SIGUSR1)
            gc.collect()
            assert await asyncio.gather(*ready.values()) == [1, 1]
        finally:
            gc.set_threshold(*thresholds_before)
            signal.signal(signal.SIGUSR1, before)
    assert interruptions


@on_virtual_time
async def test_repeated_thread_requests_take_no_memory(purgatory):
    [operation] = watch_all(purgatory, [Probe(None)])

    def work():
        for _ in range(50_000):
            purgatory.check_and_complete_threadsafe("key")

    operation.ready = True
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # while the loop is blocked
    assert len(purgatory._inbox) == 1
    await iterations(3)
    assert operation.state is COMPLETED


# A loop moves from one thread to another


def test_loop_moving_to_another_thread_keeps_its_objects():
    purgatory, thresholds, timer, idle = (
        Purgatory(),
        ThresholdPurgatory(),
        WheelTimer(),
        IdleTracker(30, print),
    )
    loop = asyncio.new_event_loop()

    async def use():
        timer.call_later(30, print).cancel()
        idle.touch("a")
        idle.remove("a")
        tasks = [asyncio.create_task(thresholds.wait("key", 1)) for _ in range(10)]
        tasks += [asyncio.create_task(purgatory.wait(Probe(30), ["key"])) for _ in range(10)]
        await iterations(2)
        assert thresholds.pending == purgatory.pending == 10
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return thresholds.pending, purgatory.pending

    def refused(call):
        with pytest.raises(WrongLoop, match="another thread"):
            call()

    assert loop.run_until_complete(use()) == (0, 0)
    with in_loop_of_a_thread(loop) as run:
        assert run(use()) == (0, 0)
        refused(lambda: purgatory.check_and_complete("key"))
        refused(lambda: purgatory.try_complete_else_watch(Probe(), ["key"]))
        refused(lambda: thresholds.advance("key", 1))
        refused(lambda: timer.call_later(30, print))
        refused(lambda: idle.touch("a"))

        async def watch():
            operation = Probe(30)
            purgatory.try_complete_else_watch(operation, ["key"])
            return operation

        operation = run(watch())
        refused(operation.force_complete)
        refused(operation.cancel)

        async def end():
            await purgatory.aclose()
            await thresholds.aclose()

        run(end())
        assert operation.state is CANCELLED


@pytest.mark.parametrize("make", [Purgatory, ThresholdPurgatory], ids=["purgatory", "thresholds"])
def test_concurrent_first_use_binds_to_one_thread(make):
    """A mix of one loop and the other thread would admit no caller, or all of them."""
    one_is_binding, other_is_done = threading.Event(), threading.Event()

    class Interrupted(asyncio.SelectorEventLoop):
        @property
        def is_running(self):
            if threading.current_thread().name == "one":
                one_is_binding.set()
                other_is_done.wait(0.5)
            return super().is_running

    bound = make()

    async def use():
        try:
            bound.check_and_complete("key") if make is Purgatory else bound.advance("key", 1)
            await asyncio.sleep(0.01)
            bound.check_and_complete("key") if make is Purgatory else bound.advance("key", 1)
        except WrongLoop:
            return "refused"
        return "bound"

    results = {}

    def one():
        with asyncio.Runner(loop_factory=Interrupted) as runner:
            results["one"] = runner.run(use())

    def other():
        one_is_binding.wait(60)
        with asyncio.Runner() as runner:
            results["other"] = runner.run(use())
        other_is_done.set()

    threads = [
        threading.Thread(target=one, name="one"),
        threading.Thread(target=other, name="other"),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.values()) in (["bound", "refused"], ["bound", "bound"])
    if results == {"one": "bound", "other": "bound"}:
        # One thread came after the other's idle loop was closed.
        assert bound is not None


def test_operation_awaited_on_one_loop_refuses_another():
    purgatory, operation = Purgatory(), Probe(30)
    loop = asyncio.new_event_loop()
    with in_loop_of_a_thread(loop) as run:

        async def wait():
            return await outcome(operation)

        waiting = asyncio.run_coroutine_threadsafe(wait(), loop)
        run(iterations(3))

        async def elsewhere():
            for call in (
                lambda: purgatory.try_complete_else_watch(operation, ["key"]),
                operation.force_complete,
                operation.cancel,
                lambda: operation.__await__().send(None),
            ):
                with pytest.raises(WrongLoop, match="awaited on"):
                    call()
            assert operation.state is PENDING and purgatory.pending == 0

        asyncio.run(elsewhere())

        async def here():
            return operation.force_complete()

        assert run(here()) is True
        assert waiting.result(60) == ""


# A closed loop, and its successor


def test_empty_objects_serve_the_next_loop(loop_factory):
    idle_ids = []
    purgatory, thresholds, timer = Purgatory(), ThresholdPurgatory(), WheelTimer()
    idle = IdleTracker(0.01, idle_ids.append)

    async def use():
        with pytest.raises(OperationTimeout):
            await purgatory.wait_for(lambda: False, ["key"], 0.01)
        with pytest.raises(OperationTimeout):
            await thresholds.wait("key", 2, 0.01)
        waiting = asyncio.create_task(purgatory.wait_for(lambda: idle_ids, ["idle"], 30))
        await iterations(2)
        future = asyncio.get_running_loop().create_future()
        timer.call_later(0.01, future.set_result, 1)
        idle.touch("id")
        await future
        while not idle_ids:
            await asyncio.sleep(0.005)
        purgatory.check_and_complete_threadsafe("idle")
        assert await waiting == ["id"]
        idle_ids.clear()
        # Leaves buckets open, whose callbacks end with the loop.
        timer.call_later(30, print).cancel()
        operation = Probe(30)
        purgatory.try_complete_else_watch(operation, ["key"])
        operation.cancel()

    for _ in range(3):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(use())
        purgatory._check()


def test_waits_on_closed_loop_are_reported(virtual):
    purgatory, timer = Purgatory("left"), WheelTimer()
    operation = Probe(30)

    async def leave():
        purgatory.try_complete_else_watch(operation, ["key"])
        timer.call_later(30, print)

    async def come():
        for call in (
            lambda: purgatory.check_and_complete("key"),
            lambda: timer.call_later(1, print),
        ):
            with pytest.raises(WrongLoop, match="that loop is closed, and 1 wait there for ever"):
                call()
        assert purgatory.pending == 1 and operation.state is PENDING

    virtual(leave)
    virtual(come)
    claim(operation, CANCELLED)  # no other call can end it
