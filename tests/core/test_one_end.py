"""A wait has one end: what its caller gets, what is counted, what observers are notified of and what
`fail` returns agree, whatever comes first in an iteration of the loop; and a value that comes after
the end is given back, once. For plain and asynchronous predicates."""

import asyncio
import random

import pytest
from helpers import THOROUGHNESS, Broken, Listener, iterations, outcome
from loops import on_virtual_time

from purgatory import (
    Cause,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
)

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

LOST = Broken("lost")

ENDS = {
    "fail": lambda purgatory: purgatory.fail("key", LOST),
    "fail_all": lambda purgatory: purgatory.fail_all(LOST),
    "cancel_for_key": lambda purgatory: len(purgatory.cancel_for_key("key")),
    "acancel_for_key": lambda purgatory: asyncio.ensure_future(purgatory.acancel_for_key("key")),
    "aclose": lambda purgatory: asyncio.ensure_future(purgatory.aclose()),
}


class Wait:
    """A wait for a value that arrives in a future, with all that is told of its end. A query that
    `swallows` its cancellation returns `late`."""

    def __init__(self, is_asynchronous, takes=0, swallows=False, late="late"):
        self.listener, self.given_back, self.runs = Listener(), [], 0
        self.purgatory = Purgatory("jobs", observer=self.listener)
        self.arrived = asyncio.get_running_loop().create_future()
        self.is_asynchronous, self.takes = is_asynchronous, takes
        self.swallows, self.late = swallows, late
        self.task = asyncio.create_task(
            outcome(
                self.purgatory.wait_for(
                    self.query if is_asynchronous else self.look,
                    ["key"],
                    5,
                    give_back=self.given_back.append,
                )
            )
        )

    def look(self):
        self.runs += 1
        return self.arrived.done() and self.arrived.result()

    async def query(self):
        self.runs += 1
        try:
            value = await asyncio.shield(self.arrived)
            await iterations(self.takes)
        except asyncio.CancelledError:
            if not self.swallows:
                raise
            value = self.late
        return value

    def arrive(self):
        if not self.arrived.done():
            self.arrived.set_result("value")
        return 0 if self.is_asynchronous else self.purgatory.check_and_complete("key")

    def end(self, how):
        """Returns how many operations the call has ended, as far as it says so."""
        match how:
            case "cancel":
                self.task.cancel()
                return 0
            case "value":
                return self.arrive()
            case "check":
                return self.purgatory.check_and_complete("key")
        answer = ENDS[how](self.purgatory)
        return answer if isinstance(answer, int) else 0

    def judge(self, got, numbers):
        """Compares what the caller got, and what calls returned, with all that is told of the
        end."""
        [ended], counted = self.listener.ended, self.purgatory.statistics()
        assert (counted.completed, counted.expired, counted.cancelled) == (
            ended.state is COMPLETED,
            ended.state is EXPIRED,
            ended.state is CANCELLED,
        )
        assert counted.pending == counted.watched == counted.keys == 0
        assert counted.missed_triggers == ended.missed_trigger
        has_completed = ended.state is COMPLETED
        if got in ("value", "late"):
            assert has_completed and not self.given_back
        elif isinstance(got, asyncio.CancelledError):  # the task, before or after the end
            assert len(self.given_back) == 1 if has_completed else len(self.given_back) <= 1
        else:
            assert ended.state is (EXPIRED if type(got) is OperationTimeout else CANCELLED)
            assert (got is LOST) == (ended.cause is Cause.FAILED)
            assert len(self.given_back) <= 1
        if ended.cause in (Cause.FAILED, Cause.KEY) and not self.is_asynchronous:
            assert sum(numbers) == 1
        if ended.cause is Cause.FAILED:
            assert sum(numbers) == 1
        if ended.cause in (Cause.DEADLINE, Cause.FIRST_TRY, Cause.CLOSED):
            assert sum(numbers) == 0


@on_virtual_time
@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("first", ["value", "end"])
@pytest.mark.parametrize("how", [*ENDS])
async def test_first_of_value_and_end_decides(is_asynchronous, first, how):
    wait = Wait(is_asynchronous)
    await asyncio.sleep(0.01)
    order = ("value", how) if first == "value" else (how, "value")
    numbers = [wait.end(each) for each in order]
    got = await wait.task
    await iterations(5)
    wait.judge(got, numbers)
    # A check decides within the call; a run takes an iteration, and so does the start of a task.
    if is_asynchronous or (first == "end" and how not in ("aclose", "acancel_for_key")):
        assert got is LOST if "fail" in how else type(got) is OperationCancelled
    else:
        assert got == "value"


