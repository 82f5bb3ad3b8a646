"""Calls from other threads: signals are never lost and wake the loop once per burst; all other
calls are errors."""

import asyncio
import gc
import threading
import weakref

import pytest
from helpers import Probe, Spy, in_thread, iterations, outcome
from loops import on_every_loop

from purgatory import OperationState, Purgatory, WrongLoop

pytestmark = on_every_loop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


async def until(condition):
    """Waits in real time, even on virtual time."""
    while not condition():
        await asyncio.to_thread(threading.Event().wait, 0.001)


async def test_signal_from_thread_completes_and_wakes_sleeping_loop(purgatory):
    operation = Probe(30, name="answer")
    waiting = asyncio.create_task(purgatory.wait(operation, ["key"]))
    await iterations()
    operation.ready = True
    assert await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key") is None
    assert await waiting == "answer"


async def test_hooks_run_on_thread_of_the_loop(purgatory):
    operation = Probe(30, completing=lambda _: threading.get_ident())
    purgatory.try_complete_else_watch(operation, ["key"])
    operation.ready = True
    await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key")
    assert await operation == threading.get_ident()


@pytest.mark.parametrize("keys", [1, 7])
async def test_burst_of_signals_wakes_loop_once_in_order(keys):
    spy = Spy(asyncio.get_running_loop())
    async with Purgatory() as purgatory:
        log = []
        operations = [Probe(30, name=key, log=log) for key in range(keys)]
        for operation in operations:
            purgatory.try_complete_else_watch(operation, [operation.name])
        log.clear()

        def burst():
            for number in range(100 * keys):
                purgatory.check_and_complete_threadsafe(number % keys)

        for round_ in range(3):
            # The loop is blocked until the thread ends.
            in_thread(burst)
            burst()
            assert spy.calls["call_soon_threadsafe"] == round_ + 1 and len(log) == round_ * keys
            await asyncio.sleep(0.01)
            assert log[round_ * keys :] == [(key, "try") for key in range(keys)]


async def test_load_from_many_threads_loses_no_signal():
    threads, cells, rounds = 8, 25, 40
    counters = [0] * cells
    seen = [0] * cells
    async with Purgatory() as purgatory:

        async def follow(cell):
            while seen[cell] < rounds:
                last = seen[cell]
                await purgatory.wait_for(lambda: counters[cell] > last, [cell])
                seen[cell] = counters[cell]

        followers = [asyncio.create_task(follow(cell)) for cell in range(cells)]
        await iterations()

        def work(first):
            for _ in range(rounds):
                for cell in range(first, cells, threads):
                    counters[cell] += 1  # each cell belongs to one thread
                    purgatory.check_and_complete_threadsafe(cell)

        await asyncio.gather(*[asyncio.to_thread(work, first) for first in range(threads)])
        # There are no more signals and no deadline: one lost signal hangs.
        await asyncio.gather(*followers)
        assert counters == seen == [rounds] * cells and purgatory.pending == 0
        purgatory._check()


async def test_signal_during_delivery_of_signals_is_delivered(purgatory):
    operations = [Probe(30, name=number) for number in range(5)]
    for operation in operations:
        purgatory.try_complete_else_watch(operation, [operation.name])

    def completing(operation):
        if operation.name + 1 < len(operations):
            operations[operation.name + 1].ready = True
            in_thread(purgatory.check_and_complete_threadsafe, operation.name + 1)

    for operation in operations:
        operation.completing = completing
    operations[0].ready = True
    in_thread(purgatory.check_and_complete_threadsafe, 0)
    await until(lambda: purgatory.pending == 0)


# Signals without a receiver


def test_signal_before_first_use_has_no_effect(run):
    purgatory = Purgatory()
    purgatory.check_and_complete_threadsafe("key")
    in_thread(purgatory.check_and_complete_threadsafe, "key")

    async def main():
        async with purgatory:
            operation = Probe(30)
            purgatory.try_complete_else_watch(operation, ["key"])
            await asyncio.sleep(0.005)
            assert operation.calls == ["try"]

    run(main)


async def test_signal_after_closing_has_no_effect():
    purgatory = Purgatory()
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    await purgatory.aclose()
    operation.ready = True
    in_thread(purgatory.check_and_complete_threadsafe, "key")
    await asyncio.sleep(0.005)
    assert operation.calls == ["try"] and operation.state is CANCELLED
    purgatory._check()


