"""Asynchronous predicates, and delivered values."""

import asyncio
import gc

import pytest
from helpers import Probe, iterations, outcome
from loops import on_virtual_time

import purgatory as library
from purgatory import (
    OperationCancelled,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
)


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


async def test_change_before_first_run_is_not_missed(purgatory):
    values = []

    async def slow():
        seen = list(values)
        values.append(1)
        purgatory.check_and_complete("key")  # like a change by another task
        await asyncio.sleep(0)
        return seen

    assert await purgatory.wait_for(slow, ["key"], 5) == [1]


class Callable:
    async def __call__(self):
        return "called"


async def returns(value):
    return value


@pytest.mark.parametrize(
    "predicate",
    [lambda: returns("called"), Callable(), lambda: asyncio.ensure_future(returns("called"))],
    ids=["lambda", "object", "future"],
)
async def test_any_awaitable_result_makes_predicate_asynchronous(purgatory, predicate):
    assert await purgatory.wait_for(predicate, ["key"], 5) == "called"


@on_virtual_time
@pytest.mark.parametrize("during", ["a run", "the sleep"])
async def test_deadline_ends_run_in_progress_and_sleep_between(purgatory, during):
    world = World(purgatory, 100 if during == "a run" else 0)
    with pytest.raises(OperationTimeout, match=r"condition on \['key', 'other'\]"):
        await purgatory.wait_for(world.holds, ["key", "other"], 5)
    loop = asyncio.get_running_loop()
    assert 5 <= loop.time() < 5.01 and world.running == 0
    assert asyncio.current_task().cancelling() == 0
    assert purgatory.pending == purgatory.watched == 0 and purgatory.statistics().expired == 1


@on_virtual_time
@pytest.mark.parametrize("timeout", [0, -1])
async def test_zero_timeout_allows_one_run_without_waiting(purgatory, timeout):
    assert await purgatory.wait_for(lambda: returns("now"), ["key"], timeout) == "now"
    with pytest.raises(OperationTimeout):
        await purgatory.wait_for(lambda: asyncio.sleep(1, "later"), ["key"], timeout)
    assert asyncio.get_running_loop().time() < 0.1


@on_virtual_time
@pytest.mark.parametrize("during", ["a run", "the sleep"])
@pytest.mark.parametrize("end", ["cancel_for_key", "aclose", "cancel the task", "raise"])
async def test_every_end_of_predicate_removes_its_waiter(during, end):
    purgatory = Purgatory()
    world = World(purgatory, 100 if during == "a run" else 0)
    if end == "raise":
        world.set = lambda value: waiting.cancel()
        world.holds = failing = lambda: asyncio.wait_for(asyncio.sleep(100), 1)
        with pytest.raises(TimeoutError) as raised:
            await purgatory.wait_for(failing, ["key"], 5)
        assert not isinstance(raised.value, OperationTimeout) and purgatory.pending == 0
        await purgatory.aclose()
        return
    waiting = asyncio.create_task(outcome(purgatory.wait_for(world.holds, ["key"], 30)))
    await asyncio.sleep(1)
    if end == "cancel_for_key":
        assert len(purgatory.cancel_for_key("key")) == 1
    elif end == "aclose":
        await purgatory.aclose()
    else:
        waiting.cancel()
    error = await waiting
    assert isinstance(
        error, asyncio.CancelledError if end == "cancel the task" else OperationCancelled
    )
    assert world.running == purgatory.pending == purgatory.watched == 0
    assert asyncio.get_running_loop().time() < 1.1
    await purgatory.aclose()


async def test_unstarted_run_leaves_no_warning(recwarn):
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


async def test_delivered_value_reaches_every_current_receiver_only():
    async with Purgatory() as replies:
        other = Probe(None)
        replies.try_complete_else_watch(other, [7])
        assert replies.deliver(7, "nobody") == 0
        receiving = [asyncio.create_task(replies.receive(7, 30)) for _ in range(3)]
        elsewhere = asyncio.create_task(outcome(replies.receive(8, 0.05)))
        await iterations(2)
        assert replies.deliver(7, None) == 3
        assert replies.deliver(7, "too late") == 0
        assert await asyncio.gather(*receiving) == [None] * 3
        assert isinstance(await elsewhere, OperationTimeout)
        assert other.calls[0] == "try" and not other.is_completed
        other.cancel()
        assert replies.pending == replies.watched == 0


@on_virtual_time
async def test_delivery_to_crowd_skips_later_receivers():
    async with Purgatory() as replies:
        crowd = [asyncio.create_task(replies.receive("key", 30)) for _ in range(2000)]
        await iterations(2)
        assert replies.deliver("key", "first") == 2000
        late = asyncio.create_task(replies.receive("key", 30))
        await iterations(1)
        assert 0 < replies.pending <= 2001
        assert await asyncio.gather(*crowd) == ["first"] * 2000
        assert replies.deliver("key", "second") == 1 and await late == "second"


@on_virtual_time
async def test_a_value_delivered_within_a_hook_arrives():
    async with Purgatory() as replies:
        receiving = asyncio.create_task(replies.receive("key", 30))
        await iterations(2)
        Probe(completing=lambda _: replies.deliver("key", 42)).force_complete()
        assert await receiving == 42


def test_version_equals_that_of_the_distribution():
    from importlib.metadata import version

    assert library.__version__ == version("asyncio-purgatory")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        library.nonsense  # noqa: B018