@on_virtual_time
@pytest.mark.parametrize("how", [*ENDS, "deadline"])
@pytest.mark.parametrize(("late", "given_back"), [("late", ["late"]), (False, [])])
async def test_run_that_swallows_its_cancellation_ends(how, late, given_back):
    wait = Wait(True, swallows=True, late=late)
    await asyncio.sleep(0.01)
    if how != "deadline":
        wait.end(how)
    got = await wait.task
    if "fail" in how:
        assert got is LOST
    else:
        assert type(got) is (OperationTimeout if how == "deadline" else OperationCancelled)
    assert (wait.runs, wait.given_back) == (1, given_back)
    assert wait.purgatory.pending == wait.purgatory.watched == 0


@on_virtual_time
async def test_run_that_raises_ends_its_wait_as_failed():
    listener = Listener()
    async with Purgatory(observer=listener) as purgatory:

        async def query():
            await asyncio.sleep(0.1)
            raise LOST

        assert await outcome(purgatory.wait_for(query, ["key"], 5)) is LOST
        [ended] = listener.ended
        assert (ended.state, ended.cause, ended.exception) == (CANCELLED, Cause.FAILED, LOST)


async def race(rng, is_asynchronous):
    """Ends a wait in two or three ways within an iteration of the loop, or nearly so."""
    wait = Wait(is_asynchronous, rng.choice([0, 0, 1, 2]), rng.random() < 0.3)
    await asyncio.sleep(rng.choice([0.01, 4.999, 5]))
    numbers = []
    for how in rng.sample(["value", "check", "cancel", *ENDS], rng.choice([2, 3])):
        numbers.append(wait.end(how))
        if rng.random() < 0.3:
            await iterations(rng.choice([1, 2]))
    got = await wait.task
    await iterations(5)
    wait.judge(got, numbers)
    await wait.purgatory.aclose()


@on_virtual_time
@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_random_races_have_one_end(is_asynchronous, seed):
    rng = random.Random(seed)
    for _ in range(150 * THOROUGHNESS):
        await race(rng, is_asynchronous)


# What ended it


CAUSES = {
    "first run": (0, 0, (Cause.FIRST_TRY, None, 0, False)),
    "check": (1, 1, (Cause.KEY, "key", 1, False)),
    "second check": (2, 2, (Cause.KEY, "key", 2, False)),
    "no check": (1, 0, (Cause.DEADLINE, None, 1, True)),
    "a check in vain, then none": (2, 1, (Cause.DEADLINE, None, 2, True)),
}


@on_virtual_time
@pytest.mark.parametrize("takes", [0, 0.1])
@pytest.mark.parametrize(("false_runs", "checks", "expected"), CAUSES.values(), ids=[*CAUSES])
async def test_asynchronous_wait_tells_its_cause_and_key(takes, false_runs, checks, expected):
    listener, runs = Listener(), []
    async with Purgatory(observer=listener) as purgatory:

        async def query():
            await asyncio.sleep(takes)
            runs.append(True)
            return len(runs) > false_runs

        task = asyncio.create_task(purgatory.wait_for(query, ["other", "key"], 10))
        for _ in range(checks):
            await asyncio.sleep(1)
            purgatory.check_and_complete("key")
        assert await task
        [ended] = listener.ended
        assert ended[7:11] == expected
        assert purgatory.statistics().missed_triggers == expected[3]
        assert [(key, tried) for key, tried, _ in listener.checks] == [("key", 1)] * checks
        assert sum(completed for *_, completed in listener.checks) == (expected[0] is Cause.KEY)


# The last run


@on_virtual_time
@pytest.mark.parametrize(
    ("takes", "timeout", "begins"),
    [(0.1, 10, 9.8), (0.005, 10, 9.99), (3, 10, 9), (0, 10, 9.999), (0.1, 0.5, 0.45)],
)
async def test_last_run_begins_before_the_deadline(takes, timeout, begins):
    loop, began = asyncio.get_running_loop(), []
    started = loop.time()
    async with Purgatory() as purgatory:

        async def query():
            began.append(loop.time() - started)
            await asyncio.sleep(takes)
            return False

        assert type(await outcome(purgatory.wait_for(query, ["key"], timeout))) is OperationTimeout
        assert began == [0, pytest.approx(begins, abs=0.0011)]
        assert loop.time() - started == pytest.approx(timeout, abs=0.0011)


@on_virtual_time
async def test_check_during_last_run_is_no_miss():
    listener, runs = Listener(), []
    async with Purgatory(observer=listener) as purgatory:

        async def query():
            runs.append(True)
            if len(runs) == 2:
                purgatory.check_and_complete("key")
            await asyncio.sleep(0.1)
            return len(runs) > 1

        assert await purgatory.wait_for(query, ["key"], 10)
        [ended] = listener.ended
        assert (ended.cause, ended.key, ended.missed_trigger) == (Cause.KEY, "key", False)