async def test_signal_while_draining_completes():
    purgatory = Purgatory()
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    closing = asyncio.create_task(purgatory.aclose(drain=20))
    await iterations(2)
    operation.ready = True
    await asyncio.to_thread(purgatory.check_and_complete_threadsafe, "key")
    assert await closing == [] and operation.state is COMPLETED


@pytest.mark.cpython
def test_signal_to_closed_loop_has_no_effect(loop_factory):
    class Key:
        pass

    purgatory, operation = Purgatory(), Probe(30)
    with asyncio.Runner(loop_factory=loop_factory) as runner:

        async def watch():
            purgatory.try_complete_else_watch(operation, ["key"])  # it is deleted below

        runner.run(watch())
    operation.ready = True
    keys = [Key() for _ in range(100)]
    for key in ["key", *keys]:
        in_thread(purgatory.check_and_complete_threadsafe, key)
        purgatory.check_and_complete_threadsafe(key)
    assert operation.state is PENDING
    references = [weakref.ref(key) for key in keys]
    del key, keys
    gc.collect()
    assert sum(reference() is not None for reference in references) <= 1


async def test_unhashable_key_is_refused_in_signalling_thread(purgatory):
    for _ in range(2):
        with pytest.raises(TypeError, match="unhashable"):
            in_thread(purgatory.check_and_complete_threadsafe, [])
        purgatory.try_complete_else_watch(Probe(30), ["key"])


# All other calls belong on the loop's thread

CALLS = {
    "try_complete_else_watch": lambda purgatory, _: purgatory.try_complete_else_watch(
        Probe(30, ready=True), ["new"]
    ),
    "check_and_complete": lambda purgatory, _: purgatory.check_and_complete("key"),
    "cancel_for_key": lambda purgatory, _: purgatory.cancel_for_key("key"),
    "force_complete": lambda _, operation: operation.force_complete(),
    "cancel": lambda _, operation: operation.cancel(),
}


@pytest.mark.parametrize(
    "hook",
    [None, "trying", "completing"],
    ids=["outside hooks", "during a try", "during on_complete"],
)
async def test_other_calls_from_threads_raise_wrong_loop(purgatory, hook):
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    refused = []

    def intrude(_=None):
        if not refused:
            before = purgatory.statistics()
            for name, call in CALLS.items():
                with pytest.raises(WrongLoop, match="another thread"):
                    in_thread(call, purgatory, operation)
                refused.append(name)
                assert purgatory.statistics() == before and operation.state is PENDING

    if hook is None:
        intrude()
    else:
        host = Probe(30)
        purgatory.try_complete_else_watch(host, ["host"])
        setattr(host, hook, intrude)
        host.ready = True
        purgatory.check_and_complete("host")
        await outcome(host)
    assert refused == [*CALLS]
    purgatory._check()
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1


def test_call_from_loop_in_thread_raises_wrong_loop(run, loop_factory):
    async def main():
        async with Purgatory() as purgatory:
            operation = Probe(30)
            purgatory.try_complete_else_watch(operation, ["key"])

            async def abroad():
                results = [
                    await outcome(purgatory.wait(Probe(), ["key"])),
                    await outcome(operation),
                ]
                for call in CALLS.values():
                    with pytest.raises(WrongLoop):
                        call(purgatory, operation)
                purgatory.check_and_complete_threadsafe("key")
                return results

            def run_abroad():
                with asyncio.Runner(loop_factory=loop_factory) as runner:
                    return runner.run(abroad())

            assert all(isinstance(result, WrongLoop) for result in in_thread(run_abroad))
            await asyncio.sleep(0.01)
            assert operation.state is PENDING and operation.calls == ["try", "try"]

    run(main)


def test_many_loops_in_threads_have_own_purgatories(loop_factory):
    def one(number):
        async def main():
            async with Purgatory() as purgatory:
                operations = [Probe(30, name=n) for n in range(50)]
                waiting = [
                    asyncio.create_task(purgatory.wait(operation, [operation.name]))
                    for operation in operations
                ]
                await iterations()
                for operation in operations:
                    operation.ready = True
                    await asyncio.to_thread(purgatory.check_and_complete_threadsafe, operation.name)
                assert await asyncio.gather(*waiting) == list(range(50))
            results.append(number)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    results = []
    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]
