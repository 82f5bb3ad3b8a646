"""The clocks of libraries that tests use: waits end on them, and after them.

looptime is not among them: its plugin for pytest leaves an event loop open in every session.
"""

import asyncio

import pytest

import purgatory as library
from purgatory import IdleTracker, Purgatory, ThresholdPurgatory, WheelTimer

pytestmark = pytest.mark.cpython  # time-machine does not build on PyPy


class Objects:
    """One object of each kind."""

    def __init__(self):
        self.purgatory, self.thresholds = Purgatory(), ThresholdPurgatory()
        self.timer, self.trackers = WheelTimer(), {}

    async def expires(self, kind, delay):
        """Waits for a deadline; returns the loop's time."""
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        if kind == "timer":
            self.timer.call_later(delay, due.set_exception, TimeoutError())
        elif kind == "tracker":
            new = IdleTracker(delay, lambda due: due.set_exception(TimeoutError()))
            self.trackers.setdefault(delay, new).touch(due)
        waits = {
            "purgatory": lambda: self.purgatory.wait_for(bool, ["key"], delay),
            "thresholds": lambda: self.thresholds.wait("key", 1, delay),
            "timeout": lambda: library.wait_for(due, delay),
        }
        with pytest.raises(TimeoutError):
            await waits.get(kind, lambda: due)()
        return loop.time()


KINDS = ["purgatory", "thresholds", "timeout", "timer", "tracker"]


@pytest.mark.parametrize("kind", KINDS)
def test_wait_ends_on_clock_of_async_solipsism(kind):
    import async_solipsism

    with asyncio.Runner(loop_factory=async_solipsism.EventLoop) as runner:
        loop, objects = runner.get_loop(), Objects()
        for delay in (0.03, 59.391999999999996, 0.1 + 0.2):
            due = loop.time() + delay
            now = runner.run(objects.expires(kind, delay))
            assert due - loop._clock_resolution <= now <= due + 0.05


def by_freezegun():
    from freezegun import freeze_time

    return freeze_time("2030-01-01", tick=True)


def by_time_machine():
    import time_machine

    return time_machine.travel("2030-01-01", tick=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("travel", [by_freezegun, by_time_machine])
def test_waits_in_and_after_time_travel_end(kind, travel):
    async def main():
        objects = Objects()
        await objects.expires(kind, 0.01)
        with travel():
            staying = asyncio.ensure_future(objects.expires(kind, 3600))
            await asyncio.wait_for(objects.expires(kind, 0.01), 60)
        await asyncio.wait_for(objects.expires(kind, 0.01), 60)
        assert not staying.done()
        staying.cancel()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())
