"""Loops whose clock is coarse, does not move between two callbacks, or leaps: waits end, never early
by that clock."""

import asyncio
import math

import pytest
from helpers import outcome

import purgatory as library
from purgatory import IdleTracker, OperationCancelled, Purgatory, ThresholdPurgatory, WheelTimer


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock leaps by the seconds added to `leap`."""

    leap = 0.0

    def time(self):
        return super().time() + self.leap


class StandingLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time whose clock stops just before a deadline, within its resolution, where
    asyncio calls due callbacks."""

    def __init__(self, resolution):
        super().__init__()
        self._clock_resolution = resolution
        self.now, self.calls = 0.0, 0

    def time(self):
        return self.now

    def _run_once(self):
        self.calls += 1
        if self.calls > 5000:
            raise SystemExit("the clock never moves")
        if not self._ready and self._scheduled:
            due = min(handle._when for handle in self._scheduled)
            if due >= self.now + self._clock_resolution:
                self.now = math.nextafter(due, 0.0)
        super()._run_once()


class Objects:
    """One object of each kind."""

    def __init__(self):
        self.purgatory, self.thresholds, self.timer = (
            Purgatory(),
            ThresholdPurgatory(),
            WheelTimer(),
        )
        self.trackers = {}

    async def expires(self, kind, delay):
        """Waits for a deadline; returns the loop's time."""
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        if kind == "timer":
            self.timer.call_later(delay, due.set_result, None)
            await due
        elif kind == "tracker":
            tracker = self.trackers.setdefault(
                delay, IdleTracker(delay, lambda due: due.set_result(1))
            )
            tracker.touch(due)
            await due
        else:
            wait = {
                "purgatory": lambda: self.purgatory.wait_for(bool, ["key"], delay),
                "thresholds": lambda: self.thresholds.wait("key", 1, delay),
                "timeout": lambda: library.wait_for(due, delay),
            }[kind]
            assert isinstance(await outcome(wait()), TimeoutError)
        return loop.time()


KINDS = ["purgatory", "thresholds", "timeout", "timer", "tracker"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resolution", [1e-9, 1e-6, 0.001, 0.0156])
def test_wait_ends_on_clock_that_stands_still(kind, resolution):
    with asyncio.Runner(loop_factory=lambda: StandingLoop(resolution)) as runner:
        loop = runner.get_loop()
        objects = Objects()
        for delay in (0.03, 59.391999999999996, 0.1 + 0.2):
            before = loop.time()
            assert (
                before + delay <= runner.run(objects.expires(kind, delay)) <= before + delay + 0.05
            )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leap", [-1e9, -2.0, -0.01, 2.0, 1e9])
def test_wait_that_begins_after_leap_ends(kind, leap):
    async def main():
        loop, objects = asyncio.get_running_loop(), Objects()
        staying = asyncio.ensure_future(objects.expires(kind, 3600))
        await objects.expires(kind, 0.01)
        loop.leap += leap
        before = loop.time()
        now = await asyncio.wait_for(objects.expires(kind, 0.01), 60)
        assert now >= before + 0.01
        assert staying.done() is (leap == 1e9)
        staying.cancel()

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(main())


def test_waits_of_one_object_follow_the_clock_back():
    async def main():
        loop, purgatory, timer, seen = asyncio.get_running_loop(), Purgatory(), WheelTimer(), []
        long = asyncio.ensure_future(purgatory.wait_for(bool, ["key"], 1e9))
        for delay in (0.01, 3000.0, math.inf):
            timer.call_later(delay, seen.append, delay)
        await asyncio.wait([asyncio.ensure_future(purgatory.wait_for(bool, ["key"], 0.02))])
        loop.leap -= 1000.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(purgatory.wait_for(bool, ["key"], 0.02), 60)
        again = loop.create_future()
        timer.call_later(0, again.set_result, None)
        await asyncio.wait_for(again, 60)
        assert (seen, timer.size, purgatory.pending, long.done()) == ([0.01], 2, 1, False)
        purgatory._check()
        timer._check()
        assert await purgatory.aclose() and timer.close()
        assert isinstance(await outcome(long), OperationCancelled)

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(main())
