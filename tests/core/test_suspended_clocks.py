"""Clocks that jump in the middle of a cascade, and callbacks that come long before their bucket is
due: everything still ends, never early, and late by at most a tick beyond the time that the loop
was blocked."""

import asyncio
import random

import pytest
from helpers import Probe, iterations
from loops import Runner, on_virtual_time

import purgatory as library
from purgatory import IdleTracker, Purgatory, ThresholdPurgatory, WheelTimer
from purgatory.testing import VirtualTimeLoop

DAY = 86_400.0


class Ends:
    """Starts waits of one kind, each until an instant, and records how late each has ended:
    `late`."""

    def __init__(self, kind, **options):
        self.loop = asyncio.get_running_loop()
        self.late, self.refused, self.tasks = [], [], []
        self.begin = getattr(self, kind)
        self.purgatory, self.timer, self.thresholds = (
            Purgatory(**options),
            WheelTimer(**options),
            ThresholdPurgatory(**options),
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await self.purgatory.aclose()
        await self.thresholds.aclose()

    def note(self, when):
        self.late.append(self.loop.time() - when)

    def operation(self, when):
        operation = Probe(when - self.loop.time(), expiring=lambda _: self.note(when))
        self.purgatory.try_complete_else_watch(operation, [object()])
        return operation.cancel

    def callback(self, when):
        return self.timer.call_later(when - self.loop.time(), self.note, when).cancel

    def threshold(self, when):
        return self._task(self.thresholds.wait("key", when, when - self.loop.time()), when)

    def timeout(self, when):
        async def limited():
            async with library.timeout_at(when):
                await asyncio.sleep(float("inf"))

        return self._task(limited(), when)

    def _task(self, coroutine, when):
        async def ended():
            try:
                await coroutine
            except TimeoutError:
                self.note(when)

        self.tasks.append(asyncio.create_task(ended()))
        return self.tasks[-1].cancel

    async def wait_for_all(self, number):
        """Waits for all ends; an hour is enough in tests with many waits."""
        await asyncio.sleep(3600)
        assert len(self.late) == number
        assert min(self.late) >= 0.0


KINDS = ["operation", "callback", "threshold"]


@on_virtual_time
@pytest.mark.parametrize("kind", [*KINDS, "timeout"])
async def test_machine_suspended_during_cascade_loses_nothing(
    kind,
):
    chance = random.Random(0)
    async with Ends(kind) as ends:
        for _ in range(3000):
            ends.begin(530.0 + 200.0 * chance.random())
        await asyncio.sleep(262.144)  # their bucket then starts to cascade, over many iterations
        await iterations(5)
        ends.loop._set_time(ends.loop.time() + 300.0)
        await ends.wait_for_all(3000)


@on_virtual_time
@pytest.mark.parametrize("kind", KINDS)
async def test_busy_loop_loses_nothing_of_small_wheel(kind):
    chance, begun = random.Random(1), 0
    async with Ends(kind, wheel_size=8) as ends:
        for _ in range(60):
            for _ in range(100):
                ends.begin(ends.loop.time() + 2.0 * chance.random())
                begun += 1
            ends.loop._set_time(ends.loop.time() + 0.1 * chance.random())
            await iterations()
        await ends.wait_for_all(begun)


@on_virtual_time
async def test_new_waits_on_busy_loop_expire_normally():
    chance, loop = random.Random(2), asyncio.get_running_loop()
    async with Purgatory(wheel_size=8) as purgatory:
        for _ in range(200):
            for number in range(50):
                purgatory.try_complete_else_watch(Probe(2.0 * chance.random()), [number])
                if number % 10 == 0:
                    loop._set_time(loop.time() + 0.01 * chance.random())
            await iterations()
        await asyncio.sleep(60)
        assert purgatory.pending == 0


@on_virtual_time
async def test_ids_fall_idle_after_suspensions_during_cascades():
    idle, chance, loop = [], random.Random(3), asyncio.get_running_loop()
    tracker = IdleTracker(300.0, idle.append, tick=1e-6)
    for id_ in range(10_000):
        tracker.touch(id_)
        loop._set_time(loop.time() + 0.02 * chance.random())
    for _ in range(80):
        await iterations(3)
        loop._set_time(loop.time() + 20.0 * chance.random())
    await asyncio.sleep(600)
    assert sorted(idle) == list(range(10_000)) and len(tracker) == 0


@on_virtual_time
@pytest.mark.parametrize("kind", [*KINDS, "timeout"])
async def test_far_deadline_joins_no_bucket_without_timer(kind):
    when = 2.5 * DAY
    async with Ends(kind) as ends:
        await use_and_empty_the_bucket_of(when, ends, kept_open_by=20 * DAY)
        await asyncio.sleep(
            1.5 * DAY
        )  # a far deadline is approached in stages of a day; one stage is over by now
        ends.begin(when)
        await asyncio.sleep(when + 1.0 - ends.loop.time())
        [late] = ends.late
        assert 0.0 <= late <= 0.002


class HastyLoop(VirtualTimeLoop):
    """Fires timers half a millisecond early, as uvloop may."""

    def call_at(self, when, callback, *args, context=None):
        return super().call_at(when - 0.0005, callback, *args, context=context)


@pytest.mark.parametrize("kind", KINDS)
def test_entry_joining_early_empty_bucket_ends_on_time(kind):
    async def main():
        when = 1.0
        async with Ends(kind, tick=0.0001) as ends:
            await use_and_empty_the_bucket_of(when, ends, kept_open_by=1000.0)
            await asyncio.sleep(when - 0.0001)
            assert ends.loop.time() < when
            ends.begin(when)
            await asyncio.sleep(10.0)
            [late] = ends.late
            assert 0.0 <= late <= 0.002

    Runner(HastyLoop, None)(main)


async def use_and_empty_the_bucket_of(when, ends, kept_open_by):
    """Makes this the last bucket used, while a much later entry keeps the wheel busy."""
    cancels = []
    for instant in (when, kept_open_by, when):
        cancels.append(ends.begin(instant))
        await iterations(2)
    cancels[0]()
    cancels[2]()
    await iterations(2)
