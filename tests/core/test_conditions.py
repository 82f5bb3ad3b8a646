"""Runs of asynchronous predicates, and the texts of errors of waits."""

import asyncio

import pytest
from helpers import iterations, outcome
from loops import on_virtual_time

from purgatory import OperationTimeout, Purgatory, PurgatoryFull


@on_virtual_time
async def test_checks_during_a_run_cause_one_run(purgatory):
    values, runs = [0], []

    async def query():
        runs.append((values[-1], asyncio.current_task()))
        await asyncio.sleep(1)
        return runs[-1][0]

    waiting = asyncio.create_task(purgatory.wait_for(query, ["key"], 30))
    await asyncio.sleep(0.5)
    for values[-1] in range(8):
        purgatory.check_and_complete("key")
    await asyncio.sleep(0.4)
    assert runs == [(0, waiting)]
    assert await waiting == 7 and runs == [(0, waiting), (7, waiting)]
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
