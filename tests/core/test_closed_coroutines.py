"""A garbage collector may close a coroutine in any thread, and after its loop. It leaves what it
waits for on the thread of its loop."""

import asyncio
import threading

import pytest
from helpers import Probe, in_thread, iterations
from invariants import check
from loops import on_virtual_time

import purgatory as package
from purgatory import Purgatory, ThresholdPurgatory


class Waits:
    """Coroutines that wait, by what they wait for."""

    def __init__(self):
        self.purgatory, self.thresholds = Purgatory(), ThresholdPurgatory()

    async def timeout(self):
        async with package.timeout(30):
            await asyncio.get_running_loop().create_future()

    async def wait_for(self):
        await package.wait_for(asyncio.get_running_loop().create_future(), 30)

    async def operation(self):
        await self.purgatory.wait(Probe(30), ["key", "other"])

    async def shared_operation(self):
        self.purgatory.try_complete_else_watch(operation := Probe(30), ["key"])
        await operation

    async def predicate(self):
        await self.purgatory.wait_for(lambda: False, ["key"], 30)

    async def async_predicate(self):
        await self.purgatory.wait_for(lambda: asyncio.sleep(0), ["key"], 30)

    async def expect(self):
        with self.purgatory.expect("key", 30) as reply:
            await reply

    async def threshold(self):
        await self.thresholds.wait("key", 5, 30)


KINDS = [name for name in vars(Waits) if not name.startswith("_")]


@on_virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_closing_in_another_thread_leaves_on_the_loop(kind):
    waits, loop = Waits(), asyncio.get_running_loop()
    coroutine = getattr(waits, kind)()
    coroutine.send(None)
    pending = waits.purgatory.pending, waits.thresholds.pending
    in_thread(coroutine.close)
    # The loop's thread has not run since, so nothing of its own has changed.
    assert (waits.purgatory.pending, waits.thresholds.pending) == pending
    await iterations(4)
    watched = kind == "shared_operation"  # any task may await it, so it stays
    assert waits.purgatory.pending == waits.purgatory.watched == watched
    assert waits.thresholds.pending == 0
    assert waits.purgatory.statistics().cancelled == (pending[0] and not watched)
    check(waits.purgatory)
    await waits.purgatory.aclose()
    begun = loop.time()
    await asyncio.sleep(60)  # no timeout cancels the task that ran the coroutine
    assert loop.time() - begun == 60


@on_virtual_time
async def test_value_is_given_back_on_the_loop():
    purgatory, values, threads = Purgatory(), [], []

    def give_back(value):
        threads.append((value, threading.get_ident()))

    coroutine = purgatory.wait_for(
        lambda: values.pop() if values else None, ["key"], 30, give_back=give_back
    )
    coroutine.send(None)
    values.append("value")
    in_thread(coroutine.close)
    assert purgatory.check_and_complete("key") == 1  # before the loop learns of it
    assert not threads
    await iterations(4)
    assert threads == [("value", threading.get_ident())]


def test_closing_after_the_loop_reports_nothing(loop_factory):
    waits = Waits()
    coroutines = [getattr(waits, kind)() for kind in KINDS]

    async def start():
        for coroutine in coroutines:
            coroutine.send(None)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(start())
    for coroutine in coroutines:
        in_thread(coroutine.close)
