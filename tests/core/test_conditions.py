"""Asynchronous predicates, and delivered values."""

import asyncio
import gc

import pytest
from helpers import Probe, iterations, outcome
from loops import on_virtual_time

import purgatory as library
from purgatory import OperationTimeout, Purgatory, PurgatoryClosed, PurgatoryFull


class World:
    """A value that takes some time to read."""

    def __init__(self, purgatory, takes=0.0):
        self.purgatory, self.takes = purgatory, takes
        self.value = 0
        self.runs, self.running, self.task = [], 0, None

    async def holds(self):
        self.running += 1
        assert self.running == 1, "two runs at a time"
        self.task = asyncio.current_task()
        try:
            seen = self.value
            self.runs.append(seen)
            await asyncio.sleep(self.takes)
            return seen
        finally:
            self.running -= 1

    async def has_run(self, times):
        """Returns when the predicate has run `count` times and time for another run has passed."""
        while len(self.runs) < times or self.running:
            await asyncio.sleep(0.001)
        await iterations(5)

    def set(self, value):
        self.value = value
        return self.purgatory.check_and_complete("key")


@pytest.mark.parametrize("takes", [0.0, 0.01])
async def test_asynchronous_predicate_runs_again_after_each_check(purgatory, takes):
    world = World(purgatory, takes)
    waiting = asyncio.create_task(purgatory.wait_for(world.holds, ["key"], 30))
    await world.has_run(1)
    assert world.runs == [0] and purgatory.pending == 1
    world.set(0)
    await world.has_run(2)
    assert world.runs == [0, 0]
    world.set("there")
    assert await waiting == "there"
    assert world.runs == [0, 0, "there"] and world.task is waiting
    assert purgatory.pending == purgatory.watched == 0
    assert purgatory.statistics().completed >= 1


@on_virtual_time
async def test_checks_during_a_run_cause_one_run(purgatory):
    world = World(purgatory, 1.0)
    waiting = asyncio.create_task(purgatory.wait_for(world.holds, ["key"], 30))
    await asyncio.sleep(0.5)
    for _ in range(10):
        world.set(0)
    world.set(7)
    await asyncio.sleep(0.4)
    assert world.runs == [0]
    assert await waiting == 7 and world.runs == [0, 7]
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


async def returns(value):
    return value


@on_virtual_time
@pytest.mark.parametrize("timeout", [0, -1])
async def test_zero_timeout_allows_one_run_without_waiting(purgatory, timeout):
    assert await purgatory.wait_for(lambda: returns("now"), ["key"], timeout) == "now"
    with pytest.raises(OperationTimeout):
        await purgatory.wait_for(lambda: asyncio.sleep(1, "later"), ["key"], timeout)
    assert asyncio.get_running_loop().time() < 0.1


async def test_unstarted_run_leaves_no_warning(recwarn):
    gc.collect()  # what other tests have left, on PyPy
    recwarn.clear()
    purgatory = Purgatory(max_pending=1)
    purgatory.try_complete_else_watch(Probe(None), ["key"])
    for error in (PurgatoryFull, PurgatoryClosed):
        with pytest.raises(error):
            await purgatory.wait_for(lambda: returns(1), ["key"], 5)
        await purgatory.aclose()
    gc.collect()
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


@on_virtual_time
async def test_errors_name_the_keys():
    async with Purgatory(max_pending=1) as jobs:
        with pytest.raises(
            OperationTimeout, match=r"the condition on \['job', 7\] did not hold within 1 s"
        ):
            await jobs.wait_for(lambda: False, ["job", 7], 1)
        with pytest.raises(OperationTimeout, match="nothing was delivered to 'reply' within 1 s"):
            await jobs.receive("reply", 1)
        waiting = asyncio.create_task(outcome(jobs.wait_for(lambda: False, ["job"])))
        await iterations(2)
        with pytest.raises(
            PurgatoryFull,
            match=r"cannot watch <wait for \['more'\] pending>: max_pending \(1\) operations are",
        ):
            await jobs.wait_for(lambda: False, ["more"])
        jobs.cancel_for_key("job")
        assert str(await waiting) == "<wait for ['job'] cancelled> has no result: it was cancelled"


# Deliver and receive


def test_version_equals_that_of_the_distribution():
    from importlib.metadata import version

    assert library.__version__ == version("asyncio-purgatory")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        library.nonsense  # noqa: B018
